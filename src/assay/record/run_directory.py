"""The run directory: it is written under a temporary name and renamed, and later only files are added to it.

Everything that other processes need to know about an attempt is a file here: its process (`lease.N`), the reason to
stop it (`stop.N`), the ends of its commands (markers) and the conclusion (`outcome.N`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from assay.errors import FormatError, InfrastructureError
from assay.record.folders import find_run_dirs as find_run_dirs  # noqa: PLC0414 imported from here
from assay.record.formats import FORMATS, build_damage, read_versioned, stamp
from assay.record.received import check_executable, load_received, set_aside
from assay.system.fast_dataclasses import asdict, dataclass, field, replace
from assay.system.files import blake2b, list_names, publish, read_text, rename, try_text, write_atomic, write_new
from assay.system.locks import locked
from assay.values import layout
from assay.values.environment import Environment
from assay.values.hooks import NATIVE
from assay.values.plain import WrongTypeError, keep_fitting, parse_strict
from assay.values.run import ELSEWHERE, JobHandle, Outcome, RunSpec, State, Stop
from assay.values.study import LOCAL, CodePolicy, Pattern, Resources

T = TypeVar("T")
_TIME_NOTE = r"(?m)^[ \t]*(\d+(?:[.,]\d*)?)[ \t]+(\S+)[ \t]+(start|exit)(?=\s|$)"  # a line of job.log
TAKEN_BACK = "taken back before its end"  # the beginning of the reason of an attempt that its engine or a fence ended


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`run.json`: the spec, and how this directory was created."""

    spec: RunSpec
    study: str
    uid: str  # random: distinguishes directories of the same spec
    created_at: float
    source: str = ""  # path of the study's file
    workdir: str = layout.CODE_DIR
    code_hash: str | None = None
    dialect: str = NATIVE.name
    set_number: int | None = None  # number of the call that the run belongs to, if the dialect counts calls
    commit: str | None = None
    overrides: tuple[str, ...] = ()  # NAME=VALUE words of the command line, without their secrets
    settings: tuple[str, ...] = ()  # KEY=VALUE of --set, without their secrets
    parent: str | None = None  # key of the run that this run repeats with changes (`assay rerun RUN NAME=VALUE`)
    file_hash: str | None = None  # hash of the study's file, with a copy in `.assay/files`
    trial: int | None = None  # number of the trial, if the run is one of a search
    search_from: int | None = None  # number of the first trial of the run's search, which `--search new` changes
    search: Mapping[str, Any] | None = None  # state that the sampler of the run's search needs again
    origin: Mapping[str, Any] | None = None  # source of a run of another tool: `tool`, `path`, `id`, `name`, `at`, …
    earlier_codes: Mapping[str, str] | None = None  # number of a snapshot's last attempt → hash of the snapshot

    @property
    def tool(self) -> str:
        """The tool that the run was imported from; empty for a run of Assay."""
        return str(self.origin.get("tool", "")) if self.origin else ""

    def find_code(self, attempt: int) -> str | None:
        """Return the hash of the snapshot that an attempt used."""
        earlier = {int(number): code for number, code in (self.earlier_codes or {}).items() if number.isdecimal()}
        return earlier[min(later)] if (later := [number for number in earlier if number >= attempt]) else self.code_hash


def new_uid() -> str:
    return os.urandom(6).hex()


# ---------------------------------------------------------------- writing


def write_run_dir(path: str, record: RunRecord, job: str | None, fill: Callable[[str], None] | None = None) -> bool:
    """Write a run directory under a temporary name and rename it; return False if it exists. `job`: text of job.sh."""
    meta = os.path.join(os.path.dirname(path), layout.STUDY_META_DIR)
    aside = os.path.join(meta, f"{layout.TEMPORARY_PREFIX}{record.uid}")
    try:
        try:
            os.mkdir(aside)
        except FileNotFoundError:
            os.makedirs(aside)
        write_new(os.path.join(aside, layout.RUN_FILE), render_record(record))
        if job is not None:
            write_new(os.path.join(aside, layout.JOB_FILE), job, mode=0o777)
        if fill is not None:
            fill(aside)
        _rename_run(aside, path)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise InfrastructureError(f"cannot write the run directory {path}: {error.strerror}") from error
    return True


def _rename_run(aside: str, path: str) -> None:
    try:
        rename(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or set_aside(path) is None:
            raise
        rename(aside, path)  # an upload had the name, and was moved aside


def publish_lease(run_dir: str, handle: JobHandle) -> bool:
    """Claim the attempt of `handle`; return True for exactly one caller. Raise FormatError for a received run."""
    check_executable(run_dir)
    target = layout.numbered_path(run_dir, "lease", handle.attempt)
    return publish(target, json.dumps(asdict(handle)))


def write_stop(run_dir: str, attempt: int, stop: Stop) -> bool:
    """Record that an attempt is stopped on purpose, before it is stopped."""
    is_first = publish(layout.numbered_path(run_dir, "stop", attempt), json.dumps(asdict(stop)))
    if stop.kind == "fence":  # a copy replaces the log: job.sh has the old file open, so its later lines are lost
        log = os.path.join(run_dir, layout.JOB_LOG)
        with suppress(OSError):
            write_atomic(log, read_text(log))
    return is_first


def write_outcome(run_dir: str, outcome: Outcome) -> bool:
    """Write the outcome of an attempt, unless a readable one was written before; return whether it was written."""
    target, text = layout.numbered_path(run_dir, "outcome", outcome.attempt), json.dumps(asdict(outcome))
    if publish(target, text):
        return True
    if load_outcome(run_dir, outcome.attempt) is None:
        write_atomic(target, text, repair=True)
        return True
    return False


def merge_codes(path: str, planned: Mapping[str, str], *, replace: bool) -> dict[str, str]:
    """Return the code of each planned run (run id → hash). The recorded hash is kept, unless `replace`."""
    with locked(os.path.dirname(path)):
        # runs whose entry is damaged get the current code
        known = {key: code for key, code in _load_mapping(path, "codes").items() if isinstance(code, str)}
        merged = {**known, **planned} if replace else {**planned, **known}
        if merged != known:
            write_atomic(path, json.dumps(stamp({"codes": merged}, "codes")), repair=True)
    return merged


def write_plan(study_dir: str, runs: Mapping[str, str], key: Sequence[str] = ()) -> None:
    """Write the runs of a call (name → id) before its first directory is made: the plan remains if the call is killed.
    `key`: overrides and other options by which calls differ in their runs; each key has its own file."""
    write_atomic(_plan_path(study_dir, key), json.dumps(stamp({"runs": dict(runs)}, "plan")), repair=True)


def remove_plan(study_dir: str, key: Sequence[str] = ()) -> None:
    """Remove the plan of a call whose runs have all ended."""
    with suppress(FileNotFoundError):
        os.unlink(_plan_path(study_dir, key))


def _plan_path(study_dir: str, key: Sequence[str]) -> str:
    name = layout.PLAN_FILE
    if key:
        digest = blake2b(json.dumps(sorted(key)).encode(), digest_size=6).hexdigest()
        name = f"{layout.PLAN_PREFIX}{digest}.json"
    return os.path.join(study_dir, layout.STUDY_META_DIR, name)


def load_planned(study_dir: str) -> dict[str, str]:
    """Return the planned runs without a directory as name → id, in the order of the plans."""
    folder = os.path.join(study_dir, layout.STUDY_META_DIR)
    found: dict[str, Any] = {}
    plans = sorted(filter(layout.is_plan_name, list_names(folder)))
    for name in sorted(plans, key=lambda name: name != layout.PLAN_FILE):
        found = {**_load_mapping(os.path.join(folder, name), "runs"), **found}
    names = {name: id_ for name, id_ in found.items() if isinstance(id_, str) and "/" not in name and name[:1] != "."}
    return {name: id_ for name, id_ in names.items() if name and not os.path.lexists(os.path.join(study_dir, name))}


def find_passes(study_dir: str) -> list[str]:
    """Return the files of all calls with --force that are not complete."""
    folder = os.path.join(study_dir, layout.STUDY_META_DIR)
    return sorted(os.path.join(folder, name) for name in list_names(folder) if layout.is_pass_name(name))


def load_pass(path: str) -> dict[str, int]:
    """Return run name → last attempt before a --force began. A damaged file is read as empty: all its runs repeat."""
    runs = _load_mapping(path, "runs")
    return {name: number for name, number in runs.items() if type(number) is int and number >= 0}


def join_pass(path: str, last: Mapping[str, int]) -> dict[str, int]:
    """Begin a --force, or continue an interrupted one; `last`: run name → its newest attempt at this time."""
    with locked(os.path.dirname(path)):
        known = load_pass(path)
        mine = {name: min(known.get(name, number), number) for name, number in last.items()}
        if known | mine != known:
            _write_pass(path, known | mine)
    return mine


def leave_pass(path: str, last: Mapping[str, int]) -> None:
    """Remove the finished runs `last` from a --force, unless one of them has not been repeated."""
    with locked(os.path.dirname(path)):
        known = load_pass(path)
        if any(last[name] <= number for name, number in known.items() if name in last):
            return
        rest = {name: number for name, number in known.items() if name not in last}
        if rest == known:
            return
        if rest:
            _write_pass(path, rest)
        else:
            os.unlink(path)


def _write_pass(path: str, runs: Mapping[str, int]) -> None:
    write_atomic(path, json.dumps(stamp({"runs": dict(runs)}, "pass")), repair=True)


def keep_file(study_dir: str, text: str, *, is_secret: bool) -> str:
    """Keep a copy of the study's file and return its hash. Only the owner may read a copy with secrets."""
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    path = find_file(study_dir, digest)
    if load_file(study_dir, digest) is None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, text, 0o600 if is_secret else 0o666, repair=True)
    return digest


def load_file(study_dir: str, digest: str) -> str | None:
    """Return the kept copy with this hash; None if it is missing or damaged."""
    text = try_text(find_file(study_dir, digest))
    found = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return text if found == digest else None


def find_file(study_dir: str, digest: str) -> str:
    return os.path.join(study_dir, layout.STUDY_META_DIR, layout.FILES_DIR, f"{digest}.yml")


def write_environment(path: str, environment: Environment) -> None:
    write_atomic(path, json.dumps(stamp(asdict(environment), "environment"), indent=1), repair=True)


def load_environment(run_dir: str) -> dict[str, Any] | None:
    """Return the recorded environment without fields of a wrong type; None if it is missing or damaged."""
    fields = _load_json(os.path.join(run_dir, layout.ENVIRONMENT_FILE))
    return keep_fitting(Environment, fields) if fields is not None else None


def leaves_root(run_dir: str, name: str) -> bool:
    """Return whether a file of the run is a link that leads out of the root: its content must not be published."""
    path = os.path.join(run_dir, name)
    if not os.path.islink(path):
        return False
    root = os.path.realpath(os.path.join(run_dir, os.pardir, os.pardir))
    return not os.path.realpath(path).startswith(os.path.join(root, ""))


# ---------------------------------------------------------------- newer code


def offer_code(run_dir: str, code_hash: str, build: Callable[[str], None]) -> None:
    """Put newer code next to code/, complete and under a name of its own; `take_code` renames it to code/."""
    meta = os.path.join(os.path.dirname(run_dir), layout.STUDY_META_DIR)
    aside = os.path.join(meta, f"{layout.TEMPORARY_PREFIX}{new_uid()}")
    try:
        build(aside)
        rename(aside, os.path.join(run_dir, f"{layout.NEXT_CODE_PREFIX}{code_hash}"))
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def take_code(run_dir: str, attempt: int, commit: str | None = None) -> RunRecord | None:
    """Rename waiting code to code/, and the old code/ to code.<attempt>, its last attempt. None: no code waits. If a
    call is killed, another one completes it, as the waiting name is removed last. Only the holder of the lease of an
    attempt that has not begun may call this."""
    waiting = next((name for name in os.listdir(run_dir) if name.startswith(layout.NEXT_CODE_PREFIX)), None)
    if waiting is None:
        return None
    record = load_record(run_dir)
    code_hash = waiting.removeprefix(layout.NEXT_CODE_PREFIX)
    if record.code_hash != code_hash:
        earlier = record.earlier_codes
        if record.code_hash and attempt:
            earlier = {**(earlier or {}), str(attempt): record.code_hash}
        record = replace(record, code_hash=code_hash, commit=commit, earlier_codes=earlier)
        write_atomic(os.path.join(run_dir, layout.RUN_FILE), render_record(record), repair=True)
    code = os.path.join(run_dir, layout.CODE_DIR)
    if os.path.lexists(code) and not attempt:
        shutil.rmtree(code)  # no attempt used this code
    elif os.path.lexists(code):
        kept = f"{code}.{attempt}"  # code that a run used is never overwritten
        rename(code, kept if not os.path.lexists(kept) else f"{kept}-{os.urandom(3).hex()}")
    rename(os.path.join(run_dir, waiting), code)
    return record


# ---------------------------------------------------------------- run.json


_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


def render_record(record: RunRecord) -> str:
    fields = {name: getattr(record, name) for name in RunRecord.__dataclass_fields__ if name != "spec"}
    return _encode(stamp({**fields, "spec": render_spec(record.spec)}, "run")) + "\n"


def render_spec(spec: RunSpec) -> dict[str, Any]:
    fields = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    fields["params"] = dict(spec.params)
    fields["commands"] = [[c.name, c.text, c.timeout_s] for c in spec.commands]
    fields["resources"] = asdict(spec.resources) if spec.resources != _DEFAULT_RESOURCES else None
    fields["code"] = asdict(spec.code) if spec.code != _DEFAULT_CODE else None
    if spec.resume is not None:
        fields["resume"] = asdict(spec.resume)
    else:
        del fields["resume"]
    fields["patterns"] = [
        {
            "type": "regex" if isinstance(pattern, Pattern) else "file",
            **{name: getattr(pattern, name) for name in pattern.__dataclass_fields__ if name != "position"},
        }
        for pattern in spec.patterns
    ]
    return fields


_SPEC_FIELDS = tuple(name for name in RunSpec.__dataclass_fields__ if name != "private")
_DEFAULT_RESOURCES = Resources()
_DEFAULT_CODE = CodePolicy()


def parse_record(text: str, file: str) -> RunRecord:
    fields = read_versioned(text, "run", file)
    try:
        spec = fields.get("spec") or {  # a script that was started by hand has no spec
            "id": fields.get("id", ""),
            "name": fields["name"],
            "params": fields.get("params", {}),
            "commands": [],
        }
        record = parse_strict(RunRecord, {"uid": "", "created_at": 0.0, **fields, "spec": _drop_defaults(spec)})
        _check_log_names(record.spec)
        _check_uid(record.uid)
    except KeyError as error:
        raise build_damage(file, f"{error} is missing", FORMATS["run"]) from error
    except WrongTypeError as error:
        raise build_damage(file, str(error), FORMATS["run"]) from error
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        # Python's message would not help a user who edited the file
        raise build_damage(file, "its content does not have the form of a run's record", FORMATS["run"]) from error
    return record


def parse_spec(fields: Mapping[str, Any]) -> RunSpec:
    """Parse the fields of `render_spec`; raise ValueError, TypeError, KeyError or AttributeError."""
    spec = parse_strict(RunSpec, _drop_defaults(fields))
    _check_log_names(spec)
    return spec


def _drop_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Remove values that stand for a default, and fields that are never read from a file."""
    return {
        name: value
        for name, value in fields.items()
        if name != "private" and (value is not None or name not in ("resources", "code"))
    }


def _check_log_names(spec: RunSpec) -> None:
    """Raise ValueError if a template contains fields that Assay does not fill in."""
    for template in (spec.log_name, spec.other_log_name):
        layout.log_name(template, "", 1, "")


def _check_uid(uid: str) -> None:
    """Raise an error for an invalid uid: it becomes a part of paths, on this host and on others."""
    if not re.fullmatch(r"[\w-]*", uid):
        raise WrongTypeError(f"uid is {uid!r:.80}, which Assay does not make")


def load_record(run_dir: str, file: str = "") -> RunRecord:
    """Load run.json; raise FormatError if it is damaged, FileNotFoundError if missing. `file`: its name in messages."""
    path = os.path.join(run_dir, layout.RUN_FILE)
    try:
        return parse_record(read_text(path), file or path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise FormatError(f"{file or path} cannot be read: {error.strerror}") from error


def load_overrides(run_dir: str) -> tuple[str, ...]:
    """Load only the overrides of a run, for lists of thousands of runs, most of which have no overrides."""
    if '"overrides": ["' not in try_text(os.path.join(run_dir, layout.RUN_FILE)):
        return ()
    record = try_record(run_dir)
    return record.overrides if record else ()


def try_record(run_dir: str) -> RunRecord | None:
    """Return the record of a run; None if it is missing or damaged."""
    try:
        return load_record(run_dir)
    except (FormatError, OSError):
        return None


def find_damage(run_dir: str) -> str | None:
    """Describe what is wrong with run.json; None if it can be read."""
    try:
        load_record(run_dir, layout.RUN_FILE)
    except FormatError as error:
        return error.message
    except OSError as error:
        return f"{layout.RUN_FILE} is missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
    return None


def load_job_field(run_dir: str, name: str) -> str | None:
    """Return the value that job.sh exports as `name`, such as ASSAY_RUN_ID, for a run whose run.json is lost."""
    found = re.search(rf"\b{name}=([\w-]+)", try_text(os.path.join(run_dir, layout.JOB_FILE)))
    return found[1] if found else None


# ---------------------------------------------------------------- attempts


@dataclass(frozen=True, slots=True)
class Attempt:
    """The files of one attempt."""

    number: int
    handle: JobHandle | None = None
    stop: Stop | None = None
    outcome: Outcome | None = None
    codes: Mapping[str, int] = field(default_factory=dict)
    timeouts: frozenset[str] = frozenset()
    contradictory: frozenset[str] = frozenset()  # commands with markers of several exit codes
    ended_at: float | None = None  # time of the last marker, if the attempt has no outcome
    is_warned: bool = False  # the farm warned of a time limit, or ended the attempt at the limit
    late: frozenset[str] = frozenset()  # commands that ended after the warning, with any exit code

    @property
    def is_fenced(self) -> bool:
        """Whether the attempt was given up for its successor: its later results do not count."""
        return self.stop is not None and self.stop.kind == "fence"

    @property
    def skips(self) -> set[str] | None:
        """The commands that the attempt left out; None if unknown."""
        if self.handle is None or self.handle.skips is None:
            return None
        return set(filter(None, self.handle.skips.split(":")))


@dataclass(frozen=True, slots=True)
class History:
    """All attempts of a run, oldest first."""

    attempts: tuple[Attempt, ...] = ()

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def state(self) -> State:
        """The state that the files alone show, without checking whether a process is alive."""
        last = self.last
        if last is None:
            return State.QUEUED
        return last.outcome.state if last.outcome else State.RUNNING

    def finished_commands(self) -> set[str]:
        """Return the commands that succeeded in the newest attempt that ran them: they are not repeated. A command
        whose repeat by --force was interrupted is not finished, even if it succeeded in an earlier attempt."""
        finished: set[str] = set()
        for attempt in self.attempts:
            skips = attempt.skips
            finished = finished if skips is None else finished & skips
            finished |= {name for name, code in attempt.codes.items() if code == 0 and name not in attempt.late}
        return finished


def load_history(run_dir: str, names: list[str] | None = None) -> History:
    numbered: dict[int, set[str]] = {}
    codes: dict[int, dict[str, int]] = {}
    timeouts: dict[int, set[str]] = {}
    contradictory: dict[int, set[str]] = {}
    names = names if names is not None else os.listdir(run_dir)
    for name in names:
        if (marker := layout.parse_exit_marker(name)) is not None:
            known = codes.setdefault(marker[1], {})
            if known.get(marker[0], marker[2]) != marker[2]:
                contradictory.setdefault(marker[1], set()).add(marker[0])
            known[marker[0]] = max(known.get(marker[0], 0), marker[2])  # of contradictory codes, 0 is never used
        elif (item := layout.parse_numbered(name)) is not None:
            numbered.setdefault(item[1], set()).add(item[0])
        elif (late := layout.parse_timeout_marker(name)) is not None:
            timeouts.setdefault(late[1], set()).add(late[0])
    attempts = [
        _load_attempt(run_dir, number, numbered.get(number, set()), codes.get(number, {}), timeouts.get(number, set()))
        for number in sorted({*numbered, *codes})
    ]
    received = load_received(run_dir) if layout.RECEIVED_FILE in names else None
    if received is not None and received.needs_code:
        attempts = [_forget_processes(each, received.at) for each in attempts]
    attempts = [_doubt(attempt, contradictory.get(attempt.number)) for attempt in attempts]
    return History((*map(_conclude_fenced, attempts, attempts[1:]), *attempts[-1:]))


def _conclude_fenced(attempt: Attempt, successor: Attempt) -> Attempt:
    """Conclude an attempt that a requeued copy of its job replaced without a supervisor: it ended as the copy began."""
    if not attempt.is_fenced or attempt.stop is None or attempt.outcome is not None:
        return attempt
    codes = {name: code for name, code in attempt.codes.items() if name in (successor.skips or ())}
    reason, began_at = f"{TAKEN_BACK}; {attempt.stop.why}", attempt.handle.started_at if attempt.handle else None
    outcome = Outcome(State.LOST, attempt.number, codes, reason, began_at, attempt.stop.at, cause="taken back")
    return replace(attempt, outcome=outcome, codes=codes)


def _load_attempt(run_dir: str, number: int, kinds: set[str], codes: dict[str, int], timeouts: set[str]) -> Attempt:
    has_lease = "lease" in kinds
    lease = _load_value(JobHandle, layout.numbered_path(run_dir, "lease", number)) if has_lease else None
    stop = _load_value(Stop, layout.numbered_path(run_dir, "stop", number)) if "stop" in kinds else None
    outcome = load_outcome(run_dir, number) if "outcome" in kinds else None
    status = _load_status(run_dir, number) if "end" in kinds and lease and lease.executor == "local" else None
    if status is not None and not codes:
        codes = {layout.SCRIPT: status}
    if stop is not None and stop.kind == "fence" and outcome is not None:
        codes = dict(outcome.codes)  # markers that were written after the outcome do not count
    return Attempt(
        number=number,
        handle=lease if has_lease else _load_token(run_dir, number),
        stop=stop or (Stop("unknown", "") if "stop" in kinds else None),
        outcome=outcome,
        codes=codes,
        timeouts=frozenset(timeouts),
        ended_at=_find_end(run_dir, number, codes) if outcome is None else None,
        is_warned="warned" in kinds,
        late=_find_late(run_dir, number, codes) if "warned" in kinds else frozenset(),
    )


def _find_late(run_dir: str, number: int, codes: Mapping[str, int]) -> frozenset[str]:
    """Return the commands that ended after the warning of a time limit: with exit code 0, they may only have saved."""
    try:
        warned_at = os.stat(layout.numbered_path(run_dir, "warned", number)).st_mtime
        ends = {name: _find_end(run_dir, number, {name: code}) for name, code in codes.items()}
    except OSError:
        return frozenset(codes)
    return frozenset(name for name, ended_at in ends.items() if ended_at is None or ended_at >= warned_at)


def _forget_processes(attempt: Attempt, at: float) -> Attempt:
    """Remove everything that names a process, a host or a job from the handle of a received attempt, so that nothing is
    asked, watched or ended by it; keep its times. `at`: when the run was received."""
    handle = attempt.handle
    if handle is None:
        if attempt.outcome is not None:
            return attempt
        # without a handle, the processes of the attempt would be looked for by the uid in run.json, which came too
        handle = JobHandle(LOCAL, "", ELSEWHERE, 0, 0, "", None, attempt.number, at)
    neutral = replace(handle, executor=LOCAL, native_id="", pid=0, start=0, boot=ELSEWHERE, tag="", farm_root="")
    return replace(attempt, handle=replace(neutral, supervisor_pid=0, supervisor_start=0, attempt=attempt.number))


def neutralize_leases(run_dir: str) -> None:
    """Write the leases of a received run without what they name, before the run is adopted and may have own ones."""
    for attempt in load_history(run_dir).attempts:
        if attempt.handle is not None:
            path = layout.numbered_path(run_dir, "lease", attempt.number)
            write_atomic(path, json.dumps(asdict(attempt.handle)), repair=True)


def _doubt(attempt: Attempt, contradictory: set[str] | None) -> Attempt:
    """Change the state DONE of an attempt with contradictory markers to FAILED, whatever was concluded before."""
    if not contradictory:
        return attempt
    attempt = replace(attempt, contradictory=frozenset(contradictory))
    if attempt.outcome is None or attempt.outcome.state is not State.DONE:
        return attempt
    reason = describe_contradiction(attempt)
    return replace(attempt, outcome=replace(attempt.outcome, state=State.FAILED, reason=reason, codes=attempt.codes))


def describe_contradiction(attempt: Attempt) -> str:
    names = ", ".join(sorted(attempt.contradictory))
    return f"{names}: exit markers contradict each other in attempt {attempt.number}"


def _load_status(run_dir: str, number: int) -> int | None:
    """Return the exit status of a script that opened this run; None if it was killed or has not ended."""
    data = try_text(layout.numbered_path(run_dir, "end", number)).encode("utf-8", "surrogateescape")
    return data[0] if len(data) == 2 and data[0] == data[1] else None


def find_commands(spec: RunSpec) -> tuple[str, ...]:
    """Return the commands that decide about a run; if a script opened the run, the script itself."""
    return tuple(command.name for command in spec.commands) or (layout.SCRIPT,)


def _find_end(run_dir: str, number: int, codes: Mapping[str, int]) -> float | None:
    """Return when the last of the commands in `codes` ended, by the times of its markers."""
    times = []
    names = [layout.exit_marker_name(name, number, code) for name, code in codes.items()]
    for name in [*names, layout.numbered_name("end", number)] if layout.SCRIPT in codes else names:
        with suppress(OSError):
            times.append(os.stat(os.path.join(run_dir, name)).st_mtime)
    return max(times, default=None)


def _load_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it is missing, empty or damaged, as after a power cut."""
    try:
        fields = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _load_mapping(path: str, name: str) -> dict[str, Any]:
    """Return the mapping under `name` in a file; empty if the file is missing or damaged."""
    found = (_load_json(path) or {}).get(name)
    return found if isinstance(found, dict) else {}


def _load_value(kind: type[T], path: str) -> T | None:
    fields = _load_json(path)
    try:
        return parse_strict(kind, fields) if fields else None
    except (ValueError, TypeError, AttributeError):
        return None


def _load_token(run_dir: str, attempt: int) -> JobHandle | None:
    """Return the handle of an attempt without a lease, from its token `host pid start boot time`; None if damaged."""
    try:
        host, pid, start, boot, stamp = read_text(layout.numbered_path(run_dir, "token", attempt)).split()
        handle = JobHandle("local", pid, host, int(pid), int(start), boot, None, attempt, float(stamp), skips="")
        return parse_strict(JobHandle, asdict(handle))  # the numbers in a token may be out of range
    except (OSError, ValueError, TypeError):
        return None


def load_checkpoint(run_dir: str, attempt: int) -> str:
    """Return the checkpoint that an attempt began with; empty if it began without a checkpoint."""
    handle = _load_value(JobHandle, layout.numbered_path(run_dir, "lease", attempt))
    return handle.begins.checkpoint if handle and handle.begins else ""


def load_outcome(run_dir: str, attempt: int) -> Outcome | None:
    return _load_value(Outcome, layout.numbered_path(run_dir, "outcome", attempt))


def load_times(run_dir: str) -> dict[str, tuple[float, float | None]]:
    """Return start and end of each command of the last attempt, from the lines of job.sh in job.log."""
    times: dict[str, tuple[float, float | None]] = {}
    for text, name, what in re.findall(_TIME_NOTE, try_text(os.path.join(run_dir, layout.JOB_LOG))):
        at = float(text.replace(",", "."))  # bash uses the locale's decimal mark
        if what == "start":
            times[name] = (at, None)
        elif name in times:
            times[name] = (times[name][0], at)
    return times


def find_begin(run_dir: str, handle: JobHandle) -> float | None:
    """Return when a job began, by the clock of its lease; None if its farm has not started it. On a farm the job waited
    from its lease to its token: the file system dates both."""
    if handle.executor == "local":
        return handle.started_at
    try:
        token = os.stat(layout.numbered_path(run_dir, "token", handle.attempt)).st_mtime
        lease = os.stat(layout.numbered_path(run_dir, "lease", handle.attempt)).st_mtime
    except OSError:
        return None
    return handle.started_at + max(0.0, token - lease)


def find_span(run_dir: str, handle: JobHandle, codes: Mapping[str, int], seen_at: float) -> tuple[float, float]:
    """Return when an ended job began and ended, by one clock; `seen_at`: when the end was noticed. On a farm, the
    duration is measured by the node's clock, in job.log: times of two machines are never compared."""
    begun_at = find_begin(run_dir, handle) or handle.started_at
    if handle.executor == "local":
        return begun_at, seen_at
    times = load_times(run_dir)
    spans = [times[name] for name in codes if name in times]
    first = min((start for start, _ in spans), default=0.0)
    ends = [end for start, end in times.values() if start >= first and spans]
    took_s = max(0.0, max(filter(None, ends)) - first) if ends and None not in ends else 0.0
    begun_at = max(handle.started_at, min(begun_at, seen_at - took_s))
    return begun_at, begun_at + took_s if took_s else max(begun_at, seen_at)


def conclude(attempt: Attempt, commands: tuple[str, ...], finished_before: set[str]) -> State | None:
    """Return the state that the markers of an attempt show; None if it ended before all markers were written."""
    bad = [name for name, code in attempt.codes.items() if code != 0]
    if bad:
        return State.TIMEOUT if bad[0] in attempt.timeouts else State.FAILED
    if all(name in attempt.codes or name in finished_before for name in commands):
        return State.FAILED if attempt.late else State.DONE
    return None

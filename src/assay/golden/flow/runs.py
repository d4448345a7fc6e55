"""The runs from which a golden is recorded: the training, new or continued, with its lock and provenance; and segments
that are run again from their checkpoints. The difference between equal runs is noise."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from assay.code.tree import Selection, load_tree
from assay.errors import FormatError, InfrastructureError, UsageError
from assay.execute.places import load_place
from assay.follow.api import Entry, FoundRun
from assay.golden import manifests
from assay.golden.flow.followers import SegmentFollower, describe_end, follow_runs
from assay.golden.flow.segments import (
    ENDED_WELL,
    GoldenContext,
    build_key,
    build_run,
    build_stamp,
    describe_key,
    find_image,
    find_other,
)
from assay.golden.judge.evidence import find_early_step
from assay.golden.judge.golden import SegmentNoise, build_rule_facts
from assay.golden.judge.pointwise import render_fraction
from assay.golden.recorder import Values
from assay.golden.values import Golden, Rule, Segment, SegmentRun, Track, list_gpus
from assay.launch.api import Report, RunHooks, first_program, stop
from assay.observe.environment import list_installed, load_git
from assay.record import run_directory
from assay.record.received import is_foreign
from assay.show.formatting import join_first
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.locks import hold_file
from assay.values.run import RunSpec
from assay.values.verdict import Finding, VerdictKind

_SEED = re.compile(r"(?:^|\s)-{0,2}([\w.-]*seed[\w.-]*)[= ](\S+)", re.IGNORECASE)
# What counts as code without git: programs and their settings, not the data and logs that a program writes.
_CODE = re.compile(
    r".*\.(pyx?|pxd|ipynb|(ba)?sh|pl|r|jl|lua|[jt]s|rs|go|java|c|cc|cpp|cxx|cuh?|h|hpp|so|ya?ml|json|toml|cfg|ini|conf|gin)",
    re.IGNORECASE | re.DOTALL,
)
# Environment variables of a terminal, of a session or of Assay, which do not change a training.
_SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM.*|COLORTERM|COLUMNS|LINES|LS_COLORS|PS\d|PROMPT.*|HIST.*|DISPLAY|WAYLAND_.*|WINDOW.*|STY"
    r"|TMUX.*|SSH_.*|XDG_.*|DBUS_.*|VSCODE_.*|GPG_.*|INVOCATION_ID|JOURNAL_STREAM|PYTEST_.*|ASSAY_.*|NO_COLOR|FORCE_COLOR"
)
GATHER_PREFIX = "gather-"
LOCK_SUFFIX = ".lock"
_OTHER_FILES = ("ssh", "ray")  # engines whose machines may have another Python under the same path
_MOST_DIFFERENCES = 8
_MOST_NAMED = 4
_MOST_FILES = 2000  # files of code that a manifest lists


class ReplicaJob(NamedTuple):
    """A segment that is run again: as a replica, or by a variant."""

    segment: int  # index of the segment
    number: int  # number of the replica
    variant: str  # name of the variant, or ""

    @property
    def title(self) -> str:
        return f"the variant {self.variant}" if self.variant else "a replica"


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _load_code(context: GoldenContext, text: str) -> list[Any]:
    """Return the repository's state, and hashes of the code in the program's folder and of files that `text` names."""
    git = load_git(context.folder)
    try:
        files = _load_files(context, text)
    except UsageError:  # code that cannot be read never equals other code
        return [secrets.token_hex(8)]
    return [context.folder, [git.commit, git.diff] if git else None, sorted(files.items())]


def _load_files(context: GoldenContext, text: str) -> dict[str, str | None]:
    tree = load_tree(context.folder, Selection(exclude=(context.location.root, context.store)))
    files = [file for folder in tree.walk() for file in folder.files]
    programs = {file.path for file in files if file.executable and "." not in os.path.basename(file.path)}
    code = {file.path for file in files if _CODE.fullmatch(file.path)} | programs
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    names = sorted(code | {word for word in words if os.path.isfile(os.path.join(context.folder, word))})
    return {name: manifests.hash_checkpoint(os.path.join(context.folder, name)) for name in names}


def load_code_marks(context: GoldenContext) -> dict[str, str]:
    """Hash the code files for the provenance; empty if unknown or too many. The test's own file is left out."""
    try:
        files = _load_files(context, context.build_gather_command())
    except UsageError:
        return {}
    files.pop(os.path.relpath(os.path.realpath(context.options.file), os.path.realpath(context.folder)), None)
    names = {name: name.encode(errors="backslashreplace").decode() for name in files}  # a manifest is UTF-8
    return {names[name]: str(mark)[-16:] for name, mark in files.items()} if len(files) <= _MOST_FILES else {}


def _load_surroundings(context: GoldenContext, text: str) -> list[Any]:
    variables = {name: value for name, value in os.environ.items() if not _SESSION.fullmatch(name)}
    program = first_program(text)
    if program and os.sep in program:
        program = os.path.join(context.folder, program)
    versions = {name: list_installed(name) for name in ("python", "python3", program or "python")}
    farm = context.farm.name if context.farm else None
    return [os.uname().nodename, variables, list(context.test.env), versions, farm]


def build_provenance(context: GoldenContext, entry: Entry, marks: Mapping[str, str]) -> dict[str, object]:
    """Build the provenance, which explains why a later golden differs. `marks`: code hashes from before the run."""
    text = entry.spec.commands[0].text
    return {
        "gathered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **load_origin(entry.dir),
        "image": find_image(context.farm),
        "files": dict(marks),
        "seeds": {name.lstrip("-"): value for name, value in _SEED.findall(text)},
        "config": context.options.file,
        "config_hash": context.config_hash,
        "rules": build_rule_facts(context.test.rules),
        "variants": {variant.name: variant.title for variant in context.test.variants},
        "command": text,
        "run": entry.dir,
    }


def load_origin(run_dir: str) -> dict[str, Any]:
    """Load what a run recorded about its environment. environment.json describes the machine that submitted it: for a
    farm's node only the git state is valid and, if the file system is shared, Python with its packages."""
    environment = run_directory.load_environment(run_dir) or {}
    git = environment.get("git") or {}
    last = run_directory.load_history(run_dir).last
    handle = last.handle if last else None
    place = load_place(run_dir, handle)
    machine = environment if place.host in (None, environment.get("host")) else {}
    python = machine if handle is not None and handle.executor in _OTHER_FILES else environment
    return {
        **{name: git.get(name) for name in ("commit", "branch", "dirty")},
        "uncommitted": _hash(git["diff"]) if git.get("diff") else None,
        "packages": python.get("job_packages") or python.get("packages") or {},
        "python": python.get("python"),
        "os": machine.get("os"),
        "host": place.host or environment.get("host"),
        "job": place.job or None,
        "hardware": {name: machine.get(name) for name in ("cpu", "cpu_count", "gpus", "driver")},
        "fingerprint": machine.get("fingerprint"),
    }


def describe_origin(context: GoldenContext, origin: Mapping[str, Any]) -> dict[str, str]:
    """Describe the environment of the first run of a check, for comparing nights."""
    command = _strip_ours(context, context.build_check_command("", 0))
    return {"command": command, **_flatten_origin(origin)} if origin else {}


def find_differences(context: GoldenContext, golden: Golden, origin: Mapping[str, Any]) -> list[str]:
    """Describe what differs from the recording besides the values: command, configuration, code and environment."""
    if not origin or not golden.provenance:
        return []
    found = list[str]()
    before, now = _flatten_origin(golden.provenance), _flatten_origin(origin)
    commands = [context.build_gather_command(), context.build_check_command("", 0)]
    then, *texts = (_strip_ours(context, text) for text in (str(golden.provenance.get("command", "")), *commands))
    if then and then not in texts:
        found.append(f"command {texts[0]} instead of {then}")
    if golden.provenance.get("config_hash") not in (None, context.config_hash):
        found.append(f"configuration: the text of {context.options.file} has changed")
    marks = load_code_marks(context)
    files = marks and golden.provenance.get("files")
    found += _describe_files(files, marks) if files else []
    names = _list_changed(before, now)
    found += [f"{name} {now.get(name, 'unknown')} instead of {before.get(name, 'unknown')}" for name in names]
    more = len(found) - _MOST_DIFFERENCES
    shown = [*found[:_MOST_DIFFERENCES], *([f"and {more} more"] if more > 0 else [])]
    return shown or [_describe_same(bool(files), now)]


def find_other_environment(context: GoldenContext, golden: Golden, origin: Mapping[str, Any]) -> list[str]:
    """Describe in one line that the golden was recorded with another GPU, torch or image than the runs of a check."""
    here, then = build_key({**origin, "image": find_image(context.farm)}), build_key(golden.provenance)
    text = f"the golden is of {describe_key(then)}; this environment is {describe_key(here)}"
    return [text] if origin and find_other(then, here) else []


def _describe_same(has_code: bool, now: Mapping[str, str]) -> str:
    """Describe what was compared without finding a difference, and what was not compared."""
    compared = {
        "packages": any(name.startswith("package ") for name in now), "Python": "python" in now, "command": True,
        "configuration": True, "device": "cpu" in now or "GPUs" in now,
    }  # fmt: skip
    *same, last = (["code"] if has_code else []) + [name for name, is_known in compared.items() if is_known]
    *other, end = [
        "code elsewhere" if has_code else "code files",
        *(name for name, is_known in compared.items() if not is_known),
        *("data", "environment variables"),
    ]
    return (
        f"unknown: {', '.join(same)} and {last} are those of the recording; "
        f"{', '.join(other)} and {end} were not compared"
    )


def _describe_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe in one line which code and settings in the program's folder differ from those of the recording."""
    names = _list_changed(before, now)
    ends = ["is new" if name not in before else "has changed" if name in now else "is gone" for name in names]
    words = [f"{name} {end}" for name, end in zip(names, ends, strict=True)]
    return [f"code: {join_first(words, _MOST_NAMED)}"] if words else []


def _list_changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]


def _flatten_origin(origin: Mapping[str, Any]) -> dict[str, str]:
    """Flatten the origin into pairs: Python and device first, then the packages."""
    flat = {name: origin.get(name) for name in ("python", "host", "os", "commit")}
    flat["uncommitted changes"] = origin.get("uncommitted") or ("none" if origin.get("dirty") is False else None)
    flat |= {name: (origin.get("hardware") or {}).get(name) for name in ("cpu", "cpu_count", "driver")}
    flat["GPUs"] = ", ".join(list_gpus(origin) or ())
    flat |= {f"package {name}": version for name, version in (origin.get("packages") or {}).items()}
    return {name: str(value) for name, value in flat.items() if value not in (None, "")}


def _strip_ours(context: GoldenContext, text: str) -> str:
    """Remove the flags that Assay sets from a command: the folders and steps in them differ between calls."""
    keys = [flag.key for flag in (*context.test.gather_flags, *context.test.run_flags) if flag.is_set]
    words, kept = iter(context.hide_command(text).split()), list[str]()
    for word in words:
        if word in keys and not word.endswith("="):
            next(words, None)
        elif not any(key.endswith("=") and word.startswith(key) for key in keys):
            kept.append(word)
    return " ".join(kept)


def choose_training(context: GoldenContext, hooks: RunHooks) -> tuple[RunSpec, list[str]]:
    """Return the training that an interrupted or killed gathering left, if it was started from the same code, command
    and environment; else a new training, after ending processes that still write into the same checkpoint folder."""
    text = context.build_gather_command()
    # runs of the same code, environment and command are interchangeable
    origin = {"code": _hash(_load_code(context, text)), "environment": _hash(_load_surroundings(context, text))}
    target = {"manifest": context.manifest} if context.test.from_start else {}  # no checkpoint folder in the command
    spec = context.build_spec(f"{GATHER_PREFIX}{build_stamp()}", text, {"mode": "gather", **origin, **target})
    notes: list[str] = []
    for path in reversed(list(run_directory.find_run_dirs(context.location.dir))):
        name, found = os.path.basename(path), _load_open(path, context)
        if found is None:
            continue
        if found.id == spec.id:
            return replace(spec, name=name), notes
        parts = [part for part in ("code", "environment") if found.params.get(part) != spec.params[part]]
        parts += ["command"] if found.commands != spec.commands else []
        changed = f"the {' and the '.join(parts)} {'have' if len(parts) > 1 else 'has'} changed"
        notes.append(_end(context, path, f"{name} is not continued: {changed}"))
        hooks.console.warning(notes[-1])
    return spec, notes


def _load_open(path: str, context: GoldenContext) -> RunSpec | None:
    """Return the spec of the gathering in `path` if it is unfinished and has the same checkpoint folder or manifest."""
    if not os.path.basename(path).startswith(GATHER_PREFIX) or is_foreign(path):
        return None
    try:
        spec = run_directory.load_record(path).spec
    except (OSError, FormatError):
        return None
    last = run_directory.load_history(path).last
    if not spec.commands:  # a pulled run may have no command
        return None
    words = [word.rstrip(os.sep) for word in spec.commands[0].text.replace("=", " ").split()]
    is_same = spec.params.get("manifest") == context.manifest or shlex.quote(context.checkpoints) in words
    if last is None or not is_same:
        return None
    return spec if last.outcome is None or (last.stop is not None and last.stop.kind == "interrupt") else None


def _end(context: GoldenContext, path: str, why: str) -> str:
    """Stop a training that has not ended. Raises InfrastructureError if it may still be writing."""
    last = run_directory.load_history(path).last
    if last is None or last.outcome is not None:
        return why
    stopped = stop([FoundRun(context.location, path)], (), context.options.grace_s, why).runs[0]
    if not stopped.is_well:
        raise InfrastructureError(f"{why}; and it cannot be ended: {stopped.text}")
    return f"{why}; {stopped.text}"


@contextlib.contextmanager
def lock_store(context: GoldenContext) -> Iterator[None]:
    """Let one gathering at a time record into a manifest. The kernel releases the lock however its owner ends."""

    def refuse(fd: int) -> None:
        owner = os.pread(fd, 200, 0).decode("utf-8", "replace") or "another process"
        hint = f"wait for it, or end it: assay stop {context.location.name}"
        raise UsageError(f"{owner} gathers {context.test.name} into {context.store} now", hint)

    with hold_file(context.manifest + LOCK_SUFFIX, refuse, required=False) as fd:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield


@dataclass(slots=True)
class Replication:
    """Runs every segment of a golden `count` more times, and once with each variant."""

    context: GoldenContext
    golden: Golden  # with the replicas' values as soon as they exist
    count: int
    runs: list[SegmentRun] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _found: dict[ReplicaJob, Values] = field(default_factory=dict)

    def run(self, hooks: RunHooks) -> Report:
        """Run all jobs. If it is unknown how the program counts its steps, one job runs first to find that out."""
        names = ["" for _ in range(self.count)] + [variant.name for variant in self.context.test.variants]
        segments = range(len(self.golden.segments))
        jobs = [ReplicaJob(index, at, name) for at, name in enumerate(names, 1) for index in segments]
        report = None
        if self.golden.steps_beyond is None:
            report, jobs = self._learn(jobs, hooks)
        if jobs and (report is None or not (report.interrupted or report.problem)):
            report, short = self._run_jobs(jobs, self.golden.steps_beyond or 0, hooks)
            if short and not self.golden.steps_beyond and not (report.interrupted or report.problem):
                self.golden = replace(self.golden, steps_beyond=1)
                report, _ = self._run_jobs(short, 1, hooks)
        assert report is not None
        self._learn_start()
        recorded = []
        for index, segment in enumerate(self.golden.segments):
            found = [(job.variant, self._found[job]) for job in sorted(self._found) if job.segment == index]
            variants = {name: cut_values(segment, values) for name, values in found if name}
            replicas = [values for name, values in found if not name]
            recorded.append(replace(add_recordings(segment, replicas), variants=variants))
        self.golden = replace(self.golden, segments=tuple(recorded))
        for job, values in self._found.items():  # neither replicas nor checks can be compared at a lost step
            segment = self._segment(job)
            for metric, step in find_lost_steps(segment, values):
                message = f"{job.title} logs no {metric} at step {step}; the training did"
                finding = self._build_error(f"segment {segment.start_step} {metric}", message, step)
                if finding not in self.findings:
                    self.findings.append(finding)
        return report

    def learn(self, hooks: RunHooks) -> Report:
        """Find out how the program counts its steps, by one run whose values are not kept."""
        return self._learn([ReplicaJob(index, 1, "") for index in range(len(self.golden.segments))], hooks)[0]

    def _learn(self, jobs: Sequence[ReplicaJob], hooks: RunHooks) -> tuple[Report, list[ReplicaJob]]:
        """Run the longest segment: a segment that was cut short does not show whether the last step is missing. Return
        the report, and the jobs that are still to be run."""
        lengths = [segment.last_step - segment.start_step for segment in self.golden.segments]
        job = max(jobs, key=lambda each: (lengths[each.segment], -each.number))
        report, short = self._run_jobs([job], 0, hooks)
        if job in self._found:
            self.golden = replace(self.golden, steps_beyond=1 if short else 0)
            self._learn_start()
        if short:
            del self._found[job]
        return report, [each for each in jobs if each != job or short]

    def _learn_start(self) -> None:
        """Find out whether runs from a checkpoint log the checkpoint's own step, too."""
        found = [(segment := self._segment(job), list_steps(segment, values)) for job, values in self._found.items()]
        known = [each.start_step in steps for each, steps in found if each.start_step not in each.steps]
        self.golden = replace(self.golden, repeats_start=any(known) if known else None)

    def _run_jobs(self, jobs: Sequence[ReplicaJob], beyond: int, hooks: RunHooks) -> tuple[Report, list[ReplicaJob]]:
        """Run jobs; return the report, and the jobs whose runs lack only the last step."""
        stamp = build_stamp()
        specs = {job: self._build_spec(job, stamp, beyond) for job in jobs}
        named = {spec.name: (spec, self._segment(job)) for job, spec in specs.items()}
        report, logged = follow_specs(self.context, named, hooks)
        entries = {entry.spec.name: entry for entry in report.entries}
        for job, spec in specs.items():
            entry, values, segment = entries[spec.name], logged[spec.name], self._segment(job)
            self.runs.append(build_run(entry, values.last_step))
            is_well = entry.state in ENDED_WELL
            what = describe_early(self.context, segment, values) if is_well else f"failed: {describe_end(entry)}"
            if what:
                self.findings.append(self._build_error(f"segment {segment.start_step}", f"{job.title} {what}"))
            else:
                self._found[job] = values
        short = [job for job in jobs if job in self._found and falls_one_short(self._segment(job), self._found[job])]
        return report, short

    def _segment(self, job: ReplicaJob) -> Segment:
        return self.golden.segments[job.segment]

    def _build_error(self, subject: str, message: str, step: float | None = None) -> Finding:
        return Finding(VerdictKind.ERROR, f"{self.context.test.name} {subject}", message, step=step)

    def _build_spec(self, job: ReplicaJob, stamp: str, beyond: int) -> RunSpec:
        segment = self._segment(job)
        named = [self.context.use_variant(each) for each in self.context.test.variants if each.name == job.variant]
        context = named[0] if named else self.context
        saved = os.path.basename(context.find_checkpoint(segment) or segment.checkpoint)[:20]
        name = "-".join(filter(None, ("replica", stamp, f"s{segment.start_step}", saved, str(job.number))))
        return context.build_segment_spec(name, segment, beyond=beyond, number=job.number, variant=job.variant)


def follow_specs(
    context: GoldenContext, specs: Mapping[str, tuple[RunSpec, Segment]], hooks: RunHooks
) -> tuple[Report, dict[str, Values]]:
    """Run segments, by the names of their runs; return the report, and the values of each run by name."""
    followers: dict[str, SegmentFollower] = {}

    def follow(entry: Entry) -> SegmentFollower:
        name = entry.spec.name
        followers[name] = SegmentFollower(context.test, specs[name][1].last_step)
        return followers[name]

    report = context.run_segments([spec for spec, _ in specs.values()], follow_runs(hooks, follow))
    return report, {name: followers[name].values if name in followers else Values() for name in specs}


def describe_early(context: GoldenContext, segment: Segment, values: Values, repeats: bool | None = None) -> str:
    """Describe a step that shows that a run did not begin at its checkpoint, and the flags that it may have ignored."""
    if (step := find_early_step(segment, list_steps(segment, values), repeats)) is None:
        return ""
    if context.test.from_start:
        return f"logs step {step}, before the first that was recorded, {segment.steps[0]}: it counts in another way"
    flags = [flag.key for flag in context.test.run_flags if flag.name in ("checkpoint_input", "start_step")]
    start = segment.start_step
    behind = "the checkpoint's own" if step == start else f"before the checkpoint of step {start}"
    return f"logs step {step}, {behind}: it did not begin there; does the program follow {' and '.join(flags)}?"


def list_steps(segment: Segment, values: Values) -> set[int]:
    """Return the steps at which a run has a value of any metric of the segment."""
    return {step for metric in segment.tracks for step in values.steps_of(metric)}


def find_lost_steps(segment: Segment, values: Values) -> Iterator[tuple[str, int]]:
    """Yield each metric of which a run lacks steps, with the first lost step."""
    for metric, labels in segment.tracks.items():
        if lost := {step for runs in labels.values() for step in runs[0].steps} - values.steps_of(metric):
            yield metric, min(lost)


def falls_one_short(segment: Segment, values: Values) -> bool:
    """Whether a run lacks exactly the last step: a program that counts from 0 and stops at N logs N-1 last."""
    steps = segment.steps
    seen = values.steps
    missing = [step for step in steps if step not in seen]
    return len(steps) > 1 and missing == steps[-1:] and max(seen, default=0) < steps[-1]


def add_recordings(segment: Segment, runs: Sequence[Values], keep: bool = True) -> Segment:
    """Add the runs that have every step of a metric. `keep`: keep the existing recordings, before the new ones."""
    tracks: dict[str, dict[str, tuple[Track, ...]]] = {}
    for metric, label, old in segment.walk():
        cut = [values.cut(metric, label, old[0].steps) for values in runs]
        whole = [track for track in cut if track.steps == old[0].steps]
        tracks.setdefault(metric, {})[label] = (*(old if keep else ()), *whole)
    return replace(segment, tracks=tracks)


def cut_values(segment: Segment, values: Values) -> dict[str, dict[str, Track]]:
    """Return what one run logged at the segment's steps: metric → label → values."""
    found: dict[str, dict[str, Track]] = {}
    for metric, label, runs in segment.walk():
        found.setdefault(metric, {})[label] = values.cut(metric, label, runs[0].steps)
    return found


def is_whole(segment: Segment, values: Values) -> bool:
    """Whether a run logged every step of the segment, and nothing else is wrong with its log."""
    if values.problems or find_early_step(segment, list_steps(segment, values)) is not None:
        return False
    walked = [(values.found.get((metric, label), {}), runs[0].steps) for metric, label, runs in segment.walk()]
    return all(found.keys() >= {*steps} for found, steps in walked)


def describe_noise(found: Sequence[SegmentNoise], rules: Sequence[Rule] = ()) -> list[str]:
    """Describe what a check can detect in each metric's noisiest segment. Metrics with an exact rule are left out."""
    exact = {rule.metric for rule in rules if rule.kind == "exact"}
    worst: dict[str, SegmentNoise] = {}
    for noise in (each for each in found if each.metric not in exact):
        if noise.per_window > worst.setdefault(noise.metric, noise).per_window:
            worst[noise.metric] = noise
    return [
        f"{noise.metric}: noise {render_fraction(noise.per_window)} per window, "
        f"{render_fraction(noise.per_step)} per step ({noise.replicas} replicas); "
        f"CHANGED from {render_fraction(noise.outside)}, "
        f"FAIL from {render_fraction(max(noise.outside, noise.detectable[0]))}; "
        f"suggested delta {render_fraction(noise.suggested_delta)}"
        for noise in worst.values()
    ]


def describe_quiet(context: GoldenContext) -> list[str]:
    """Advise to add a variant to the file if replicas are equal bit for bit, so that harmless changes are known."""
    threads = "1" if dict(context.test.env).get("OMP_NUM_THREADS") == "2" else "2"
    return [
        "the replicas are equal bit for bit: nothing shows how far other kernels or threads move a metric,",
        'so any difference above rounding (the limit after "CHANGED from") is CHANGED',
        f"declare a harmless change in {context.options.file}, such as",
        "  golden:",
        "    variants:",
        f"      other-threads: {{env: {{OMP_NUM_THREADS: {threads}}}}}",
        "and gather again: differences as large as a variant's pass",
    ]

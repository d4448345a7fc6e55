"""Write run directories, and choose the code of each run."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial

from assay.code.snapshot import ChangedFile, Snapshot, list_changes, load_snapshot, place_code, take_snapshot
from assay.errors import AssayError, UsageError
from assay.execute.places import load_liveness
from assay.execute.script import JobText, is_whole_job, render_job, render_secrets
from assay.follow.entry import Entry
from assay.follow.locations import show_command, show_path
from assay.launch.prepared import Prepared
from assay.launch.run_rules import find_rules
from assay.observe.environment import load_environment, load_git
from assay.plugins import find_dialect, find_dialects
from assay.record import run_directory
from assay.record.folders import is_foreign_dir, is_run_dir
from assay.record.received import Received, load_received, write_received
from assay.show.formatting import join_first, render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import Flusher, keep_damaged, list_names, rename, try_text, write_atomic
from assay.system.locks import locked
from assay.values import layout
from assay.values.environment import Environment
from assay.values.notify import Notify, ignore
from assay.values.run import Liveness, Private, RunSpec, State, build_command
from assay.values.secrets import HIDDEN
from assay.values.state import RETRY
from assay.values.study import CodePolicy, MetricFile, quote_inside

_NAMED_FILES = 3
_MOST_NAMED = 10  # a printed command names at most so many runs
_LARGE_BYTES = 50_000_000
_CODE_SUFFIXES = {".py", ".pyx", ".pyi", ".sh", ".bash", ".jl", ".r", ".lua", ".m", ".java", ".js", ".ts"}
_CODE_SUFFIXES |= {".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".rs", ".go", ".proto", ".jinja", ".j2"}
_CONFIG_SUFFIXES = frozenset((".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".conf", ".gin"))
_RESULT_NAME = r"(?i)result|metric|score|histor|summar|report|log|output|pred|eval|loss|curve|stat(s|e|us)?\b"
_STUDY_KEYS = ("command", "commands", "golden", "study")
_READ_BYTES = 65_536


class DirBuilder:
    """Writes run directories; the code snapshot and the provenance are taken once for all runs."""

    def __init__(self, prepared: Prepared, report: Notify = ignore) -> None:
        self._prepared = prepared
        self._rules = find_rules(prepared.study.dialect)
        self._report = report  # prints a message before a run starts
        self._environment: Environment | None = None
        self._environment_path = ""
        self._file_hash: str | None = None
        self.advice: list[str] = []
        self._store = os.path.join(prepared.location.dir, layout.STUDY_META_DIR, layout.CODE_STORE_DIR)
        self.flusher = Flusher(prepared.location.dir)
        self.notes: list[str] = []  # notes at the end of the study's report
        self._present = list_names(prepared.location.dir)  # directories at the start; later ones are complete
        self.snapshot = self._take_snapshot()
        self._snapshots = {self.snapshot.hash: self.snapshot} if self.snapshot else {}
        self._codes = self._pin_codes()
        self._newer: dict[str, tuple[str, Snapshot]] = {}  # run -> its code, and the code of its next attempt
        self._reported: set[str] = set()  # older snapshots that a message has named

    def _take_snapshot(self) -> Snapshot | None:
        """Take the snapshot when the call starts, so that edits during the sweep do not change the runs that wait."""
        study, origins = self._prepared.study, self._prepared.options.origins
        # if every run has the code of the run that it repeats, the current code is not needed
        have_code = all(spec.id in origins and origins[spec.id].code_hash for spec in self._prepared.plan.runs)
        if study.code.kind == "live" or (origins and have_code):
            return None
        is_secret = any(spec.private is not None for spec in self._prepared.plan.runs)
        return self._take(study.folder, os.path.abspath(study.source), study.dialect, study.code, is_secret)

    def _take(self, folder: str, file: str, dialect: str, code: CodePolicy, is_secret: bool) -> Snapshot:
        """Take a snapshot without the study's own file, so that a value added to this file does not change existing
        runs. Study files of other tools are copied; a file with secrets is linked instead."""
        tool, path = find_dialect(dialect), os.path.relpath(file, folder)
        secret = self._prepared.settings.secrets.file_patterns
        if is_secret and not tool.is_ours and not path.startswith(os.pardir):
            # a pattern that matches only this file of the folder
            secret = (*secret, re.sub(r"([*?\[])", r"[\1]", f"/{path}" if "/" in path else path.lower()))
        return take_snapshot(
            folder,
            self._store,
            code.ignore,
            exclude=[self._prepared.location.root, *([file] if tool.is_ours else ())],
            guess=tool.guesses_code,
            link=code.link_ignored,
            secret=secret,
        )

    def _pin_codes(self) -> dict[str, str]:
        """Return the code hash of each planned run, which stays the same, however often the sweep is interrupted."""
        if self.snapshot is None:
            return {}
        path = os.path.join(self._prepared.location.dir, layout.STUDY_META_DIR, layout.CODES_FILE)
        waiting = [spec for spec in self._prepared.plan.runs if spec.name not in self._present]
        planned = {self._code_key(spec): self.snapshot.hash for spec in waiting}
        return run_directory.merge_codes(path, planned, replace=self._prepared.options.new_code)

    def _code_key(self, spec: RunSpec) -> str:
        number = self._prepared.set_number
        return spec.id if number is None else f"{number}:{spec.id}"

    def _snapshot_of(self, spec: RunSpec) -> Snapshot | None:
        """Return the snapshot that the run was planned with; the current code if the snapshot is not available."""
        origin = self._prepared.options.origins.get(spec.id)
        if origin is not None and origin.code_hash is not None:
            if origin.code_hash not in self._snapshots:
                self._snapshots[origin.code_hash] = load_snapshot(self._store, origin.code_hash)
            return self._snapshots[origin.code_hash]
        code = self._codes.get(self._code_key(spec))
        if self.snapshot is None or code is None:
            return self.snapshot
        if code not in self._snapshots:
            try:
                self._snapshots[code] = load_snapshot(self._store, code)
            except (OSError, AssayError):
                self._snapshots[code] = self.snapshot
        return self._snapshots[code]

    def create(self, entry: Entry) -> bool:
        record = self._build_record(entry.spec)
        record = replace(record, trial=entry.trial, search_from=entry.search_from, search=entry.kept)
        self._report_older(entry, record)
        fill = partial(self._fill, spec=entry.spec, run_dir=entry.dir)
        made = run_directory.write_run_dir(entry.dir, record, _render_job(record), fill)
        self.flusher.note()
        entry.record = record if made else None
        return made

    def repair(self, specs: Sequence[RunSpec]) -> list[str]:
        """Repair directories that a power cut left without run.json or job.sh, or move them away; return what was done.
        Directories are examined again under the study's lock, as another supervisor may have repaired them already."""
        meta = os.path.join(self._prepared.location.dir, layout.STUDY_META_DIR)
        present = [spec for spec in specs if spec.name in self._present]
        suspects = [spec for spec in present if _find_damage(self._prepared.dir_of(spec), self._rules.shares_dirs)]
        for spec in present:
            # job.sh would block for ever on a named pipe, and cannot write into a folder
            path = os.path.join(self._prepared.dir_of(spec), layout.JOB_LOG)
            with suppress(OSError):
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    keep_damaged(path)
        if not suspects:
            return []
        with locked(meta):
            return [line for spec in suspects if (line := self._repair(spec, meta))]

    def _repair(self, spec: RunSpec, meta: str) -> str | None:
        run_dir = self._prepared.dir_of(spec)
        damage, record = _find_damage(run_dir, self._rules.shares_dirs), run_directory.try_record(run_dir)
        if damage is None:
            return None
        try:
            if record is not None:
                _write_secrets(run_dir, spec)
                _write_job(run_dir, _find_private(record, spec, run_dir))
                return f"{spec.name}: {damage}; it was written again from {layout.RUN_FILE}"
            return f"{spec.name}: {damage}; {self._restore(spec, run_dir, meta)}"
        except OSError as error:
            return f"{spec.name}: {damage}, and it cannot be repaired: {error.strerror}"

    def _restore(self, spec: RunSpec, run_dir: str, meta: str) -> str:
        """Write run.json again if job.sh names the same run, or the run is alive; else move the damaged folder away."""
        history = run_directory.load_history(run_dir) if os.path.isdir(run_dir) else run_directory.History()
        is_same = run_directory.load_job_field(run_dir, layout.ENV_RUN_ID) == spec.id
        handle = history.last.handle if history.last and not history.state.is_over else None
        is_live = handle is not None and load_liveness(handle, run_dir) is not Liveness.GONE
        if history.attempts and (is_same or is_live):
            # the uid by which the processes of the run's attempts are tagged
            tags = [attempt.handle.tag for attempt in history.attempts if attempt.handle and attempt.handle.tag]
            uid = run_directory.load_job_field(run_dir, layout.ENV_ATTEMPT) or (tags or [""])[0].rpartition(".")[0]
            record = replace(self._build_record(spec), uid=uid or run_directory.new_uid())
            _write_secrets(run_dir, spec)
            if _is_cut(run_dir):
                _write_job(run_dir, record)
            _write_record(run_dir, record)
            return f"{layout.RUN_FILE} was written again from the study file"
        kept = os.path.join(meta, layout.DAMAGED_DIR, f"{spec.name}-{run_directory.new_uid()}")
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        rename(run_dir, kept)
        what = f"the damaged folder is kept as {os.path.relpath(kept)}"
        return f"it is run again, {what}" if history.attempts else f"it had not run and is built again, {what}"

    def adopt(self) -> None:
        """Adopt directories that the dialect's tool created, with the current commands of the study's file."""
        if not self._rules.shares_dirs:
            return
        for spec in self._prepared.plan.runs:
            run_dir = self._prepared.dir_of(spec)
            if os.path.isdir(run_dir) and not os.path.exists(os.path.join(run_dir, layout.RUN_FILE)):
                record = self._build_record(spec)
                self._fill(run_dir, spec, run_dir)
                self._rules.adopt_dir(run_dir, record, _render_job(record))
            known = run_directory.try_record(run_dir)
            if known is None or known.spec.commands == spec.commands:
                continue
            if run_directory.load_history(run_dir).state is not State.RUNNING:
                changed = replace(known.spec, commands=spec.commands, params=spec.params, private=spec.private)
                renewed = replace(known, spec=changed)
                _write_secrets(run_dir, spec)
                _write_job(run_dir, renewed)
                _write_record(run_dir, renewed)

    def renew_secrets(self, specs: Sequence[RunSpec]) -> None:
        """Write secrets that were replaced in the study's file into existing runs, for their next attempt."""
        for spec in (each for each in specs if each.private is not None and each.name in self._present):
            run_dir = self._prepared.dir_of(spec)
            job, secrets = (try_text(os.path.join(run_dir, name)) for name in (layout.JOB_FILE, layout.SECRETS_FILE))
            # in a directory made before its variable was declared secret, the value is in job.sh
            if f". ./{layout.SECRETS_FILE}" in job and secrets != render_secrets(spec):
                _write_secrets(run_dir, spec)

    def _build_record(self, spec: RunSpec) -> run_directory.RunRecord:
        prepared, snapshot = self._prepared, self._snapshot_of(spec)
        environment = self._load_environment()
        origin = prepared.options.origins.get(spec.id)
        commit = environment.git.commit if environment.git else None
        return run_directory.RunRecord(
            spec=spec,
            study=prepared.location.name,
            uid=run_directory.new_uid(),
            created_at=time.time(),
            source=prepared.study.source,
            workdir=layout.CODE_DIR if snapshot else prepared.study.folder,
            code_hash=snapshot.hash if snapshot else None,
            dialect=prepared.study.dialect,
            set_number=prepared.set_number,
            commit=origin.commit if origin and origin.code_hash else commit,
            overrides=origin.overrides if origin else prepared.shown_overrides,
            settings=origin.settings if origin else prepared.shown_settings,
            parent=origin.parent if origin else None,
            file_hash=self._keep_file(),
        )

    def _keep_file(self) -> str | None:
        """Keep a copy of the study's file, which `assay rerun` fills with other values, and return its hash."""
        prepared = self._prepared
        if prepared.study.text and self._file_hash is None:
            with suppress(OSError):  # a full disk is reported when the run directories are written
                text, is_secret = prepared.study.text, prepared.has_secrets
                self._file_hash = run_directory.keep_file(prepared.location.dir, text, is_secret=is_secret)
        return self._file_hash

    # ------------------------------------------------------------ the current code for a repeated run

    def choose_codes(self, specs: Sequence[RunSpec]) -> dict[str, str]:
        """Choose which runs with older code get the current code; return run name -> hash of the current code."""
        options = self._prepared.options
        for spec in specs:
            record = run_directory.try_record(self._prepared.dir_of(spec))
            if record is None or record.code_hash is None or record.workdir != layout.CODE_DIR:
                continue
            try:
                snapshot = self._find_current(record, self._prepared.dir_of(spec))
            except UsageError as error:
                if options.new_code:
                    raise
                self.notes.append(f"{spec.name} was repeated with the code that it had: {error.message}")
                continue
            renews = options.new_code or find_dialect(record.dialect).renews_code
            if snapshot.hash != record.code_hash and renews:
                self._newer[spec.name] = record.code_hash, snapshot
        return {name: snapshot.hash for name, (_, snapshot) in self._newer.items()}

    def _find_current(self, record: run_directory.RunRecord, run_dir: str) -> Snapshot:
        """Return this call's snapshot; if none was taken (`assay rerun`, live code), take one of the run's source."""
        if self.snapshot is not None:
            return self.snapshot
        folder = self._find_source(record)
        is_secret = os.path.exists(os.path.join(run_dir, layout.SECRETS_FILE))
        key = repr((folder, record.source, record.dialect, record.spec.code, is_secret))
        if key not in self._snapshots:
            file = os.path.join(folder, record.source)
            self._snapshots[key] = self._take(folder, file, record.dialect, record.spec.code, is_secret)
        return self._snapshots[key]

    def _find_source(self, record: run_directory.RunRecord) -> str:
        """Return the folder that the run's code was copied from."""
        try:
            source = load_snapshot(self._store, str(record.code_hash)).source
        except (OSError, AssayError) as error:
            again = build_command(("assay", "run"), [record.source], ("--force", "--new-code"))
            hint = f"run the study again with the current code: {again}"
            raise UsageError(f"the origin of the code of {record.spec.name} is no longer known", hint) from error
        if not os.path.isdir(source):
            hint = "leave out --new-code"
            raise UsageError(f"the code of {record.spec.name} came from {source}, which is gone", hint)
        return source

    def describe_newer(self, names: Collection[str]) -> str | None:
        """Describe which code changes, to be printed before runs of these names get the current code; None: no run."""
        found = [self._newer[name] for name in names if name in self._newer]
        for spec in self._prepared.plan.runs:
            origin = self._prepared.options.origins.get(spec.id)
            if origin and origin.failed_code and self.snapshot and spec.name not in self._present:
                found += [(origin.failed_code, self.snapshot)] if origin.failed_code != self.snapshot.hash else []
        if not found:
            return None
        changes = _OtherCode()
        for old, new in dict.fromkeys((old, snapshot.hash) for old, snapshot in found):
            changes.add(list_changes(self._store, old, new))
        is_asked = self._prepared.options.new_code
        what = "run" if is_asked else "new run" if self._prepared.options.origins else "failed run"
        takes = f"{render_count(len(found), what)} {'takes' if len(found) == 1 else 'take'} the current code"
        why = f": {changes.describe()}" if changes.files else ""
        return f"{takes}{why}" if is_asked else f"{takes}{why} (--old-code keeps the recorded snapshot)"

    def describe_recorded(self, specs: Sequence[RunSpec]) -> str | None:
        """Describe the older code, to be printed before `assay rerun` starts runs with it; None if no run has any."""
        kept = self._compare((spec.name, self._find_recorded(spec)) for spec in specs)
        if kept is None:
            return None
        runs = f"{render_count(len(kept.names), 'run')} {'has' if len(kept.names) == 1 else 'have'}"
        return f"{runs} the recorded snapshot: {kept.describe()} (--new-code takes the current code)"

    def _find_recorded(self, spec: RunSpec) -> tuple[str, str] | None:
        """Return the hashes of a run's recorded and current code; None if `assay rerun` does not keep recorded code."""
        options, run_dir = self._prepared.options, self._prepared.dir_of(spec)
        if (origin := options.origins.get(spec.id)) is not None and origin.parent:
            run_dir = os.path.join(self._prepared.location.dir, origin.parent.partition("/")[2])
        is_other = origin.code_hash is None or spec.name in self._present if origin else spec.name in self._newer
        record = run_directory.try_record(run_dir) if options.names_runs or options.origins else None
        if is_other or record is None or record.code_hash is None or record.workdir != layout.CODE_DIR:
            return None
        with suppress(AssayError):  # the folder is gone: there is no current code to compare with
            return record.code_hash, self._find_current(record, run_dir).hash
        return None

    def renew(self, entry: Entry) -> None:
        """Give a repeated run the current code if that was chosen; complete a change that a killed call has begun."""
        if entry.attempt == 1 and entry.spec.name not in self._present:  # the run was created in this call
            return
        entry.record = run_directory.take_code(entry.dir, entry.attempt - 1) or entry.record
        record, (_, snapshot) = entry.record, self._newer.get(entry.spec.name, ("", None))
        snapshot = snapshot or (self.snapshot if self._prepared.options.new_code else None)
        if record is None or record.workdir != layout.CODE_DIR:
            return
        if snapshot is None or record.code_hash == snapshot.hash:
            self._report_older(entry, record)
            return
        link, current = entry.spec.code.link_ignored, snapshot
        run_directory.offer_code(entry.dir, current.hash, lambda aside: place_code(current, aside, link=link))
        git = load_git(current.source)
        entry.record = run_directory.take_code(entry.dir, entry.attempt - 1, git.commit if git else None)

    def _report_older(self, entry: Entry, record: run_directory.RunRecord) -> None:
        """Report the first run that starts with an older snapshot, and the command that takes the current code."""
        code, options = record.code_hash, self._prepared.options
        is_asked = options.old_code or options.force or entry.spec.id in options.origins
        if is_asked or self.snapshot is None or code in (None, self.snapshot.hash, *self._reported):
            return
        self._reported.add(str(code))
        other = self._with_other_code([replace(entry, record=record)])
        if other is not None:
            again = options.again if options.again and options.again.takes_retry else None
            names = [name for name, states in RETRY.items() if options.retry.issuperset(states)]
            words = [word for name in names for word in ("--retry", name)]
            more = f"; for the current code stop and call: {again.build(*words, '--new-code')}" if again else ""
            self._report(f"runs that were begun earlier continue with the recorded snapshot: {other.describe()}{more}")

    def rewrite_job(self, entry: Entry) -> None:
        """Write job.sh again with the current variables and the checkpoint to begin with; job.N.sh keeps the old one.
        job.sh is written before the process that waits for the lease opens it, and not if another process has the
        lease. After a kill, the next call writes again: run.json is written last, and job.N.sh only once."""
        record, spec = entry.record, entry.spec
        if record is None or not find_dialect(record.dialect).is_ours:
            return
        if record.spec.env == spec.env:
            if entry.begins is not None:
                _replace_job(entry, _find_private(record, spec, entry.dir))
            return
        entry.record = replace(record, spec=replace(record.spec, env=spec.env, private=spec.private))
        _write_secrets(entry.dir, spec)
        _replace_job(entry, entry.record)
        if spec.private is None:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(entry.dir, layout.SECRETS_FILE))
        _write_record(entry.dir, entry.record)

    def remake_entry(self, entry: Entry) -> None:
        """Prepare a pulled run to continue here, with job.sh and code/ from this study's file."""
        entry.record = self.remake(entry.spec, entry.dir, "assay run") or entry.record

    def remake(self, spec: RunSpec, run_dir: str, by: str) -> run_directory.RunRecord | None:
        """Write job.sh, code/ and run.json of a received run again; the received files are moved to received/. Return
        None if this was done before. received.json is written last: until then, the run is not executed."""
        with locked(os.path.join(self._prepared.location.dir, layout.STUDY_META_DIR)), locked(run_dir):
            received, old = load_received(run_dir), run_directory.try_record(run_dir)
            if received is None or not received.needs_code or old is None:
                return None
            record = replace(self._build_record(spec), created_at=old.created_at)
            if received.how == "pull":  # by its uid a later pull recognises the run
                record = replace(record, uid=old.uid or record.uid, trial=old.trial)
                record = replace(record, search_from=old.search_from, search=old.search)
            put_away(run_dir, received, spec)
            self._fill(run_dir, spec, run_dir)
            _write_job(run_dir, record)
            _write_record(run_dir, record)
            write_received(run_dir, replace(received, adopted_by=by, adopted_at=time.time()))
            return record

    def _fill(self, aside: str, spec: RunSpec, run_dir: str) -> None:
        snapshot = self._snapshot_of(spec)
        _write_secrets(aside, spec)
        if snapshot is not None:
            place_code(snapshot, os.path.join(aside, layout.CODE_DIR), link=spec.code.link_ignored)
        target = os.path.join(aside, layout.ENVIRONMENT_FILE)
        try:
            os.link(self._environment_path, target)  # all runs share one file, which is never edited
        except FileExistsError:  # another supervisor adopts this directory too
            pass
        except OSError:
            shutil.copyfile(self._environment_path, target)
        self._rules.write_files(self._prepared, aside, spec, run_dir)

    def _load_environment(self) -> Environment:
        if self._environment is None:
            prepared = self._prepared
            private = [spec.private for spec in (*prepared.plan.runs, *prepared.samples) if spec.private is not None]
            self._environment = load_environment(
                prepared.study.folder,
                prepared.options.command_line,
                rules=prepared.settings.secrets,
                known={value for each in private for value in each.values},
                complain=self.notes.append,
            )
            name = f"environment-{run_directory.new_uid()}.json"
            self._environment_path = os.path.join(prepared.location.dir, layout.STUDY_META_DIR, name)
            run_directory.write_environment(self._environment_path, self._environment)
        return self._environment

    def describe_size(self) -> list[str]:
        """Describe a large snapshot, which is copied for each run, and the setting that excludes large folders."""
        snapshot, study = self.snapshot, self._prepared.study
        if snapshot is None or snapshot.bytes <= _LARGE_BYTES:
            return []
        largest = [each for each in snapshot.largest[:_NAMED_FILES] if each[1] > snapshot.bytes // 20]
        folders = ", ".join(f"{name}/ {_show_mb(size)}" for name, size in largest) or "files directly in the folder"
        named = ", ".join(name for name, _ in largest) or "'*.bin'"
        advice = find_dialect(study.dialect).ignore_hint.replace("NAMES", named)
        return [f"the code snapshot has {_show_mb(snapshot.bytes)} ({folders}), copied for each run; {advice}"]

    def describe_other_code(self, entries: Sequence[Entry]) -> list[str]:
        """Describe the runs whose code is not the current code, and set `advice` to commands for these runs."""
        if self.snapshot is None:
            return []
        old = self._with_other_code([e for e in entries if e.finished_here])
        kept = self._with_other_code([e for e in entries if e.state is State.DONE and not e.finished_here])
        self.advice = [*self._advise(old), *(self._advise(kept, is_kept=True) if not old else ())]
        found = ((old, "ran with the recorded snapshot", ""), (kept, "kept", "; most edits do not alter results"))
        return [f"{render_count(len(x.names), 'run')} {how}: {x.describe()}{more}" for x, how, more in found if x]

    def _with_other_code(self, entries: Sequence[Entry]) -> _OtherCode | None:
        assert self.snapshot is not None
        current = self.snapshot.hash
        records = ((entry.spec.name, entry.record or run_directory.try_record(entry.dir)) for entry in entries)
        codes = ((name, record.code_hash if record else None) for name, record in records)
        return self._compare((name, (code, current) if code else None) for name, code in codes)

    def _compare(self, runs: Iterable[tuple[str, tuple[str, str] | None]]) -> _OtherCode | None:
        """Return which runs have other code, and the code files that differ. Each item of `runs` is a run's name and
        the hashes of its snapshot and of the current one."""
        found, changes = _OtherCode(), dict[tuple[str, str], list[ChangedFile]]()
        for name, pair in runs:
            if pair is None or pair[0] == pair[1]:
                continue
            if pair not in changes:
                listed = list_changes(self._store, *pair)
                changes[pair] = [each for each in listed if _is_code(each) and not self._is_layout(each, pair[0])]
                found.add(changes[pair])
            found.names += [name] if changes[pair] else []
        return found if found.names else None

    def _is_layout(self, change: ChangedFile, old: str) -> bool:
        """Whether only comments and blank lines of a Python file changed, so that its results are the same."""
        if change.is_new or not change.name.endswith(".py"):
            return False
        import ast

        before = os.path.join(load_snapshot(self._store, old, to_read=True).path, change.name)
        try:
            with open(before, "rb") as old_file, open(change.file, "rb") as new_file:
                return ast.dump(ast.parse(old_file.read())) == ast.dump(ast.parse(new_file.read()))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return False

    def _advise(self, other: _OtherCode | None, *, is_kept: bool = False) -> list[str]:
        """Return the command that shows the difference, then the command that repeats the runs with current code."""
        if other is None:
            return []
        location, again = self._prepared.location, self._prepared.options.again
        copy = os.path.join(location.dir, other.names[0], layout.CODE_DIR)
        pairs = [(os.path.join(copy, f), os.path.join(self._prepared.study.folder, f)) for f in other.files]
        pair = next((pair for pair in pairs if all(map(os.path.isfile, pair))), None)
        steps = [build_command(("diff",), [show_path(path) for path in pair])] if pair else []
        if is_kept and again and again.words == ("assay", "run") and self._prepared.search is None:
            return [*steps, again.build("--force", "--new-code")]
        if len(other.names) > _MOST_NAMED:
            return steps
        return [*steps, show_command(["rerun"], location, *other.names, options=["--new-code"])]


_KEPT = {layout.RUN_FILE, layout.TAGS_FILE, layout.ENVIRONMENT_FILE, layout.READINGS_FILE, layout.CONFIG_FILE}
_KEPT |= {layout.WANDB_FILE, layout.LOGX_METRICS_FILE, "benchmark.json", "report.jsonl", "model.json"}
_EXECUTED = re.compile(rf"{layout.CODE_DIR}(\..*)?|job(\.\d+)?\.sh|{layout.SUBMIT_SCRIPT}")


def put_away(run_dir: str, received: Received, spec: RunSpec | None = None) -> None:
    """Move files that must not be executed into received/. From an upload, all files except logs, metrics and outcomes
    are moved: a checkpoint may execute commands when it is loaded, and leases name processes."""
    measured = [each.path for each in spec.patterns if isinstance(each, MetricFile)] if spec else []
    folder = os.path.join(run_dir, layout.RECEIVED_DIR)
    for name in os.listdir(run_dir):
        if name == layout.SECRETS_FILE:
            os.unlink(os.path.join(run_dir, name))
            continue
        if name in (layout.RECEIVED_FILE, layout.RECEIVED_DIR):
            continue
        executed = [name] if _EXECUTED.fullmatch(name) else []
        for path in executed if received.how == "pull" else _find_files(run_dir, name, measured):
            kept = os.path.join(folder, path)
            kept = kept if not os.path.lexists(kept) else f"{kept}-{os.urandom(3).hex()}"
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            rename(os.path.join(run_dir, path), kept)
    if received.how == "pull":
        run_directory.neutralize_leases(run_dir)


def _find_files(run_dir: str, name: str, measured: Sequence[str]) -> list[str]:
    """Return the paths in `name` that are not results. A folder is one path unless some of its files are results."""
    if not os.path.isdir(os.path.join(run_dir, name)):
        return [] if _is_result(name, measured) else [name]
    found = [
        os.path.relpath(os.path.join(at, each), run_dir)
        for at, _, names in os.walk(os.path.join(run_dir, name))
        for each in names
    ]
    other = [path for path in found if not _is_result(path, measured)]
    return [name] if len(other) == len(found) else other


def _is_result(path: str, measured: Sequence[str]) -> bool:
    if any(fnmatchcase(path, each) for each in measured):
        return True
    if "/" in path:
        return os.path.dirname(path) == layout.METRICS_DIR and path.endswith(".jsonl")
    if path in _KEPT or path.endswith(".log") or layout.parse_exit_marker(path) or layout.parse_timeout_marker(path):
        return True
    return (layout.parse_numbered(path) or ("",))[0] in ("stop", "outcome")


@dataclass(slots=True)
class _OtherCode:
    """Runs whose code differs from the current code, and the changed files."""

    names: list[str] = field(default_factory=list)
    files: dict[str, bool] = field(default_factory=dict)  # name -> whether the file is new

    def add(self, changes: Sequence[ChangedFile]) -> None:
        """Add changed files, program code first."""
        self.files |= {change.name: change.is_new for change in sorted(changes, key=lambda each: not _is_code(each))}

    def describe(self) -> str:
        """Describe the files: changed files before new files."""
        parts = []
        for is_new, one, several in ((False, "has changed since", "have changed since"), (True, "is new", "are new")):
            if names := [name for name, is_its in self.files.items() if is_its is is_new]:
                parts.append(f"{join_first(names, _NAMED_FILES)} {one if len(names) == 1 else several}")
        return ", ".join(parts)


def _find_damage(run_dir: str, is_shared: bool) -> str | None:
    """Describe why a run of Assay cannot start; None if it can start, does not exist, or is another tool's run."""
    if not os.path.isdir(run_dir):
        return "it is not a folder" if os.path.lexists(run_dir) else None
    if not is_run_dir(run_dir) and (is_shared or is_foreign_dir(run_dir)):
        return None
    cut = f"{layout.JOB_FILE} is empty, incomplete or missing"
    return run_directory.find_damage(run_dir) or (cut if _is_cut(run_dir) else None)


def _is_cut(run_dir: str) -> bool:
    """Whether job.sh is missing or incomplete. A run that a script opened has no commands, and no job.sh."""
    record = run_directory.try_record(run_dir)
    if record is not None and not record.spec.commands:
        return False
    return not is_whole_job(try_text(os.path.join(run_dir, layout.JOB_FILE)))


def _show_mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e6:.1f} MB"


def _is_code(change: ChangedFile) -> bool:
    """Whether the file is a program, or a configuration that is not new; False for notebooks, results, study files."""
    base = os.path.basename(change.name)
    suffix = os.path.splitext(base)[1].lower()
    if suffix not in _CONFIG_SUFFIXES:
        return suffix in _CODE_SUFFIXES or base in ("Makefile", "Dockerfile")
    return not change.is_new and not re.search(_RESULT_NAME, base) and not _is_study_file(change)


def _is_study_file(change: ChangedFile) -> bool:
    """Whether `assay run` accepts the file: the file of another study in the folder is not code of this study."""
    if not change.name.lower().endswith((".yml", ".yaml")):
        return False
    try:
        with open(change.file, "rb") as file:
            text = file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return False
    keys = {*_STUDY_KEYS, *(key for each in find_dialects() for key in each.keys | each.weak_keys)}
    return re.search(rf"(?m)^({'|'.join(map(re.escape, keys))}) *:", text) is not None


def _write_secrets(run_dir: str, spec: RunSpec) -> None:
    text = render_secrets(spec)
    if text is not None:
        write_atomic(os.path.join(run_dir, layout.SECRETS_FILE), text, 0o600, repair=True)


def _find_private(record: run_directory.RunRecord, spec: RunSpec, run_dir: str) -> run_directory.RunRecord:
    """Mark the values of a record that are in secrets.sh: job.sh loads these, and run.json contains `***` instead."""
    private = spec.private
    if private is None and os.path.exists(os.path.join(run_dir, layout.SECRETS_FILE)):
        commands = {command.name: "" for command in record.spec.commands if HIDDEN in command.text}
        private = Private(commands, {name: "" for name, value in record.spec.env if HIDDEN in value})
    return replace(record, spec=replace(record.spec, private=private))


def _replace_job(entry: Entry, record: run_directory.RunRecord) -> None:
    """Write job.sh. If the attempt begins with a checkpoint, insert its path into the commands, inside of quotes."""
    if entry.begins is not None and entry.begins.checkpoint and entry.spec.resume is not None:
        path, texts = quote_inside(entry.begins.checkpoint, "double"), entry.spec.resume.texts
        commands = [
            replace(command, text=texts.get(command.name, command.text).replace(layout.CHECKPOINT_REFERENCE, path))
            for command in record.spec.commands
        ]
        record = replace(record, spec=replace(record.spec, commands=tuple(commands)))
    job, text = os.path.join(entry.dir, layout.JOB_FILE), _render_job(record)
    kept, before = os.path.join(entry.dir, layout.kept_job_name(entry.attempt - 1)), try_text(job)
    if before != text:
        if not os.path.exists(kept):
            write_atomic(kept, before, 0o777)
        write_atomic(job, text, 0o777, repair=True)


def _write_job(run_dir: str, record: run_directory.RunRecord) -> None:
    write_atomic(os.path.join(run_dir, layout.JOB_FILE), _render_job(record), 0o777, repair=True)


def _write_record(run_dir: str, record: run_directory.RunRecord) -> None:
    write_atomic(os.path.join(run_dir, layout.RUN_FILE), run_directory.render_record(record), repair=True)


def _render_job(record: run_directory.RunRecord) -> str:
    return render_job(record.spec, JobText(record.uid, record.study, record.workdir))

"""`assay index ingest` of other tools' runs: each becomes a run directory, which is written as a whole or not at all.

The id that the other tool gives a run identifies it. Importing a run again adds what is new: points are appended,
parameters and the state are replaced, and a series never becomes shorter.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from assay.errors import UsageError
from assay.exchange.importers.imported_run import ImportedRun, ImportedRuns
from assay.exchange.mlflow_export import KEY_TAG, UID_TAG
from assay.follow.locations import StudyLocation, check_writable
from assay.follow.opening import open_index
from assay.follow.refresh import refresh_study
from assay.plugins import load
from assay.record import run_directory
from assay.record.importers.registry import Importer
from assay.record.index.base import Series
from assay.record.received import is_foreign
from assay.record.tags import MarksChange, Note, change_marks, check_tag, find_tags_file
from assay.show.console import SILENT, Console
from assay.system.fast_dataclasses import asdict, replace
from assay.system.files import write_atomic, write_new
from assay.system.locks import locked
from assay.values import layout
from assay.values.plain import build_plain
from assay.values.run import Outcome, RunSpec, spec_id
from assay.values.secrets import hide_params
from assay.values.state import State
from assay.values.study import CodePolicy

SERIES_FILE = "a1-r0-imported.jsonl"
_RESERVED = ("step", "time")  # keys of a line that are not metrics
_MOST_CHARACTERS = 120  # the longest name of a folder

Lines = dict[str, list[str]]  # metric → its lines in SERIES_FILE


class ImportCounts(NamedTuple):
    locations: tuple[StudyLocation, ...]
    new: int
    updated: int
    unchanged: int
    here: int  # runs that were exported from this root, and are not imported
    notes: tuple[str, ...]


def import_runs(
    importer: Importer, path: str, root: str, study: str | None = None, console: Console = SILENT
) -> ImportCounts:
    """Import runs. Raise UsageError with the position of an error in the file before anything is written."""
    loaded: ImportedRuns = load(importer.load)(path)
    if not loaded.runs:
        raise UsageError(f"{path}: there are no runs in it", "; ".join(loaded.notes) or f"it is {importer.title}")
    by_study: dict[str, list[ImportedRun]] = {}
    others = [run for run in loaded.runs if not _is_here(run, root)]
    for run in others:
        by_study.setdefault(_clean(study or run.study) or "imported", []).append(run)
    locations = [StudyLocation(root, name) for name in by_study]
    for location in locations:
        check_writable(location)
    outcomes: list[str] = []
    with open_index(root, console.warning) as index:
        for location, runs in zip(locations, by_study.values(), strict=True):
            writer = _StudyWriter(location, importer, os.path.abspath(path))
            outcomes += writer.write(runs)
            with index.batch():
                for key in writer.rewritten:  # the index would continue at an offset in the old file
                    index.forget_points(key)
            refresh_study(index, location, console)
    new, updated, unchanged = (outcomes.count(word) for word in ("new", "updated", "unchanged"))
    return ImportCounts(tuple(locations), new, updated, unchanged, len(loaded.runs) - len(others), loaded.notes)


def _is_here(run: ImportedRun, root: str) -> bool:
    """Return whether the run was exported from this root (see mlflow_export) and still exists here."""
    tags = run.details.get("tags", {})
    study, slash, name = tags.get(KEY_TAG, "").partition("/")
    path = os.path.normpath(os.path.join(root, study, name))
    if not (slash and study and name) or not path.startswith(os.path.join(os.path.normpath(root), "")):
        return False
    if UID_TAG not in tags:  # a run of runx or mlrunner
        return os.path.isdir(path) and not os.path.exists(os.path.join(path, layout.RUN_FILE))
    record = run_directory.try_record(path)
    return record is not None and record.uid == tags[UID_TAG]


class _StudyWriter:
    def __init__(self, location: StudyLocation, importer: Importer, path: str) -> None:
        self.location, self.path = location, path
        self.tool = importer.name.partition("-")[0]
        self.by_id: dict[str, str] = {}
        self.by_name: dict[str, str] = {}
        self.partial: set[str] = set()  # runs for which only points were imported
        self.rewritten: list[str] = []  # keys of runs whose earlier points have changed

    def write(self, runs: Sequence[ImportedRun]) -> list[str]:
        meta = os.path.join(self.location.dir, layout.STUDY_META_DIR)
        os.makedirs(meta, exist_ok=True)
        with locked(meta):
            self._load_known()
            return [self._write_run(run) for run in runs]

    def _load_known(self) -> None:
        """Load the runs that were imported from the same tool, by id, and by name if the name is unique."""
        by_name: dict[str, list[str]] = {}
        for run_dir in run_directory.find_run_dirs(self.location.dir):
            record = run_directory.try_record(run_dir)
            if record is None or not record.origin or record.origin.get("tool") != self.tool or is_foreign(run_dir):
                continue
            self.by_id[str(record.origin.get("id"))] = run_dir
            by_name.setdefault(str(record.origin.get("name")), []).append(run_dir)
            if record.origin.get("is_partial"):
                self.partial.add(run_dir)
        self.by_name = {name: dirs[0] for name, dirs in by_name.items() if len(dirs) == 1}

    def _write_run(self, run: ImportedRun) -> str:
        # an earlier import has the run's id, or its name if one of the two imports has only points (a chart of W&B)
        named = self.by_name.get(run.name)
        run_dir = self.by_id.get(run.id, named if run.state is None or named in self.partial else None)
        if run_dir is not None:
            return self._update(run_dir, run)
        name = _clean(run.name) or f"run-{_digest(run.id)}"
        path = os.path.join(self.location.dir, name)
        if os.path.lexists(path):
            path = os.path.join(self.location.dir, f"{name[: _MOST_CHARACTERS - 9]}-{_digest(f'{self.tool} {run.id}')}")
        record = self._build_record(run, os.path.basename(path))
        lines = _render_points(run.points)

        def fill(aside: str) -> None:
            write_new(os.path.join(aside, layout.numbered_name("outcome", 1)), _render_outcome(run))
            if lines:
                os.mkdir(os.path.join(aside, layout.METRICS_DIR))
                write_new(os.path.join(aside, layout.METRICS_DIR, SERIES_FILE), _join(lines.values()))
            _mark(aside, run)

        run_directory.write_run_dir(path, record, None, fill)
        self.by_id[run.id] = path
        self.rewritten.append(self.location.key(path))  # the index may know a removed directory of this name
        return "new"

    def _build_record(self, run: ImportedRun, name: str) -> run_directory.RunRecord:
        params = hide_params(run.params)
        id_ = spec_id((), {"tool": self.tool, "id": run.id})
        origin = {
            "tool": self.tool,
            "path": self.path,
            "id": run.id,
            "name": run.name,
            "at": time.time(),
            "is_partial": run.state is None,
            **{name: hide_params(each) if isinstance(each, dict) else each for name, each in run.details.items()},
        }
        return run_directory.RunRecord(
            RunSpec(id_, name, build_plain(params), (), code=CodePolicy("live")),  # run.json has finite numbers only
            self.location.name,
            run_directory.new_uid(),
            run.started_at or time.time(),
            workdir=".",
            commit=run.commit,
            origin=build_plain(origin),
        )

    # ------------------------------------------------------------ runs that were imported before

    def _update(self, run_dir: str, run: ImportedRun) -> str:
        changed = self._update_record(run_dir, run) | self._update_points(run_dir, run)
        if run.state is not None:
            path, text = os.path.join(run_dir, layout.numbered_name("outcome", 1)), _render_outcome(run)
            if _read(path) != text:
                write_atomic(path, text, repair=True)
                changed = True
        if changed:
            os.utime(run_dir)
        return "updated" if changed else "unchanged"

    def _update_record(self, run_dir: str, run: ImportedRun) -> bool:
        old = run_directory.load_record(run_dir)
        new = self._build_record(run, old.spec.name)
        params = {**old.spec.params, **new.spec.params}
        known, found = old.origin or {}, new.origin or {}
        kept = {name: known.get(name) for name in ("at", "path")}  # the values of the first import stay
        is_same = params == old.spec.params and {**known, **found, **kept} == known
        if run.state is None or (is_same and new.commit in (None, old.commit)):
            return False
        record = replace(
            old, spec=replace(old.spec, params=params), commit=new.commit or old.commit, origin={**known, **found}
        )
        write_atomic(os.path.join(run_dir, layout.RUN_FILE), run_directory.render_record(record), repair=True)
        return True

    def _update_points(self, run_dir: str, run: ImportedRun) -> bool:
        path = os.path.join(run_dir, layout.METRICS_DIR, SERIES_FILE)
        old, new = _parse_lines(_read(path)), _render_points(run.points)
        grown = {metric: lines for metric, lines in new.items() if len(lines) >= len(old.get(metric, ()))}
        added = {metric: lines[len(old.get(metric, ())) :] for metric, lines in grown.items()}
        if all(lines[: len(old.get(metric, ()))] == old.get(metric, []) for metric, lines in grown.items()):
            if not any(added.values()):
                return False
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomic(path, _read(path) + _join(added.values()), repair=True)
            return True
        write_atomic(path, _join({**old, **grown}.values()), repair=True)
        self.rewritten.append(self.location.key(run_dir))
        return True


def _clean(text: str) -> str:
    """Return a plain file name, which does not leave the folder, is not hidden and does not look like an option."""
    name = re.sub(r"[^\w.+=,@-]+", "_", text)[:_MOST_CHARACTERS].lstrip("._-").rstrip("._")
    return name.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def _read(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""


def _render_outcome(run: ImportedRun) -> str:
    outcome = Outcome(run.state or State.DONE, 1, reason=run.reason, started_at=run.started_at, ended_at=run.ended_at)
    return json.dumps(asdict(outcome))


def _mark(folder: str, run: ImportedRun) -> None:
    tags = []
    for tag in run.tags:
        with suppress(UsageError):  # our tags have no spaces; run.json has the tool's own
            tags.append(check_tag(tag))
    note = Note(run.ended_at or time.time(), run.note) if run.note else None
    if tags or note:
        change_marks(find_tags_file(folder), MarksChange(add=tuple(tags), note=note))


# ---------------------------------------------------------------- points as lines, as `assay.log` writes them


def _render_points(points: Mapping[str, Series]) -> Lines:
    found = {}
    for metric, series in points.items():
        name = json.dumps(f"{metric}_" if metric in _RESERVED else metric)
        found[metric] = [
            f'{{"step":{_render_number(step)},"time":{_render_number(time)},{name}:{json.dumps(value)}}}\n'
            for step, value, time in zip(series.steps, series.values, series.times, strict=True)
        ]
    return found


def _render_number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    return str(int(value)) if value.is_integer() else repr(value)


def _parse_lines(text: str) -> Lines:
    """Return by metric the lines of a file that `_update_points` wrote; damaged lines are left out."""
    lines: Lines = {}
    for line in text.splitlines(keepends=True):
        try:
            *_, metric = json.loads(line)
        except (ValueError, TypeError):
            continue
        lines.setdefault(metric, []).append(line)
    return lines


def _join(parts: Iterable[list[str]]) -> str:
    return "".join(line for lines in parts for line in lines)

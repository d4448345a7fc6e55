"""From a name on the command line to studies and runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.record.folders import find_changes, find_run_dirs, is_run_dir, load_patterns
from assay.record.index.base import Index, RunRow, Table
from assay.record.index.sqlite import open_index
from assay.show.console import SILENT, Console
from assay.study.locations import (
    HOW_TO_START,
    Roots,
    StudyLocation,
    find_candidates,
    find_studies,
    find_study,
    show_path,
)
from assay.values import layout

if TYPE_CHECKING:
    from assay.config.dialects.base import LoadOptions

__all__ = [
    "FoundRun",
    "Index",
    "StudyLocation",
    "find_locations",
    "find_one_run",
    "find_runs",
    "find_step_name",
    "load_fresh_table",
    "load_logroots",
    "load_roots",
    "open_index_of",
    "show_command",
    "show_study",
]


class FoundRun(NamedTuple):
    location: StudyLocation
    dir: str

    @property
    def key(self) -> str:
        return self.location.key(self.dir)

    @property
    def words(self) -> tuple[StudyLocation, str]:
        """For `show_command`."""
        return self.location, os.path.basename(self.dir)


def load_roots(flag: str | None) -> list[str]:
    """Every root that studies are looked for in."""
    return find_roots(flag).all


def find_roots(flag: str | None) -> Roots:
    """The flag alone; else the settings' root, and runx's log roots."""
    if flag is not None:
        return Roots((os.path.abspath(flag),), were_asked=True)
    from assay.config.settings import load_settings

    settings = load_settings(os.getcwd(), os.environ)
    logroots = load_logroots()
    return Roots(tuple(dict.fromkeys([settings.root, *logroots.main])), logroots.mirrors)


def load_logroots(options: LoadOptions | None = None) -> Roots:
    """LOGROOT of runx's own settings; where a farm leaves its results (NGC_LOGROOT) are copies of the same runs."""
    if options is None and not any(map(os.path.isfile, (".runx", os.path.expanduser("~/.config/runx.yml")))):
        return Roots(())
    from assay.config.dialects import runx
    from assay.config.dialects.base import LoadOptions

    options = options or LoadOptions()
    config = runx.load_config(options)
    if config is None or config.kind != "mapping":
        return Roots(())
    base = os.path.dirname(runx.find_config(options) or "")
    sections = [config.value, *(value for value in config.value.values() if isinstance(value, dict))]

    def collect(key: str) -> tuple[str, ...]:
        found = [section[key] for section in reversed(sections) if isinstance(section.get(key), str) and section[key]]
        return tuple(
            os.path.normpath(os.path.join(base, os.path.expanduser(os.path.expandvars(path)))) for path in found
        )

    return Roots(collect("LOGROOT"), collect("NGC_LOGROOT"))


def find_locations(names: Sequence[str], flag: str | None, *, logroot_first: bool = False) -> list[StudyLocation]:
    """Studies by name or path; none given: the only one there is. sumx looks into runx's LOGROOT before `./runs`."""
    roots = find_roots(flag)
    if names:
        return [_find_location(name.rstrip("/"), roots, logroot_first and flag is None) for name in names]
    known = [StudyLocation(root, study) for root in roots.all for study in find_studies(root)]
    if not known:
        raise UsageError(f"there is no study under {', '.join(map(show_path, roots.main))}", HOW_TO_START)
    if len(known) > 1:
        raise UsageError("which study?", "one or more of: " + ", ".join(show_study(location) for location in known))
    return known


def _find_location(name: str, roots: Roots, logroot_first: bool) -> StudyLocation:
    if logroot_first:
        logroots = load_logroots()
        in_logroot = [p for p in find_candidates(name, logroots._replace(were_asked=True)) if p.root in logroots.main]
        if len(in_logroot) == 1:
            return in_logroot[0]
    return find_study(name, roots)


# ---------------------------------------------------------------- how to name a study in a command that is advised


def show_study(location: StudyLocation) -> str:
    """The study's name where that leads to this study from here, else its path."""
    try:
        found = find_candidates(location.name, find_roots(None))
    except AssayError:  # settings that cannot be read: a path does not need them
        found = []
    is_it = len(found) == 1 and os.path.realpath(found[0].dir) == os.path.realpath(location.dir)
    return location.name if is_it else show_path(location.dir)


def show_command(words: Sequence[str], location: StudyLocation, *runs: str, options: Sequence[str] = ()) -> str:
    """`assay ls STUDY`, or `assay logs STUDY/RUN`, to be pasted in this folder."""
    study = show_study(location)
    from assay.values.run import build_command

    return build_command(("assay", *words), [os.path.join(study, run) for run in runs] or [study], options)


# ---------------------------------------------------------------- runs


def find_runs(name: str, flag: str | None) -> list[FoundRun]:
    """`study` (all its runs), `study/run`, a path, a run's name or id alone, or a pattern such as `study/lr=0.1*`."""
    roots = find_roots(flag)
    path = os.path.abspath(name)
    study, slash, run = name.rstrip("/").rpartition("/")
    is_path = os.sep in study or study in ("", os.curdir, os.pardir) or not find_candidates(study, roots)
    if is_path and is_run_dir(path):
        return [
            FoundRun(
                StudyLocation(os.path.dirname(os.path.dirname(path)), os.path.basename(os.path.dirname(path))), path
            )
        ]
    if not slash:
        return _find_without_study(name, roots)
    location = find_study(study, roots)
    matches = _match(location, run)
    if not matches:
        raise NotFoundError("run", name, [location.key(run_dir) for run_dir in find_run_dirs(location.dir)])
    return matches


def _find_without_study(name: str, roots: Roots) -> list[FoundRun]:
    if find_candidates(name, roots):
        location = find_study(name, roots)
        return [FoundRun(location, run_dir) for run_dir in find_run_dirs(location.dir)]
    locations = [StudyLocation(root, study) for root in roots.all for study in find_studies(root)]
    matches = [run for location in locations for run in _match(location, name)]
    if matches:
        return matches
    known = [location.name for location in locations]
    known += [os.path.basename(d) for location in locations for d in find_run_dirs(location.dir)]
    raise NotFoundError("study or run", name, known)


def _match(location: StudyLocation, pattern: str) -> list[FoundRun]:
    from fnmatch import fnmatchcase

    exact = os.path.join(location.dir, pattern)
    if is_run_dir(exact):
        return [FoundRun(location, exact)]
    found = []
    for run_dir in find_run_dirs(location.dir):
        name = os.path.basename(run_dir)
        if fnmatchcase(name, pattern) or _has_id(run_dir, pattern):
            found.append(FoundRun(location, run_dir))
    return found


def _has_id(run_dir: str, start: str) -> bool:
    """A run whose run.json is damaged has no id; that must not hide the others."""
    from assay.record import run_directory

    try:
        return len(start) >= 6 and run_directory.load_record(run_dir).spec.id.startswith(start)
    except (FormatError, OSError):
        return False


def find_one_run(name: str, flag: str | None) -> FoundRun:
    runs = find_runs(name, flag)
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise NotFoundError("run", name)
    shown = [os.path.join(show_study(run.location), os.path.basename(run.dir)) for run in runs[:6]]
    listed = ", ".join(shown) + (" …" if len(runs) > 6 else "")
    raise UsageError(f"{name!r} names {len(runs)} runs", f"choose one of: {listed}")


def open_index_of(locations: Sequence[StudyLocation]) -> Index:
    """The index of the root that these studies share."""
    roots = {location.root for location in locations}
    if len(roots) > 1:
        raise UsageError(
            "these studies lie under different roots: " + ", ".join(sorted(roots)), "take them one after another"
        )
    return open_index(roots.pop(), Console().warning)


def load_fresh_table(index: Index, locations: Sequence[StudyLocation], console: Console = SILENT) -> Table:
    """The table as the folders are now. Mostly nothing has changed, so what reads runs is loaded when something has."""
    names = [location.name for location in locations]
    data = index.load_table(names)
    is_stale = False
    for location in locations:
        rows = data.rows if len(locations) == 1 else [row for row in data.rows if row.study == location.name]
        if changes := find_changes(location.dir, location.name, rows):
            from assay.study.refresh import apply_changes

            apply_changes(index, location, changes, console)
            is_stale = True
    return index.load_table(names) if is_stale else data


# ---------------------------------------------------------------- what a step is


def find_step_name(locations: Sequence[StudyLocation], rows: Sequence[RunRow]) -> str:
    """`epoch` where the runs count nothing else, else `step`. The first run of each study answers for its study."""
    first = {row.study: row for row in reversed(rows)}
    folders = {location.name: location.root for location in locations}
    units = {unit for row in first.values() for unit in _find_units(os.path.join(folders[row.study], row.key), row)}
    return "epoch" if units == {"epoch"} else "step"


def _find_units(run_dir: str, row: RunRow) -> set[str]:
    if row.origin == "runx":
        return {"epoch"}  # logx counts the validations of runx's runs by epoch
    patterns = load_patterns(run_dir)
    if patterns is None:
        return {"step"}
    texts = [each for each in patterns if "regex" in each]
    named = {str(name) for each in texts for name in (each.get("metric"), *_GROUP_NAME.findall(str(each["regex"])))}
    units = {"step" if "step" in named else "epoch"} & named
    units |= {str(each.get("step") or "step") for each in patterns if "regex" not in each}
    return units | _find_script_units(os.path.join(run_dir, layout.METRICS_DIR))


_GROUP_NAME = re.compile(r"\(\?P<(\w+)>")


def _find_script_units(folder: str) -> set[str]:
    """What `assay.log` was given: the first line of each process tells."""
    units: set[str] = set()
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.jsonl"))):
        if not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            line = file.readline(4096)
        units.update(name for name in ("step", "epoch") if f'"{name}":'.encode() in line)
    return units

"""From a name on the command line to studies and runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import FormatError, NotFoundError, UsageError
from assay.flows.places import StudyPlace, find_studies, find_study
from assay.record.folders import find_changes, find_run_dirs
from assay.record.index.base import Index, Table
from assay.record.index.sqlite import open_index
from assay.values import layout

if TYPE_CHECKING:
    from assay.config.options import LoadOptions

__all__ = [
    "FoundRun",
    "Index",
    "StudyPlace",
    "find_one_run",
    "find_places",
    "find_runs",
    "load_fresh_table",
    "load_logroots",
    "load_roots",
    "open_index_of",
]


class FoundRun(NamedTuple):
    place: StudyPlace
    dir: str

    @property
    def key(self) -> str:
        return self.place.key(self.dir)


def load_roots(flag: str | None) -> list[str]:
    """Where studies are looked for: the flag alone, or the settings' root and runx's log roots beside it."""
    if flag is not None:
        return [os.path.abspath(flag)]
    from assay.config.settings import load_settings

    settings = load_settings(os.getcwd(), os.environ)
    return list(dict.fromkeys([settings.root, *load_logroots()]))


def load_logroots(options: LoadOptions | None = None) -> list[str]:
    """LOGROOT of runx's own settings, and where a farm leaves its results (NGC_LOGROOT)."""
    from assay.config.dialects import runx
    from assay.config.options import LoadOptions

    options = options or LoadOptions()
    config = runx.load_config(options)
    if config is None or config.kind != "mapping":
        return []
    base = os.path.dirname(runx.find_config(options) or "")
    sections = [config.value, *(value for value in config.value.values() if isinstance(value, dict))]
    found = [
        section[key] for section in sections for key in ("NGC_LOGROOT", "LOGROOT") if isinstance(section.get(key), str)
    ]
    return [os.path.normpath(os.path.join(base, os.path.expanduser(path))) for path in reversed(found)]


def find_places(names: Sequence[str], flag: str | None, *, logroot_first: bool = False) -> list[StudyPlace]:
    """Studies by name or path; none given: the only one there is. sumx looks into runx's LOGROOT before `./runs`."""
    roots = load_roots(flag)
    if logroot_first and flag is None:
        roots = [*roots[1:], roots[0]]
    if names:
        return [find_study(name.rstrip("/"), roots) for name in names]
    known = [StudyPlace(root, study) for root in roots for study in find_studies(root)]
    if not known:
        raise UsageError(
            f"there is no study under {', '.join(roots)}", "start one: assay run FILE   (or see: assay demo)"
        )
    if len(known) > 1:
        raise UsageError("which study?", "one or more of: " + ", ".join(place.name for place in known))
    return known


def find_runs(name: str, flag: str | None) -> list[FoundRun]:
    """`study` (all its runs), `study/run`, a path, a run's name or id alone, or a pattern such as `study/lr=0.1*`."""
    roots = load_roots(flag)
    path = os.path.abspath(name)
    if os.path.isfile(os.path.join(path, layout.RUN_FILE)):
        return [
            FoundRun(StudyPlace(os.path.dirname(os.path.dirname(path)), os.path.basename(os.path.dirname(path))), path)
        ]
    study, slash, run = name.rstrip("/").rpartition("/")
    if not slash:
        return _find_without_study(name, roots)
    place = find_study(study, roots)
    matches = _match(place, run)
    if not matches:
        raise NotFoundError("run", name, [place.key(run_dir) for run_dir in find_run_dirs(place.dir)])
    return matches


def _find_without_study(name: str, roots: Sequence[str]) -> list[FoundRun]:
    places = [StudyPlace(root, study) for root in roots for study in find_studies(root)]
    for place in places:
        if place.name == name:
            return [FoundRun(place, run_dir) for run_dir in find_run_dirs(place.dir)]
    if os.path.isdir(name):
        place = find_study(name, list(roots))
        return [FoundRun(place, run_dir) for run_dir in find_run_dirs(place.dir)]
    matches = [run for place in places for run in _match(place, name)]
    if matches:
        return matches
    known = [place.name for place in places]
    known += [os.path.basename(d) for place in places for d in find_run_dirs(place.dir)]
    raise NotFoundError("study or run", name, known)


def _match(place: StudyPlace, pattern: str) -> list[FoundRun]:
    from fnmatch import fnmatchcase

    exact = os.path.join(place.dir, pattern)
    if os.path.isfile(os.path.join(exact, layout.RUN_FILE)):
        return [FoundRun(place, exact)]
    found = []
    for run_dir in find_run_dirs(place.dir):
        name = os.path.basename(run_dir)
        if fnmatchcase(name, pattern) or _has_id(run_dir, pattern):
            found.append(FoundRun(place, run_dir))
    return found


def _has_id(run_dir: str, start: str) -> bool:
    """A run whose run.json is damaged has no id; that must not hide the others."""
    from assay.record import rundir

    try:
        return len(start) >= 6 and rundir.load_record(run_dir).spec.id.startswith(start)
    except (FormatError, OSError):
        return False


def find_one_run(name: str, flag: str | None) -> FoundRun:
    runs = find_runs(name, flag)
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise NotFoundError("run", name)
    listed = ", ".join(run.key for run in runs[:6]) + (" …" if len(runs) > 6 else "")
    raise UsageError(f"{name!r} names {len(runs)} runs", f"choose one of: {listed}")


def open_index_of(places: Sequence[StudyPlace]) -> Index:
    """The index of the root that these studies share."""
    roots = {place.root for place in places}
    if len(roots) > 1:
        raise UsageError(
            "these studies lie under different roots: " + ", ".join(sorted(roots)), "take them one after another"
        )
    return open_index(roots.pop())


def load_fresh_table(index: Index, places: Sequence[StudyPlace], complain: Callable[[str], None]) -> Table:
    """The table as the folders are now. Mostly nothing has changed, so what reads runs is loaded when something has."""
    names = [place.name for place in places]
    data = index.load_table(names)
    is_stale = False
    for place in places:
        rows = data.rows if len(places) == 1 else [row for row in data.rows if row.study == place.name]
        if changes := find_changes(place.dir, place.name, rows):
            from assay.flows.ingest import apply_changes

            apply_changes(index, place, changes, complain)
            is_stale = True
    return index.load_table(names) if is_stale else data

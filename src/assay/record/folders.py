"""Find the folders of a study that are runs, and those that changed since the index read them.

Every table begins with this module, so each folder is checked only once, and nothing heavy is imported.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any

from assay.record.index.base import RunRow
from assay.system.fast_dataclasses import NamedTuple
from assay.system.files import list_names, parse_json, read_text
from assay.values import layout
from assay.values.state import State

# A tuple, because hashing a state is slower than three comparisons. A damaged run may be repaired inside its run.json.
_CHANGING = (State.QUEUED, State.RUNNING, State.DAMAGED)
# files in directories of other tools: logx appends a line at each event, another tool the state of a command
_GROWING = (layout.LOGX_METRICS_FILE, layout.STAT_FILE)
_UNSETTLED_S = 0.05  # a file that changed this recently may change again within one tick of its clock


class FolderChange(NamedTuple):
    """A run that must be read. `stamp` is the newest time found in its directory, to be stored with the run's row."""

    path: str
    stamp: float
    is_ours: bool
    known_at: float | None = None  # when the directory in the index was created; None: the run is not in the index
    names: Sequence[str] | None = None  # names of its entries; None: the directory could not be listed
    files: tuple[str, ...] = ()  # files of another tool's directory that change without changing their folder
    is_new: bool = False  # the index does not have the run


class Changes(NamedTuple):
    changed: list[FolderChange]
    gone: list[str]  # keys of runs

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)


def find_changes(study_dir: str, study: str, rows: Iterable[RunRow]) -> Changes:
    """Return the changes since the index stored these rows; for a finished, unchanged run this takes two stat calls."""
    unseen = {row.key: row for row in rows}
    now = time.time()
    suspects: list[tuple[str, RunRow | None]] = []
    with _opened(study_dir) as folder:
        for name in find_folders(study_dir):
            row = unseen.pop(f"{study}/{name}", None)
            if row is None or not _is_settled(row, name, folder, now):
                suspects.append((name, row))
    changed: list[FolderChange] = []
    gone = list(unseen)
    for name, row in sorted(suspects, key=itemgetter(0)):
        change = build_change(f"{study_dir}/{name}")
        if change is not None:
            known_at = row.created_at if row is not None else None
            changed.append(change._replace(known_at=known_at, is_new=row is None))
        elif row is not None:  # the folder exists, but is not a run any more
            gone.append(row.key)
    return Changes(changed, sorted(gone))


@contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int | None]:
    """Open a folder: lookups relative to it are faster than those of full paths. None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_settled(row: RunRow, path: str, folder: int | None, now: float) -> bool:
    """Return whether a run is finished and unchanged; False if its stamp is in the future: the clock went back."""
    if row.state in _CHANGING or row.stamp > now:
        return False
    if _modified(path, folder) > row.stamp:
        return False
    if row.created_at is not None:  # a run with a run.json
        return row.stamp >= _stamp(path, row.attempt, folder)
    for name in row.files:  # noqa: SIM110 a generator for each run takes as long as a stat
        if _modified(f"{path}/{name}", folder) > row.stamp:
            return False
    return True


def build_change(path: str) -> FolderChange | None:
    """Return the change of a folder's row; None if the folder is not a run."""
    changed = _modified(path, None)  # read before the listing: files that are added later change the folder again
    try:
        names: list[str] | None = os.listdir(path)
    except OSError:
        names = None
    is_ours = is_run_dir(path) if names is None else has_traces(path, names)
    marks = [mark for mark in layout.FOREIGN_MARKS if names is None or mark in names]
    if not is_ours and not any(os.path.exists(f"{path}/{mark}") for mark in marks):
        return None
    files = () if is_ours else tuple(name for name in _GROWING if names is None or name in names)
    stamps = [_stamp(path, 0, None)] if is_ours else [_modified(f"{path}/{name}", None) for name in files]
    stamp = min(max(changed, *stamps, 0.0), time.time() - _UNSETTLED_S)
    return FolderChange(path, stamp, is_ours, names=names, files=files)


def _stamp(path: str, attempt: int, folder: int | None) -> float:
    """Return the newest time of files that change without changing the folder of a run: run.json may be edited or
    damaged, metrics appended. With `folder`, the path is relative to it."""
    changed = _modified(f"{path}/{layout.RUN_FILE}", folder)
    if attempt == 0:  # without a supervisor, a script may still be writing
        with suppress(OSError), _opened(f"{path}/{layout.METRICS_DIR}", folder) as inner:
            names = os.listdir(inner) if inner is not None else ()
            changed = max([changed, *(_modified(name, inner) for name in names)])
    return changed


def _modified(path: str, folder: int | None) -> float:
    try:
        return os.stat(path, dir_fd=folder).st_mtime
    except OSError:
        return 0.0


def find_folders(study_dir: str) -> Iterator[str]:
    """Yield the names of the visible folders, unordered. Links, as to shared results, are left out."""
    try:
        with os.scandir(study_dir) as entries:
            for entry in entries:
                name = entry.name
                if name[0] != "." and entry.is_dir(follow_symlinks=False):
                    yield name
    except (FileNotFoundError, NotADirectoryError):
        return


def is_run_dir(path: str) -> bool:
    """Return whether a folder is a run, even without run.json: such a run is listed as damaged, not left out."""
    return os.path.exists(f"{path}/{layout.RUN_FILE}") or has_traces(path)


def has_traces(path: str, names: Collection[str] | None = None) -> bool:
    """Return whether the folder contains files that only runs of Assay have."""
    names = list_names(path) if names is None else names
    if layout.RUN_FILE in names or (layout.JOB_FILE in names and layout.ENVIRONMENT_FILE in names):
        return True
    series = list_names(f"{path}/{layout.METRICS_DIR}") if layout.METRICS_DIR in names else ()
    return any(map(layout.parse_numbered, names)) or any(map(layout.is_series_file, series))


def is_foreign_dir(path: str) -> bool:
    return any(os.path.exists(f"{path}/{mark}") for mark in layout.FOREIGN_MARKS)


def find_run_dirs(study_dir: str) -> Iterator[str]:
    """Return the directories of the runs of Assay in a study, sorted by name."""
    paths = (os.path.join(study_dir, name) for name in sorted(find_folders(study_dir)))
    return (path for path in paths if is_run_dir(path))


def find_foreign_dirs(study_dir: str) -> Iterator[str]:
    """Return run directories that only other tools made, sorted by name."""
    paths = (os.path.join(study_dir, name) for name in sorted(find_folders(study_dir)))
    return (path for path in paths if not is_run_dir(path) and is_foreign_dir(path))


def load_patterns(run_dir: str) -> list[dict[str, Any]] | None:
    """Return a run's patterns as in run.json; None if it cannot be read. Tables need nothing else of run.json, and
    loading the modules that read a whole record takes longer than drawing a table."""
    try:
        found = parse_json(read_text(os.path.join(run_dir, layout.RUN_FILE)))["spec"].get("patterns", [])
        return [each for each in found if isinstance(each, dict)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def name_step(units: Collection[str]) -> str:
    return "epoch" if set(units) == {"epoch"} else "step"


def find_units(run_dir: str) -> set[str]:
    """Return the units, such as step, in which a run counts, from its patterns and the files of its script."""
    patterns = load_patterns(run_dir)
    if patterns is None:
        return {"step"}
    texts = [each for each in patterns if "regex" in each]
    named = {str(name) for each in texts for name in (each.get("metric"), *re.findall(_GROUP_NAME, str(each["regex"])))}
    units = {"step" if "step" in named else "epoch"} & named
    units |= {str(each.get("step") or "step") for each in patterns if "regex" not in each}
    return units.union(find_script_units(run_dir))


_GROUP_NAME = r"\(\?P<(\w+)>"


def find_script_units(run_dir: str, metric: str | None = None) -> Iterator[str]:
    """Yield the units in files of `assay.log`: those in the first line of each file, or the first with `metric`."""
    import glob

    key = b""
    if metric is not None:
        import json

        key = f",{json.dumps(metric)}:".encode()
    found = glob.glob(os.path.join(glob.escape(run_dir), layout.METRICS_DIR, "*.jsonl"))
    for path in filter(os.path.isfile, found):
        with open(path, "rb") as file:
            line = next((line for line in file if key in line), b"")
        yield from (name for name in ("step", "epoch") if f'"{name}":'.encode() in line)

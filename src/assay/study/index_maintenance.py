"""`assay index`: look after the copy that tables and plots are made from. The run directories are never touched."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.config.load import load_study
from assay.errors import UsageError
from assay.record import run_directory
from assay.record.index.base import Index
from assay.record.index.sqlite import open_index
from assay.show import formatting
from assay.show.console import Console
from assay.study import refresh
from assay.study.locations import StudyLocation, find_foreign_dirs, find_studies, is_study
from assay.system.files import index_path
from assay.values.run import RunSpec


@dataclass(frozen=True, slots=True)
class IndexStatus:
    root: str
    path: str
    exists: bool
    size_bytes: int
    studies: int
    runs: int
    metrics: int
    points: int
    unread: int  # runs on disk that the index does not know yet
    is_temporary: bool = False
    reset_reason: str = ""


def load_status(root: str) -> IndexStatus:
    """Says how the index stands, without bringing it up to date."""
    path = index_path(root, os.environ)
    on_disk = {
        f"{name}/{os.path.basename(run_dir)}"
        for name in find_studies(root)
        for run_dir in (
            *run_directory.find_run_dirs(os.path.join(root, name)),
            *find_foreign_dirs(os.path.join(root, name)),
        )
    }
    if not os.path.exists(path):
        return IndexStatus(root, path, False, 0, 0, 0, 0, 0, len(on_disk))
    with open_index(root) as index:
        table = index.load_table()
        return IndexStatus(
            root=root,
            path=path,
            exists=True,
            size_bytes=sum(_size(path + suffix) for suffix in ("", "-wal", "-shm")),
            studies=len(index.load_studies()),
            runs=len(table.rows),
            metrics=len(table.metrics),
            points=int(sum(sum(column.count) for column in table.metrics.values())),
            unread=len(on_disk - {row.key for row in table.rows}),
            is_temporary=index.is_temporary,
            reset_reason=index.reset_reason,
        )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def build_status_facts(status: IndexStatus) -> list[tuple[str, str]]:
    facts = [("root", status.root), ("index", status.path)]
    if not status.exists:
        return [*facts, ("state", f"not made yet; {formatting.render_count(status.unread, 'run')} on disk")]
    facts += [
        ("size", formatting.render_size(status.size_bytes)),
        ("studies", str(status.studies)),
        ("runs", str(status.runs)),
        ("metrics", str(status.metrics)),
        ("points", str(status.points)),
    ]
    if status.unread:
        facts.append(
            ("not read yet", f"{formatting.render_count(status.unread, 'run')}; the next command that looks reads them")
        )
    if status.is_temporary:
        facts.append(
            ("note", "it cannot be kept here, so each command builds it again: set ASSAY_CACHE_DIR to a local folder")
        )
    if status.reset_reason:
        facts.append(("note", f"the old one was set aside: {status.reset_reason}"))
    return facts


def rebuild(roots: Sequence[str], console: Console) -> list[tuple[str, int]]:
    """Build every index again from its root; the root, and how many runs were read."""
    counts = []
    for root in roots:
        with open_index(root) as index:
            counts.append((root, refresh.rebuild(index, root, console)))
    return counts


# ---------------------------------------------------------------- extracting again


@dataclass(frozen=True, slots=True)
class Reparsed:
    runs: int
    metrics_before: tuple[str, ...]
    metrics_after: tuple[str, ...]


def reparse(index: Index, location: StudyLocation, file: str | None, console: Console) -> Reparsed:
    """Read the logs of a study again, with the patterns of `file` or those that each run was made with."""
    study = load_study(file) if file is not None else None
    patterns = study.metrics if study is not None else None
    if study is not None and not patterns:
        hint = "describe them: metrics: {loss: 'loss ({number})'}"
        if study.dialect != "native":
            hint = f"a file of {study.dialect} cannot describe metrics: give a native study file that does"
        raise UsageError(f"{file} has no metrics", hint)

    def adjust(spec: RunSpec) -> RunSpec:
        return spec if patterns is None else replace(spec, patterns=patterns)

    refresh.refresh_study(index, location, console)
    before = tuple(index.load_metric_names([location.name]))
    found = list(run_directory.find_run_dirs(location.dir))
    damaged = [run_dir for run_dir in found if run_directory.try_record(run_dir) is None]
    for run_dir in damaged:
        console.warning(f"{run_dir} is damaged: {refresh.describe_damage(run_dir)}")
    keys = [location.key(run_dir) for run_dir in found if run_dir not in damaged]
    count = refresh.reparse(index, location, adjust, keys)
    return Reparsed(count, before, tuple(index.load_metric_names([location.name])))


# ---------------------------------------------------------------- folders of the originals


@dataclass(frozen=True, slots=True)
class Ingested:
    root: str
    studies: tuple[str, ...]
    runs: int
    origins: tuple[tuple[str, int], ...]  # who made the runs, how many
    metrics: tuple[str, ...]


def ingest_folder(folder: str, console: Console) -> Ingested:
    """A study's folder, or a folder of studies: its runs become part of the index of that root."""
    path = os.path.abspath(folder)
    if not os.path.isdir(path):
        raise UsageError(f"{folder} is not a folder")
    locations = _find_locations(path)
    if not locations:
        raise UsageError(
            f"found no runs in {folder}",
            "a run's folder holds hparams.json or metrics.csv (runx, logx), param and stat (mlrunner), or our run.json",
        )
    names = [location.name for location in locations]
    with open_index(locations[0].root) as index:
        for location in locations:
            refresh.refresh_study(index, location, console)
        rows = index.load_runs(names)
        metrics = tuple(index.load_metric_names(names))
    origins = tuple(sorted(Counter(row.origin for row in rows).items()))
    return Ingested(locations[0].root, tuple(names), len(rows), origins, metrics)


def _find_locations(path: str) -> list[StudyLocation]:
    if is_study(path):
        return [StudyLocation(os.path.dirname(path), os.path.basename(path))]
    return [StudyLocation(path, name) for name in find_studies(path)]

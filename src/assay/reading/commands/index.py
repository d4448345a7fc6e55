"""`assay index`: maintain the index from which tables and plots are made. Run directories are never changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from assay.config.load import load_study
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.follow.collect import read_sources
from assay.follow.locations import (
    StudyLocation,
    find_locations,
    find_roots,
    find_studies,
    is_study,
    show_command,
    show_near,
)
from assay.follow.opening import find_address, open_index, open_index_of
from assay.follow.refresh import describe_damage, refresh_root, refresh_study, store_points
from assay.plugins import find_dialect, require_function
from assay.record import run_directory
from assay.record.folders import find_foreign_dirs, find_run_dirs
from assay.record.importers.registry import Importer, choose_importer, describe_known, find_importers
from assay.record.importers.sample import Sample
from assay.show.console import Console
from assay.show.formatting import render_count, render_size
from assay.show.table import render_csv
from assay.system.fast_dataclasses import replace
from assay.system.files import index_path
from assay.values.document import Document, Facts, Section
from assay.values.options import Group, Request, argument, json_option, option, root_option
from assay.values.run import build_command
from assay.values.table import Column, Table

GROUP = Group(
    """Maintain the index: a copy of the data of the run directories, for tables and plots.

    The index may be deleted at any time; the next command builds it again from the run directories.
    """,
    {
        "status": ("assay.reading.commands.index:status", "Show where the index is, how large, and what is in it."),
        "query": ("assay.reading.commands.index:query", "Run one SELECT over the tables of the index."),
        "rebuild": ("assay.reading.commands.index:rebuild", "Build the index again from the run directories."),
        "reparse": ("assay.reading.commands.index:reparse", "Read the metrics of STUDY again from its logs."),
        "gc": (
            "assay.reading.commands.index:collect_garbage",
            "Remove runs whose directories are gone, and free their space.",
        ),
        "ingest": ("assay.reading.commands.index:ingest", "Add the runs of another tool in PATH."),
    },
)


class StatusRequest(Request):
    root: str | None = root_option()
    as_json: bool = json_option()


def status(request: StatusRequest, console: Console) -> int:
    """Show where the index is, how large, and what is in it."""
    found = [load_status(each) for each in find_roots(request.root).all]
    sections = [Section((Facts([*_build_status_facts(each)]),)) for each in found]
    console.write_document(Document("assay index status", sections, facts=found), as_json=request.as_json)
    return 0


def load_status(root: str) -> dict[str, Any]:
    """Return the state of the index, without updating it, as `--json` prints it.

    `unread`: runs on disk that the index does not have; `summarised`: runs whose points are not stored yet.
    """
    on_disk = {
        f"{name}/{os.path.basename(run_dir)}"
        for name in find_studies(root)
        for run_dir in (*find_run_dirs(os.path.join(root, name)), *find_foreign_dirs(os.path.join(root, name)))
    }
    path = index_path(root, os.environ)
    numbers = dict.fromkeys(("size_bytes", "studies", "runs", "metrics", "points", "unread", "summarised"), 0)
    status = {"root": root, "path": path, "exists": False, **numbers, "is_temporary": False, "reset_reason": ""}
    if not find_address() and not os.path.exists(path):
        return {**status, "unread": len(on_disk)}
    with open_index(root) as index:
        table = index.load_table()
        return {
            **status,
            "path": path if index.is_temporary else index.place,
            "exists": True,
            "size_bytes": index.load_size(),
            "studies": len(index.load_studies()),
            "runs": len(table.rows),
            "metrics": len(table.metrics),
            "points": int(sum(sum(column.count) for column in table.metrics.values())),
            "unread": len(on_disk - {row.key for row in table.rows}),
            "summarised": len(index.find_summarised()),
            "is_temporary": index.is_temporary,
            "reset_reason": index.reset_reason,
        }


def _build_status_facts(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    unread, summarised = (render_count(status[name], "run") for name in ("unread", "summarised"))
    yield from (("root", status["root"]), ("index", status["path"]))
    if not status["exists"]:
        yield "state", f"not made yet; {unread} on disk"
        return
    yield "size", render_size(status["size_bytes"])
    yield from ((name, str(status[name])) for name in ("studies", "runs", "metrics"))
    waiting = f"; those of {summarised} are stored when a plot, export or query needs them"
    yield "points", f"{status['points']}{waiting if status['summarised'] else ''}"
    if status["unread"]:
        yield "not read yet", f"{unread}; the next command that looks reads them"
    if status["is_temporary"]:
        yield "note", "it cannot be kept here, so each command builds it again: set ASSAY_CACHE_DIR to a local folder"
    if status["reset_reason"]:
        yield "note", f"the old one was set aside: {status['reset_reason']}"


class RootRequest(Request):
    root: str | None = root_option()


def rebuild(request: RootRequest, console: Console) -> int:
    """Build the index again from the run directories."""
    for root in find_roots(request.root).all:
        with open_index(root, renew=True) as index:
            if index.is_temporary:
                raise InfrastructureError(f"the index of {root} cannot be written", "set ASSAY_CACHE_DIR")
            index.clear()
            count = refresh_root(index, root, console, stores_points=True)
        console.print(f"{root}: {render_count(count, 'run')} read")
    return 0


def collect_garbage(request: RootRequest, console: Console) -> int:
    """Remove runs whose directories are gone, and free their space."""
    for root in find_roots(request.root).all:
        with open_index(root, console.warning) as index:
            before, size = {row.key for row in index.load_runs()}, index.load_size()
            refresh_root(index, root, console)
            gone = before - {row.key for row in index.load_runs()}
            index.compact()
            sizes = f"{render_size(size)} before, {render_size(index.load_size())} now"
        console.print(f"{root}: {render_count(len(gone), 'run')} forgotten; {sizes}")
    return 0


class QueryRequest(Request):
    statement: str = argument("SELECT")
    as_json: bool = json_option()
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    root: str | None = root_option()


def query(request: QueryRequest, console: Console) -> int:
    """Run one SELECT over the tables and views of the index, which is brought up to date first.

    The query can only read. docs/reference/formats-index.md lists the tables and views.
    """
    if request.as_json and request.as_csv:
        raise UsageError("choose one of --json and --csv")
    root = find_roots(request.root).main[0]
    with open_index(root, console.warning) as index:
        try:
            refresh_root(index, root, console)
            if "chunks" in request.statement.lower() or "cursors" in request.statement.lower():
                for study in sorted({key.partition("/")[0] for key in index.find_summarised()}):
                    store_points(index, StudyLocation(root, study))
        except InfrastructureError as error:  # a user without the right to write can still query
            console.warning(f"not up to date: {error.message}")
        names, rows = index.query(request.statement)
    shown = [[each.hex() if isinstance(each, bytes) else each for each in row] for row in rows]
    if request.as_json:
        console.write_json([dict(zip(names, row, strict=True)) for row in shown])
        return 0
    cells = list(zip(*shown, strict=True)) or [("",)] * len(names)  # without rows no column has numbers
    is_number = [all(isinstance(cell, int | float | None) for cell in column) for column in cells]
    columns = [Column(name, "number" if number else "text") for name, number in zip(names, is_number, strict=True)]
    table = Table(tuple(columns), shown)
    if request.as_csv:
        console.write(render_csv(table))
    else:
        console.write_table(table)
    return 0


class ReparseRequest(Request):
    study: str = argument()
    file: str | None = option(
        "--file", metavar="STUDY.yml", help="Use the metrics of this file instead of those the runs were made with."
    )
    root: str | None = root_option()


def reparse(request: ReparseRequest, console: Console) -> int:
    """Read the metrics of STUDY again from its logs; nothing is run.

    With --file, its patterns replace those that the runs were made with, until the index is rebuilt.
    """
    (location,) = find_locations([request.study], request.root)
    study, count = load_study(request.file) if request.file else None, 0
    if study is not None and not study.metrics:
        hint = "describe them: metrics: {loss: 'loss ({number})'}"
        if not find_dialect(study.dialect).is_ours:
            hint = f"a file of {study.dialect} cannot describe metrics: give a native study file that does"
        raise UsageError(f"{request.file} has no metrics", hint)
    with open_index_of([location]) as index:
        refresh_study(index, location, console)
        before = set(index.load_metric_names([location.name]))
        for run_dir in run_directory.find_run_dirs(location.dir):
            record = run_directory.try_record(run_dir)
            if record is None:
                console.warning(f"{run_dir} is damaged: {describe_damage(run_dir)}")
                continue
            spec = record.spec if study is None else replace(record.spec, patterns=study.metrics)
            with index.batch():
                index.forget_points(location.key(run_dir))
                read_sources(index, location.key(run_dir), run_dir, spec)
            count += 1
        after = index.load_metric_names([location.name])
    new, gone = sorted(set(after) - before), sorted(before - set(after))
    changes = [f"new: {', '.join(new)}"] if new else []
    changes += [f"gone: {', '.join(gone)}"] if gone else []
    changed = f" ({'; '.join(changes)})" if changes else ""
    metrics = ", ".join(after) or "no metrics"
    console.print(f"{location.name}: {render_count(count, 'run')} read again: {metrics}{changed}")
    return 0


class IngestRequest(Request):
    path: str = argument("PATH")
    importer: str | None = option("--as", metavar="NAME", help="Read as mlflow, optuna, trackio, wandb, wandb-history.")
    study: str | None = option("--study", metavar="NAME", help="Put imported runs into this study.")
    root: str | None = root_option("Output root of imported runs.")


def ingest(request: IngestRequest, console: Console) -> int:
    """Add the runs of another tool in PATH; it is recognised by its content.

    Runs that runx, logx or mlrunner left in a folder (a study, or a folder of studies) are read where they are. Runs of
    MLflow's file store, W&B's CSV files and Optuna's journals become run directories; a repeated call adds new runs.
    """
    if not os.path.exists(request.path):
        raise UsageError(f"{request.path} is not a folder or a file")
    if request.importer is not None:
        chosen = {each.name: each for each in find_importers() if each.gives == "runs"}
        if request.importer not in chosen:
            raise NotFoundError("importer of runs", request.importer, chosen)
        return _import(chosen[request.importer], request, console)
    found = choose_importer(Sample(request.path), ["folders", "runs", "results"])
    if found is None:
        raise UsageError(f"found no runs in {request.path}", describe_known(["folders", "runs"]))
    if found.gives == "results":
        hint = f"import it: {build_command(('assay', 'bench', 'import'), [request.path])}"
        raise UsageError(f"{request.path} holds results of benchmarks, not runs: {found.title}", hint)
    if found.gives == "runs":
        return _import(found, request, console)
    if request.study is not None or request.root is not None:
        text = f"{request.path} holds {found.title}, which are read where they are"
        raise UsageError(text, "leave out --study and --root")
    return _add_folder(request.path, console)


def _import(importer: Importer, request: IngestRequest, console: Console) -> int:
    root = os.path.abspath(request.root) if request.root else find_roots(None).main[0]
    import_runs = require_function("runs.import", importer.title)
    counts = import_runs(importer, request.path, root, request.study, console)
    for note in counts.notes:
        console.message(note)
    if counts.here:
        own = render_count(counts.here, "run was exported from here, and is", "runs were exported from here, and are")
        console.print(f"{own} here already, under {show_near(root)}; left out")
    if not counts.locations:
        return 0
    runs = render_count(counts.new + counts.updated + counts.unchanged, "run")
    names = ", ".join(location.name for location in counts.locations)
    numbers = f"{counts.new} new, {counts.updated} updated, {counts.unchanged} unchanged"
    console.print(f"{names}: {runs} from {importer.name} ({numbers}) under {show_near(root)}")
    console.print(f"next: {show_command(['sum'], counts.locations[0])}")
    return 0


def _add_folder(folder: str, console: Console) -> int:
    from collections import Counter

    path = os.path.abspath(folder)
    root = os.path.dirname(path) if is_study(path) else path
    names = [os.path.basename(path)] if is_study(path) else list(find_studies(path))
    with open_index(root) as index:
        for name in names:
            refresh_study(index, StudyLocation(root, name), console)
        rows = index.load_runs(names)
        metrics = index.load_metric_names(names)
    origins = ", ".join(f"{count} by {origin}" for origin, count in sorted(Counter(row.origin for row in rows).items()))
    more = " …" if len(metrics) > 12 else ""
    studies = render_count(len(names), "study", "studies")
    console.print(f"{studies}, {len(rows)} runs ({origins}) under {show_near(root)}")
    console.print(f"metrics: {', '.join(metrics[:12]) or 'none'}{more}")
    console.print(f"next: {show_command(['sum'], StudyLocation(root, names[0]))}")
    return 0

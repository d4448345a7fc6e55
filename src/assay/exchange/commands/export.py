"""`assay export`: runs and series for other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.errors import InfrastructureError, UsageError
from assay.show.console import Console
from assay.show.formatting import render_count
from assay.show.report_files import STDOUT, check_targets
from assay.values.options import Group, Request, argument, option, root_option, where_option

if TYPE_CHECKING:
    from assay.exchange.export import ExportedRuns
    from assay.values.where import Where

GROUP = Group(
    """Write runs and series for other tools.

    One row per run: parameters, the last and the best value of each metric, times. With --series one row per point.
    """,
    {
        "csv": ("assay.exchange.commands.export:export_csv", "Write comma-separated values."),
        "json": ("assay.exchange.commands.export:export_json", "Write JSON: a list, one item to a line."),
        "parquet": ("assay.exchange.commands.export:export_parquet", "Write a Parquet file; types are kept."),
        "mlflow": ("assay.exchange.mlflow_export:export_mlflow", "Send runs to MLflow: a server, or a database."),
    },
)


class ExportRequest(Request):
    studies: tuple[str, ...] = argument("[STUDY|RUN]...", multiple=True, required=False)
    where: Where | None = where_option()
    output: str | None = option("-o", "--output", metavar="FILE", help="Write this file; - for stdout.  [default: -]")
    series: bool = option("--series", default=False, help="One row per point instead of one per run.")
    root: str | None = root_option()


class CsvRequest(ExportRequest):
    raw: bool = option("--raw", default=False, help="Leave text that looks like a formula as it is.")


class ParquetRequest(ExportRequest):
    output: str = option("-o", "--output", metavar="FILE", required=True, help="Write this file.")


def export_csv(request: CsvRequest, console: Console) -> int:
    """Write runs or series of STUDIES as comma-separated values.

    A parameter and a metric of the same name become the columns `params.NAME` and `metrics.NAME`. Text that a
    spreadsheet would take for a formula gets an apostrophe in front; --raw leaves it as it is.
    """
    from assay.exchange import export

    with _checked(request, console) as selection, _writing(selection, request, console, request.raw) as write:
        build = export.build_point_columns if request.series else export.build_run_columns
        export.write_csv(build(selection), write, raw=request.raw)
    return 0


def export_json(request: ExportRequest, console: Console) -> int:
    """Write runs or series of STUDIES as a JSON list, one item to a line. NaN is the string "NaN"."""
    from assay.exchange import export

    with _checked(request, console) as selection, _writing(selection, request, console) as write:
        build = export.build_point_facts if request.series else export.build_run_facts
        export.write_json(build(selection), write)
    return 0


def export_parquet(request: ParquetRequest, console: Console) -> int:
    """Write runs or series of STUDIES as a Parquet file: numbers, flags and times keep their types.

    Parameters whose values have several types become text.
    """
    from assay.exchange import export

    if request.output == STDOUT:
        raise UsageError("a Parquet file cannot be written to stdout", "name a file: -o runs.parquet")
    with _checked(request, console) as selection:
        build = export.build_point_columns if request.series else export.build_run_columns
        export.write_parquet(build(selection), request.output)
        _report(selection, request, console)
    return 0


@contextmanager
def _checked(request: ExportRequest, console: Console) -> Iterator[ExportedRuns]:
    from assay.exchange import export

    check_targets(request.output)
    with export.open_selection(request.studies, request.where, request.root, console) as selection:
        if request.series:
            export.check_points(selection)
        yield selection


@contextmanager
def _writing(
    selection: ExportedRuns, request: ExportRequest, console: Console, raw: bool = False
) -> Iterator[Callable[[str], object]]:
    """Yield the function that writes the output. A file gets its name only when it is complete."""
    from assay.show.formatting import unguard
    from assay.system.files import replacing

    if request.output is None or request.output == STDOUT:
        yield unguard(sys.stdout).write if raw else console.write
        return
    try:
        with (
            replacing(request.output) as aside,
            open(aside, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            yield file.write
    except OSError as error:
        raise InfrastructureError(f"{request.output} cannot be written: {error.strerror}") from error
    _report(selection, request, console)


def _report(selection: ExportedRuns, request: ExportRequest, console: Console) -> None:
    console.message(f"{request.output}: {render_count(len(selection.chosen), 'run')}")

"""`assay sumx`: sumx's own flags and table."""

from __future__ import annotations

import argparse
import sys

from assay.compat.original_command import Parsed, original_command, warn
from assay.errors import ExitCode, UsageError


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Summarise runs as sumx does: differing hyperparameters, last metrics, epoch time."
    )
    parser.add_argument("dirs", nargs="+", help="experiments (below LOGROOT) or folders")
    parser.add_argument("--logroot", help="where experiments lie, instead of .runx's LOGROOT")
    parser.add_argument("--ignore", help="columns to leave out, comma-separated")
    parser.add_argument(
        "--sortwith",
        "-s",
        action="append",
        help="sort by this field, best first; NAME:min or NAME:max sets what is best; may be given again",
    )
    parser.add_argument("--sort", dest="sortwith", action="append", help=argparse.SUPPRESS)
    parser.add_argument("--csv", help="also write NAME.csv here")
    parser.add_argument("--csv-raw", action="store_true", help="there text as it is, also what looks like a formula")
    return parser


def run(parsed: Parsed) -> int:
    from assay.compat.runx.sumx import SumxOptions, build_sumx
    from assay.show.table import render_csv, render_sumx
    from assay.study.api import find_locations, open_index_of
    from assay.system.terminal import terminal_width

    options = SumxOptions(tuple(parsed.sortwith or ()), tuple(filter(None, (parsed.ignore or "").split(","))))
    locations = find_locations(parsed.dirs, parsed.logroot, logroot_first=True)
    with open_index_of(locations) as index:
        found = build_sumx(index, locations, options)
    warn(found.warnings)
    sys.stdout.write(render_sumx(found.table, width=terminal_width(sys.stdout)))
    if parsed.csv:
        _write_csv(parsed.csv, render_csv(found.table, raw=parsed.csv_raw))
    return int(ExitCode.OK)


def _write_csv(name: str, text: str) -> None:
    path = name if name.endswith(".csv") else f"{name}.csv"
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


command = original_command("sumx", build_parser, run)

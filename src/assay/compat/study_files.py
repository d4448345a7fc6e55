"""Functions that the readers of runx's and mlrunner's study files share."""

from __future__ import annotations

import os

from assay.config.fields import Fields, LoadOptions
from assay.config.grid import GridReader
from assay.config.overrides import parse_assignments, refuse_unknown
from assay.values.study import Axis, Random


def build_folder(options: LoadOptions) -> str:
    """Return the folder in which commands run: as in the originals the current folder, not the folder of the file."""
    return os.path.abspath(options.cwd or os.getcwd())


def build_name(path: str, options: LoadOptions) -> str:
    """Return the study's name: --exp_name, even if empty (which is refused later), else the file's name."""
    if options.exp_name is not None:
        return options.exp_name
    return os.path.splitext(os.path.basename(path))[0]


def read_overrides(options: LoadOptions, known: tuple[str, ...], fields: Fields) -> dict[str, Axis]:
    """Return the axes of the parameters of another tool's file that the command line sets, by name."""
    entries = parse_assignments(options.overrides, "originals", fields.problems)
    refuse_unknown(entries, known, (), fields.problems)
    axes = {name: GridReader(fields).axis(entry.node, name, takes_mappings=True) for name, entry in entries.items()}
    for name, axis in axes.items():
        if isinstance(axis, Random):
            hint = "list its values, as in 0.1,0.2; native files have `subset:`"
            fields.problems.add(f"{name} is random, which this kind of file does not support", "", axis.position, hint)
    return axes

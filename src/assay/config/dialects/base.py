"""What the dialects share."""

from __future__ import annotations

import os
from collections.abc import Iterable

from assay.config.source import Node, Problems, find_duplicates
from assay.system.fast_dataclasses import dataclass
from assay.values.study import Choices, Dialect, Problem


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the command line says about reading a file."""

    dialect: Dialect | None = None  # None: by content
    runx_config: str | None = None  # runx: -c
    farm: str | None = None  # runx: --farm
    exp_name: str | None = None  # runx: --exp_name
    home: str | None = None  # where .config/runx.yml is looked for; None: the user's
    cwd: str | None = None  # where .runx is looked for and the code is; None: the process's


def build_folder(options: LoadOptions) -> str:
    """The originals run where they are called, not where the file is."""
    return os.path.abspath(options.cwd or os.getcwd())


def build_name(path: str, options: LoadOptions) -> str:
    """--exp_name, also an empty one (which is refused later), else the file's name."""
    if options.exp_name is not None:
        return options.exp_name
    return os.path.splitext(os.path.basename(path))[0]


def build_duplicate_warnings(nodes: Iterable[Node]) -> list[Problem]:
    """The originals' users have such files: the last value counts, and we say so."""
    return [
        Problem("this key is here twice", key, position, "the last one counts; remove the other")
        for node in nodes
        for key, position in find_duplicates(node)
    ]


def build_axis(node: Node, key: str, problems: Problems) -> Choices:
    """A list is swept, anything else is a single value."""
    if node.kind != "sequence":
        return Choices((node.value,), node.position)
    if not node.elements():
        hint = "an empty axis has no runs; give it values, or write [[]] for one empty list"
        problems.add("the list of values is empty", key, node.position, hint)
    return Choices(tuple(element.value for element in node.elements()), node.position)

"""Targets by name, looked at before anything runs: a mistake in a table is told with its file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from assay.config.settings import Settings, TargetTable, load_settings
from assay.errors import ConfigError, MissingExtraError, UsageError
from assay.models.backends.registry import BACKENDS, build_backend
from assay.models.config.targets import parse_target
from assay.models.values.model import Target
from assay.values.study import Problem

_SAID = re.compile(r"target [^:]+: (?:(?P<key>\w+)(?P<rest>\b.*)|.*)", re.DOTALL)


def load_checked_target(
    text: str, folder: str | None = None, equip: Callable[[Target], Target] = lambda target: target
) -> Target:
    """The target of this name, in this folder. Raises NotFoundError, or ConfigError for a table that is wrong.

    What `equip` makes of it is looked at: a board's address turns a target of commands into one that ssh reaches.
    Somebody's own back end is only loaded where it runs.
    """
    settings = load_settings(folder or os.getcwd(), os.environ)
    named = parse_target(text, settings)
    target = equip(named)
    if target.backend not in BACKENDS:
        return target
    try:
        build_backend(target)
    except MissingExtraError:
        raise
    except UsageError as error:
        if named.name not in settings.targets:
            raise
        raise ConfigError([_build_problem(named, settings, error)]) from None
    return target


def _build_problem(target: Target, settings: Settings, error: UsageError) -> Problem:
    """Back ends say `target npu: compile: …`; what is before the text says the place."""
    said = _SAID.fullmatch(error.message)
    key = said["key"] if said and said["key"] in target.options else ""
    text = error.message.removeprefix(f"target {target.name}: ")
    table = _find_table(settings, target.name, key)
    name = f"targets.{table.name}.{key}" if key else f"targets.{table.name}"
    return Problem(text.removeprefix(f"{key}: ") if key else text, name, table.find(key), error.hint)


def _find_table(settings: Settings, name: str, key: str) -> TargetTable:
    """The one that says it: a target may be like another one."""
    own = table = settings.targets[name]
    while key not in table.content and table.content.get("like") in settings.targets:
        table = settings.targets[str(table.content["like"])]  # no circle: the target could be read
    return table if key in table.content else own

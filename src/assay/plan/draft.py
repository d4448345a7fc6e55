"""A run on its way to a RunSpec."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

from assay.system.fast_dataclasses import dataclass
from assay.values.run import Command


@dataclass(slots=True)
class Draft:
    """A run on its way to a RunSpec: everything but its name.

    `named` holds the parameters as they were swept, before aliases and defaults: names are made of these. Two drafts
    with the same id are the same run (mlrunner's documents may list it twice) and may share a name; others never.
    """

    sweep: int  # index into study.sweeps
    named: dict[str, Any]
    params: dict[str, Any]
    commands: tuple[Command, ...] = ()
    id: str = ""
    ordinal: int = 0
    title: str | None = None
    tag: str | None = None  # runx: RUNX.TAG as written in the file
    farm_resources: tuple[tuple[str, object], ...] = ()  # runx: SUBMIT_JOB.*
    chosen: tuple[str, ...] | None = None  # mlrunner: the commands asked for this time; None is all
    shown: tuple[Command, ...] | None = None  # with hidden parameters; None: nothing in the study looks secret
    shown_params: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """What names are made from apart from the study; handed in, so that planning stays pure."""

    rng: random.Random
    now: datetime
    tag: str | None = None
    cooldir: bool = True
    exists: Callable[[str], bool] = lambda _path: False  # mlrunner shortens values that are paths of existing files

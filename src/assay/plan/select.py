"""A part of a study: some of its sweeps, some of its commands, a sample."""

from __future__ import annotations

import random
from collections.abc import Sequence

from assay.errors import NotFoundError, UsageError
from assay.system.fast_dataclasses import replace
from assay.values.study import Study, Subset, Sweep


def select(
    study: Study,
    titles: Sequence[str] | None = None,
    commands: Sequence[str] | None = None,
    sample: int | None = None,
    seed: int | None = None,
) -> Study:
    """The study with what was asked for; nothing asked for is everything.

    Without a seed the sample is another one each time; the seed that was used is in the result's `subset`.
    """
    sweeps = study.sweeps if titles is None else _select_titles(study, titles)
    if commands is not None:
        names = _select_commands(study, commands)
        sweeps = tuple(replace(sweep, commands=names) for sweep in sweeps)
    subset = study.subset if sample is None else _build_sample(sample, seed)
    return replace(study, sweeps=sweeps, subset=subset)


def _select_titles(study: Study, titles: Sequence[str]) -> tuple[Sweep, ...]:
    known = [sweep.title for sweep in study.sweeps if sweep.title is not None]
    for title in titles:
        if title not in known:
            hint = None if known else f"nothing in {study.source} has a title"
            raise NotFoundError("title", title, known, hint)
    return tuple(sweep for sweep in study.sweeps if sweep.title in titles)


def _select_commands(study: Study, commands: Sequence[str]) -> tuple[str, ...]:
    known = [command.name for command in study.commands]
    for command in commands:
        if command not in known:
            raise NotFoundError("command", command, known)
    return tuple(name for name in known if name in commands)


def _build_sample(sample: int, seed: int | None) -> Subset:
    if sample < 1:
        raise UsageError(f"a sample of {sample} runs is nothing", "ask for 1 or more")
    return Subset(sample, random.getrandbits(32) if seed is None else seed, per_sweep=True)

"""Which figures may be held against each other: those of equal set-ups. Elsewhere nobody can tell code from machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from assay.bench.values.comparison import Comparison
from assay.values.verdict import VerdictKind

QUESTION = "environment or code?"
MOST_DIFFERENCES = 4  # that are named in a message; the others are counted

Setup = Mapping[str, str]
Setups = Mapping[str, Setup]  # fingerprint → what it stands for


@dataclass(frozen=True, slots=True)
class SetupMatch:
    """A set-up of base and one of head that are compared."""

    base: str  # fingerprints
    head: str
    name: str = ""  # what tells it from the others that are compared beside it
    differences: tuple[str, ...] = ()  # none: they are equal


def match_setups(base: Setups, head: Setups) -> tuple[SetupMatch, ...]:
    """Every set-up that both sides have. Where there is none, the two that differ least: the figures are worth showing,
    but not judging. Nothing where a side has nothing."""
    common = [fingerprint for fingerprint in base if fingerprint in head]
    if common:
        names = name_setups({fingerprint: base[fingerprint] for fingerprint in common})
        return tuple(SetupMatch(fingerprint, fingerprint, names[fingerprint]) for fingerprint in common)
    pairs = [SetupMatch(a, b, "", describe_differences(base[a], head[b])) for a, b in product(base, head)]
    newest_first = reversed(pairs)
    return tuple(sorted(newest_first, key=lambda pair: len(pair.differences))[:1])


def name_setups(setups: Setups) -> dict[str, str]:
    """By what differs among them: `accelerator_model V100`. A single one needs no name."""
    if len(setups) < 2:
        return dict.fromkeys(setups, "")
    keys = list(dict.fromkeys(key for setup in setups.values() for key in setup))
    telling = [key for key in keys if len({setup.get(key) for setup in setups.values()}) > 1]
    return {fingerprint: _name(setup, telling) for fingerprint, setup in setups.items()}


def _name(setup: Setup, keys: Sequence[str]) -> str:
    return shorten([f"{key} {setup.get(key, 'none')}" for key in keys]) if setup else "not recorded"


def describe_differences(before: Setup, after: Setup) -> tuple[str, ...]:
    """`cudnn 8.9.2 → 9.1.0`, one for each; what came or went is `none` on the other side."""
    if not before or not after:
        sides = [
            "not recorded" if not setup else shorten([" ".join(item) for item in setup.items()])
            for setup in (before, after)
        ]
        return (f"set-up {sides[0]} → {sides[1]}",)
    keys = dict.fromkeys([*before, *after])
    changed = [key for key in keys if before.get(key) != after.get(key)]
    return tuple(f"{key} {before.get(key, 'none')} → {after.get(key, 'none')}" for key in changed)


def shorten(texts: Sequence[str], most: int = MOST_DIFFERENCES) -> str:
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def doubt(comparison: Comparison, differences: Sequence[str], code: str) -> Comparison:
    """A comparison between different set-ups keeps its figures and loses its verdict. Values that are missing or no
    numbers are nobody's environment: what was never measured (`p` None) and is no lack of trials stays as it is."""
    if comparison.p is None and comparison.kind is not VerdictKind.INCONCLUSIVE:
        return comparison
    message = f"{QUESTION} The set-ups differ ({shorten(differences)}){code}: {comparison.message}"
    return replace(comparison, kind=VerdictKind.INCONCLUSIVE, message=message, missing_trials=0)

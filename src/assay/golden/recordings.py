"""The golden recordings on disk, with their noise and the smallest effect that a check would find."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.errors import UsageError
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.judge.effects import default_delta, find_first_delta
from assay.golden.judge.golden import SegmentNoise, find_creep, measure_golden_noise, parse_rules
from assay.golden.values import DEFAULT_MANIFEST, DEFAULT_STORE, Golden, Rule
from assay.system.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The smallest effects that checks find in one metric, for the worst of all segments and labels."""

    metric: str
    rule: str
    per_step: float
    per_window: float
    delta: float | None
    one_check: float
    most_checks: float
    suggested_delta: float | None  # None for an exact rule
    replicas: int
    first_delta: float | None = None  # the delta of the first window, if it differs from `delta`
    outside: float | None = None  # the smallest difference that is CHANGED


@dataclass(frozen=True, slots=True)
class Recording:
    golden: Golden
    manifest: str
    rules: tuple[Rule, ...]
    sensitivity: tuple[Sensitivity, ...]
    creep: tuple[str, ...] = ()


def load_recordings(path: str, store: str = DEFAULT_STORE, name: str = DEFAULT_MANIFEST) -> tuple[Recording, ...]:
    """Load recordings of a store, a manifest or a convergence file. `store` and `name` are for a convergence file."""
    if os.path.isdir(path):
        found = [os.path.join(path, each) for each in sorted(os.listdir(path)) if each.endswith(".json")]
        if not (known := [each for each in found if _is_manifest(each)]):
            raise UsageError(f"there is no golden recording in {path}", "gather one: assay golden gather FILE")
        return tuple(_load(manifest, None) for manifest in known)
    if _is_manifest(path):
        return (_load(path, None),)
    file = load_golden_file(path, ("run",))
    return tuple(_load(manifests.manifest_path(store, test.name, name), test.rules, test.name) for test in file.tests)


def _is_manifest(path: str) -> bool:
    """Whether a file has the content of a manifest; a damaged manifest counts, so that its problem is reported."""
    try:
        with open(path, "rb") as file:
            start = file.read(4096).lstrip()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "name a store, a manifest, or a convergence file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return start.startswith(b"{") and (b"ckpt_logs" in start or path.endswith(f"_{DEFAULT_MANIFEST}"))


def _load(manifest: str, rules: Sequence[Rule] | None, test: str | None = None) -> Recording:
    name = test or os.path.basename(manifest).removesuffix(f"_{DEFAULT_MANIFEST}").removesuffix(".json")
    golden = manifests.load_manifest(manifest, name)
    # an older manifest names no rules: each metric is judged as paired
    chosen = tuple(rules if rules is not None else parse_rules(golden) or [Rule(metric) for metric in golden.metrics])
    last = golden.history[-1].get("since_first", {}) if golden.history else {}
    creep = find_creep(last, chosen, len(golden.history))
    return Recording(golden, os.path.abspath(manifest), chosen, build_sensitivity(golden, chosen), tuple(creep))


def build_sensitivity(golden: Golden, rules: Sequence[Rule]) -> tuple[Sensitivity, ...]:
    measured = measure_golden_noise(rules, golden)
    found = [(rule, [noise for noise in measured if noise.metric == rule.metric]) for rule in rules]
    return tuple(_combine(rule, noises) for rule, noises in found if noises)


def _combine(rule: Rule, noises: Sequence[SegmentNoise]) -> Sensitivity:
    return Sensitivity(
        metric=rule.metric,
        rule=rule.kind,
        per_step=max(noise.per_step for noise in noises),
        per_window=max(noise.per_window for noise in noises),
        delta=rule.margin if rule.kind == "margin" else None if rule.kind == "exact" else default_delta(rule),
        one_check=max(noise.detectable[0] for noise in noises),
        most_checks=max(noise.detectable[-1] for noise in noises),
        suggested_delta=None if rule.kind == "exact" else max(noise.suggested_delta for noise in noises),
        replicas=min(noise.replicas for noise in noises),
        first_delta=find_first_delta(rule),
        outside=max(noise.outside for noise in noises) if rule.kind in ("paired", "unmatched") else None,
    )

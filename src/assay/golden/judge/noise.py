"""What the golden's replicas show before anything is checked: their noise, the smallest effect that a check would find,
and the smallest usable delta or margin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.golden.judge.convergence import count_peers
from assay.golden.judge.effects import (
    build_distances,
    build_starts,
    measure_effects,
    measure_size,
    pool_variance,
    stack_golden,
    stack_variants,
)
from assay.golden.judge.pairing import Pair, describe_subject, line_up
from assay.golden.judge.pointwise import has_equal_replicas
from assay.golden.judge.unmatched import second_half
from assay.golden.judge.window import build_limits, default_delta, find_rule_problem
from assay.golden.values import Golden, Rule, Segment
from assay.judge.statistics import Array, load_numpy, normal_quantile, t_quantile
from assay.values.verdict import Finding, VerdictKind

MOST_CHECKS = 3
MISSES = 0.1  # "would find" means in nine of ten checks
LADDER = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Noise:
    """One metric and label of one segment. All values are relative: .01 is one percent."""

    subject: str
    metric: str
    label: str
    replicas: int
    steps: int
    per_step: float  # sd between replicas of a single value
    windows: tuple[float, ...]  # and of each window's mean; for other seeds, of the mean of the second half
    detectable: tuple[float, ...]  # the smallest effect that 1, 2, 3 checks would find, in whichever window it is
    floor: float  # with a smaller delta not even a perfect check could pass
    suggested_delta: float
    outside: float = 0.0  # the smallest distance that is CHANGED, in the window where it is largest

    @property
    def per_window(self) -> float:
        return math.sqrt(sum(sd * sd for sd in self.windows) / len(self.windows))


def measure_golden_noise(rules: Sequence[Rule], golden: Golden) -> tuple[Noise, ...]:
    """For every metric of every segment that has replicas; those without are left out."""
    peers = count_peers(rules, golden)
    return tuple(
        noise for segment in golden.segments for rule in rules for noise in measure_noise(rule, segment, peers=peers)
    )


def summarise_noise(noises: Iterable[Noise]) -> dict[str, float]:
    """Per metric the noise of a window in its noisiest segment and label: what a manifest keeps."""
    summary: dict[str, float] = {}
    for noise in noises:
        summary[noise.metric] = max(noise.per_window, summary.get(noise.metric, 0.0))
    return summary


def measure_noise(rule: Rule, segment: Segment, *, peers: int = 1) -> tuple[Noise, ...]:
    labels = [
        label for label in rule.labels or segment.tracks.get(rule.metric, {}) if _has_replicas(rule, segment, label)
    ]
    return tuple(_measure(rule, segment, label, peers * len(labels)) for label in labels)


def _has_replicas(rule: Rule, segment: Segment, label: str) -> bool:
    tracks = segment.tracks.get(rule.metric, {}).get(label, ())
    return len(tracks) > 1 and not line_up(rule, segment, label, ()).findings and find_rule_problem(rule) is None


def _measure(rule: Rule, segment: Segment, label: str, peers: int) -> Noise:
    tracks = segment.tracks[rule.metric][label]
    golden = stack_golden(tracks)
    starts = build_starts(rule, tracks[0].steps)
    if rule.kind == "unmatched":  # there the second half of the curve decides
        golden, starts = golden[:, len(tracks[0].steps) // 2 :], [0]
    per_step, spread = _spread(golden, range(golden.shape[1])), _spread(golden, starts)
    largest = math.sqrt(float(pool_variance(spread).max()))
    limits = Limits(rule, len(tracks), len(starts), peers, largest)
    pair = line_up(rule, segment, label, ())
    return Noise(
        describe_subject(segment, rule.metric, label),
        rule.metric,
        label,
        len(tracks),
        golden.shape[1],
        math.sqrt(float(per_step.mean())),
        tuple(float(value) ** 0.5 for value in spread),
        tuple(limits.find_detectable(checks) for checks in range(1, MOST_CHECKS + 1)),
        limits.find_floor(),
        limits.suggest_delta(),
        _find_outside(rule, second_half(pair) if rule.kind == "unmatched" else pair, starts),
    )


def _find_outside(rule: Rule, pair: Pair, starts: Sequence[int]) -> float:
    golden = stack_golden(pair.golden)
    effects = measure_effects(golden, golden[:1], starts, stack_variants(pair))
    return float(build_limits(rule, pair, starts, effects).sure.max())


def find_equal(rules: Sequence[Rule], golden: Golden) -> bool:
    """Whether the replicas, of which there are several, are all equal bit for bit in what is judged by their spread."""
    judged = {rule.metric for rule in rules if rule.kind == "paired"}
    found = [
        tracks
        for segment in golden.segments
        for metric, labels in segment.tracks.items()
        for tracks in labels.values()
        if metric in judged
    ]
    return bool(found) and all(
        len(tracks) > 1 and has_equal_replicas([track.values for track in tracks]) for tracks in found
    )


def find_idle_variants(rules: Sequence[Rule], golden: Golden) -> list[str]:
    """Variants that change nothing: equal bit for bit to the first recording in every metric that is judged."""
    judged = {rule.metric for rule in rules}
    names = dict.fromkeys(name for segment in golden.segments for name in segment.variants)
    return [name for name in names if all(_is_idle(segment, name, judged) for segment in golden.segments)]


def _is_idle(segment: Segment, name: str, judged: set[str]) -> bool:
    return all(
        has_equal_replicas([segment.tracks[metric][label][0].values, track.values])
        for metric, labels in segment.variants.get(name, {}).items()
        for label, track in labels.items()
        if metric in judged and label in segment.tracks.get(metric, {})
    )


def _spread(golden: Array, starts: Sequence[int]) -> Array:
    """The variance between replicas per window, in the units in which the windows are judged."""
    size = None if (golden > 0).all() else measure_size(golden, starts)
    with load_numpy().errstate(invalid="ignore", divide="ignore"):
        return build_distances(golden, golden[:1], starts, size).var(axis=0, ddof=1)


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class Limits:
    """From the standard deviation of the noisiest window to what a check can show."""

    rule: Rule
    replicas: int
    windows: int
    peers: int
    largest: float

    def _error(self, checks: int) -> float:
        return self.largest * math.sqrt(1 / self.replicas + 1 / checks)

    def find_detectable(self, checks: int) -> float:
        """Significant and above delta in nine of ten checks."""
        freedom, error = self.replicas - 1, self._error(checks)
        surely = t_quantile(freedom, self.rule.alpha / (self.windows * self.peers)) * error
        return max(surely, default_delta(self.rule)) + t_quantile(freedom, MISSES) * error

    def find_floor(self) -> float:
        return t_quantile(self.replicas - 1, self.rule.alpha) * self._error(MOST_CHECKS)

    def suggest_delta(self) -> float:
        """With this one, nine of ten good checks pass at the first run; never below the default."""
        freedom = self.replicas - 1
        reach = t_quantile(freedom, self.rule.alpha) + t_quantile(freedom, MISSES / self.windows)
        return max(default_delta(self.rule), round_up(reach * self._error(1)))


def round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    digit = next((digit for digit in LADDER if digit * power >= value * (1 - 1e-12)), 10.0)
    return float(f"{digit * power:.0e}")


def check_margin(rule: Rule, noise: Noise) -> Finding | None:
    """A finding when the rule asks for more than the noise allows: good runs would not pass."""
    if rule.kind == "margin":
        return _check_fixed(rule, noise)
    if rule.kind == "exact":
        return _check_exact(noise)
    delta = default_delta(rule)
    if delta >= noise.floor:
        return None
    message = (
        f"a delta of {delta:.3g} is below the noise floor of {noise.floor:.3g}: even a perfect check could not pass; "
        f"use {noise.suggested_delta:g}, or gather more replicas"
    )
    return Finding(VerdictKind.ERROR, noise.subject, message, delta, noise.floor)


def find_refusals(rules: Sequence[Rule], found: Sequence[Noise]) -> list[tuple[Rule, Finding]]:
    """Rules that ask for more than the noise allows."""
    pairs = [(rule, check_margin(rule, noise)) for rule in rules for noise in found if noise.metric == rule.metric]
    return [(rule, finding) for rule, finding in pairs if finding is not None]


def _check_fixed(rule: Rule, noise: Noise) -> Finding | None:
    """Every one of many steps must stay inside, and both the recording and the check are noisy."""
    if rule.operator not in ("==", "<=", ">=") or rule.margin is None:
        return None
    floor = noise.per_step * math.sqrt(2) * normal_quantile(rule.alpha / noise.steps)
    if rule.margin >= floor:
        return None
    message = (
        f"a margin of {rule.margin:g} is below the noise of {noise.steps} steps, {floor:.3g}: good runs would fail; "
        f"use {round_up(floor):g} or more, or the paired rule"
    )
    return Finding(VerdictKind.ERROR, noise.subject, message, rule.margin, floor)


def _check_exact(noise: Noise) -> Finding | None:
    if noise.per_step == 0:
        return None
    message = f"the replicas differ from one another (sd {noise.per_step:.3g}): the exact rule cannot be used"
    return Finding(VerdictKind.ERROR, noise.subject, message, 0.0, noise.per_step)

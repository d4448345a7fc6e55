"""What agreement does not show: metrics and labels that were recorded and are not judged, rules that were loosened
since, trainings that do not train, runs that do not begin at their checkpoint, and steps that no segment covers.

Everything here is a pure function of a golden, the rules of a file, and what the runs of a check logged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from assay.errors import NotFoundError
from assay.golden.judge.effects import find_resolution, is_gradient
from assay.golden.judge.golden import find_loosened, parse_rules
from assay.golden.judge.pairing import CheckRun
from assay.golden.values import Golden, Rule, Segment, Track
from assay.system.fast_dataclasses import replace
from assay.values.series import find_direction

ENOUGH_VALUES = 5  # fewer values may be equal by chance, next to metrics that move
FEWEST_VALUES = 2  # values of all segments together, if nothing else moves
_LOSS_NAMES = "nll nlls ppl bpc bpb bpd mse rmse mae xent ce bce kl kld elbo entropy crossentropy hinge cost objective"
_LOSSES = frozenset(_LOSS_NAMES.split())
_LOSS_ENDS = ("loss", "losses", "perplexity")
_SET = frozenset(("scale", "scaler", "weight", "coef"))  # numbers next to a loss that are set, not computed
_COST_NAMES = """
    time timestamp timing elapsed eta dt second seconds sec secs s ms hours runtime clock duration latency speed fps ips
    qps tps wps sps tgs throughput mfu hfu tflops flops memory mem vram gb mb gib mib bytes temperature power util
    utilization utilisation
"""
_COSTS = frozenset(_COST_NAMES.split())  # words in names of times, rates and memory
_COUNTED_NAMES = """
    lr learning schedule warmup momentum decay step steps iter iters iteration iterations epoch epochs batch batches
    sample samples token tokens image images
"""
_IDLE = _SET | _COSTS | frozenset(_COUNTED_NAMES.split())  # set, counted or timed values move without training, too
_QUALITY_ENDS = ("acc", "accuracy", "score", "error", "err")


def choose_rules(rules: Sequence[Rule], golden: Golden, only: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules that `only` names, as `loss` or, for one label, `loss MLM`; all rules if it is empty."""
    known = {rule.metric: rule for rule in rules}
    for rule in rules:
        labels = list_labels(golden, rule.metric)
        known |= {f"{rule.metric} {label}": replace(rule, labels=(label,)) for label in labels}
    for name in only:
        if name not in known:
            raise NotFoundError("metric", name, list(known))
    return tuple(known[name] for name in only) or tuple(rules)


def find_unjudged(rules: Sequence[Rule], golden: Golden, only: Collection[str] = ()) -> list[str]:
    """List metrics and labels that the golden holds and `rules` do not judge. A recording of the original
    harness names no rules: all its metrics should be judged. With `only`, metrics without a rule are not listed."""
    judged, found = {rule.metric: rule for rule in rules}, list[str]()
    for metric in golden.metrics:
        if metric not in judged:
            found += [metric] if not only and (metric in golden.rules or not golden.rules) else []
        elif judged[metric].labels and not any(name.startswith(f"{metric} ") for name in only):
            labels = list_labels(golden, metric)
            found += [f"{metric} {label}" for label in labels if label not in judged[metric].labels]
    return found


def find_looser(rules: Sequence[Rule], golden: Golden) -> list[str]:
    """List rules that accept more than those of the recording. Raises FormatError if the recording's are damaged."""
    judged = {rule.metric for rule in rules}
    before = [rule for rule in parse_rules(golden) if rule.metric in judged]
    return find_loosened(before, rules, golden.steps_per_segment)


def list_rules(rules: Sequence[Rule], golden: Golden, segment: Segment) -> tuple[Rule, ...]:
    """Return the rules by which a segment is judged: a metric that is logged rarely is in some segments only. The rule
    of a metric that is in no segment is kept, and is an error."""
    return tuple(rule for rule in rules if rule.metric in segment.tracks or rule.metric not in golden.metrics)


def find_absent(rules: Sequence[Rule], golden: Golden) -> list[str]:
    """Describe the judged metrics that only some segments have."""
    return [
        f"{metric} was not recorded after step {', '.join(starts)}, and is not judged there"
        for metric in dict.fromkeys(rule.metric for rule in rules if rule.metric in golden.metrics)
        if (starts := [str(each.start_step) for each in golden.segments if metric not in each.tracks])
    ]


def list_labels(golden: Golden, metric: str) -> list[str]:
    """Return the labels of a metric in all segments; empty for a metric without labels."""
    found = (label for segment in golden.segments for label in segment.tracks.get(metric, ()))
    return [label for label in dict.fromkeys(found) if label]


Values = dict[tuple[str, str], tuple[float, ...]]  # metric and label → values of the golden, or of the check


def find_dead(golden: Golden, checks: Sequence[Sequence[CheckRun]] = ()) -> list[str]:
    """List losses that are equal at every step, and gradient norms that are 0, in the golden and in the check (in all
    segments, or in one), or in the check alone. `checks`: the runs of each segment. A loss or norm of 0 is not
    listed next to a loss or norm that moves: a part of the model may be switched off. A golden in which no metric moves
    is listed, whatever the names of its metrics are."""
    parts = [_collect([segment], checks[at : at + 1]) for at, segment in enumerate(golden.segments)]
    whole = _collect(golden.segments, checks)
    moving = {_is_norm(name[0]) for name, values in whole[0].items() if len(set(values)) > 1 and _shows(name)}
    titles = ["", *(f"segment {segment.start_step} " for segment in golden.segments)]
    where = "the golden and the check" if checks else "the recording"
    found: dict[tuple[str, str], str] = {}
    for title, (recorded, checked) in zip(titles, [whole, *parts], strict=True):
        for name, values in recorded.items():
            is_norm, value = _is_norm(name[0]), values[0]
            is_still = {*values, *checked.get(name, ())} == {value} and _shows(name) and not (is_norm and value)
            is_part = value == 0 or len(values) < ENOUGH_VALUES  # counts only if no metric of its kind moves
            is_enough = len(values) >= (ENOUGH_VALUES if title else FEWEST_VALUES)
            if is_still and is_enough and not (is_part and is_norm in moving):
                found.setdefault(name, f"{title}{' '.join(name).strip()} is {value:g} at every step of {where}")
    if not found:
        found |= _find_motionless(*whole, where)
    texts = [*found.values(), *_find_stopped(*whole, [run for runs in checks for run in runs])]
    return [f"{text}: nothing shows that it trains" for text in texts]


def _find_motionless(recorded: Values, checked: Values, where: str) -> dict[tuple[str, str], str]:
    """Return one line if no metric, whatever its name, ever changes in the recording and the check."""
    computed = {name: values for name, values in recorded.items() if _is_computed(name)}
    names = [name for name, values in computed.items() if len(values) >= ENOUGH_VALUES]
    is_clipped = any(_is_norm(name[0]) and values[0] for name, values in computed.items())
    if is_clipped or not names or any(len({*values, *checked.get(name, ())}) > 1 for name, values in computed.items()):
        return {}
    text = ", ".join(" ".join(name).strip() for name in names)
    return {names[0]: f"{text}: no value changes from step to step in {where}"}


def _find_stopped(recorded: Values, checked: Values, runs: Sequence[CheckRun]) -> Iterator[str]:
    """Yield losses and norms that do not change in the check alone: a rule with one side (`<=`) passes a loss of 0.
    A difference from the golden of at most the last digit is rounding, and is not listed."""
    for (metric, label), values in checked.items():
        name, value = f"{metric} {label}".strip(), values[0]
        is_still = len(values) >= ENOUGH_VALUES and len(set(values)) == 1 and _shows((metric, label))
        if not is_still or not (value == 0 or not _is_norm(metric)):
            continue
        digit = max(find_resolution(run[metric][label]) for run in runs if label in run.get(metric, {}))
        if any(abs(each - value) > digit * (1 + 1e-9) for each in recorded.get((metric, label), ())):
            yield f"{name} is {value:g} at every step of the check, and not in the golden"


def _collect(segments: Sequence[Segment], checks: Sequence[Sequence[CheckRun]]) -> tuple[Values, Values]:
    recorded, checked = Values(), Values()
    for segment in segments:
        for metric, label, runs in segment.walk():
            recorded[metric, label] = recorded.get((metric, label), ()) + runs[0].values
    for run in (run for runs in checks for run in runs):
        for metric, labels in run.items():
            for label, track in labels.items():
                checked[metric, label] = checked.get((metric, label), ()) + track.values
    with_values = [{name: values for name, values in side.items() if values} for side in (recorded, checked)]
    return with_values[0], with_values[1]


def _shows(name: tuple[str, str]) -> bool:
    """Whether the name is that of a loss or gradient norm, not of a loss's scale or weight, nor of an accuracy."""
    words = _split(name)
    is_named = any(word in _LOSSES or word.endswith(_LOSS_ENDS) for word in words) or _is_norm(name[0])
    return is_named and not _SET.intersection(words) and find_direction(name[1]) != "max"


def is_cost(metric: str) -> bool:
    """Whether a metric is a time or an amount of memory, by its name; `rmse_temperature` is neither."""
    words = _split((metric, ""))
    is_quality = any(word in _LOSSES - {"cost"} or word.endswith((*_LOSS_ENDS, *_QUALITY_ENDS)) for word in words)
    return any(word in _COSTS or word.endswith("time") for word in words) and not is_quality


def _is_computed(name: tuple[str, str]) -> bool:
    words = _split(name)
    return _shows(name) or any(word.endswith(_QUALITY_ENDS) for word in words) or not _IDLE.intersection(words)


def _is_norm(metric: str) -> bool:
    return is_gradient(metric) or "gnorm" in _split((metric, ""))


def _split(name: tuple[str, str]) -> list[str]:
    return re.findall("[a-z]+", " ".join(name).lower())


def find_seedless(
    rules: Sequence[Rule], golden: Golden, flag: str, checks: Sequence[Sequence[CheckRun]] = ()
) -> list[str]:
    """List segments in which runs with other seeds are equal bit for bit: a check and a recording; without checks, two
    recordings. A metric that never moves is ignored. `flag`: the seed's flag; empty: all seeds are equal."""
    judged, found = {rule.metric for rule in rules if rule.kind == "unmatched"}, list[str]()
    for at, segment in enumerate(golden.segments):
        tracks = [each for each in segment.walk() if each[0] in judged and len({*each[2][0].values}) > 1]
        recorded = list(zip(*([run.values for run in runs] for _, _, runs in tracks), strict=False))
        checked = [
            tuple(run.get(metric, {}).get(label, Track((), ())).values for metric, label, _ in tracks)
            for run in (checks[at] if checks else ())
        ]
        if any(values in recorded for values in checked) or (not checks and len({*recorded}) < len(recorded)):
            found.append(f"segment {segment.start_step}: runs with other seeds are equal bit for bit")
    return [f"{text}: does the program read {flag}?" for text in found] if flag else []


def find_early_step(segment: Segment, steps: Collection[int], repeats_start: bool | None = None) -> int | None:
    """Return the first step of a run that is before its checkpoint, so that the run did not begin there. Programs that
    count from 0 log the checkpoint's own step again, but not if `repeats_start` is False."""
    last = segment.start_step - (repeats_start is not False)
    return min((step for step in {*steps}.difference(segment.steps) if step <= last), default=None)


def find_uncovered(golden: Golden) -> list[str]:
    """List steps of the training that no segment has: `up to 100`, `161 to 200`, `after 260`."""
    if not (spans := [(segment.steps[0], segment.steps[-1]) for segment in golden.segments if segment.steps]):
        return []
    steps = [step for segment in golden.segments for step in segment.steps]
    interval = min((b - a for a, b in pairwise(sorted(set(steps)))), default=1)
    gaps = [f"{one[1] + 1} to {other[0] - 1}" for one, other in pairwise(sorted(spans)) if other[0] - one[1] > interval]
    before = [f"up to {min(steps) - 1}"] if all(segment.start_step > 0 for segment in golden.segments) else []
    return [*before, *gaps, f"after {max(steps)}"]

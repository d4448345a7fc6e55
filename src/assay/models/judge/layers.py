"""Finds the layer to blame: the first layer whose output is wrong although its inputs are correct.

Tensors are compared as they come out of the whole model, so a wrong layer makes all following layers wrong, and
rounding errors grow from layer to layer. A layer is therefore blamed only when the error begins in it: its output is
wrong, its inputs are correct, and its error is several times larger than the errors of its inputs. If errors cross the
tolerance by small steps, no layer is to blame: that is drift, and the layers are ranked by how much each adds. A layer
that is wrong in isolation, with the reference's inputs, is blamed in any case. An error that no rounding explains (a
NaN, a shape, a type, a dead output) is blamed on the layer in which it begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import StrEnum

from assay.models.values.model import WRONG, CaseReport, Layer, build_signature, find_same
from assay.models.values.tensors import TensorComparison
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, Verdict, VerdictKind

_RIGHT = (VerdictKind.PASS, VerdictKind.CHANGED)
JUMP = 4.0  # up to this factor, an error of the inputs has grown; a larger one means that it began in this layer
_MOST_LABELS = 5
_NOISE_SHARE = 0.05  # fraction of the tolerance that errors of inputs count as at least: smaller errors are rounding


class Blame(StrEnum):
    """How the search for the layer to blame ended."""

    NOTHING = "nothing is wrong"
    BORN = "born here"
    DRIFT = "drift"  # no single layer adds much, but all together do


@dataclass(frozen=True, slots=True)
class Growth:
    layer: Layer
    before: float  # largest error of the layer's inputs
    after: float  # largest error of the layer's outputs
    factor: float  # ratio of the errors, rounding of inputs aside; infinite for errors that no rounding explains
    is_wrong: bool
    is_inherited: bool  # one of the inputs is already wrong
    is_wrong_alone: bool = False  # outputs are wrong with the reference's inputs


@dataclass(frozen=True, slots=True)
class Localisation:
    """The layer to blame, if any, and the reason; `ranking` begins with the layer that adds most."""

    blame: Blame
    first: Layer | None
    reason: str
    ranking: tuple[Growth, ...] = ()


def localise(
    layers: Sequence[Layer],
    accumulated: Mapping[str, TensorComparison],
    local: Mapping[str, TensorComparison] | None = None,
    excused: Container[str] = (),
) -> Localisation:
    """Find the layer to blame. `layers` are in topological order; `accumulated` are comparisons, by tensor name, of the
    tensors inside the model on the target.

    `local` are comparisons, by tensor name, of outputs that are computed with the reference's inputs. A layer that is
    correct in isolation only amplifies errors of its inputs, and is not blamed, unless its inputs have no error.
    `excused` are names of layers where the references disagree as much, which are not blamed.
    """
    graph = _Graph(layers, accumulated)
    growths = [growth for layer in layers if (growth := _measure(graph, layer, local or {})) is not None]
    ranking = tuple(sorted(growths, key=lambda each: (-each.factor, each.layer.number)))
    wrong = [growth for growth in growths if growth.is_wrong and growth.layer.name not in excused]
    if not wrong:
        return Localisation(Blame.NOTHING, None, "no layer's output is wrong", ranking)
    born = [each for each in wrong if each.is_wrong_alone or (not each.is_inherited and each.factor > JUMP)]
    if not born:
        return Localisation(Blame.DRIFT, None, _describe_drift(wrong[0], ranking), ranking)
    reason = _describe_birth(born[0], graph.find_unseen(born[0].layer))
    return Localisation(Blame.BORN, born[0].layer, reason, ranking)


class _Graph:
    """The layer that makes each tensor, and the error of the tensor."""

    def __init__(self, layers: Sequence[Layer], comparisons: Mapping[str, TensorComparison]) -> None:
        self.comparisons = comparisons
        self._makers = {name: layer for layer in layers for name in layer.outputs}
        self._errors = {name: (_find_error(found), is_wrong(found)) for name, found in comparisons.items()}
        for layer in layers:  # each layer comes after the layers that it reads from
            before = _worst(map(self.find_error, layer.inputs))
            for name in layer.outputs:
                self._errors.setdefault(name, before)

    def find_error(self, tensor: str) -> tuple[float, bool]:
        """Return a tensor's error and whether it is wrong; an uncompared tensor has those of its layer's inputs."""
        return self._errors.get(tensor, (0.0, False))

    def find_unseen(self, layer: Layer) -> tuple[Layer, ...]:
        """Return the layers before this one whose outputs were not compared, back to layers with compared outputs."""
        found: dict[int, Layer] = {}
        waiting = list(layer.inputs)
        while waiting:
            name = waiting.pop()
            maker = self._makers.get(name)
            if maker is not None and name not in self.comparisons and maker.number not in found:
                found[maker.number] = maker
                waiting.extend(maker.inputs)
        return tuple(found[number] for number in sorted(found))


def _worst(known: Iterable[tuple[float, bool]]) -> tuple[float, bool]:
    each = list(known)
    return max((error for error, _ in each), default=0.0), any(wrong for _, wrong in each)


def _find_error(comparison: TensorComparison) -> float:
    """Return the error relative to the scale; a correct tensor's error is at most what the relative bound allows."""
    if is_wrong(comparison) or not comparison.tolerance.rel:
        return comparison.error
    return min(comparison.error, comparison.tolerance.rel)


def is_wrong(comparison: TensorComparison) -> bool:
    return comparison.verdict.kind in (VerdictKind.FAIL, VerdictKind.ERROR)


def _measure(graph: _Graph, layer: Layer, local: Mapping[str, TensorComparison]) -> Growth | None:
    """Measure how one layer changes the error; None if none of its outputs was compared."""
    outputs = [graph.comparisons[name] for name in layer.outputs if name in graph.comparisons]
    if not outputs:
        return None
    before, inherited = _worst(graph.find_error(name) for name in layer.inputs)
    after, wrong = _worst((_find_error(each), is_wrong(each)) for each in outputs)
    factor = max(_find_factor(each, before) for each in outputs)
    alone = [local[name] for name in layer.outputs if name in local]
    is_right_alone = bool(alone) and all(each.verdict.kind in _RIGHT for each in alone)
    if wrong and before > 0 and is_right_alone and not any(each.is_broken for each in outputs):
        factor = min(factor, JUMP)
    return Growth(layer, before, after, factor, wrong, inherited, any(map(is_wrong, alone)))


def _find_factor(output: TensorComparison, before: float) -> float:
    if output.is_broken:
        return math.inf
    error = _find_error(output)
    if error == 0:
        return 0.0
    noise = _NOISE_SHARE * (output.tolerance.rel or 0.0)
    least = max(before, noise)
    return error / least if least > 0 else math.inf


def _describe_birth(growth: Growth, unseen: Sequence[Layer]) -> str:
    """Describe why the error begins in this layer. `unseen`: the layers before it that were not compared."""
    if growth.is_inherited:
        inputs = f"its inputs are off too (error {growth.before:.2g}), but it is also wrong in isolation"
    else:
        inputs = f"its inputs are correct (error {growth.before:.2g})" if growth.before else "its inputs are equal"
    others = ", ".join(layer.label for layer in unseen)
    more = f"; nothing between was compared, so it may be {others} as well" if others else ""
    return f"{growth.layer.label} is where it begins: {inputs}{more}"


def _describe_drift(first: Growth, ranking: Sequence[Growth]) -> str:
    most = [growth for growth in ranking if growth.factor > 1][:3]
    steps = ", ".join(f"{growth.layer.label} {growth.before:.2g} → {growth.after:.2g}" for growth in most)
    text = f"drift: {first.layer.label} is the first beyond its tolerance"
    largest = max(ranking, key=lambda growth: growth.after - growth.before)
    if largest.after - largest.before > first.after / 2 and largest.layer != first.layer:
        return f"{text}; most of it comes from {largest.layer.label}, which is within its own: {steps}"
    return f"{text}, no single layer adds much" + (f": {steps}" if steps else "")


@dataclass(frozen=True, slots=True)
class FaultSearch:
    cases: tuple[CaseReport, ...]
    first: Layer | None = None
    confirmed: bool | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    unseen: int = 0  # layers before the first wrong one that were neither requested nor compared inside the model


def conclude(
    layers: Sequence[Layer],
    accumulated: Mapping[str, TensorComparison],
    reports: Sequence[CaseReport],
    full: CaseReport | None,
) -> FaultSearch:
    """Find the first wrong layer, whether a second view confirms it, and findings about the whole model."""
    by_name = {report.name: report for report in reports}
    local = {each.name: each for report in reports for each in report.local}
    excused = {report.name for report in reports if is_excused(report)}
    inside = localise(layers, accumulated, local, excused)
    failure = build_signature(full) if full is not None and full.failed_step is not None else None
    alone = find_same(reports, failure)
    if failure is not None and alone is not None:
        first = alone.layer
    else:  # a layer may be wrong only in isolation, or only inside the model
        views = (inside.first, alone.layer if alone else None)
        first = min(filter(None, views), key=lambda layer: layer.number, default=None)
    if first is None:
        hidden = () if excused else tuple(_find_hidden(layers, inside, reports, full))
        return FaultSearch((), findings=hidden, notes=(inside.reason,) if inside.blame is Blame.DRIFT else ())
    if first.name not in by_name:
        note = f"{first.label}, which was not requested, is the first to be wrong inside the model"
        return FaultSearch((), notes=(note,))
    notes = [inside.reason] if inside.first is first else []
    notes += describe_others(first, reports, full)
    confirmed = confirm(by_name[first.name])
    doubts = () if confirmed else (judge_inside(first, accumulated, confirmed, full),)
    earlier = [layer for layer in layers if layer.number < first.number and layer.name not in by_name]
    unseen = sum(not select(layer, accumulated) for layer in earlier)
    return FaultSearch((), first, confirmed, doubts, tuple(notes), unseen=unseen)


def judge_inside(
    layer: Layer, accumulated: Mapping[str, TensorComparison], confirmed: bool | None, full: CaseReport | None
) -> Finding:
    """Judge a layer that is wrong inside the model with every intermediate tensor as an output, but not in isolation:
    the unmarked model decides."""
    off = ", ".join(f"{each.name} off by {each.error:.2g}" for each in select(layer, accumulated))
    alone = "correct in isolation: see its neighbours" if confirmed is False else "cannot be judged in isolation"
    text = f"{layer.label} is the first to be wrong inside the model ({off}), and {alone}"
    if full is None or full.verdict.kind in WRONG:
        return Finding(VerdictKind.FAIL, layer.name, text)
    text += "; without intermediate outputs the model is correct"
    return Finding(VerdictKind.INCONCLUSIVE, layer.name, text)


def is_excused(alone: CaseReport) -> bool:
    """Return whether the references disagree on this layer as much as the target is off."""
    is_wrong_somewhere = any(each.verdict.kind is VerdictKind.FAIL for each in alone.local)
    return alone.verdict.kind is VerdictKind.INCONCLUSIVE and is_wrong_somewhere


def confirm(alone: CaseReport) -> bool | None:
    """Return whether a layer is wrong in isolation; None if computing it alone is not possible or proves nothing."""
    return None if alone.verdict.kind is VerdictKind.INCONCLUSIVE else alone.verdict.kind in WRONG


def describe_others(first: Layer, reports: Sequence[CaseReport], full: CaseReport | None) -> list[str]:
    """Note layers before the first wrong one that fail in isolation, in another way than the full model."""
    if full is None or full.failed_step is None:
        return []
    earlier = [
        report for report in reports if report.failed_step and report.layer and report.layer.number < first.number
    ]
    names = ", ".join(f"{report.layer.label} ({report.outcome})" for report in earlier if report.layer)
    return [f"{names}: fails in isolation in another way than the full model"] if earlier else []


def _find_hidden(
    layers: Sequence[Layer], inside: Localisation, reports: Sequence[CaseReport], full: CaseReport | None
) -> list[Finding]:
    """Explain a wrong model without a wrong part: fusion in the unmarked model, drift, or a part that was not tried."""
    if full is None or not reports or full.verdict.kind not in WRONG:
        return []
    untried = [report.layer for report in reports if report.layer and report.verdict.kind not in _RIGHT]
    changed = [report.layer for report in reports if report.layer and report.verdict.kind is VerdictKind.CHANGED]
    failed = full.failed_step
    outcome = f" ({full.outcome}: {failed.message})".replace(": )", ")") if failed is not None else ""
    if untried:
        message = failed.message if failed is not None else ""
        named = [layer.ops[0] for layer in untried if any(_mentions(message, op) for op in layer.ops)]
        text = f"the full model is wrong{outcome}; {_join(untried)} could not be judged alone"
        ops = " and ".join(dict.fromkeys(named))
        text += f", and its output names {ops}" if ops else "; the other layers are correct"
    elif changed:
        text = f"the full model is wrong{outcome}; alone, {_join(changed)} differ by more than correct runtimes do"
    else:
        every = "every layer" if len(reports) == len(layers) else "every layer that was requested"
        text = f"the full model is wrong{outcome} although {every} is correct"
        seen = "and with intermediate outputs" if inside.ranking else "(with intermediate outputs the model fails)"
        if inside.blame is Blame.DRIFT:
            text += " in isolation: errors accumulate"
        else:
            text += f", in isolation {seen}: suspect a fusion across layers, or errors that add up"
    return [Finding(full.verdict.kind, full.name, text)]


def _mentions(message: str, op: str) -> bool:
    return re.search(rf"(?<![A-Za-z]){re.escape(op)}(?![A-Za-z])", message) is not None


def _join(layers: Sequence[Layer]) -> str:
    """Join labels: `Conv_1, Conv_2 and Add_3`."""
    labels = [layer.label for layer in layers]
    if len(labels) > _MOST_LABELS:
        labels = [*labels[: _MOST_LABELS - 1], f"{len(labels) - _MOST_LABELS + 1} more layers"]
    return " and ".join([", ".join(labels[:-1]), labels[-1]]) if len(labels) > 1 else labels[0]


def select(layer: Layer | None, accumulated: Mapping[str, TensorComparison]) -> tuple[TensorComparison, ...]:
    return tuple(accumulated[name] for name in (layer.outputs if layer else ()) if name in accumulated)


def excuse_chance(
    verdict: Verdict, comparisons: Sequence[TensorComparison], chance: Mapping[str, str]
) -> tuple[Verdict, tuple[TensorComparison, ...]]:
    """Excuse tensors that an operator draws, by name: they agree or differ by chance; only their form can be wrong."""
    if not any(each.name in chance for each in comparisons):
        return verdict, tuple(comparisons)
    found = list(comparisons)
    for index, each in enumerate(comparisons):
        if each.name in chance and not each.is_broken:
            text = f"it depends on {chance[each.name]}, which draws other numbers on each runtime: this proves nothing"
            finding = Finding(VerdictKind.INCONCLUSIVE, each.name, text)
            found[index] = replace(each, verdict=Verdict.of([finding], each.count))
    named = {each.name for each in comparisons}
    others = [finding for finding in verdict.findings if finding.subject not in named]
    findings = [*(finding for each in found for finding in each.verdict.findings), *others]
    return Verdict.of(findings, verdict.comparisons), tuple(found)


# If two references disagree with each other as much as the target does, it is not known which is correct: two correct
# runtimes may be far apart in a layer that amplifies rounding (a logarithm near zero, a difference of nearly equal
# numbers). Such a target is neither FAIL nor PASS but INCONCLUSIVE, with both numbers. Only rounding is excused, and at
# most twice the disagreement of the references: never a NaN, a shape, a type or a constant output. A tensor that is
# CHANGED is within its bound, and passes if the references disagree as much.

AS_MUCH = 2.0  # times the disagreement of the references


def judge_votes(target: Sequence[TensorComparison], references: Sequence[TensorComparison]) -> Verdict:
    """Judge by two references. `target` compares the first reference with the target, `references` the first reference
    with the second one. The findings' subjects name the tensors. The findings of tensors that pass, or that the second
    reference lacks, are not changed."""
    others = {each.name: each for each in references}
    findings = list[Finding]()
    for each in target:
        other = others.get(each.name)
        if other is None or not _is_excused(each, other):
            findings += each.verdict.findings
            continue
        between, from_first = _render_errors(other), _render_errors(each)
        text = f"the references disagree: {between} between them, {from_first} from the first to the target"
        # a CHANGED tensor is within its bound, and here as near as correct runtimes are
        kind = VerdictKind.PASS if each.verdict.kind is VerdictKind.CHANGED else VerdictKind.INCONCLUSIVE
        findings.append(Finding(kind, each.name, text, each.error, other.error))
    return Verdict.of(findings, sum(each.verdict.comparisons for each in target))


def _is_excused(target: TensorComparison, other: TensorComparison) -> bool:
    is_off = target.verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)
    if not is_off or target.is_broken or other.is_broken:
        return False
    if target.shape != other.shape or target.nan != other.nan:
        return False  # the two do not compare with the same reference
    # every measure that could have failed the target: the worst element, all elements, the direction, the ranking
    pairs = [(target.max_rel, other.max_rel), (target.mean_abs, other.mean_abs)]
    if target.cosine is not None and other.cosine is not None:
        pairs.append((1 - target.cosine, 1 - other.cosine + 1e-12))  # the rounding error of 1 - 1 in double precision
    if target.tolerance.top_k is not None:  # a ranking counts only if it was requested
        pairs.append((_misranked(target), _misranked(other)))
    return all(mine <= AS_MUCH * theirs for mine, theirs in pairs)


def _render_errors(comparison: TensorComparison) -> str:
    return f"{comparison.max_rel:.3g} of the scale at worst and {comparison.mean_abs:.3g} on average"


def _misranked(found: TensorComparison) -> float:
    return 1 - found.top_k if found.tolerance.top_k is not None and found.top_k is not None else 0.0

"""When the references disagree with each other as much as the target does, nobody knows who is right.

A layer that amplifies rounding (a logarithm near zero, a difference of nearly equal numbers) gives two correct runtimes
results that are far apart. Failing the target for being as far from one of them would be unjust; passing it would be
blind. It is INCONCLUSIVE, with both numbers. Only rounding is excused, and only as much of it as the references show:
never a NaN, a shape, a type or a dead output, and never more than twice their own disagreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.models.values.tensors import TensorComparison
from assay.values.verdict import Finding, Verdict, VerdictKind

AS_MUCH = 2.0  # times the references' own disagreement


def judge_votes(target: Sequence[TensorComparison], references: Sequence[TensorComparison]) -> Verdict:
    """`target`: the reference's tensors against the target's. `references`: against those of a second reference.

    The findings' subjects name the tensors. Tensors that pass, and those that the second reference has not, stay as
    they were.
    """
    others = {each.name: each for each in references}
    findings = [finding for each in target for finding in _weigh(each, others)]
    return Verdict.of(findings, sum(each.verdict.comparisons for each in target))


def _weigh(target: TensorComparison, others: Mapping[str, TensorComparison]) -> tuple[Finding, ...]:
    other = others.get(target.name)
    if other is None or not _is_excused(target, other):
        return target.verdict.findings
    text = f"the references disagree: {_describe(other)} between them, {_describe(target)} from the first to the target"
    return (Finding(VerdictKind.INCONCLUSIVE, target.name, text, target.error, other.error),)


def _is_excused(target: TensorComparison, other: TensorComparison) -> bool:
    if target.verdict.kind is not VerdictKind.FAIL or target.is_broken or other.is_broken:
        return False
    if target.shape != other.shape or target.nan != other.nan:
        return False  # they are not comparisons with the same reference
    return all(mine <= AS_MUCH * theirs for mine, theirs in _pair_numbers(target, other))


def _pair_numbers(target: TensorComparison, other: TensorComparison) -> list[tuple[float, float]]:
    """Errors of both, by every measure that could have failed the target: the worst element, all elements, the whole
    tensor's direction, and the ranking."""
    pairs = [(target.max_rel, other.max_rel), (target.mean_abs, other.mean_abs)]
    if target.cosine is not None and other.cosine is not None:
        pairs.append((1 - target.cosine, 1 - other.cosine + 1e-12))  # what a double leaves of 1 - 1
    if target.tolerance.top_k is not None:  # a ranking that nobody asked for is shown, and decides nothing
        pairs.append((_misranked(target), _misranked(other)))
    return pairs


def _describe(comparison: TensorComparison) -> str:
    return f"{comparison.max_rel:.3g} of the scale at worst and {comparison.mean_abs:.3g} on average"


def _misranked(found: TensorComparison) -> float:
    return 1 - found.top_k if found.tolerance.top_k is not None and found.top_k is not None else 0.0

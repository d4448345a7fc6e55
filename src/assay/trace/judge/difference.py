"""The verdict on two traces: the first point whose inputs agree and whose output differs, or another cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from assay.judge.statistics import Array, np
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import dataclass, replace
from assay.trace.judge.causes import Cause, find_causes
from assay.trace.judge.errors import BEYOND, EPSILONS, WITHIN, Compared, compare_rows
from assay.trace.judge.pairing import SEQUENCE, STRONG, Pairs, pair_points
from assay.trace.judge.sides import Key, Side, load_lean
from assay.trace.records import Point
from assay.values.verdict import Finding, Verdict, VerdictKind

LEAST_COVERAGE = 0.7  # the paired fraction that is needed, of the points of the side that has fewer
_PRECISION = 0.1  # fraction of all pairs that may differ in type; above it a side has another precision
_SPREAD = 10.0  # a gradient whose error is so many times as large is the one from which clipping spreads errors
_COMMON_FACTOR = 0.9  # fraction of a phase's tensors that must have the same factor
OUTERMOST = "(model)"
PHASES = ("input", "forward", "loss", "backward", "gradient", "optimiser", "parameter", "buffer")
NAMED = ("gradient", "parameter", "optimiser", "buffer")  # phases of tensors that have a name in their module
UNKNOWN = 0xFFFFFFFF  # an input whose row was not recorded
_KINDS = {"gradient": "gradient", "parameter": "optimiser", "optimiser": "optimiser", "input": "input"}
_BEFORE = {"gradient": "backward", "parameter": "gradient", "optimiser": "gradient"}
_FACTS = ("flag", "group", "random", "weights", "ranks")
_DRAWS = "random numbers"
_OWNERS = {"input": "the input of", "optimiser": "the state of"}
_OWNERS |= dict.fromkeys(("backward", "gradient"), "the gradient of")


@dataclass(frozen=True, slots=True)
class Coverage:
    points_a: int
    points_b: int
    paired_a: int
    paired_b: int
    by: Mapping[str, int]  # how pairs were made → number
    rows: int  # rows that were compared
    unplaced: int  # points of several ranks whose placement is not known

    @property
    def fraction(self) -> float:
        """The paired fraction of the side with fewer points: a compiled program is recorded at the borders of its
        regions. Pairs by order alone count up to the number of all other pairs."""
        fewest = min(self.points_a, self.points_b)
        paired = self.paired_a if self.points_a <= self.points_b else self.paired_b
        sure = paired - self.by.get(SEQUENCE, 0)
        return min(paired, 2 * sure) / fewest if fewest else 0.0


@dataclass(frozen=True, slots=True)
class First:
    """The beginning of the difference. `inside`: a module whose earlier code is suspect too; inputs are unknown."""

    kind: str  # module, gradient, optimiser, input, flag, group, random, weights, ranks, missing, nonfinite
    step: int
    phase: str
    module: str
    name: str
    text: str
    inside: str = ""
    error_in: float | None = None
    error_out: float | None = None
    noise: float | None = None
    inputs: tuple[str, ...] = ()
    source: tuple[str, str] = ("", "")
    how: str = ""
    index: int = -1  # position among the compared rows
    call: int = 0  # number of the module's call in the step, from 0


def judge_traces(
    a: Side, b: Side, noise_a: Sequence[Side] = (), noise_b: Sequence[Side] = (), names: Sequence[tuple[str, str]] = ()
) -> Comparison:
    """Compare and judge two sides. `noise_a`, `noise_b`: perturbed executions of a side."""
    pairs = pair_points(a, b, names)
    perturbed = [
        [(each, np.array(pair_points(side, each).other, int)) for each in found]
        for side, found in ((a, noise_a), (b, noise_b))
    ]
    compared = _drop_misaligned(pairs, compare_rows(a, b, np.array(pairs.other, int), *perturbed), a)
    return Comparison(a, b, pairs, _add_fused(compared, pairs, a, b), bool(noise_a or noise_b))


class Comparison:
    """Two sides, their compared rows, and what began the difference. A row is a position among the compared rows."""

    def __init__(self, a: Side, b: Side, pairs: Pairs, compared: Compared, has_noise: bool) -> None:
        self.a, self.b, self.pairs, self.compared, self.has_noise = a, b, pairs, compared, has_noise
        self.causes = find_causes(a, b, pairs)
        self.ratio, self._scales = compared.ratio, dict[int, float]()
        if has_noise:
            self._allow_scales()
        self.coverage = _measure_coverage(a, b, pairs, compared)
        self.other_precision = _find_precision(a, b, compared)  # the type of B, if more than a few pairs differ in type
        compiled = [(label, side) for label, side in (("A", a), ("B", b)) if side.meta.get("graphs", {}).get("graphs")]
        self._compiled = compiled if len(compiled) == 1 else []  # the compiled side, if only one side is compiled
        self._reshaped = _find_reshaped(a, b, compared)
        self.first = self._find_first()
        self.verdict = Verdict.of(self._list_findings(), len(compared.a))
        self.notes = tuple(self._list_notes())

    @property
    def kind(self) -> VerdictKind:
        return self.verdict.kind

    def _key(self, number: int) -> Key:
        return self.a.keys[int(self.compared.point[number])]

    def _find_phases(self, *phases: str) -> Array:
        """Return for each row whether it is of one of these phases."""
        return self.a.find_phases(*phases)[self.compared.point]

    def _find_step(self, number: int, *phases: str) -> Array:
        """Return for each row whether it is of one of these phases, in the same step as row `number`."""
        return self._find_phases(*phases) & (self.compared.step == self.compared.step[number])

    def _allow_scales(self) -> None:
        """Allow a loss of another scale (by GradScaler, or by a mean taken after the backward pass) if the gradients of
        parameters in its step agree, and the gradients of outputs have the scale of the loss."""
        is_loss, is_gradient, is_backward = map(self._find_phases, ("loss", "gradient", "backward"))
        for step in np.unique(self.compared.step[is_loss & (self.ratio > WITHIN)]).tolist():
            same = self.compared.step == step
            gradients, outputs = self.ratio[same & is_gradient], np.flatnonzero(same & is_backward)
            factor = self._find_factor(int((same & is_loss).argmax()))
            if factor is None or not len(gradients) or (gradients > WITHIN).any() or not len(outputs):
                continue
            mine = self.a.rows["sketch"][self.compared.a[outputs]].astype(float)
            rest = np.linalg.norm(self.b.rows["sketch"][self.compared.b[outputs]] / factor - mine, axis=1)
            scaled = rest / np.fmax(np.linalg.norm(mine, axis=1), 1e-300) / self.compared.noise[outputs]
            if (self.ratio[outputs] > WITHIN).any() and (scaled <= WITHIN).all():
                self._scales[step] = factor
                self.ratio[outputs], self.ratio[same & is_loss] = scaled, 0.0

    # ---------------------------------------------------------------- what began the difference

    def _find_first(self) -> First | None:
        number = self._find_row()
        row = self._build_row(number) if number is not None else None
        missing = _find_missing(self.a, self.b, self.pairs)
        if missing is not None and (row is None or self.other_precision or _comes_before(missing, row)):
            row = missing
        if self._reshaped is not None and (row is None or self._comes_before_shapes(self._reshaped, row)):
            return self._reshaped
        if row is None and (self.a.drift is None) != (self.b.drift is None):
            # on one side alone the replicas have become different; the compared row may still be equal
            step, module, name = self.a.drift or self.b.drift or (0, "", "")
            row = First("ranks", step, "parameter", module, name, "")
        if (row := self._name_draws(self._blame(row))) is not None:
            return row
        # values of the optimiser may differ without effect on a tensor: a momentum has no effect in step 1
        for cause in self.causes:
            if cause.kind == "group" and not cause.is_benign:
                text = f"{cause.text}; no tensor shows it in the steps that were compared"
                return First("group", cause.step, "optimiser", "", cause.name, text)
        return None

    def _comes_before_shapes(self, reshaped: First, row: First) -> bool:
        """Return whether tensors of other shapes come before a row: an error in a layer can change shapes after it."""
        if self.compared.reshaped is None or row.index < 0:
            return _comes_before(reshaped, row)
        shaped, other = (self.a.order[at] for at in (self.compared.reshaped[0], int(self.compared.a[row.index])))
        return (reshaped.step, int(shaped)) < (row.step, int(other))

    def _find_row(self) -> int | None:
        """Find the first row beyond noise; if precisions differ, the row at which the error grows most."""
        if self.other_precision:
            return self._find_growth()
        found = np.flatnonzero(self.ratio > WITHIN)
        return self._find_state(self._choose_gradient(int(found[0]))) if len(found) else None

    def _find_growth(self) -> int | None:
        """Find the row of the first forward pass at which the error grows most beyond the largest error before it."""
        compared = self.compared
        is_first = self._find_phases("input", "forward", "loss") & (compared.step == compared.step[:1])
        at = np.flatnonzero(is_first & np.isfinite(compared.error))
        if not len(at):
            return None
        errors = np.maximum.accumulate(compared.error[at])
        growth = errors / np.maximum(np.r_[0.0, errors[:-1]], 1e-3)  # an error below a thousandth is rounding
        return int(at[int(growth.argmax())])

    def _choose_gradient(self, number: int) -> int:
        """Return the gradient with the largest error if clipping has spread its error over all gradients of parameters,
        which are recorded together; else the row, also if the gradient of an output before it was not recorded."""
        if self._key(number)[0] != "gradient" or not self._find_inputs(number)[2]:
            return number
        same = np.flatnonzero(self._find_step(number, "gradient") & (self.ratio > WITHIN))  # gradients beyond noise
        largest = int(same[np.nanargmax(self.compared.error[same])])
        is_clear = self.compared.error[largest] > _SPREAD * self.compared.error[number]
        return largest if is_clear and self._find_inputs(largest)[2] else number

    def _find_state(self, number: int) -> int:
        """Return the first optimiser state of a parameter that differs, which decides the parameter; else the row."""
        phase, module, name, *_ = self._key(number)
        for index in range(number + 1, len(self.ratio)) if phase == "parameter" else ():
            other = self._key(index)
            if other[:2] != ("optimiser", module) or other[2].split(".")[0] != name:
                return number
            if self.ratio[index] > WITHIN and self.a.rows["count"][int(self.compared.a[index])] > 1:
                return index
        return number

    def _blame(self, row: First | None) -> First | None:
        """Return what began the difference in a row; None if there is no row."""
        if row is None:
            return None
        draws = row.index >= 0 and "drop" in self.a.points[int(self.compared.point[row.index])].kind.lower()
        for cause in self.causes:
            is_early = cause.step < row.step or (cause.step == row.step and _can_show(cause, row))
            is_early = is_early or bool(self.other_precision and row.phase != "input")  # causes are not rounded
            is_rounded = cause.kind == "weights" and self.other_precision not in ("", "bfloat16")
            if is_rounded or (cause.kind == "random" and not draws):
                continue
            if is_early and not cause.is_benign:
                text = f"{cause.text}; it shows first at {describe_point(row)}"
                module = cause.module or row.module
                return replace(row, kind=cause.kind, name=cause.name, text=text, module=module, inside="")
        return row

    def _name_draws(self, row: First | None) -> First | None:
        """Name dropout as the cause in a region that only one side compiles: inductor draws other random numbers than
        torch, so the region and everything after it differ."""
        if row is None or row.kind != "module" or row.phase != "forward" or not self._compiled:
            return row
        label, side = self._compiled[0]
        flags = {**side.meta.get("flags", {}), **(side.steps.get(row.step, {}).get("flags") or {})}
        if flags.get("fallback_random") or not self._has_draws(row):
            inside = f"; a region that {label} compiles: record both sides with --inside to compare its modules"
            return row if side.meta.get("inside") else replace(row, text=row.text + inside)
        text = f"{describe_point(row)} is compiled in {label}, where inductor draws other random numbers (dropout): "
        text += f"record {label} with torch._inductor.config.fallback_random = True, or without dropout"
        return replace(row, kind="random", name=_DRAWS, text=text)

    def _has_draws(self, row: First) -> bool:
        """Return whether random numbers are drawn in the module of a row, or anywhere in the step."""
        inside = "" if row.module == OUTERMOST else row.module
        if any(_has_dropped(side, inside, row.step) for side in (self.a, self.b)):
            return True
        after = min((step for step in set(self.a.steps) & set(self.b.steps) if step > row.step), default=None)
        return after is not None and any(each.kind == "random" and each.step == after for each in self.causes)

    # ---------------------------------------------------------------- a row

    def _build_row(self, number: int) -> First:
        compared, i = self.compared, int(self.compared.point[number])
        point, j = self.a.points[i], int(self.pairs.other[i])
        inputs, error_in, is_known = self._find_inputs(number)
        inside = ""
        is_late = point.phase == "buffer" or self._is_own(number)
        agrees = self._find_step(number, point.phase) & (self.ratio <= WITHIN)
        if not is_known and not is_late and (before := _get_one(agrees[:number], -1)) is not None:
            parts = zip(self._key(before)[1].split("."), point.module.split("."), strict=False)
            common = ".".join(part for part, _ in takewhile(lambda pair: pair[0] == pair[1], parts))
            inside = OUTERMOST if common in ("", point.module) else common
        row = replace(
            _start(point, compared.step[number], self.b.points[j] if j >= 0 else None), inside=inside,
            error_in=error_in, error_out=float(compared.error[number]),
            noise=float(compared.noise[number]) if self.has_noise else None, inputs=inputs, how=self.pairs.how[i],
            index=number, call=0 if point.op else point.call,
        )  # fmt: skip
        return replace(row, text="; ".join(self._explain(row)))

    def _find_inputs(self, number: int) -> tuple[tuple[str, ...], float | None, bool]:
        """Return the inputs of a row: names, the largest error, and whether all were recorded and agree."""
        compared, phase = self.compared, self._key(number)[0]
        if phase in _BEFORE:
            wanted = [self._find_same(number, _BEFORE[phase])]
        elif phase == "backward":  # the input of a backward pass is the gradient of another module
            wanted = []
        else:
            rows = [int(each) for each in self.a.rows["inputs"][int(compared.a[number])] if each]
            wanted = [None if each == UNKNOWN else _get_one(compared.a == each - 1, 0) for each in rows]
        known = [each for each in wanted if each is not None]
        errors = [float(compared.error[each]) for each in known]
        agree = bool(known) and len(known) == len(wanted) and all(self.ratio[each] <= WITHIN for each in known)
        names = tuple(dict.fromkeys(self._key(each)[1] or OUTERMOST for each in known))
        return names, max(errors, default=None), agree

    def _is_own(self, number: int) -> bool:
        """Return whether a row is a parameter that no optimiser changes."""
        return self._key(number)[0] == "parameter" and self._find_same(number, "gradient") is None

    def _find_same(self, number: int, phase: str) -> int | None:
        """Return the row of the same parameter, or of its module's output, in another phase of the step."""
        _, module, name, *_ = self._key(number)
        is_any = phase == "backward"
        owners = [each[1] == module and (is_any or each[2] == name.split(".")[0]) for each in self.a.keys]
        return _get_one(np.array(owners, bool)[self.compared.point] & self._find_step(number, phase), -1)

    def _explain(self, row: First) -> Iterator[str]:
        yield f"{describe_point(row)} differs by {render_error(row.error_out)}"
        if row.noise is not None and row.noise > 0:
            yield f"{render_number(row.error_out / row.noise, 2) if row.error_out else 0} times the noise"
        if row.phase == "loss":
            yield "the outputs of the model agree: its targets, or the code that computes the loss, do not"
        elif row.inputs:
            yield f"what went in ({', '.join(row.inputs)}) by {render_error(row.error_in)}"
        elif row.inside:
            yield f"the code of {row.inside} before it can be meant as well"
        if self._is_own(row.index):
            yield "it has no gradient in this step: the program changes it itself (an average of weights)"
        yield from self._describe_factor(row)
        if row.kind == "input":
            yield self._describe_data(row)
        if row.phase == "optimiser":
            yield from self._describe_state(row.index)

    def _find_factor(self, number: int) -> float | None:
        """Return the factor by which B is a multiple of A, if a factor explains the difference."""
        error = float(self.compared.error[number])
        if not 0 < error < math.inf:
            return None
        fewest = 1 if self._key(number)[0] == "loss" else 2
        factor = _find_multiple(*self._get_sketches(number), 0.02 * error, fewest)
        return factor if factor is not None and abs(factor - 1) > 1e-6 else None

    def _get_sketches(self, number: int) -> tuple[Array, Array]:
        a, b = int(self.compared.a[number]), int(self.compared.b[number])
        return self.a.rows["sketch"][a].astype(float), self.b.rows["sketch"][b].astype(float)

    def _describe_factor(self, row: First) -> Iterator[str]:
        factor = self._find_factor(row.index)
        if factor is None:
            return
        is_many = self.a.rows["count"][self.compared.a] > 1  # any number is a multiple of any other number
        is_same = self._find_step(row.index, row.phase) & is_many
        others = [self._find_factor(n) for n in np.flatnonzero(is_same)[:200].tolist()]
        shared = sum(each is not None and math.isclose(each, factor, rel_tol=1e-3) for each in others)
        everywhere = len(others) > 1 and shared >= _COMMON_FACTOR * len(others)
        scope = f"every {row.phase} of this step is" if everywhere else "it is"
        digits = 4 if abs(factor - 1) > 1e-3 else 7  # 1.0001 is not shown as 1
        yield f"{scope} {render_number(factor, digits)} times that of A"
        worlds = {self.a.world / self.b.world, self.b.world / self.a.world}
        if everywhere and any(math.isclose(factor, each, rel_tol=1e-3) for each in worlds if each != 1):
            yield "a sum over the ranks in place of a mean, or the reverse"

    def _describe_state(self, number: int) -> Iterator[str]:
        """Report that one side had lost an optimiser state: the state is a multiple of the gradient after the step."""
        gradient = self._find_same(number, "gradient")
        if gradient is None:
            return
        before, after = self._get_sketches(gradient), self._get_sketches(number)
        a, b = (_find_multiple(*each, 0.01) for each in zip(before, after, strict=True))
        for label, factor, other in (("A", a, b), ("B", b, a)):
            if factor is not None and other is None:
                yield f"in {label} it was zero before this step: it is {render_number(factor)} times the gradient"

    def _describe_data(self, row: First) -> str:
        """Describe whether A read the data of B in another step."""
        if self._is_assumed(row):
            return "rank by rank they are other data; are rows dealt out in turn? record with --placement: * = I(0)"
        rows = self.a.rows[self.a.rows["point"] == self.compared.point[row.index]]
        value = self.b.rows["hash"][int(self.compared.b[row.index])]
        steps = rows["step"][rows["hash"] == value]
        order = "another order"
        return f"A saw these data in step {int(steps[0])}: {order}" if len(steps) else f"other data, or {order}"

    # ---------------------------------------------------------------- the verdict

    def _list_findings(self) -> Iterator[Finding]:
        first = self.first
        if first is not None:
            subject = first.name if first.kind in _FACTS else "loss" if first.phase == "loss" else first.module
            yield Finding(self._find_kind(first), subject, first.text, first.error_out, first.noise, first.step)
        elif not self.other_precision and len(self.compared.a):
            yield Finding(VerdictKind.PASS, "", self._describe_pass())
        for subject, text in self._list_doubts():
            yield Finding(VerdictKind.INCONCLUSIVE, subject, text)

    def _list_doubts(self) -> Iterator[tuple[str, str]]:
        """Yield reasons why the sides may differ although no row shows it: a subject and a sentence."""
        precision, cover, unread = self.other_precision, self.coverage, self.compared.unread
        if precision:
            yield "precision", f"the two sides compute in other precisions (B: {precision}): an error may be rounding"
        if cover.fraction < LEAST_COVERAGE:
            yield "coverage", f"only {cover.fraction:.0%} of the points are paired, {LEAST_COVERAGE:.0%} are needed"
        if unread:
            yield "values", f"{render_count(unread, 'tensor')} could not be read when recording: not compared"
        if cover.unplaced:
            points = render_count(cover.unplaced, "point")
            yield "placement", f"the placement of {points} on the ranks is not known: only norms were compared there"
        for label, side in (("A", self.a), ("B", self.b)):
            if not side.is_whole:
                yield label, f"the trace of {label} ends before its program did: compared up to there"
            elif not side.steps:
                yield label, f"no step of {label} was completed: gradients, parameters and states were not recorded"
            elif lost := set(side.meta.get("steps", ())) & (set(self.a.steps) | set(self.b.steps)) - set(side.steps):
                yield label, f"{label} ended before step {min(lost)}, which the other side has: compared up to there"
        if self.first is None:
            yield from self._list_unproved()

    def _list_unproved(self) -> Iterator[tuple[str, str]]:
        """Yield doubts that equal rows leave: one side trains more (an additional bias is 0 at first), or NaN."""
        own = [{f"{key[1]}.{key[2]}".strip(".") for key in keys if key[0] == "gradient"} for keys in self._find_alone()]
        for label, mine, theirs in zip("AB", own, own[::-1], strict=True):
            if mine and not theirs:
                yield label, f"{label} alone trains {', '.join(sorted(mine)[:5])}"
        # find values that are not finite and reached a trained tensor, in a step that was not skipped
        lean = load_lean(self.a.rows)
        reached = {self.a.keys[int(i)][0] for i in np.unique(lean["point"][find_nonfinite(self.a, lean)])}
        if reached & {"loss", *NAMED}:
            yield "not finite", "both sides have values that are not finite in the loss, a gradient or a parameter"

    def _find_alone(self) -> list[list[Key]]:
        """Return the keys of the points that only A has, and of the points that only B has."""
        sides = zip((self.a, self.b), self.pairs.left, self.pairs.parts, strict=True)
        return [[side.keys[i] for i in left if i not in fused] for side, left, fused in sides]

    def _find_kind(self, first: First) -> VerdictKind:
        is_unsure = self.other_precision or first is self._reshaped or self.coverage.fraction < LEAST_COVERAGE
        is_unsure = is_unsure or first.name == _DRAWS
        for side in (self.a, self.b):  # the data of several ranks may differ from those of the other side
            points = np.unique(side.rows["point"][side.by_norm]) if side.unplaced else ()
            is_unsure = is_unsure or any(side.keys[int(number)][0] == "input" for number in points)
        if first.index >= 0:
            a, b = int(self.compared.a[first.index]), int(self.compared.b[first.index])
            is_unsure = is_unsure or self.a.by_norm[a] or self.b.by_norm[b] or self._is_assumed(first)
        if is_unsure:
            return VerdictKind.INCONCLUSIVE
        if not self.has_noise or (first.kind == "group" and first.index < 0):
            return VerdictKind.CHANGED
        is_exact = first.index < 0  # missing gradients and different replicas have no noise
        return VerdictKind.FAIL if is_exact or (self.ratio > BEYOND).any() else VerdictKind.INCONCLUSIVE

    def _is_assumed(self, first: First) -> bool:
        """Return whether a row is data that the ranks may share differently than was assumed."""
        i, j = (int(each[first.index]) for each in (self.compared.point, self.compared.other))
        placements = [self.a.points[i].placement, self.b.points[j].placement]
        return first.kind == "input" and any(each and each.get("assumed") for each in placements)

    def _describe_pass(self) -> str:
        rows = render_count(len(self.compared.a), "tensor")
        if not self.compared.error.any():
            return f"{rows} are equal bit for bit"
        worst = int(np.nanargmax(self.ratio))
        size = render_number(self.ratio[worst], 2)
        return f"{rows} are within noise: the largest error is {size} times it, at {self._key(worst)[1] or OUTERMOST}"

    # ---------------------------------------------------------------- notes

    def _list_notes(self) -> Iterator[str]:
        named = self.first.text if self.first else ""
        shown = [cause.text for cause in self.causes if cause.kind != "random" and cause.text not in named]
        yield from shown[:8]
        if len(shown) > 8:
            yield f"and {len(shown) - 8} more differences of settings and weights"
        for step, factor in list(self._scales.items())[:1]:
            scale = f"{render_number(factor)} times that of A in step {step}"
            yield f"the loss of B has another scale, {scale}; the gradients of the parameters agree"
        yield from _compare_metas(self.a, self.b)
        # one side may have parameters of its own: a weight that is no longer shared, a layer that was added
        for label, keys in zip("AB", self._find_alone(), strict=True):
            if names := list(dict.fromkeys(f"{key[1]}.{key[2]}".strip(".") for key in keys if key[0] == "parameter")):
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                yield f"parameters of {label} alone: {', '.join(names[:5])}{more}"
        if aligned := self.coverage.by.get(SEQUENCE, 0):
            yield f"{render_count(aligned, 'point')} paired by their order alone"


def _get_one(is_meant: Array, at: int) -> int | None:
    """Return the first (0) or last (-1) of the selected rows."""
    found = np.flatnonzero(is_meant)
    return int(found[at]) if len(found) else None


def _start(point: Point, step: int, other: Point | None = None) -> First:
    """Return the known facts of a point and of the point paired with it, without errors."""
    sources = point.source or "", (other.source if other else "") or ""
    kind = _KINDS.get(point.phase, "module")
    return First(kind, int(step), point.phase, point.module or OUTERMOST, point.name, "", source=sources)


def _comes_before(one: First, other: First) -> bool:
    return (one.step, PHASES.index(one.phase)) <= (other.step, PHASES.index(other.phase))


def _can_show(cause: Cause, row: First) -> bool:
    """Return whether a cause can have an effect on a row of the same step."""
    if row.phase == "input":
        return False
    late = cause.kind in ("group", "ranks")
    return not late or row.phase in ("optimiser", "parameter") or (cause.kind == "ranks" and row.phase == "gradient")


def describe_point(row: First) -> str:
    name = f"{row.module}.{row.name}" if row.phase in NAMED else row.module
    name = "the loss" if row.phase == "loss" else name.removeprefix(f"{OUTERMOST}.")
    name += f" (call {row.call + 1})" if row.call else ""
    return f"{_OWNERS.get(row.phase, '')} {name} in step {row.step}".strip()


def render_error(value: float | None) -> str:
    return "unknown" if value is None else "0" if value == 0 else render_number(value, 2)


def _measure_coverage(a: Side, b: Side, pairs: Pairs, compared: Compared) -> Coverage:
    """Measure the coverage. A point counts as paired if a row of it was compared."""
    mine, theirs = (
        {*np.unique(points).tolist(), *fused}
        for points, fused in zip((compared.point, compared.other), pairs.parts, strict=True)
    )
    by = Counter(pairs.how[i] for i in mine if pairs.how[i])
    if pairs.fused:
        by["fused weights"] = sum(len(found) for found, _ in pairs.fused)
    unplaced = a.unplaced + b.unplaced
    return Coverage(len(a.keys), len(b.keys), len(mine), len(theirs), dict(by), len(compared.a), unplaced)


def _find_precision(a: Side, b: Side, compared: Compared) -> str:
    """Return the type of B if the floating-point types of more than a few pairs differ."""
    points, at = np.unique(compared.point, return_index=True)
    pairs = zip(points, compared.other[at], strict=True)
    types = [(a.points[int(i)].dtype, b.points[int(j)].dtype) for i, j in pairs]
    different = [theirs for mine, theirs in types if mine != theirs and mine in EPSILONS and theirs in EPSILONS]
    return Counter(different).most_common(1)[0][0] if len(different) > _PRECISION * len(types) else ""


def _find_missing(a: Side, b: Side, pairs: Pairs) -> First | None:
    """Find the first gradient that only one side has, of a parameter that both have."""
    for side, without, left in zip((a, b), "BA", map(set, pairs.left), strict=True):
        known = {key[1:3] for i, key in enumerate(side.keys) if key[0] == "parameter" and i not in left}
        for i, key in enumerate(side.keys):
            if key[0] == "gradient" and i in left and key[1:3] in known:
                is_cut = any(own[:2] == ("backward", key[1]) and j in left for j, own in enumerate(side.keys))
                rows = np.flatnonzero(side.rows["point"] == i)
                step = int(side.rows["step"][rows[0]]) if len(rows) else 0
                text = f"{key[1]}.{key[2]} has no gradient in {without}, from step {step} on"
                phase = "backward" if is_cut else "gradient"  # the first phase in which the gradient is missing
                return replace(_start(side.points[i], step), kind="missing", phase=phase, module=key[1], text=text)
    return None


def _find_reshaped(a: Side, b: Side, compared: Compared) -> First | None:
    """Find the first tensors that could not be compared because their shapes differ, as those of other batches."""
    if compared.reshaped is None:
        return None
    row, other = compared.reshaped
    i, j = int(a.rows["point"][row]), int(b.rows["point"][other])
    first = _start(a.points[i], a.rows["step"][row], b.points[j])
    shapes = list(a.points[i].shape), list(b.points[j].shape)
    text = f"{describe_point(first)} has the shape {shapes[0]} in A and {shapes[1]} in B: not comparable from there on"
    return replace(first, text=text)


def _find_multiple(mine: Array, theirs: Array, tolerance: float, fewest: int = 2) -> float | None:
    """Return the factor from the first sketch to the second one, if there is one. `fewest`: so many numbers must not be
    0, since a single number always has a factor."""
    square, size = float(mine @ mine), float(np.linalg.norm(theirs))
    factor = float(mine @ theirs) / square if square else 0.0
    rest = float(np.linalg.norm(theirs - factor * mine))
    return factor if size > 0 and rest < tolerance * size and np.count_nonzero(mine) >= fewest else None


def _has_dropped(side: Side, inside: str, step: int) -> bool:
    """Return whether dropout in a module changes its input; for an unknown input, whether dropout outputs zeros."""
    points = [i for i, key in enumerate(side.keys) if key[0] == "forward" and "drop" in side.points[i].kind.lower()]
    own = [i for i in points if not inside or f"{side.keys[i][1]}.".startswith(f"{inside}.")]
    rows = side.rows[np.isin(side.rows["point"], own) & (side.rows["step"] == step)]
    given = rows["inputs"][:, 0].astype(int)
    changed = rows["hash"] != side.rows["hash"][np.fmax(given - 1, 0)]
    return bool(np.where(given > 0, changed, rows["zeros"] > 0).any())


def _drop_misaligned(pairs: Pairs, compared: Compared, a: Side) -> Compared:
    """Drop wrong pairs: pairs by order alone that differ, although a stronger pair after them in the step agrees."""
    weak = np.array([how == SEQUENCE for how in pairs.how], bool)
    if not weak.any() or not len(compared.a):
        return compared
    strong = np.array([how in STRONG for how in pairs.how], bool) & a.find_phases("forward")
    ratio, first = compared.ratio, compared.step == compared.step[0]
    last = _get_one(first & strong[compared.point] & (ratio <= WITHIN), -1)
    is_before = np.arange(len(ratio)) < (-1 if last is None else last)
    wrong = np.unique(compared.point[is_before & weak[compared.point] & (ratio > WITHIN)])
    modules = {a.keys[int(i)][1] for i in wrong}
    bad = np.array([weak[i] and key[1] in modules for i, key in enumerate(a.keys)], bool)
    pairs.drop(bad)
    return compared.choose(~bad[compared.point])


def _add_fused(compared: Compared, pairs: Pairs, a: Side, b: Side) -> Compared:
    """Compare a fused tensor with its parts by the norm of all parts together: the sketches of parts do not add up."""
    found: list[tuple[Any, ...]] = []
    for mine, theirs in pairs.fused:
        steps = _sum_squares(a, mine), _sum_squares(b, theirs)
        for step in sorted(set(steps[0]) & set(steps[1])):
            (row_a, square_a), (row_b, square_b) = steps[0][step], steps[1][step]
            size = max(square_a, square_b) ** 0.5
            error = abs(square_a**0.5 - square_b**0.5) / size if size else 0.0
            near = compared.noise[(compared.step == step)]
            noise = float(np.median(near)) if len(near) else 0.0
            found.append((row_a, row_b, error if error > 1e-9 else 0.0, noise, step, mine[0], theirs[0]))
    if not found:
        return compared
    joined = compared.add(found)
    return joined.choose(np.lexsort((a.order[joined.a], joined.step)))


def _sum_squares(side: Side, points: Sequence[int]) -> dict[int, tuple[int, float]]:
    """Return for each step the last row of these points, and the sum of squares of all their rows."""
    found: dict[int, tuple[int, float]] = {}
    for row in np.flatnonzero(np.isin(side.rows["point"], points)).tolist():
        step = int(side.rows["step"][row])
        found[step] = (row, found.get(step, (0, 0.0))[1] + float(side.rows["sumsq"][row]))
    return found


def _compare_metas(a: Side, b: Side) -> Iterator[str]:
    for name in ("level", "torch", "python", "device"):
        mine, theirs = a.meta.get(name), b.meta.get(name)
        if mine is not None and theirs is not None and mine != theirs:
            yield f"{name}: {mine} in A, {theirs} in B"
    if set(a.steps) != set(b.steps):
        yield f"steps: {_list(a.steps)} in A, {_list(b.steps)} in B"
    if a.meta.get("inside") or b.meta.get("inside"):
        yield "recorded inside of compiled regions, with inductor's emulation of precision casts switched on"


def _list(steps: Mapping[int, Any]) -> str:
    shown = ", ".join(map(str, sorted(steps)[:6]))
    return f"{shown} …" if len(steps) > 6 else shown or "none"


# ---------------------------------------------------------------- one trace alone


def find_nonfinite(side: Side, lean: Mapping[str, Array]) -> Array:
    """Find the rows with values that are not finite, except in steps that the scaler skipped because of them."""
    skipped = [step for step, line in side.steps.items() if line.get("skipped")]
    return np.flatnonzero((lean["nonfinite"] > 0) & ~np.isin(lean["step"], skipped))


def judge_finite(side: Side) -> tuple[Verdict, First | None]:
    """Judge one trace: FAIL if a tensor is not finite. Also returns the first tensor that is not."""
    lean = load_lean(side.rows)
    found, first = find_nonfinite(side, lean), None
    findings = [Finding(VerdictKind.PASS, "", f"all {render_count(len(side.rows), 'tensor')} are finite")]
    if len(found):
        row = int(found[np.lexsort((side.order[found], lean["step"][found]))[0]])
        first = _start(side.points[int(side.rows["point"][row])], side.rows["step"][row])
        inputs = [int(each) - 1 for each in side.rows["inputs"][row] if 0 < each < UNKNOWN and each <= len(side.rows)]
        names = [side.keys[int(side.rows["point"][each])][1] or OUTERMOST for each in inputs]
        largest = [render_number(float(side.rows["largest"][each])) for each in inputs]
        sizes = [f"{name}: largest {value}" for name, value in zip(names, largest, strict=True)]
        bad, count = int(lean["nonfinite"][row]), render_count(int(lean["count"][row]), "value")
        text = f"{describe_point(first)}: {bad} of {count} {'is' if bad == 1 else 'are'} not finite"
        text += f"; what went in is finite ({', '.join(sizes)})" if sizes else "; what went in was not recorded"
        first = replace(first, kind="nonfinite", text=text, inputs=tuple(names))
        findings = [Finding(VerdictKind.FAIL, first.module, first.text, step=first.step)]
    if not side.is_whole:
        text = "the trace ends before its program did: judged up to there"
        findings.append(Finding(VerdictKind.INCONCLUSIVE, "end", text))
    return Verdict.of(findings, len(side.rows)), first

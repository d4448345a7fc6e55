"""`assay model check`: computes every layer and the full model on a target, and compares with the reference.

The check first computes the model itself, then the model with every intermediate tensor as an output (which shows how
errors accumulate and where they begin), then each layer in isolation, with the reference's values as inputs (which
shows the layer's own error). The report names a fault that only one of these views shows, and the view that shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from assay.errors import InfrastructureError, MissingExtraError
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, Work
from assay.models.flow.cases import Arrays, Cases, ModelCase, StepFailedError, Tensors, describe_dims, name_kind
from assay.models.flow.compare import ComparedCases
from assay.models.flow.output_keeper import OutputKeeper
from assay.models.flow.targets import VoterTests
from assay.models.flow.torch_cases import TorchCases
from assay.models.graph.tensorfile import write_tensors
from assay.models.judge.layers import FaultSearch, conclude, excuse_chance, judge_votes, select
from assay.models.judge.tensors import judge_outputs
from assay.models.judge.tolerances import step_tolerance
from assay.models.values.model import (
    WRONG,
    CaseReport,
    ModelReport,
    ModelRequest,
    StepOutcome,
    Target,
    Tolerances,
    render_flags,
)
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.verdict import Finding, Verdict, VerdictKind

Report = Callable[[CaseReport], None]
_MOST_BYTES = 256 * 1024 * 1024  # limit for kept tensors inside the model: after a wrong layer all tensors are wrong
_PLAIN = {"float16", "float32", "float64", "bool", "complex64", "complex128"}
_PLAIN |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def quiet(_report: CaseReport) -> None:
    """Ignore the report."""


@dataclass(slots=True)
class Examination:
    """Compares one model on one target. Tensors that differ are kept in the folder `keep`."""

    request: ModelRequest
    builder: ArtifactBuilder
    cases: Cases
    keep: str
    report_case: Report = quiet
    notes: list[str] = field(default_factory=list)
    inside: dict[str, tuple[str, str]] = field(default_factory=dict)  # tensors that differ inside the model
    keeper: OutputKeeper | None = None
    voter_tests: VoterTests = field(init=False)

    def __post_init__(self) -> None:
        self.voter_tests = VoterTests(self.builder, self.cases)

    def examine(self, case: ModelCase, accumulated: Sequence[TensorComparison] = ()) -> CaseReport:
        """Compute a case on the target and compare it with the reference."""
        target = self.request.target.name
        if case.problem:
            text = f"this layer cannot be computed alone: {case.problem}"
            verdict = Verdict.of([Finding(VerdictKind.INCONCLUSIVE, case.name, text)], 0)
            report = CaseReport(case.name, target, verdict, case.layer)
            if self.keeper is not None:
                self.keeper.add(case, Work(), [])
        else:
            with self.builder.borrowing():
                work, results = self.compute(case)
                if work.failed is not None:
                    verdict = judge_failure(case.name, work.failed)
                    report = CaseReport(case.name, target, verdict, case.layer, work.steps)
                else:
                    report = self.compare(case, work.steps, results)
        # a case that is correct in isolation and wrong inside the model gets the tensors inside the model
        diffs = report.diffs or tuple(self.inside[each.name] for each in accumulated if each.name in self.inside)
        report = replace(report, accumulated=tuple(accumulated), diffs=diffs)
        self.report_case(report)
        return report

    def describe_closed(self, full: CaseReport) -> str:
        """Describe the result with closed dimensions; empty unless it differs from the result of the unchanged file."""
        case = self.cases.closed
        if case is None:
            return ""
        with self.builder.borrowing(), self.builder.forgetting():
            work, results = self.compute(case)
            verdict = judge_failure(case.name, work.failed) if work.failed else self.judge(case, results)[0]
        if (verdict.kind in WRONG) == (full.verdict.kind in WRONG):
            return ""
        closed = CaseReport(case.name, full.target, verdict, None, work.steps)
        text = f"as the file is, with open dimensions, it is {full.outcome} on {full.target}; with them closed"
        dims = describe_dims(self.cases.outline, self.cases.samples[0])
        return f"{text} ({dims}) it is {closed.outcome}. Layers are tested closed"

    def compute(self, case: ModelCase) -> tuple[Work, list[Arrays]]:
        """Compute every sample on the target."""
        request = self.request
        dumps = Dumps(request.ir_dir, request.compile_profile_dir, request.run_profile_dir)
        with self.builder.changing(dumps=dumps):
            work, results = self._compute_on(request.target, case, request.repeats)
        work = replace(work, steps=tuple(map(self.cases.fix_hint, work.steps))) if work.failed else work
        if self.keeper is not None:
            self.keeper.add(case, work, results)
        return work, results

    def _compute_on(self, target: Target, case: ModelCase, repeats: int = 1) -> tuple[Work, list[Arrays]]:
        """Compute every sample; return the steps of the first sample, or of the sample that failed."""
        first, results = Work(), list[Arrays]()
        for trial in case.trials:
            work = self.builder.compute(target, trial.model, trial.inputs, case.build_wants(trial, repeats), case.name)
            if work.failed is not None:
                return work, []
            first = first if first.steps else work
            results.append(Tensors(work.outputs))
        return first, results

    def compare(self, case: ModelCase, steps: tuple[StepOutcome, ...], results: Sequence[Arrays]) -> CaseReport:
        """Return the report of a computed case, and keep tensors that differ."""
        verdict, comparisons = self.judge(case, results)
        if verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED) and self.request.voter is not None:
            verdict = self.vote(case, comparisons, verdict, self.request.voter)
        wrong = [pair for pair in enumerate(comparisons) if pair[1].verdict.kind is not VerdictKind.PASS]
        kept = [self._keep_pair(case, results, compared, number) for number, compared in wrong]
        diffs = tuple(each[0] for each in kept if each is not None)
        return CaseReport(case.name, self.request.target.name, verdict, case.layer, steps, comparisons, diffs=diffs)

    def judge(self, case: ModelCase, results: Sequence[Arrays]) -> tuple[Verdict, tuple[TensorComparison, ...]]:
        """Return the verdict on all samples, and the comparison of each output in the sample with its largest error."""
        found, count, worst = list[Finding](), 0, dict[str, TensorComparison]()
        cases, tolerances = self.cases, self.choose_tolerances(case)
        for number, actual in enumerate(results):
            expected = case.trials[number].expected
            wanted = {name: expected[name] for name in case.outputs if name in expected}
            reach, origin = partial(cases.find_magnitude, case, number), cases.find_origin(case, number)
            judged = judge_outputs(
                wanted, actual, tolerances, op=case.op, makers=case.makers, reach=reach, origin=origin
            )
            verdict, comparisons = cases.look_closer(case, number, wanted, actual, judged)
            if case.layer is not None:
                verdict = Verdict.of((*verdict.findings, *cases.judge_integers(case)), verdict.comparisons)
            verdict, comparisons = excuse_chance(verdict, comparisons, cases.find_chance(case))
            found += verdict.findings
            count += verdict.comparisons
            _keep_worst(worst, comparisons)
        return Verdict.of(found, count), tuple(worst.values())

    def choose_tolerances(self, case: ModelCase) -> Tolerances:
        """Choose the bounds of a case: a quantised model as a whole may be a few steps off, a layer alone may not."""
        own = self.cases.find_bounds(case)
        if own:
            return self._prefer_given(own, {name: case.makers.get(name, case.op) for name in case.outputs})
        if case.layer is not None:
            return self.cases.choose_tolerances(self.request.tolerances, case)
        return self._relax({name: case.makers.get(name) for name in case.outputs}, quantized=case.quantized)

    def vote(self, case: ModelCase, ours: tuple[TensorComparison, ...], verdict: Verdict, voter: Target) -> Verdict:
        """Return the verdict with the vote of a second reference, which has no vote if it cannot compute the case."""
        try:
            work, results = self._compute_on(voter, case)
        except (MissingExtraError, InfrastructureError) as error:
            self.notes.append(f"{voter.name} has no vote: {error.render()}")
            return verdict
        if work.failed is not None:
            return verdict
        voted = judge_votes(ours, self.judge(case, results)[1])
        is_refused = voted.kind is not verdict.kind and self._is_refused(voter, case)
        if self.keeper is not None:
            self.keeper.add_vote(case, results, is_refused=is_refused)
        return verdict if is_refused else voted

    def _is_refused(self, voter: Target, case: ModelCase) -> bool:
        """Return whether the voter has no vote, since it computes an operator of the case incorrectly."""
        if not self.cases.tests_voters:
            return False
        fault = self.voter_tests.find_fault(voter, case)
        if fault:
            self.notes.append(f"{fault}; it has no vote there")
            return True
        own = self.voter_tests.find_fault(self.request.reference, case)
        if own:
            self.notes.append(f"the reference {own}")
        return False

    def accumulate(self, part: ModelCase | None = None) -> tuple[dict[str, TensorComparison], StepOutcome | None]:
        """Compute all layers' outputs inside the model on the target; return their comparisons, or the step that
        failed. `part` is a beginning of the model, with its layers' outputs, to compute instead of the full model."""
        marked = part or self.cases.marked
        ops = self.cases.makers
        own = self.cases.find_bounds(marked)
        tolerances = self._prefer_given(own, ops) if own else self._relax(ops, quantized=marked.quantized)
        chance = self.cases.find_chance(marked)
        worst = dict[str, TensorComparison]()
        with self.builder.borrowing(), self.builder.forgetting():
            work, results = self.compute(marked)
            if work.failed is not None:
                return {}, work.failed
            for number, result in enumerate(results):
                for name in marked.outputs:
                    judged = judge_outputs(
                        {name: marked.trials[number].expected[name]},
                        {name: result[name]} if name in result else {},
                        tolerances,
                        op=None if marked.quantized else ops.get(name),
                        makers=ops,
                        reach=partial(self.cases.find_magnitude, marked, number),
                    )
                    _keep_worst(worst, excuse_chance(*judged, chance)[1])
            left_bytes = _MOST_BYTES  # tensors are kept in the order of their computation: a fault begins in the first
            for number, name in enumerate(marked.outputs):
                is_wrong = left_bytes > 0 and name in worst and worst[name].verdict.kind is not VerdictKind.PASS
                kept = self._keep_pair(marked, results, worst[name], number) if is_wrong else None
                if kept is not None:
                    self.inside[name] = kept[0]
                    left_bytes -= kept[1]
        return worst, None

    def _prefer_given(self, own: Mapping[str, Tolerance], ops: Mapping[str, str | None]) -> Tolerances:
        """Return the tolerances with the bounds that were measured for these tensors, unless a user gave a bound."""
        given = self.request.tolerances
        asked = {name: given.choose(name, ops.get(name)) for name in own}
        chosen = {
            name: own[name] if each == Tolerance() else replace(each, check_dtype=False) for name, each in asked.items()
        }
        return Tolerances(given.model, given.by_op, chosen)

    def _relax(self, ops: Mapping[str, str | None], *, quantized: bool) -> Tolerances:
        """Return the tolerances of tensors that several layers made, by the operator of each: steps are counted after a
        quantiser, and steps of the coarser type after a cast, unless a user gave a bound."""
        given, cases = self.request.tolerances, self.cases
        free = [name for name, op in ops.items() if given.choose(name, op) == Tolerance()]
        coarse = {name: cases.bounds[name] for name in free if name in cases.bounds}
        if not quantized:
            return replace(given, by_tensor={**given.by_tensor, **coarse})
        by_tensor = {name: replace(given.choose(name, op), quantized=True) for name, op in ops.items()}
        steps = {name: step_tolerance(cases.steps[name]) for name in free if name in cases.steps}
        whole = {**given.by_tensor, **by_tensor, **coarse, **steps}
        return Tolerances(replace(given.model, quantized=True), {}, whole)

    def _keep_pair(
        self, case: ModelCase, results: Sequence[Arrays], compared: TensorComparison, number: int
    ) -> tuple[tuple[str, str], int] | None:
        """Write the two tensors of the first wrong sample as files for `assay model diff`; return the paths and their
        size in bytes, or None if one of the two tensors is missing."""
        name = compared.name
        pairs = [
            (trial.expected[name], result[name])
            for trial, result in zip(case.trials, results, strict=True)
            if name in trial.expected and name in result
        ]
        if not pairs:
            return None
        bounds = Tolerances(compared.tolerance)
        judged = ((pair, judge_outputs({name: pair[0]}, {name: pair[1]}, bounds, op=case.op)[0]) for pair in pairs)
        wrong = next((pair for pair, verdict in judged if verdict.kind is not VerdictKind.PASS), pairs[0])
        paths = []
        for word, array in zip(("expected", "actual"), wrong, strict=True):
            (ref,) = write_tensors(os.path.join(self.keep, case.name, str(number), word), {name: array})
            is_plain = ref.path.endswith(".npy") and ref.dtype in _PLAIN
            paths.append(ref.path if is_plain else os.path.dirname(ref.path))
        return (paths[0], paths[1]), sum(each.nbytes for each in wrong)


def examine_model(
    request: ModelRequest,
    builder: ArtifactBuilder,
    keep: str,
    report_case: Report,
    search: Callable[[Examination], FaultSearch],
    names: Callable[[Cases], Sequence[str]] = lambda cases: [cases.outline.full_name],
) -> ModelReport:
    """Perform one search and report it. `names` returns the cases that are not compared if the reference fails."""
    begun = time.monotonic()
    builder.notes.clear()  # remove notes of an earlier check by the same builder
    builder.begin(request.reference, request.target)
    cases = (TorchCases if request.is_torch else ComparedCases if request.other else Cases)(request, builder)
    chosen = names(cases)  # the workers start while the cases are chosen
    tools = dict(builder.find_tools(request.target))
    keeper = OutputKeeper(request.keep_outputs, cases) if request.keep_outputs else None
    examination = Examination(request, builder, cases, keep, report_case, keeper=keeper)
    try:
        found = search(examination)
    except StepFailedError as error:
        # no case could be judged: only the reference's failed step is reported
        name, reference = f"{cases.outline.stem}_reference", request.reference.name
        cases.notes.append(f"{render_count(len(chosen), 'case')} not compared: {reference} has no result")
        refused = CaseReport(name, reference, judge_failure(name, error.outcome), None, (error.outcome,))
        found = FaultSearch((refused,), findings=(Finding(VerdictKind.ERROR, cases.outline.stem, error.message),))
    report = ModelReport(
        model=request.model, stem=cases.outline.stem, reference=request.reference.name, target=request.target.name,
        cases=found.cases, first_wrong=found.first.name if found.first else None, unseen=found.unseen,
        confirmed=found.confirmed, findings=found.findings, samples=len(cases.samples), tools=tools,
        elapsed_s=time.monotonic() - begun, is_estimate=request.target.is_simulated,
        notes=tuple(dict.fromkeys((*request.notes, *found.notes, *examination.notes, *cases.notes, *builder.notes))),
        manner=render_flags(request.manner), origin=render_flags(request.origin),
        command=found.command, folder=request.folder,
    )  # fmt: skip
    report = cases.finish(report)
    if keeper is not None:
        keeper.finish(request, report)
    return report


def check_model(request: ModelRequest, builder: ArtifactBuilder, keep: str, report_case: Report = quiet) -> ModelReport:
    """Check everything that was requested. Errors of the target are in the report and raise no exception."""
    return examine_model(request, builder, keep, report_case, check_cases, lambda cases: cases.choose(request.only))


def check_cases(examination: Examination) -> FaultSearch:
    cases = examination.cases
    full_name, chosen = cases.outline.full_name, cases.choose(examination.request.only)
    layers = [name for name in chosen if name != full_name]
    full = examination.examine(cases.full) if full_name in chosen else None
    accumulated, marked_failed = examination.accumulate() if layers else ({}, None)
    reports = cases.judge_peers(list(_examine_layers(examination, layers, accumulated)))
    closed = examination.describe_closed(full) if full is not None else ""
    is_wrong = full is not None and (full.verdict.kind in WRONG or bool(closed))
    if is_wrong and all(each.verdict.kind not in WRONG for each in reports):
        # compute also the layers that were skipped because they seemed correct
        names = [each.name for each in reports if each.skipped and not each.accumulated]
        again = {case.name: examination.examine(case) for case in cases.iterate(names)} if names else {}
        reports = [again.get(each.name, each) for each in reports]
    found = conclude(cases.outline.layers, accumulated, reports, full)
    notes = [*found.notes, *([closed] if closed else [])]
    if marked_failed is not None and (full is None or full.failed_step is None):
        notes.append(
            "the model with every intermediate tensor as an output fails on the target "
            f"({marked_failed.step} {marked_failed.ending}): accumulated errors are not known"
        )
    return replace(found, cases=(*reports, *([full] if full else [])), notes=tuple(notes))


def _examine_layers(
    examination: Examination, names: Sequence[str], accumulated: Mapping[str, TensorComparison]
) -> Iterator[CaseReport]:
    cases, trivial = examination.cases, Trivial(examination, accumulated)
    seen = {name: reason for name in names if (reason := trivial.find_reason(name))}
    left = [name for name in names if name not in seen]
    walk = cases.iterate(left) if left else iter(())
    for name in names:
        if name in seen:
            yield trivial.skip(name, seen[name])
            continue
        case = next(walk)
        same = trivial.find_same(case)
        report = trivial.skip(name, same) if same else examination.examine(case, select(case.layer, accumulated))
        trivial.note(case, report)
        cases.discard(case)
        yield report
    trivial.conclude()


class Trivial:
    """Layers of shapes and constants, which a compiler computes beforehand: there may be hundreds, and compiling each
    alone takes longer than compiling all other layers. Unless it was requested by name, such a layer is not computed
    alone if it is correct inside the model or equal to another layer that is correct alone."""

    def __init__(self, examination: Examination, accumulated: Mapping[str, TensorComparison]) -> None:
        self._examination = examination
        self._accumulated = accumulated
        is_asked = bool(examination.request.only)
        self._layers = {} if is_asked else {layer.name: layer for layer in examination.cases.trivial_layers}
        self._right: dict[str, str] = {}  # kind of a layer → the first correct layer of this kind
        self._count = 0

    def find_reason(self, name: str) -> str:
        """Return why a layer need not be computed alone; empty if it must be computed."""
        if known := self._examination.cases.skipped.get(name):
            return known
        layer = self._layers.get(name)
        found = select(layer, self._accumulated)
        if layer is None or len(found) < len(layer.outputs):
            return ""
        is_right = all(each.verdict.kind is VerdictKind.PASS and not each.error for each in found)
        return "computed from shapes and constants; equal inside the model" if is_right else ""

    def find_same(self, case: ModelCase) -> str:
        """Return why a case need not be computed, if a case of its kind is correct; empty if it must be computed."""
        label = self._right.get(name_kind(case)) if case.name in self._layers and not case.problem else None
        return f"computed from shapes and constants; the same operation as {label}, which is correct" if label else ""

    def note(self, case: ModelCase, report: CaseReport) -> None:
        """Record the kind of a layer that is exactly correct alone."""
        is_right = report.verdict.kind is VerdictKind.PASS and not any(each.error for each in report.local)
        if case.name in self._layers and case.layer is not None and is_right and not report.skipped:
            self._right.setdefault(name_kind(case), case.layer.label)

    def skip(self, name: str, reason: str) -> CaseReport:
        self._count += 1
        layer = self._layers[name]
        found = select(layer, self._accumulated)
        verdict = Verdict.of([], max(1, len(found)))
        target = self._examination.request.target.name
        report = CaseReport(name, target, verdict, layer, accumulated=found, skipped=reason)
        self._examination.report_case(report)
        return report

    def conclude(self) -> None:
        if self._count:
            layers = "1 layer computes" if self._count == 1 else f"{self._count} layers compute"
            self._examination.notes.append(
                f"{layers} shapes and constants only: each is correct inside the model, or equal to one that is "
                "correct alone, and was not computed itself ('trivial' in the table; --only NAME computes one)"
            )


def judge_failure(case: str, outcome: StepOutcome) -> Verdict:
    words = outcome.message or str(outcome.ending)
    return Verdict.of([Finding(VerdictKind.ERROR, case, f"{outcome.step} {outcome.ending}: {words}")], 0)


def _keep_worst(worst: dict[str, TensorComparison], comparisons: Sequence[TensorComparison]) -> None:
    """Keep each tensor's comparison in the sample with its largest error."""

    def rank(compared: TensorComparison) -> tuple[bool, float]:
        return compared.verdict.kind is not VerdictKind.PASS, compared.error

    for compared in comparisons:
        worst[compared.name] = max(worst.get(compared.name, compared), compared, key=rank)

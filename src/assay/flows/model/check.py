"""`assay model check`: every layer and the full model on a target, beside the reference.

First the model as it is, then once more with every layer's outputs laid open (errors as they accumulate, and the layer
where they begin), then each layer by itself, fed with the reference's values (its own error). A fault that only one of
the views shows is still named, and the report says which view showed it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from assay.flows.model.cases import Arrays, Case, Cases, Source, StepFailedError, Tensors
from assay.flows.model.workshop import Work, Workshop
from assay.judge.layers import Blame, localise
from assay.judge.tensors import judge_outputs
from assay.judge.voting import judge_votes
from assay.probe.tensorfile import write_tensors
from assay.values.model import CaseReport, Layer, ModelReport, ModelRequest, StepOutcome, Target
from assay.values.tensors import TensorComparison
from assay.values.verdict import Finding, Verdict, VerdictKind

Say = Callable[[CaseReport], None]
WRONG = (VerdictKind.FAIL, VerdictKind.ERROR)
_PLAIN = {"float16", "float32", "float64", "bool", "complex64", "complex128"}
_PLAIN |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def quiet(_report: CaseReport) -> None:
    """Nobody listens."""


def build_source(request: ModelRequest) -> Source:
    return Source(request.model, request.reference, request.inputs, request.groups, request.folder)


@dataclass(slots=True)
class Examination:
    """One model on one target. `keep` is where tensors that differ are put for a person to look at."""

    request: ModelRequest
    workshop: Workshop
    cases: Cases
    keep: str
    say: Say = quiet

    # ------------------------------------------------------------ one case

    def examine(self, case: Case, accumulated: Sequence[TensorComparison] = ()) -> CaseReport:
        """Compute it on the target, and compare."""
        if case.problem:
            return self._tell(_build_problem(case, self.request.target.name))
        work, results = self.compute(case)
        if work.failed is not None:
            verdict = judge_failure(case.name, work.failed)
            report = CaseReport(case.name, self.request.target.name, verdict, case.layer, work.steps)
        else:
            report = self.compare(case, work.steps, results)
        return self._tell(replace(report, accumulated=tuple(accumulated)))

    def compute(self, case: Case) -> tuple[Work, list[Arrays]]:
        """Every sample; the steps are those of the first one, or of the one that failed."""
        wants = replace(case.wants, repeats=self.request.repeats)
        first, results = Work(), list[Arrays]()
        for trial in case.trials:
            work = self.workshop.compute(self.request.target, trial.model, trial.inputs, wants, case.name)
            if work.failed is not None:
                return work, []
            first = first if first.steps else work
            results.append(Tensors(work.outputs))
        return first, results

    def compare(self, case: Case, steps: tuple[StepOutcome, ...], results: Sequence[Arrays]) -> CaseReport:
        verdict, comparisons = self.judge(case, results)
        if verdict.kind is VerdictKind.FAIL and self.request.voter is not None:
            verdict = self._vote(case, comparisons, verdict, self.request.voter)
        diffs = self._keep_differences(case, results, comparisons)
        return CaseReport(
            case.name, self.request.target.name, verdict, case.layer, steps, comparisons, (), diffs
        )  # fmt: skip

    def judge(self, case: Case, results: Sequence[Arrays]) -> tuple[Verdict, tuple[TensorComparison, ...]]:
        found, count, worst = list[Finding](), 0, dict[str, TensorComparison]()
        for trial, result in zip(case.trials, results, strict=True):
            expected = {name: trial.expected[name] for name in case.outputs}
            verdict, comparisons = judge_outputs(expected, result, self.request.tolerances, op=case.op)
            found += verdict.findings
            count += verdict.comparisons
            _keep_worst(worst, comparisons)
        return Verdict.of(found, count), tuple(worst.values())

    def _vote(self, case: Case, ours: tuple[TensorComparison, ...], verdict: Verdict, voter: Target) -> Verdict:
        """What a second reference says where the target differs. One that cannot compute it has no voice."""
        wants = case.wants
        worst = dict[str, TensorComparison]()
        for trial in case.trials:
            work = self.workshop.compute(voter, trial.model, trial.inputs, wants, case.name)
            if work.failed is not None:
                return verdict
            expected = {name: trial.expected[name] for name in case.outputs}
            _, comparisons = judge_outputs(expected, Tensors(work.outputs), self.request.tolerances, op=case.op)
            _keep_worst(worst, comparisons)
        return judge_votes(ours, tuple(worst.values()))

    def _keep_differences(
        self, case: Case, results: Sequence[Arrays], comparisons: Sequence[TensorComparison]
    ) -> tuple[tuple[str, str], ...]:
        """Of the first sample that is wrong in each output: files that `assay model diff` takes."""
        kept = []
        for number, compared in enumerate(comparisons):
            if compared.verdict.kind is VerdictKind.PASS:
                continue
            pairs = [
                (trial.expected[compared.name], result[compared.name])
                for trial, result in zip(case.trials, results, strict=True)
                if compared.name in trial.expected and compared.name in result
            ]
            if pairs:
                kept.append(self._write_pair(os.path.join(self.keep, case.name, str(number)), compared, pairs))
        return tuple(kept)

    def _write_pair(
        self, folder: str, compared: TensorComparison, pairs: Sequence[tuple[object, object]]
    ) -> tuple[str, str]:
        wrong = next((pair for pair in pairs if self._differs(compared, pair)), pairs[0])
        paths = []
        for word, array in zip(("expected", "actual"), wrong, strict=True):
            (ref,) = write_tensors(os.path.join(folder, word), {compared.name: array})
            paths.append(ref.path if ref.path.endswith(".npy") and _is_plain(ref.dtype) else os.path.dirname(ref.path))
        return paths[0], paths[1]

    def _differs(self, compared: TensorComparison, pair: tuple[object, object]) -> bool:
        name = compared.name
        verdict, _ = judge_outputs({name: pair[0]}, {name: pair[1]}, self.request.tolerances)
        return verdict.kind is not VerdictKind.PASS

    def _tell(self, report: CaseReport) -> CaseReport:
        self.say(report)
        return report

    # ------------------------------------------------------------ the inside

    def accumulate(self) -> tuple[dict[str, TensorComparison], StepOutcome | None]:
        """Every layer's outputs as they come out of the model on the target; or the step at which that failed."""
        marked = self.cases.marked
        work, results = self.compute(marked)
        if work.failed is not None:
            return {}, work.failed
        ops = {name: layer.ops[0] for layer in self.cases.outline.layers for name in layer.outputs}
        worst = dict[str, TensorComparison]()
        for trial, result in zip(marked.trials, results, strict=True):
            for name in marked.outputs:
                _, compared = judge_outputs(
                    {name: trial.expected[name]},
                    {name: result[name]} if name in result else {},
                    self.request.tolerances,
                    op=ops.get(name),
                )
                _keep_worst(worst, compared)
        return worst, None


def check_model(request: ModelRequest, workshop: Workshop, keep: str, say: Say = quiet) -> ModelReport:
    """Everything that was asked for. What a target does wrong is in the report; it never raises for that."""
    begun = time.monotonic()
    workshop.begin(request.reference, request.target)
    cases = Cases(build_source(request), workshop)
    chosen = cases.choose(request.only)
    tools = dict(workshop.find_tools(request.target))
    examination = Examination(request, workshop, cases, keep, say)
    try:
        reports, findings, first, confirmed, notes = _check(examination, chosen)
    except StepFailedError as error:
        reports, findings = build_refused(request, cases, chosen, error), ()
        first, confirmed, notes = None, None, (error.render(),)
    return ModelReport(
        model=request.model,
        stem=cases.outline.stem,
        reference=request.reference.name,
        target=request.target.name,
        cases=tuple(reports),
        first_wrong=first.name if first else None,
        confirmed=confirmed,
        findings=tuple(findings),
        samples=request.inputs.samples,
        tools=tools,
        elapsed_s=time.monotonic() - begun,
        notes=tuple(notes),
    )


def _check(
    examination: Examination, chosen: Sequence[str]
) -> tuple[list[CaseReport], Sequence[Finding], Layer | None, bool | None, Sequence[str]]:
    cases = examination.cases
    full_name = cases.outline.full_name
    layers = [name for name in chosen if name != full_name]
    full = examination.examine(cases.full) if full_name in chosen else None
    accumulated, marked_failed = examination.accumulate() if layers else ({}, None)
    reports = [
        examination.examine(case, select(case.layer, accumulated)) for case in (cases.iterate(layers) if layers else ())
    ]
    first, confirmed, findings, notes = conclude(cases.outline.layers, accumulated, reports, full)
    if marked_failed is not None and (full is None or full.failed_step is None):
        notes.append(
            "the model with all layers' outputs laid open does not get through on the target "
            f"({marked_failed.step} {marked_failed.ending}): accumulated errors are not known"
        )
    return [*reports, *([full] if full else [])], findings, first, confirmed, notes


def conclude(
    layers: Sequence[Layer],
    accumulated: Mapping[str, TensorComparison],
    reports: Sequence[CaseReport],
    full: CaseReport | None,
) -> tuple[Layer | None, bool | None, list[Finding], list[str]]:
    """The first wrong layer, whether a second view confirms it, and what is to be said of the whole."""
    local = {each.name: each for report in reports for each in report.local}
    found = localise(layers, accumulated, local)
    alone = next((report.layer for report in reports if report.layer and report.verdict.kind in WRONG), None)
    first = _earlier(found.first, alone)
    if first is None:
        notes = [found.reason] if found.blame is Blame.DRIFT else []
        return None, None, _find_hidden(reports, full), notes
    by_name = {report.name: report for report in reports}
    view = by_name.get(first.name)
    is_wrong_alone = view is not None and view.verdict.kind in WRONG
    notes = [found.reason] if found.first is first else []
    return first, is_wrong_alone if view is not None else None, [], notes


def _earlier(one: Layer | None, other: Layer | None) -> Layer | None:
    """Both views may be right: what is wrong by itself need not show in this model, and the other way round."""
    if one is None or other is None:
        return one or other
    return one if one.number <= other.number else other


def _find_hidden(reports: Sequence[CaseReport], full: CaseReport | None) -> list[Finding]:
    """The whole is wrong and no part of it: fusion in the unmarked model, or drift."""
    if full is None or not reports or full.verdict.kind not in WRONG:
        return []
    text = (
        "the full model is wrong although every layer is right, by itself and laid open: "
        "suspect a fusion across layers, or errors that add up"
    )
    return [Finding(full.verdict.kind, full.name, text)]


def judge_failure(case: str, outcome: StepOutcome) -> Verdict:
    words = outcome.message or str(outcome.ending)
    return Verdict.of([Finding(VerdictKind.ERROR, case, f"{outcome.step} {outcome.ending}: {words}")], 0)


def _build_problem(case: Case, target: str) -> CaseReport:
    finding = Finding(VerdictKind.INCONCLUSIVE, case.name, f"this layer cannot stand alone: {case.problem}")
    return CaseReport(case.name, target, Verdict.of([finding], 0), case.layer)


def build_refused(
    request: ModelRequest, cases: Cases, chosen: Sequence[str], error: StepFailedError
) -> list[CaseReport]:
    by_name = {layer.name: layer for layer in cases.outline.layers}
    verdict = Verdict.of([Finding(VerdictKind.ERROR, cases.outline.stem, error.message)], 0)
    return [
        CaseReport(name, request.target.name, verdict, by_name.get(name), (error.outcome,)) for name in chosen
    ]  # fmt: skip


def select(layer: Layer | None, accumulated: Mapping[str, TensorComparison]) -> tuple[TensorComparison, ...]:
    return tuple(accumulated[name] for name in (layer.outputs if layer else ()) if name in accumulated)


def _keep_worst(worst: dict[str, TensorComparison], comparisons: Sequence[TensorComparison]) -> None:
    """By tensor: the sample in which it is furthest off."""
    for compared in comparisons:
        known = worst.get(compared.name)
        if known is None or _rank(compared) > _rank(known):
            worst[compared.name] = compared


def _rank(compared: TensorComparison) -> tuple[bool, float]:
    return compared.verdict.kind is not VerdictKind.PASS, compared.error


def _is_plain(dtype: str) -> bool:
    """Types that numpy's own files know."""
    return dtype in _PLAIN

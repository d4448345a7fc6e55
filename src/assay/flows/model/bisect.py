"""`assay model bisect`: the first layer that a target gets wrong, for as little work as it takes.

One compilation of the model with all layers' outputs laid open tells where the numbers part; that layer alone confirms
it. A target that cannot compile or run the model at all is asked layer by layer until one fails in the same way. Where
laying open makes the fault go away (it can keep a compiler from fusing), beginnings of the unmarked model are halved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.flows.model.cases import Case, Cases, Tensors, Trial
from assay.flows.model.check import (
    Examination,
    Found,
    Say,
    confirm,
    describe_others,
    examine_model,
    find_excuse,
    quiet,
    select,
)
from assay.flows.model.signature import WRONG, Signature, build_signature, find_same, sign_failure
from assay.flows.model.workshop import Workshop
from assay.judge.layers import Blame, localise
from assay.probe.mark import build_cut
from assay.values.model import CaseReport, Layer, ModelReport, ModelRequest, StepOutcome
from assay.values.tensors import TensorComparison
from assay.values.verdict import Finding, VerdictKind


@dataclass(slots=True)
class Search:
    """What is known so far."""

    examination: Examination
    reports: dict[str, CaseReport] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: Layer | None = None
    confirmed: bool | None = None

    @property
    def cases(self) -> Cases:
        return self.examination.cases

    def examine(self, case: Case, accumulated: Sequence[TensorComparison] = ()) -> CaseReport:
        report = self.examination.examine(case, accumulated)
        self.reports[case.name] = report
        return report

    def examine_layers(
        self, layers: Sequence[Layer], accumulated: Mapping[str, TensorComparison]
    ) -> Iterator[CaseReport]:
        for case in self.cases.iterate([layer.name for layer in layers]):
            yield self.examine(case, select(case.layer, accumulated))
            self.cases.discard(case)


def bisect_model(request: ModelRequest, workshop: Workshop, keep: str, say: Say = quiet) -> ModelReport:
    def look(cases: Cases) -> Found:
        search = Search(Examination(request, workshop, cases, keep, say))
        find_wrong(search)
        reports = tuple(search.reports[name] for name in cases.outline.cases if name in search.reports)
        return Found(reports, search.first, search.confirmed, tuple(search.findings), tuple(search.notes))

    return examine_model(request, workshop, look, lambda cases: [cases.outline.full_name])


def find_wrong(search: Search) -> None:
    """The cheapest view first. A view that shows nothing hands on to the next one."""
    accumulated, failed = search.examination.accumulate()
    if failed is not None:
        _find_failing(search, failed)
        return
    found = localise(search.cases.outline.layers, accumulated)
    if found.first is not None and _confirm(search, found.first, accumulated):
        search.notes.append(found.reason)
        return
    full = search.examine(search.cases.full)
    if full.verdict.kind not in WRONG:
        _conclude_right(search, full)
        return
    if found.blame is not Blame.NOTHING:
        search.notes.append(found.reason)
        return
    search.notes.append(
        "laid open, the model is right on the target; as it is, it is wrong: laying open hides the fault, as it can "
        "keep layers from being fused"
    )
    _halve(search, build_signature(full))


def _conclude_right(search: Search, full: CaseReport) -> None:
    if full.verdict.kind is VerdictKind.PASS:
        search.notes.append("the full model agrees with the reference, and so does all that its layers hand on")
    if search.cases.quantized:
        search.notes.append(
            "it computes in steps, and as a whole it may be a few of them off: assay model check looks at each layer "
            "by itself"
        )


def _confirm(search: Search, suspect: Layer, accumulated: Mapping[str, TensorComparison]) -> bool:
    """False: the references disagree there, so that the full model has to tell whether anything is wrong at all."""
    (report,) = search.examine_layers([suspect], accumulated)
    if find_excuse(report):
        return False
    search.first, search.confirmed = suspect, confirm(report)
    if search.confirmed:
        return True
    off = ", ".join(select_words(suspect, accumulated))
    alone = "right by itself: see its neighbours" if search.confirmed is False else "cannot be judged by itself"
    text = f"{suspect.label} is the first to be wrong inside the model ({off}), and {alone}"
    search.findings.append(Finding(VerdictKind.FAIL, suspect.name, text))
    return True


def select_words(layer: Layer, accumulated: Mapping[str, TensorComparison]) -> list[str]:
    return [f"{each.name} off by {each.error:.2g}" for each in select(layer, accumulated)]


def _find_failing(search: Search, failed: StepOutcome) -> None:
    """The target does not get through the model laid open: is it the model, and which layer?"""
    full = search.examine(search.cases.full)
    if full.failed_step is None:
        search.notes.append(
            f"the model with all layers' outputs laid open does not get through ({failed.step} {failed.ending}), the "
            "model itself does: the layers are looked at one by one"
        )
    wanted = build_signature(full) or sign_failure(failed)
    reports = []
    for report in search.examine_layers(search.cases.outline.layers, {}):
        reports.append(report)
        if build_signature(report) == wanted:
            break
    found = find_same(reports, wanted)
    if found is not None and (full.failed_step is None or wanted.resembles(build_signature(found))):
        search.first, search.confirmed = found.layer, True
        search.notes += describe_others(found.layer, reports, full) if found.layer else []
    elif full.verdict.kind in WRONG:
        _halve(search, wanted)


# ---------------------------------------------------------------- beginnings of the unmarked model


def _halve(search: Search, wanted: Signature | None) -> None:
    """The shortest beginning of the model that is wrong in this way: its last layer is where it shows."""
    layers = [layer for layer in search.cases.outline.layers if layer.outputs]
    low, high = 0, len(layers) - 1  # the whole is wrong
    while low < high:
        middle = (low + high) // 2
        if _is_wrong(search, layers[: middle + 1], wanted):
            high = middle
        else:
            low = middle + 1
    search.first = layers[low]
    (report,) = search.examine_layers([layers[low]], {})
    search.confirmed = report.verdict.kind in WRONG or low < len(layers) - 1 or _is_wrong(search, layers, wanted)
    if report.verdict.kind not in WRONG:
        text = (
            f"the model is right up to the layer before {layers[low].label} and wrong with it; by itself the layer is "
            "right: suspect what the compiler makes of it together with its neighbours"
        )
        search.findings.append(Finding(VerdictKind.FAIL, layers[low].name, text))


def _is_wrong(search: Search, layers: Sequence[Layer], wanted: Signature | None) -> bool:
    case = build_beginning(search.cases, layers)
    with search.examination.workshop.borrowing():
        work, results = search.examination.compute(case)
        if work.failed is not None:
            return wanted is None or wanted.resembles(sign_failure(work.failed))
        verdict, _ = search.examination.judge(case, results)
    return verdict.kind in WRONG and (wanted is None or not wanted.step)


def build_beginning(cases: Cases, layers: Sequence[Layer]) -> Case:
    """The model up to these layers, with what they hand on as its outputs, nothing in between laid open."""
    inner = {name for layer in layers for name in layer.inputs}
    final = {spec.name for spec in cases.outline.outputs}
    rest = [layer for layer in cases.outline.layers if layer.number > layers[-1].number]
    later = {name for layer in rest for name in layer.inputs}
    made = [name for layer in layers for name in layer.outputs if name in cases.find_types(0)]
    outputs = [name for name in made if name in final or name in later or name not in inner]
    name = f"{cases.outline.stem}_to_{layers[-1].label}"
    trials = tuple(_build_trial(cases, number, outputs, name) for number in range(len(cases.samples)))
    return Case(name, None, tuple(outputs), (), trials, quantized=cases.quantized)


def _build_trial(cases: Cases, number: int, outputs: Sequence[str], name: str) -> Trial:
    types = cases.find_types(number)
    proto = build_cut(cases.proto, [spec.name for spec in cases.outline.inputs], outputs, types)
    needed = {value.name for value in proto.graph.input}
    given = Tensors(cases.samples[number].path)
    return Trial(
        cases.write_model(proto, cases.make_folder("beginning"), name),
        cases.write_inputs({each: given[each] for each in given if each in needed}),
        Tensors(cases.activations[number]),
        tuple(types[each] for each in outputs),
    )

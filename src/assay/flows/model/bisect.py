"""`assay model bisect`: the first layer that a target gets wrong, for as little work as it takes.

One compilation of the model with all layers' outputs laid open tells where the numbers part; that layer alone confirms
it. A target that cannot compile or run the model at all is asked layer by layer until one fails in the same way. Where
laying open makes the fault go away (it can keep a compiler from fusing), beginnings of the unmarked model are halved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.flows.model.cases import Case, Cases, StepFailedError, Tensors, Trial
from assay.flows.model.check import WRONG, Examination, Say, build_refused, build_source, quiet, select
from assay.flows.model.signature import build_signature
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


def bisect_model(request: ModelRequest, workshop: Workshop, keep: str, say: Say = quiet) -> ModelReport:
    begun = time.monotonic()
    workshop.begin(request.reference, request.target)
    cases = Cases(build_source(request), workshop)
    cases.outline  # noqa: B018 while the workers start
    tools = dict(workshop.find_tools(request.target))
    search = Search(Examination(request, workshop, cases, keep, say))
    try:
        find_wrong(search)
        reports = [search.reports[name] for name in cases.outline.cases if name in search.reports]
    except StepFailedError as error:
        reports = build_refused(request, cases, [cases.outline.full_name], error)
        search.notes.append(error.render())
    return ModelReport(
        model=request.model,
        stem=cases.outline.stem,
        reference=request.reference.name,
        target=request.target.name,
        cases=tuple(reports),
        first_wrong=search.first.name if search.first else None,
        confirmed=search.confirmed,
        findings=tuple(search.findings),
        samples=request.inputs.samples,
        tools=tools,
        elapsed_s=time.monotonic() - begun,
        notes=tuple(search.notes),
    )


def find_wrong(search: Search) -> None:
    """The cheapest view first. A view that shows nothing hands on to the next one."""
    accumulated, failed = search.examination.accumulate()
    if failed is not None:
        _find_failing(search, failed)
        return
    found = localise(search.cases.outline.layers, accumulated)
    if found.first is not None:
        _confirm(search, found.first, accumulated)
        search.notes.append(found.reason)
        return
    full = search.examine(search.cases.full)
    if full.verdict.kind not in WRONG:
        search.notes.append("every layer and the full model agree with the reference")
        return
    if found.blame is Blame.DRIFT:
        search.notes.append(found.reason)
        return
    search.notes.append(
        "laid open, the model is right on the target; as it is, it is wrong: laying open hides the fault, as it can "
        "keep layers from being fused"
    )
    _halve(search)


def _confirm(search: Search, suspect: Layer, accumulated: Mapping[str, TensorComparison]) -> None:
    search.first = suspect
    (report,) = search.examine_layers([suspect], accumulated)
    search.confirmed = report.verdict.kind in WRONG
    if search.confirmed:
        return
    off = ", ".join(select_words(suspect, accumulated))
    text = f"{suspect.label} is the first to be wrong inside the model ({off}), and right by itself: see its neighbours"
    search.findings.append(Finding(VerdictKind.FAIL, suspect.name, text))


def select_words(layer: Layer, accumulated: Mapping[str, TensorComparison]) -> list[str]:
    return [f"{each.name} off by {each.max_rel:.2g}" for each in select(layer, accumulated)]


def _find_failing(search: Search, failed: StepOutcome) -> None:
    """The target does not get through the model laid open: is it the model, and which layer?"""
    full = search.examine(search.cases.full)
    step = full.failed_step
    if step is None:
        search.notes.append(
            f"the model with all layers' outputs laid open does not get through ({failed.step} {failed.ending}), the "
            "model itself does: the layers are looked at one by one"
        )
    wanted = build_signature(full)
    for report in search.examine_layers(search.cases.outline.layers, {}):
        if report.verdict.kind not in WRONG:
            continue
        search.first, search.confirmed = search.first or report.layer, True
        if step is None or build_signature(report) == wanted:
            search.first = report.layer
            return
    if search.first is not None:
        search.notes.append(f"{search.first.label} fails, but not as the full model does: there may be more behind it")
        return
    if full.verdict.kind in WRONG:
        _halve(search)


# ---------------------------------------------------------------- beginnings of the unmarked model


def _halve(search: Search) -> None:
    """The shortest beginning of the model that is wrong: its last layer is where it shows."""
    layers = [layer for layer in search.cases.outline.layers if layer.outputs]
    low, high = 0, len(layers) - 1  # the whole is wrong
    while low < high:
        middle = (low + high) // 2
        if _is_wrong(search, layers[: middle + 1]):
            high = middle
        else:
            low = middle + 1
    search.first = layers[low]
    (report,) = search.examine_layers([layers[low]], {})
    search.confirmed = report.verdict.kind in WRONG or (low < len(layers) - 1 or _is_wrong(search, layers))
    if report.verdict.kind not in WRONG:
        text = (
            f"the model is right up to the layer before {layers[low].label} and wrong with it; by itself the layer is "
            "right: suspect what the compiler makes of it together with its neighbours"
        )
        search.findings.append(Finding(VerdictKind.FAIL, layers[low].name, text))


def _is_wrong(search: Search, layers: Sequence[Layer]) -> bool:
    case = build_beginning(search.cases, layers)
    work, results = search.examination.compute(case)
    if work.failed is not None:
        return True
    verdict, _ = search.examination.judge(case, results)
    return verdict.kind in WRONG


def build_beginning(cases: Cases, layers: Sequence[Layer]) -> Case:
    """The model up to these layers, with what they hand on as its outputs, nothing in between laid open."""
    inner = {name for layer in layers for name in layer.inputs}
    final = {spec.name for spec in cases.outline.outputs}
    later = {name for layer in cases.outline.layers[len(layers) :] for name in layer.inputs}
    made = [name for layer in layers for name in layer.outputs]
    outputs = [name for name in made if name in final or name in later or name not in inner]
    trials = []
    for number, sample in enumerate(cases.samples):
        types = cases.find_types(number)
        proto = build_cut(cases.proto, [spec.name for spec in cases.outline.inputs], outputs, types)
        folder = cases.make_folder("beginning")
        model = cases.write_model(proto, folder, f"{cases.outline.stem}_to_{layers[-1].label}")
        trials.append(Trial(model, sample, Tensors(cases.activations[number])))
    return Case(f"{cases.outline.stem}_to_{layers[-1].label}", None, tuple(outputs), (), tuple(trials))

"""`assay model reduce`: the smallest model that still shows a target's failure.

The failure's own signature is the oracle: the step and the way in which it failed, with numbers and names taken out of
the message; or outputs that differ. Every sample goes along, and what comes out is computed once more, past the cache,
before anybody is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import UsageError
from assay.flows.model.bisect import Search, find_wrong
from assay.flows.model.cases import Case, Cases, StepFailedError, Tensors, Trial
from assay.flows.model.check import WRONG, Examination, Say, build_refused, build_source, quiet
from assay.flows.model.signature import Signature, build_signature
from assay.flows.model.workshop import Product, Wants, Workshop
from assay.probe.graph import load_model, write_model
from assay.probe.mark import build_marked
from assay.probe.reduction import Candidate, Reduced, count_nodes, reduce_model
from assay.probe.tensorfile import write_tensors
from assay.values.model import CaseReport, ModelReport, ModelRequest
from assay.values.verdict import Finding, VerdictKind


def reduce_failure(request: ModelRequest, workshop: Workshop, keep: str, say: Say = quiet) -> ModelReport:
    begun = time.monotonic()
    workshop.begin(request.reference, request.target)
    cases = Cases(build_source(request), workshop)
    cases.outline  # noqa: B018 while the workers start
    tools = dict(workshop.find_tools(request.target))
    search = Search(Examination(replace(request, voter=None), workshop, cases, keep, quiet))
    try:
        find_wrong(search)
        case, report = _choose_start(search)
        reports, notes = _reduce(search, case, report, say)
    except StepFailedError as error:
        reports, notes = build_refused(request, cases, [cases.outline.full_name], error), [error.render()]
    return ModelReport(
        model=request.model,
        stem=cases.outline.stem,
        reference=request.reference.name,
        target=request.target.name,
        cases=tuple(reports),
        first_wrong=search.first.name if search.first else None,
        confirmed=search.confirmed,
        samples=request.inputs.samples,
        tools=tools,
        elapsed_s=time.monotonic() - begun,
        notes=tuple(notes),
    )


def _choose_start(search: Search) -> tuple[Case, CaseReport]:
    """The first wrong layer where it fails by itself, else the whole model."""
    report = search.reports.get(search.first.name) if search.first else None
    if report is not None and report.verdict.kind in WRONG:
        return search.cases.find(report.name), report
    full = search.reports.get(search.cases.outline.full_name) or search.examine(search.cases.full)
    if full.verdict.kind not in WRONG:
        raise UsageError(
            f"{search.cases.outline.stem} is right on {full.target}: there is nothing to reduce",
            "assay model check shows every layer beside the reference",
        )
    return search.cases.full, full


def _reduce(search: Search, case: Case, report: CaseReport, say: Say) -> tuple[list[CaseReport], list[str]]:
    signature = build_signature(report)
    assert signature is not None
    trial = _Trials(search, case, signature)
    proto = load_model(case.trials[0].model.path)
    samples = [dict(Tensors(each.inputs.path)) for each in case.trials]
    reduced = reduce_model(proto, samples, trial.activations_for, trial.fails)
    final = trial.build_case(reduced.model, reduced.samples)
    again = _examine_again(search, final)
    say(again)
    path, inputs = write_result(search, reduced)
    ops = ", ".join(node.op_type for node in reduced.model.graph.node)
    notes = [
        f"{count_nodes(search.cases.proto)} nodes → {count_nodes(reduced.model)}: {ops}",
        f"the failure: {signature}",
        f"{reduced.tried} models tried, {len(reduced.samples)} sample(s) in each",
        f"smallest model: {path}",
        f"its inputs: {inputs}",
    ]
    if build_signature(again) != signature:
        finding = Finding(VerdictKind.INCONCLUSIVE, final.name, "computed once more, the smallest model does not fail")
        again = replace(again, verdict=replace(again.verdict, findings=(*again.verdict.findings, finding)))
        notes.append("computed once more, the smallest model does not fail in this way: the failure comes and goes")
    elif not reduced.is_minimal:
        notes.append("the search was ended early: a smaller model may fail as well")
    return [again], notes


def _examine_again(search: Search, case: Case) -> CaseReport:
    """Past the cache: what is reported has been seen twice."""
    workshop = search.examination.workshop
    before, workshop.recompute = workshop.recompute, True
    workshop.begin_again()
    try:
        return search.examination.examine(case)
    finally:
        workshop.recompute = before


def write_result(search: Search, reduced: Reduced) -> tuple[str, str]:
    """The model and the inputs of its first sample, where a person finds them."""
    request = search.examination.request
    path = request.output or os.path.join(search.examination.keep, f"{search.cases.outline.stem}_reduced.onnx")
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    stem = os.path.splitext(os.path.basename(path))[0]
    write_model(reduced.model, path)
    inputs = os.path.join(folder, f"{stem}_inputs")
    for number, sample in enumerate(reduced.samples):
        write_tensors(inputs if number == 0 else f"{inputs}.{number}", sample)
    return os.path.abspath(path), inputs


class _Trials:
    """Candidates on the reference and on the target."""

    def __init__(self, search: Search, case: Case, signature: Signature) -> None:
        self._search = search
        self._case = case
        self._signature = signature

    def fails(self, candidate: Candidate) -> bool:
        """In the same way. A candidate that the reference cannot compute proves nothing."""
        try:
            case = self.build_case(candidate.model, candidate.samples)
        except StepFailedError:
            return False
        return build_signature(self._search.examination.examine(case)) == self._signature

    def build_case(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> Case:
        cases = self._search.cases
        name = f"{cases.outline.stem}_reduced"
        product = cases.write_model(model, cases.make_folder("reduced"), name)
        outputs = tuple(value.name for value in model.graph.output)
        trials = []
        for sample in samples:
            inputs = cases.write_inputs(sample)
            folder = cases.ask(product, inputs, Wants(outputs), name)
            trials.append(Trial(product, inputs, Tensors(folder)))
        return Case(name, self._case.layer if len(model.graph.node) == 1 else None, outputs, (), tuple(trials))

    def activations_for(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        cases = self._search.cases
        marked = build_marked(model)
        product: Product = cases.write_model(marked, cases.make_folder("marked"), "marked")
        names = tuple(value.name for value in marked.graph.output)
        return [
            {**sample, **Tensors(cases.ask(product, cases.write_inputs(sample), Wants(names), "marked"))}
            for sample in samples
        ]

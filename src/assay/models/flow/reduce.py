"""`assay model reduce`: finds the smallest model that still shows a target's failure.

A smaller model must fail with the same signature: the step and the way in which it failed, and the message without
numbers and names; or outputs that differ. Every sample is kept, and the smallest model is computed again without the
cache before it is reported. For a torch module the result is the first wrong call, with the fewest rows that fail.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from assay.models.backends.torch_backend import INPUTS_FILE
from assay.models.backends.torch_calls import find_called
from assay.models.config.settings import parse_tolerance_texts
from assay.models.flow.artifact_builder import ArtifactBuilder, Product, Wants
from assay.models.flow.bisect import LayerSearch, find_wrong
from assay.models.flow.cases import CaseSample, ModelCase, StepFailedError, Tensors, is_quantized, load_specs
from assay.models.flow.check import Examination, Report, check_model, examine_model, quiet
from assay.models.flow.discovery import TOLERANCE_FLAG, KnownNames, list_names
from assay.models.flow.torch_cases import BACKWARD, TorchCases
from assay.models.graph.graph import build_outline, load_model, write_model
from assay.models.graph.reduction import Candidate, Reduced, count_nodes, reduce_model
from assay.models.graph.submodel import build_marked
from assay.models.graph.tensorfile import write_tensors
from assay.models.judge.layers import FaultSearch
from assay.models.values.model import (
    WRONG,
    CaseReport,
    Flags,
    Layer,
    ModelReport,
    ModelRequest,
    Signature,
    Target,
    build_signature,
    render_flags,
)
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.verdict import Finding, VerdictKind


def reduce_failure(
    request: ModelRequest, builder: ArtifactBuilder, keep: str, report_case: Report = quiet
) -> ModelReport:
    return examine_model(request, builder, keep, report_case, _search)


def _search(examination: Examination) -> FaultSearch:
    if examination.request.is_torch:
        return _reduce_call(examination)
    search, report_case = LayerSearch(examination), examination.report_case
    with examination.builder.forgetting():  # files of models that are only tried are not kept
        find_wrong(search)
        case, report = _choose_start(search)
        if report.verdict.kind not in WRONG:  # the target is correct, or the verdict is inconclusive
            state = "right" if report.verdict.kind is VerdictKind.PASS else "not shown to be wrong"
            what = f"as a whole it is {state} on {report.target}: there is nothing to reduce"
            request = examination.request
            text = f"{what}; `{render_check(request.model, (*request.manner, *request.origin))}` shows every layer"
            return FaultSearch((report,), findings=tuple(search.findings), notes=(text,))
        trials = _choose_samples(search, case, report)
        examination.report_case = quiet
        smallest = _reduce(trials, report_case)
    return _report(trials, smallest, report_case)


def _choose_start(search: LayerSearch) -> tuple[ModelCase, CaseReport]:
    """Return the first wrong layer if it fails in isolation, else the whole model."""
    report = search.reports.get(search.first.name) if search.first else None
    if report is not None and report.verdict.kind in WRONG:
        return search.cases.find(report.name), report
    full = search.reports.get(search.cases.outline.full_name) or search.examine(search.cases.full)
    return search.cases.full, full


def _choose_samples(search: LayerSearch, case: ModelCase, report: CaseReport) -> _Trials:
    """Choose all samples or, if each shape has its own model, the samples of the first model that fails."""
    signature = build_signature(report)
    assert signature is not None
    for model in dict.fromkeys(trial.model for trial in case.trials):
        alike = replace(case, trials=tuple(trial for trial in case.trials if trial.model.sha == model.sha))
        if len(alike.trials) == len(case.trials) or build_signature(search.examination.examine(alike)) == signature:
            return _Trials(search, alike, signature)
    return _Trials(search, case, signature)


def _reduce(trials: _Trials, report_case: Report) -> Reduced:
    proto = load_model(trials.case.trials[0].model.path)
    samples = [dict(Tensors(each.inputs.path)) for each in trials.case.trials]

    def fails(candidate: Candidate) -> bool:
        report = trials.examine(candidate)
        if report is None or build_signature(report) != trials.signature:
            return False
        name, old = f"{report.name} ({render_count(candidate.nodes, 'node')})", report.verdict
        found = tuple(replace(each, subject=name) if each.subject == report.name else each for each in old.findings)
        report_case(replace(report, name=name, verdict=replace(old, findings=found)))
        return True

    return reduce_model(proto, samples, trials.activations_for, fails)


def _report(trials: _Trials, reduced: Reduced, report_case: Report) -> FaultSearch:
    search = trials.search
    final = trials.build_case(reduced.model, reduced.samples)
    builder = search.examination.builder
    builder.begin_again()
    with builder.changing(recompute=True):  # a failure is reported only if it occurs twice
        again = search.examination.examine(final)
    is_same = build_signature(again) == trials.signature
    if not is_same:
        finding = Finding(VerdictKind.INCONCLUSIVE, final.name, "computed again, it does not fail in this way")
        again = replace(again, verdict=replace(again.verdict, findings=(*again.verdict.findings, finding)))
    report_case(again)
    path, inputs = write_result(search, reduced)
    ops = ", ".join(node.op_type for node in reduced.model.graph.node)
    notes = [
        f"{render_count(count_nodes(search.cases.proto), 'node')} → {count_nodes(reduced.model)}: {ops}",
        f"the failure: {trials.signature}",
        f"{reduced.tried} models tried, with {render_count(len(reduced.samples), 'sample')} each",
        f"smallest model: {path}",
        f"its inputs: {', '.join(inputs)}",
    ]
    if not is_same:
        notes.append("computed again, the smallest model does not fail in this way: the failure comes and goes")
    request = search.examination.request
    command = render_again(request, path, inputs, list_names(build_outline(path, groups=request.groups)))
    return FaultSearch((again,), search.first, search.confirmed, notes=tuple(notes), command=command)


def render_again(request: ModelRequest, path: str, inputs: Sequence[str], names: KnownNames) -> str:
    """Return the command that reproduces the failure, without tolerances for names that the smaller model lacks."""
    targets = (("--reference", request.reference.name), ("--target", request.target.name))
    manner = [
        (flag, value)
        for flag, value in request.manner or targets
        if flag != TOLERANCE_FLAG or names.covers(parse_tolerance_texts([value]))
    ]
    return render_check(path, (*manner, *(("--input", each) for each in inputs)))


def render_check(model: str, flags: Flags) -> str:
    return f"assay model check {shlex.quote(model)} {render_flags(flags)}".rstrip()


def write_result(search: LayerSearch, reduced: Reduced) -> tuple[str, list[str]]:
    """Write the model and a folder of inputs for each sample to the folder of the reduction."""
    request = search.examination.request
    path = os.path.abspath(
        request.output or os.path.join(search.examination.keep, f"{search.cases.outline.stem}_reduced.onnx")
    )
    write_model(reduced.model, path)
    base = f"{os.path.splitext(path)[0]}_inputs"
    folders = [base if number == 0 else f"{base}_{number + 1}" for number in range(len(reduced.samples))]
    for folder, sample in zip(folders, reduced.samples, strict=True):
        write_tensors(folder, sample)
    return path, folders


@dataclass(frozen=True, slots=True)
class _Trials:
    """Computes candidates for a smaller model on the reference and on the target."""

    search: LayerSearch
    case: ModelCase
    signature: Signature

    def examine(self, candidate: Candidate) -> CaseReport | None:
        """Return the report of a candidate; None if the reference cannot compute it, which proves nothing."""
        with self.search.examination.builder.borrowing():
            try:
                case = self.build_case(candidate.model, candidate.samples)
            except StepFailedError:
                return None
            report = self.search.examination.examine(case)
        self.search.cases.discard(case)
        return report

    def build_case(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> ModelCase:
        cases = self.search.cases
        name = f"{cases.outline.stem}_reduced"
        product = cases.write_model(model, name)
        outputs = tuple(value.name for value in model.graph.output)
        trials = []
        for sample in samples:
            inputs = cases.write_inputs(sample)
            folder = cases.ask(product, inputs, Wants(outputs), "reduced")
            trials.append(CaseSample(product, inputs, Tensors(folder), load_specs(folder)))
        layer = self._find_layer(model)
        quantized = layer is None and is_quantized(model)
        makers = {made: node.op_type for node in model.graph.node for made in node.output}
        return ModelCase(name, layer, outputs, (), tuple(trials), quantized=quantized, makers=makers)

    def _find_layer(self, model: Any) -> Layer | None:
        """Return a layer for a model of a single node, which is judged by its operator, or None. It is named after the
        layer that the reduction began with, or the layer of the full model that makes the same tensor."""
        nodes = [node for node in model.graph.node if node.op_type != "Constant"]
        if len(nodes) != 1:
            return None
        layers, ops, made = self.search.cases.outline.layers, (nodes[0].op_type,), set(nodes[0].output)
        same = (layer for layer in layers if made & set(layer.outputs) and ops[0] in layer.ops)
        layer = self.case.layer or next(same, None) or self.search.first
        return replace(layer, ops=ops) if layer is not None else None

    def activations_for(self, model: Any, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        cases = self.search.cases
        marked = build_marked(model)
        product: Product = cases.write_model(marked, "marked")
        names = tuple(value.name for value in marked.graph.output)
        with self.search.examination.builder.borrowing():
            return [
                {**sample, **Tensors(cases.ask(product, cases.write_inputs(sample), Wants(names), "marked"))}
                for sample in samples
            ]


_TEXT = '''"""{label} of {model}, as small as it still fails on {target}; written by `assay model reduce`.

{command}
"""

import os
import random
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import numpy
import torch

for folder in {folders!r}:
    sys.path.insert(0, folder)


class Part(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *args, **kwargs):
        return self.part(*args, **kwargs)


def load(source):
    """A module by its name or, since others may have the same name, by its file."""
    if not source.endswith(".py"):
        return import_module(source)
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == source:
            return module
    spec = spec_from_file_location(os.path.basename(source)[:-3], source)
    module = module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


def build_whole():
    random.seed({seed}), numpy.random.seed({seed}), torch.manual_seed({seed})
    return load({source!r}).{build}()[0]


def build():
    given = torch.load(os.path.splitext(__file__)[0] + ".pt", weights_only=False)
    return Part(build_whole().get_submodule({name!r})), given["args"], given["kwargs"]
'''
_TARGET = """

def target(_part):
    return Part(load({source!r}).{name}(build_whole()).get_submodule({part!r}))
"""


def _reduce_call(examination: Examination) -> FaultSearch:
    search = LayerSearch(examination)
    with examination.builder.forgetting():
        find_wrong(search)
    first, notes = search.first, search.notes
    report = search.reports.get(first.name) if first else None
    if first is None or report is None or report.verdict.kind not in WRONG or examination.request.ops:
        why = "ops are not taken out of their graph" if examination.request.ops else "no call fails alone"
        notes.append(f"{why}: there is nothing to reduce")
        return search.conclude(*search.reports.values())
    found = _CallReduction(examination, first).shrink()
    if found is None:
        notes.append(f"{first.label} is wrong next to its peers and does not fail alone: there is nothing smaller")
        return search.conclude(report)
    path, rows = found
    notes += [
        f"smallest part: {path}",
        f"its inputs: {os.path.splitext(path)[0]}.pt" + (f", {rows} rows" if rows else ""),
    ]
    command = build_command(build_request(examination.request, path))
    return search.conclude(report, command=command)


@dataclass(frozen=True, slots=True)
class _CallReduction:
    """The search for the fewest rows of inputs with which a call fails alone."""

    examination: Examination
    layer: Layer

    def shrink(self) -> tuple[str, int] | None:
        """Return the written file and the number of rows of its inputs (0: all); None if the call is correct alone."""
        smallest = self._try(0)
        one = self._try(1) if smallest is not None and smallest[1] > 1 else None
        while one is None and smallest is not None and smallest[1] > 1:
            trial = self._try(smallest[1] // 2)
            if trial is None:
                break
            smallest = trial
        smallest = one or smallest
        if smallest is None:
            return None
        examination = self.examination
        path = examination.request.output or os.path.join(examination.keep, self._file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return self._write(path, smallest[0]), smallest[1]

    def _try(self, rows: int) -> tuple[str, int] | None:
        """Return the folder of the inputs, and their number of rows; None if a part with `rows` rows does not fail."""
        examination, cases = self.examination, self.examination.cases
        assert isinstance(cases, TorchCases)
        folder, count = cases.keep_inputs(self._label, rows)
        path = self._write(os.path.join(examination.builder.make_folder("part"), self._file), folder)
        request = replace(build_request(examination.request, path), backward=self.layer.label.endswith(BACKWARD))
        builder, notes = examination.builder, list(examination.builder.notes)
        with builder.forgetting():
            report = check_model(request, builder, examination.keep)
        builder.notes[:] = notes
        if "rewrite" in request.target.options:
            builder.forget(request.target)
        return (folder, count) if report.verdict.kind in WRONG and report.first_wrong else None

    @property
    def _file(self) -> str:
        return f"{self.examination.cases.outline.stem}_reduced.py"

    @property
    def _label(self) -> str:
        return self.layer.label.removesuffix(BACKWARD)

    def _write(self, path: str, inputs: str) -> str:
        request = self.examination.request
        source, _, build = request.model.rpartition(":")
        rewrite = str(request.target.options.get("rewrite", ""))
        other, _, name = rewrite.rpartition(":")
        other = os.path.join(request.folder, other) if other.endswith(".py") else other
        part = find_called(self._label)
        text = _TEXT.format(
            label=self._label,
            model=request.model,
            target=request.target.name,
            command=build_command(build_request(request, path)),
            folders=[
                *dict.fromkeys((request.folder, os.path.dirname(other) or request.folder, os.path.dirname(source)))
            ],
            seed=request.inputs.seed,
            source=source,
            build=build,
            name=part,
        )
        text += _TARGET.format(source=other, name=name, part=part) if rewrite else ""
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        shutil.copyfile(os.path.join(inputs, INPUTS_FILE), f"{os.path.splitext(path)[0]}.pt")
        return path


def build_request(request: ModelRequest, path: str) -> ModelRequest:
    """Return the request for a part of a module; a rewritten part is taken out of the rewritten module."""
    target = request.target
    if "rewrite" in target.options:
        target = Target(f"{path}:target", target.backend, {**target.options, "rewrite": f"{path}:target"})
    manner = tuple((flag, target.name if flag == "--target" else value) for flag, value in request.manner)
    return replace(request, model=f"{path}:build", target=target, goal="check", manner=manner, notes=())


def build_command(request: ModelRequest) -> str:
    manner = request.manner or (("--target", request.target.name),)
    return render_check(request.model, (*manner, *request.origin))

"""`assay model bisect`: finds the first layer that a target gets wrong, with few computations.

One compilation of the model with every intermediate tensor as an output shows where the numbers begin to differ; that
layer is then confirmed alone. If the target cannot compile or run the model, or if the additional outputs hide the
fault (they can keep a compiler from fusing), beginnings of the unmarked model are bisected: the shortest beginning that
fails as the full model does ends with the wrong layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Cases, CaseSample, ModelCase, Tensors
from assay.models.flow.check import Examination, Report, examine_model, quiet
from assay.models.graph.graph import load_model
from assay.models.graph.submodel import join_models, name_part
from assay.models.graph.tensorfile import load_refs
from assay.models.judge.layers import (
    Blame,
    FaultSearch,
    Localisation,
    confirm,
    is_excused,
    judge_inside,
    localise,
    select,
)
from assay.models.values.model import (
    WRONG,
    CaseReport,
    Layer,
    ModelReport,
    ModelRequest,
    Signature,
    StepOutcome,
    build_signature,
    sign_failure,
)
from assay.models.values.tensors import TensorComparison
from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import Finding, VerdictKind

_FEWEST_TOGETHER = 4  # fewer layers are compiled faster one by one
_MOST_TOGETHER = 128
_MOST_BYTES = 256 * 1024 * 1024  # most bytes of weights and inputs in one model


@dataclass(slots=True)
class LayerSearch:
    """What is known so far about the first wrong layer."""

    examination: Examination
    reports: dict[str, CaseReport] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: Layer | None = None
    confirmed: bool | None = None

    @property
    def cases(self) -> Cases:
        return self.examination.cases

    def examine(self, case: ModelCase, accumulated: Sequence[TensorComparison] = ()) -> CaseReport:
        report = self.examination.examine(case, accumulated)
        self.reports[case.name] = report
        return report

    def conclude(self, *reports: CaseReport, command: str = "") -> FaultSearch:
        findings, notes = tuple(self.findings), tuple(self.notes)
        return FaultSearch(reports, self.first, self.confirmed, findings, notes, command)

    def examine_layer(self, layer: Layer, accumulated: Mapping[str, TensorComparison]) -> CaseReport:
        """Examine a layer alone with the reference's inputs."""
        case = self.cases.find(layer.name)
        report = self.examine(case, select(layer, accumulated))
        self.cases.discard(case)
        return report


def bisect_model(
    request: ModelRequest, builder: ArtifactBuilder, keep: str, report_case: Report = quiet
) -> ModelReport:
    def bisect(examination: Examination) -> FaultSearch:
        search = LayerSearch(examination)
        find_wrong(search)
        return search.conclude(*(search.reports[name] for name in search.cases.outline.cases if name in search.reports))

    return examine_model(request, builder, keep, report_case, bisect)


def find_wrong(search: LayerSearch) -> None:
    """Search inside the model first; if the target fails there, or for a torch module, search in other ways."""
    accumulated, failed = search.examination.accumulate()
    if search.examination.request.is_torch:
        _find_wrong_call(search, accumulated)
    elif failed is not None:
        _find_failing(search, failed)
    else:
        _find_wrong_layer(search, accumulated)


def _find_wrong_layer(search: LayerSearch, accumulated: Mapping[str, TensorComparison]) -> None:
    found = _try_suspects(search, accumulated)
    if search.first is not None:
        return
    if search.cases.quantized and _try_alone(search, search.cases.outline.layers, accumulated):
        return
    full = search.examine(search.cases.full)
    if full.verdict.kind not in WRONG:
        _conclude_right(search, full, "" if found.blame is Blame.NOTHING else found.reason)
        return
    if _is_open_only(search, full):
        return
    if found.blame is not Blame.NOTHING:
        if not _try_alone(search, search.cases.outline.layers, accumulated):
            search.notes.append(found.reason)
        return
    search.notes.append(
        "with every intermediate tensor as an output the model is correct on the target, and wrong without: the "
        "outputs hide the fault, as they can keep layers from being fused"
    )
    _halve(search, build_signature(full), is_inside_known=True)


def _find_wrong_call(search: LayerSearch, accumulated: Mapping[str, TensorComparison]) -> None:
    """Examine each call of a torch module alone until one is wrong, then compare the calls with their peers."""
    if accumulated:
        _try_suspects(search, accumulated)
        if search.first is not None:
            return
    for layer in search.cases.outline.layers:
        report = search.reports.get(layer.name) or search.examine_layer(layer, accumulated)
        if confirm(report):
            break
    reports = search.cases.judge_peers(list(search.reports.values()))
    wrong = [each.layer for each in reports if each.layer is not None and confirm(each)]
    search.reports = {each.name: each for each in reports if each.verdict.kind is not VerdictKind.PASS}
    if wrong:
        search.first, search.confirmed = min(wrong, key=lambda layer: layer.number), True
        return
    full = search.examine(search.cases.full)
    _conclude_right(search, full, "")


def _is_open_only(search: LayerSearch, full: CaseReport) -> bool:
    """Return whether open dimensions decide whether the model fails, in which case no layer can be blamed."""
    note = search.examination.describe_closed(full)
    search.notes += [note] if note else []
    return bool(note)


def _try_suspects(search: LayerSearch, accumulated: Mapping[str, TensorComparison]) -> Localisation:
    """Examine layers in whose outputs an error seems to begin, one after another, each with the reference's inputs. A
    layer that is correct alone has only amplified an error of its inputs, and a layer on which the references disagree
    as much is not to blame: the search continues after both. `search.first` is None if no layer is to blame."""
    local, excused = dict[str, TensorComparison](), set[str]()
    while True:
        found = localise(search.cases.outline.layers, accumulated, local, excused)
        suspect = found.first
        if suspect is None:
            return found
        if suspect.name in search.reports:  # the layer is correct in isolation, and wrong inside with the same inputs
            _blame_inside(search, suspect, accumulated)
            return found
        report = search.examine_layer(suspect, accumulated)
        local |= {each.name: each for each in report.local}
        if is_excused(report):
            excused.add(suspect.name)
        elif confirm(report):
            search.first, search.confirmed = suspect, True
            search.notes.append(found.reason)
            return found
        elif confirm(report) is None:
            _blame_inside(search, suspect, accumulated)
            return found


def _blame_inside(search: LayerSearch, suspect: Layer, accumulated: Mapping[str, TensorComparison]) -> None:
    search.first, search.confirmed = suspect, confirm(search.reports[suspect.name])
    full = search.examine(search.cases.full)
    search.findings.append(judge_inside(suspect, accumulated, search.confirmed, full))


def _try_alone(search: LayerSearch, layers: Sequence[Layer], accumulated: Mapping[str, TensorComparison]) -> bool:
    """Find the first layer that is wrong in isolation among layers whose outputs differ at all or were not compared,
    and return whether there is one: amplified errors can be larger than the wrong layer's own error. Layers that are
    correct in a model of several layers, each with the reference's inputs, are not computed alone."""
    seen = {layer.name: select(layer, accumulated) for layer in layers}
    left = [
        layer
        for layer in layers
        if layer.name not in search.reports and (not seen[layer.name] or any(each.error for each in seen[layer.name]))
    ]
    correct = _find_correct(search, left)
    for layer in left:
        if layer.name in correct:
            continue
        report = search.examine_layer(layer, accumulated)
        if confirm(report):
            search.first, search.confirmed = layer, True
            search.notes.append(f"{layer.label} is the first that is wrong with the reference's inputs")
            return True
        if report.verdict.kind is VerdictKind.PASS:
            del search.reports[layer.name]  # the layer was not requested
    return False


def _find_correct(search: LayerSearch, layers: Sequence[Layer]) -> set[str]:
    """Return layers that are correct in a model of many independent layers, which is compiled only once. A group of
    layers that the target cannot compute as a whole is divided. Layers that are wrong, or cannot be in a group, are
    left out."""
    if len(layers) < _FEWEST_TOGETHER:
        return set()
    correct, group, size = set[str](), list[ModelCase](), 0
    for case in search.cases.iterate([layer.name for layer in layers]):
        if case.problem:
            continue
        refs = [ref for trial in case.trials for ref in load_refs(trial.inputs.path)]
        own = sum(map(os.path.getsize, (*(trial.model.path for trial in case.trials), *(ref.path for ref in refs))))
        if group and (len(group) == _MOST_TOGETHER or size + own > _MOST_BYTES):
            correct |= _try_together(search, group)
            group, size = [], 0
        group.append(case)
        size += own
    return correct | (_try_together(search, group) if group else set())


def _try_together(search: LayerSearch, group: Sequence[ModelCase]) -> set[str]:
    examination, together = search.examination, build_together(search.cases, group)
    with examination.builder.borrowing(), examination.builder.forgetting():
        work, results = examination.compute(together)
        correct = set[str]()
        for case in group if work.failed is None else ():
            own = [{name: result[name] for name in case.outputs} for result in results]
            correct |= {case.name} if examination.judge(case, own)[0].kind is VerdictKind.PASS else set()
    search.cases.discard(together)
    if work.failed is not None and len(group) >= _FEWEST_TOGETHER:
        middle = len(group) // 2
        return _try_together(search, group[:middle]) | _try_together(search, group[middle:])
    for case in group:
        search.cases.discard(case)
    return correct


def build_together(cases: Cases, group: Sequence[ModelCase]) -> ModelCase:
    """Return one case whose model contains the models of all these cases, each with inputs of its own."""
    trials = []
    for sample in range(len(group[0].trials)):
        parts = [case.trials[sample] for case in group]
        proto = join_models([load_model(part.model.path) for part in parts])
        inputs = [(n, name, array) for n, part in enumerate(parts) for name, array in Tensors(part.inputs.path).items()]
        given = {name_part(n, name): array for n, name, array in inputs}
        specs = [spec for part in parts for spec in part.specs]
        model = cases.write_model(proto, f"{cases.outline.stem}_together")
        trials.append(CaseSample(model, cases.write_inputs(given), {}, tuple(specs)))
    names = tuple(name for case in group for name in case.outputs)
    return ModelCase(f"{cases.outline.stem}_together", None, names, (), tuple(trials))


def _conclude_right(search: LayerSearch, full: CaseReport, but: str) -> None:
    """Note why no layer is wrong; `but` describes the intermediate tensors, unless all are correct."""
    if search.cases.quantized and full.verdict.kind is VerdictKind.PASS:
        search.notes.append(
            "it computes in steps: as a whole it agrees to within a few of them, and every layer whose values differ "
            "is correct with the reference's inputs"
        )
    elif but:
        search.notes.append(but)
    elif full.verdict.kind is VerdictKind.PASS:
        search.notes.append("the full model agrees with the reference, and so do all intermediate tensors")


def _find_failing(search: LayerSearch, failed: StepOutcome) -> None:
    """Search after the target failed on the model with additional outputs, by bisection if the model itself fails."""
    full = search.examine(search.cases.full)
    text = f"the model with every intermediate tensor as an output fails ({failed.step} {failed.ending})"
    if full.verdict.kind not in WRONG:
        _conclude_right(search, full, f"{text}: its intermediate tensors are unknown")
        return
    if _is_open_only(search, full):
        return
    if full.failed_step is None:
        search.notes.append(f"{text}, the model itself does")
    _halve(search, build_signature(full), is_inside_known=False)


def _halve(search: LayerSearch, wanted: Signature | None, *, is_inside_known: bool) -> None:
    """Find the shortest beginning of the model that fails as the full model does: its last layer shows the fault."""
    known = search.cases.find_types(0)  # a beginning must not end with a sequence, since sequences cannot be compared
    layers = [layer for layer in search.cases.outline.layers if any(name in known for name in layer.outputs)]
    if not layers:
        search.notes.append("the model has no layer: a value that it passes through is wrong")
        return
    index = _find_shortest(search, layers, wanted, exact=True)
    if index == len(layers) - 1 and wanted is not None and wanted.step:
        index = _find_shortest(search, layers, wanted, exact=False)  # the message may differ each time
    search.first = suspect = layers[index]
    report = search.examine_layer(suspect, {})
    if report.verdict.kind in WRONG:
        search.confirmed = True
        if build_signature(report) != wanted:
            search.notes.append(f"{suspect.label} does not fail in isolation as the full model does: there may be more")
        return
    if not is_inside_known and _find_earlier(search, layers[:index], suspect):
        return
    if index == len(layers) - 1 and not _is_wrong(search, layers, wanted, exact=False):
        search.first = None
        search.notes.append("no beginning of the model fails as the whole does: the layer is not known")
        return
    search.confirmed = confirm(report)
    text = f"the model is correct up to the layer before {suspect.label} and wrong with it; "
    if report.verdict.kind is VerdictKind.PASS:
        text += "in isolation the layer is correct: suspect how the compiler combines it with its neighbours"
    else:
        findings = report.verdict.findings
        text += f"in isolation it is inconclusive: {findings[0].message if findings else 'nothing was compared'}"
    search.findings.append(Finding(VerdictKind.FAIL, suspect.name, text))


def _find_earlier(search: LayerSearch, before: Sequence[Layer], suspect: Layer) -> bool:
    """Search before a layer at which the model fails but which is correct in isolation: its inputs may be wrong."""
    search.first = None
    if before:
        part = build_beginning(search.cases, before, with_inside=True)
        accumulated, failed = search.examination.accumulate(part)
        search.cases.discard(part)
        if failed is None:
            _try_suspects(search, accumulated)
        needed, ancestors = set(suspect.inputs), list[Layer]()
        for layer in reversed(before):
            if needed & set(layer.outputs):
                needed |= set(layer.inputs)
                ancestors.insert(0, layer)
        if search.first is not None or _try_alone(search, ancestors, accumulated):
            search.notes.append(
                f"without intermediate outputs the model fails at {suspect.label}, which is correct with the "
                "reference's inputs"
            )
            return True
    search.first = suspect
    return False


def _find_shortest(search: LayerSearch, layers: Sequence[Layer], wanted: Signature | None, *, exact: bool) -> int:
    low, high = 0, len(layers) - 1  # the full model is known to be wrong
    while low < high:
        middle = (low + high) // 2
        if _is_wrong(search, layers[: middle + 1], wanted, exact=exact):
            high = middle
        else:
            low = middle + 1
    return low


def _is_wrong(search: LayerSearch, layers: Sequence[Layer], wanted: Signature | None, *, exact: bool) -> bool:
    """Return whether a beginning fails as the full model does; a failure of another kind does not count."""
    examination, case = search.examination, build_beginning(search.cases, layers)
    with examination.builder.borrowing(), examination.builder.forgetting():
        work, results = examination.compute(case)
        if work.failed is not None:
            found: Signature | None = sign_failure(work.failed)
        else:
            found = Signature("") if examination.judge(case, results)[0].kind in WRONG else None
    search.cases.discard(case)
    return found is not None and (found == wanted if exact else found.resembles(wanted))


def build_beginning(cases: Cases, layers: Sequence[Layer], *, with_inside: bool = False) -> ModelCase:
    """Return the model up to these layers with their results as outputs; `with_inside` adds intermediate tensors."""
    begun = [layer for layer in cases.outline.layers if layer.number <= layers[-1].number]
    inner = {name for layer in begun for name in layer.inputs}
    final = {spec.name for spec in cases.outline.outputs}
    later = {name for layer in cases.outline.layers[len(begun) :] for name in layer.inputs}
    made = [name for layer in begun for name in layer.outputs if name in cases.find_types(0)]
    outputs = [name for name in made if with_inside or name in final or name in later or name not in inner]
    name = f"{cases.outline.stem}_to_{layers[-1].label}" + ("_marked" if with_inside else "")
    trials = tuple(cases.cut(number, outputs, name) for number in range(len(cases.samples)))
    return ModelCase(name, None, tuple(outputs), (), trials, quantized=cases.quantized, makers=cases.makers)

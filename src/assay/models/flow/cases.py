"""Builds a model's cases: the inputs of each layer and of the full model, with the reference's outputs for them.

A layer gets the input values that it has inside the model: the reference runs once with every intermediate tensor as an
output, and layers are cut out with these real shapes and values.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from assay.errors import AssayError, ExitCode, InfrastructureError, MissingExtraError, NotFoundError, UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder, Product, Wants, load_product
from assay.models.graph.convert import can_help, find_newest_opset, find_obstacle
from assay.models.graph.graph import build_outline, load_model, write_model
from assay.models.graph.inputs import build_samples, describe_invented, parse_files
from assay.models.graph.onnx_library import build_wiring, walk_nodes, words
from assay.models.graph.operators import Magnitudes, find_coarse, find_random, find_steps
from assay.models.graph.split import build_folding, build_layers
from assay.models.graph.submodel import build_cut, build_marked, describe_array, find_functions, load_constant
from assay.models.graph.tensorfile import load_ref, load_refs, write_tensors
from assay.models.judge.alone import LayerOrigin
from assay.models.judge.tolerances import coarse_tolerance
from assay.models.values.model import (
    CaseReport,
    Layer,
    ModelReport,
    ModelRequest,
    Outline,
    Step,
    StepEnding,
    StepOutcome,
    Target,
    Tolerances,
)
from assay.models.values.tensors import TensorComparison, TensorRef, TensorSpec, Tolerance
from assay.show.formatting import join_first
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.verdict import Finding, Verdict

Arrays = Mapping[str, Any]  # name → numpy array
Judged = tuple[Verdict, tuple[TensorComparison, ...]]
_CONVERT = re.compile(r"assay model convert MODEL --opset (?P<opset>\d+)")
_LACKING = re.compile(r"no implementation of (?P<op>\w+)\b(?![.:])")
_LARGER = (64, 512, 4096, 16000)  # sizes of open dimensions to try if the reference refuses the first guess
_MOST_ELEMENTS = 1 << 24  # most elements of an input with guessed sizes
_OTHERS = ("reference", "openvino", "iree")  # suggested instead of a reference that lacks an operator or a type
_CARRIED = 4  # most operators through which an output is followed back to where it was rounded
_GATES = {"If": 1, "Loop": 2}  # operator → how many of its inputs decide whether a sub-graph is entered
_ROUNDING = words("QuantizeLinear DynamicQuantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul QGemm QAttention")


class StepFailedError(AssayError):
    """A step on which all results depend failed: the reference cannot compute the model."""

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, outcome: StepOutcome) -> None:
        self.outcome = outcome
        words = outcome.message or str(outcome.ending)
        super().__init__(f"{what}: {outcome.step} {outcome.ending}: {words}", outcome.hint or None)


class LazyArrays(Mapping[str, Any]):
    """Arrays by name, each loaded when it is read: activations of a large model do not fit in memory."""

    def __init__(self, names: Iterable[str], load: Callable[[str], Any]) -> None:
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


class Tensors(LazyArrays):
    """The tensors in folders."""

    def __init__(self, *folders: str) -> None:
        refs = {ref.name: ref for folder in folders for ref in load_refs(folder)}
        super().__init__(refs, lambda name: load_ref(refs[name]))


@dataclass(frozen=True, slots=True)
class CaseSample:
    """One sample of a case: its model, its inputs and the reference's outputs."""

    model: Product
    inputs: Product
    expected: Arrays
    specs: tuple[TensorSpec, ...] = ()  # specs of this sample's outputs, if known: samples may differ in shape


@dataclass(frozen=True, slots=True)
class ModelCase:
    name: str
    layer: Layer | None  # None: the full model
    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    trials: tuple[CaseSample, ...] = ()
    problem: str = ""  # why the layer cannot be taken out of the model
    quantized: bool = False  # whether several layers compute in steps: see values.tensors.Tolerance
    makers: Mapping[str, str] = field(default_factory=dict)  # output → the operator that computes it

    @property
    def op(self) -> str | None:
        return self.layer.ops[0] if self.layer else None

    def build_wants(self, trial: CaseSample, repeats: int = 1) -> Wants:
        return Wants(self.outputs, trial.specs or self.specs, repeats)


class Cases:
    """The cases of a request, which are the same for every target. Everything is made at its first use; the reference's
    results come from the store if it has them."""

    tests_voters = True  # operators are tested before a second reference may vote on them
    skipped: Mapping[str, str] = {}  # case → why it is not computed alone, if known beforehand

    def __init__(self, request: ModelRequest, builder: ArtifactBuilder) -> None:
        self.request = request
        self.notes: list[str] = []  # notes about the inputs
        self._magnitudes: dict[int, Magnitudes] = {}  # sample → magnitudes
        self._builder = builder

    @cached_property
    def outline(self) -> Outline:
        return build_outline(self.request.model, groups=self.request.groups)

    @cached_property
    def model(self) -> Product:
        return load_product(os.path.abspath(self.request.model))

    @cached_property
    def proto(self) -> Any:
        return load_model(self.request.model)

    @cached_property
    def samples(self) -> tuple[Product, ...]:
        """The model's inputs. If the reference refuses guessed sizes, larger sizes are tried."""
        first = self._draw_samples()
        choice = self.request.inputs
        is_given = choice.function or not isinstance(parse_files(choice.files), Mapping)
        if is_given or all(spec.is_static for spec in self.outline.inputs):
            return first
        if _measure_shapes(first) == _measure_shapes(self._draw_samples(_LARGER[0])):
            return first
        if not self._is_refused(first[0]):
            return first
        for least in _LARGER:
            larger = self._draw_samples(least)
            if max(map(math.prod, _measure_shapes(larger))) > _MOST_ELEMENTS:
                break
            if not self._is_refused(larger[0]):
                self.notes.append(
                    f"{self.request.reference.name} refuses the model with the sizes that were guessed first, and "
                    f"takes {describe_dims(self.outline, larger[0])}; --dim NAME=SIZE gives others"
                )
                return larger
        return first

    def _draw_samples(self, least: int = 0) -> tuple[Product, ...]:
        """Draw inputs with open dimensions of at least this size, or take the requested number of samples from files.
        Raises UsageError if the files have too few samples."""
        most = self.request.inputs.most
        found = build_samples(self.outline, self.proto, self.request.inputs, least)
        if most is not None and most > len(found):
            hint = "leave --samples out: each sample of the files is taken"
            raise UsageError(f"--samples {most}: the files hold {len(found)} only", hint)
        if most is not None and most < len(found):
            self.notes.append(f"the first {most} of the {len(found)} samples in the files were taken")
        return tuple(map(self.write_inputs, found[:most]))

    def _is_refused(self, sample: Product) -> bool:
        """Return whether the reference fails in the run step: other sizes do not help if an earlier step fails."""
        specs = self.outline.outputs
        wants = Wants(tuple(spec.name for spec in specs), specs)
        with self._builder.keeping():
            work = self._builder.compute(
                self.request.reference, self.model, sample, wants, f"{self.outline.stem}_sizes"
            )
        return work.failed is not None and work.failed.ending is StepEnding.ERROR and work.failed.step is Step.RUN

    def write_inputs(self, arrays: Arrays) -> Product:
        folder = self._builder.make_folder("inputs")
        return Product(folder, hash_refs(write_tensors(folder, arrays)))

    @cached_property
    def full(self) -> ModelCase:
        """The unchanged file, with the reference's outputs."""
        specs = self.outline.outputs
        names = tuple(spec.name for spec in specs)
        with self._builder.keeping():
            folders = [self.ask(self.model, sample, Wants(names, specs), "full_model") for sample in self.samples]
            trials = tuple(
                CaseSample(self.model, self.samples[number], Tensors(folder), load_specs(folder))
                for number, folder in enumerate(folders)
            )
        name = self.outline.full_name
        return ModelCase(name, None, names, specs, trials, quantized=self.quantized, makers=self.makers)

    @cached_property
    def makers(self) -> dict[str, str]:
        """The operators, by tensor, by which the layers that make the tensors are judged."""
        return {name: layer.ops[0] for layer in self.outline.layers for name in layer.outputs}

    @cached_property
    def quantized(self) -> bool:
        return is_quantized(self.proto)

    @cached_property
    def steps(self) -> dict[str, float]:
        """The size of a step of each tensor that a DequantizeLinear makes, if the size is a constant."""
        return find_steps(self.proto)

    @cached_property
    def closed(self) -> ModelCase | None:
        """The model with open dimensions set to each sample's sizes; None if no dimension is open or to be closed."""
        if self.request.inputs.keep_dims or all(spec.is_static for spec in self.outline.inputs):
            return None
        name = f"{self.outline.full_name}_closed"
        models = [build_marked(self.proto, (), types=self.find_types(number)) for number in range(len(self.samples))]
        pairs = zip(self.full.trials, models, strict=True)
        trials = tuple(replace(trial, model=self.write_model(model, name)) for trial, model in pairs)
        return replace(self.full, name=name, trials=trials)

    @cached_property
    def coarse(self) -> dict[str, str]:
        """The types, by tensor, of the casts into fewer bits that precede the tensors."""
        return find_coarse(self.proto)

    @cached_property
    def bounds(self) -> Mapping[str, Tolerance]:
        """The bounds of tensors in the model, by name, that do not follow from the tensors' types and operators."""
        return {name: coarse_tolerance(dtype) for name, dtype in self.coarse.items()}

    def choose_tolerances(self, given: Tolerances, _case: ModelCase) -> Tolerances:
        """Return the bounds of a layer alone."""
        return given

    def look_closer(self, _case: ModelCase, _number: int, _wanted: Arrays, _actual: Arrays, judged: Judged) -> Judged:
        """Return the verdict with further findings about parts of the tensors."""
        return judged

    def judge_peers(self, reports: Sequence[CaseReport]) -> list[CaseReport]:
        """Add findings to the reports from the comparison of layers with other layers of their kind."""
        return list(reports)

    def find_chance(self, case: ModelCase) -> dict[str, str]:
        """Return the random operator for each tensor that depends on it; in a layer alone, only the layer's own."""
        return find_random(self.proto, None if case.layer is None else case.layer.nodes)

    def find_types(self, number: int) -> dict[str, TensorSpec]:
        specs = [*load_specs(self.samples[number].path), *load_specs(self.activations[number])]
        return {spec.name: spec for spec in specs}

    @cached_property
    def activations(self) -> tuple[str, ...]:
        """One folder per sample with every tensor that the reference makes."""
        proto = build_marked(self.proto)
        names = tuple(value.name for value in proto.graph.output)
        model = self.write_model(proto, self.outline.stem)
        with self._builder.keeping():
            return tuple(self.ask(model, sample, Wants(names), "activations") for sample in self.samples)

    @cached_property
    def marked(self) -> ModelCase:
        """The model with every layer's outputs as outputs, all of which a single run on the target computes."""
        wanted = [name for layer in self.outline.layers for name in layer.outputs]
        trials, names = [], ()
        for number, folder in enumerate(self.activations):
            types = {} if self.request.inputs.keep_dims else self.find_types(number)
            proto = build_marked(self.proto, wanted, types=types)
            names = tuple(value.name for value in proto.graph.output)
            model = self.write_model(proto, f"{self.outline.stem}_marked")
            specs = tuple(spec for spec in load_specs(folder) if spec.name in set(names))
            trials.append(CaseSample(model, self.samples[number], Tensors(folder), specs))
        return ModelCase(f"{self.outline.stem}_marked", None, names, (), tuple(trials), quantized=self.quantized)

    @cached_property
    def trivial_layers(self) -> tuple[Layer, ...]:
        """The layers of shapes and constants alone, which a compiler computes beforehand."""
        folding = build_folding(build_wiring(self.proto.graph))
        return tuple(layer for layer in self.outline.layers if all(map(folding.is_foldable, layer.outputs)))

    def find_magnitude(self, case: ModelCase, number: int, tensor: str) -> Any:
        """Return the magnitude of the terms whose sum this output is, in one sample: see `graph.operators`. In a layer
        alone, only its own nodes round; in the model, an operator may pass on values that were rounded before."""
        if case.layer is not None:
            return _measure_layer(case.trials[number]).find(tensor, len(case.layer.nodes) - 1)
        if number not in self._magnitudes:
            values = Tensors(self.samples[number].path, self.activations[number])
            self._magnitudes[number] = Magnitudes(self.proto, values)
        return self._magnitudes[number].find(tensor, _CARRIED)

    def finish(self, report: ModelReport) -> ModelReport:
        """Add notes about branches and loops of the model that were not computed to the report."""
        compared = {case.name for case in report.cases if case.verdict.comparisons}
        layers = [each for each in self.outline.layers if {each.name, self.outline.full_name} & compared]
        with suppress(StepFailedError):  # the reference may not support the model with more outputs
            return replace(report, notes=(*report.notes, *self.describe_idle(layers)))
        return report

    def describe_idle(self, layers: Sequence[Layer]) -> list[str]:
        """Return notes on branches and loops that no sample enters, and on inner branches, which no run shows."""
        wiring, idle, hidden = build_wiring(self.proto.graph), list[str](), list[str]()
        for label, node in ((layer.label, wiring.nodes[index]) for layer in layers for index in layer.nodes):
            graphs = {each.name: each.g for each in node.attribute if each.HasField("g")}
            inside = walk_nodes(*graphs.values(), *find_functions(self.proto, [node]))
            hidden += [label] if any(each.op_type in _GATES for each in inside) else []
            if node.op_type in _GATES and graphs:
                entered = set()
                for values in map(Tensors, (sample.path for sample in self.samples), self.activations):
                    gates = [name for name in node.input[: _GATES[node.op_type]] if name]
                    given = (values[each] if each in values else load_constant(wiring, each) for each in gates)
                    entered.add(all(each is None or bool((each > 0).all()) for each in given))
                idle += [f"{part} of {label}" for part in graphs if (part != "else_branch") not in entered]
        notes = {
            "computed in no sample, and so not judged": idle,
            "not known which branches inside are computed": hidden,
        }
        return [f"{text}: {join_first(names, 4)}" for text, names in notes.items() if names]

    def cut(self, number: int, outputs: Sequence[str], name: str) -> CaseSample:
        """Return the beginning of the target's model that makes these outputs, for one sample."""
        types = self.find_types(number)
        proto = build_cut(self.proto, [spec.name for spec in self.outline.inputs], outputs, types)
        needed = {value.name for value in proto.graph.input}
        given = Tensors(self.samples[number].path)
        return CaseSample(
            self.write_model(proto, name),
            self.write_inputs({each: given[each] for each in given if each in needed}),
            Tensors(self.activations[number]),
            tuple(types[each] for each in outputs),
        )

    def find_bounds(self, case: ModelCase) -> Mapping[str, Tolerance]:  # noqa: ARG002 for other cases than these
        """Return bounds by tensor that were measured for this case; other bounds follow from types and operators."""
        return {}

    def judge_integers(self, case: ModelCase) -> Iterator[Finding]:  # noqa: ARG002 for other cases than these
        """Yield findings on the scales of a layer, which do not depend on the values."""
        return iter(())

    def find_origin(self, case: ModelCase, number: int) -> LayerOrigin | None:
        """Return how a layer alone makes its outputs, in one sample; None for a case of several layers."""
        if case.layer is None:
            return None
        load = partial(_measure_layer, case.trials[number])
        return LayerOrigin(case.layer.ops, lambda: load().count_terms(), lambda name: load().compute_unrounded(name))

    def write_model(self, proto: Any, name: str) -> Product:
        path = os.path.join(self._builder.make_folder("model"), f"{name}.onnx")
        write_model(proto, path)
        return load_product(path)

    def ask(self, model: Product, inputs: Product, wants: Wants, what: str) -> str:
        work = self._builder.compute(self.request.reference, model, inputs, wants, f"{self.outline.stem}_{what}")
        if work.failed is not None:
            failed = self.fix_hint(work.failed)
            if failed.ending is StepEnding.UNSUPPORTED:
                other = self._find_other(model, inputs, wants)
                text = f"{other} computes this model: add --reference {other}" if other else ""
            else:  # the model may only need other inputs than the generated inputs
                is_run = failed.step is Step.RUN
                text = describe_invented(self.outline, self.proto, self.request.inputs) if is_run else ""
            failed = replace(failed, hint="\n".join(filter(None, (failed.hint, text))))
            raise StepFailedError(f"the reference {self.request.reference.name} cannot compute this model", failed)
        return work.outputs

    def _find_other(self, model: Product, inputs: Product, wants: Wants) -> str:
        """Return an installed reference that computes what the chosen reference lacks; empty if there is none."""
        for name in (each for each in _OTHERS if each != self.request.target.backend):
            with suppress(MissingExtraError, InfrastructureError):
                work = self._builder.compute(Target(name, name), model, inputs, wants, f"{self.outline.stem}_{name}")
                if work.failed is None:
                    return name
        return ""

    def fix_hint(self, outcome: StepOutcome) -> StepOutcome:
        """Return the outcome with a hint on another opset that can be pasted; a hint that does not help is removed."""
        asked = _CONVERT.search(outcome.hint)
        if asked is None:
            return outcome
        lacking = _LACKING.search(outcome.message)
        helps = can_help(self.outline.opset, int(asked["opset"]), outcome.message, lacking["op"] if lacking else "")
        path = os.path.abspath(self.request.model)
        is_too_new = self.outline.opset > find_newest_opset()
        obstacle = find_obstacle(self.proto, int(asked["opset"]), path) if helps or is_too_new else ""
        if obstacle:
            return replace(outcome, hint=f"another opset does not help: {obstacle}")
        hint = outcome.hint.replace("convert MODEL", f"convert {shlex.quote(path)}") if helps else ""
        return replace(outcome, hint=hint)

    def find(self, name: str) -> ModelCase:
        if name == self.outline.full_name:
            return self.full
        return next(self.iterate([name]))

    def choose(self, patterns: Sequence[str]) -> list[str]:
        """Return the cases of names, labels (`Conv_3`) or shell patterns, in the model's order; no pattern: all."""
        if not patterns:
            return list(self.outline.cases)
        known = [(layer.name, layer.label) for layer in self.outline.layers]
        known.append((self.outline.full_name, "full_model"))
        chosen = {
            pattern: {names[0] for names in known if pattern in names or fnmatch.filter(names, pattern)}
            for pattern in patterns
        }
        for pattern, found in chosen.items():
            if not found:
                raise NotFoundError("case", pattern, [label for _, label in known])
        return [name for name, _ in known if any(name in found for found in chosen.values())]

    def iterate(self, names: Sequence[str]) -> Iterator[ModelCase]:
        """Yield layers one after another: the values of all layers may be many times as large as the model."""
        wanted = {layer.number for layer in self.outline.choose(names)}
        pairs = zip(self.activations, self.samples, strict=True)
        activations = [Tensors(sample.path, folder) for folder, sample in pairs]
        walks = [build_layers(self.proto, self.outline, each, numbers=wanted) for each in activations]
        for parts in zip(*walks, strict=True):
            layer, trials = parts[0].layer, list[CaseSample]()
            problem = next((part.problem for part in parts if part.problem), "")
            for part in parts if not problem else ():
                model, inputs = self.write_model(part.model, layer.name), self.write_inputs(part.inputs)
                specs = tuple(describe_array(name, array) for name, array in part.outputs.items())
                trials.append(CaseSample(model, inputs, part.outputs, specs))
            outputs, specs = (tuple(trials[0].expected), trials[0].specs) if trials else (layer.outputs, ())
            yield ModelCase(layer.name, layer, outputs, specs, tuple(trials), problem)

    def discard(self, case: ModelCase) -> None:
        """Remove the files that were made for one case: a large model has many cases."""
        for trial in case.trials:
            for folder in (os.path.dirname(trial.model.path), trial.inputs.path):
                if os.path.dirname(folder) == self._builder.scratch and trial.inputs not in self.samples:
                    shutil.rmtree(folder, ignore_errors=True)


def _measure_layer(sample: CaseSample) -> Magnitudes:
    return Magnitudes(load_model(sample.model.path), Tensors(sample.inputs.path))


def describe_dims(outline: Outline, sample: Product) -> str:
    """Return `batch=1, axis 2 of x=64`: the sizes in a sample of the model's open dimensions."""
    shapes = {ref.name: ref.shape for ref in load_refs(sample.path)}
    sizes = {
        (str(dim) if dim else f"axis {axis} of {spec.name}"): shapes[spec.name][axis]
        for spec in outline.inputs
        for axis, dim in enumerate(spec.shape or ())
        if not isinstance(dim, int)
    }
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _measure_shapes(samples: Sequence[Product]) -> list[tuple[int, ...]]:
    return [ref.shape for sample in samples for ref in load_refs(sample.path)]


def name_kind(case: ModelCase) -> str:
    """Return a hash of a layer's operators with their attributes, and of the types and shapes around them."""
    kinds = []
    for trial in case.trials:
        graph = load_model(trial.model.path).graph
        nodes = [
            (node.op_type, node.domain, [each.SerializeToString() for each in node.attribute]) for node in graph.node
        ]
        weights = [(each.data_type, tuple(each.dims)) for each in graph.initializer]
        values = [value.type.SerializeToString() for value in (*graph.input, *graph.output)]
        kinds.append((nodes, weights, values))
    return hashlib.sha256(repr(kinds).encode()).hexdigest()


def load_specs(folder: str) -> tuple[TensorSpec, ...]:
    """Load the specs of the tensors in a folder."""
    return tuple(TensorSpec(ref.name, ref.dtype, ref.shape) for ref in load_refs(folder))


def is_quantized(model: Any) -> bool:
    """Return whether a node, also in a sub-graph or a function, rounds to a few steps."""
    nodes = walk_nodes(model.graph, *model.functions)
    return any(each.op_type in _ROUNDING or each.op_type.startswith("QLinear") for each in nodes)


def hash_refs(refs: Sequence[TensorRef]) -> str:
    return hashlib.sha256(repr([(ref.name, ref.sha) for ref in refs]).encode()).hexdigest()

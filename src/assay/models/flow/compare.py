"""`assay model compare`: compares two models that should compute the same, such as a model and its quantised form.

The first model is the reference. Its layers are paired with the second model's layers (`graph.matching`). The second
model is then examined like a target: as a whole, with every paired tensor as an output, and layer by layer with the
first model's values as inputs. The bound of a quantised layer is measured on the first model, rounded to as many bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from assay.errors import UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder, Product, Wants, load_product
from assay.models.flow.cases import (
    Arrays,
    Cases,
    CaseSample,
    LazyArrays,
    ModelCase,
    StepFailedError,
    Tensors,
    load_specs,
)
from assay.models.graph.graph import build_outline, find_ends, infer_specs, load_model
from assay.models.graph.inputs import describe
from assay.models.graph.matching import FLOATS, SHIFTED, WEIGHTED, GroupPair, ModelSide, match_models, name_kind
from assay.models.graph.onnx_library import Wiring, build_wiring, is_constant_node
from assay.models.graph.operators import find_coarse
from assay.models.graph.paired_view import (
    build_rounded,
    build_view,
    cut_model,
    find_bits,
    find_order,
    is_rounding,
    rename_ends,
    sort_nodes,
)
from assay.models.graph.split import check
from assay.models.graph.submodel import build_marked
from assay.models.judge.alone import LayerOrigin
from assay.models.judge.rounded import WORSE_DB, WORSE_INSIDE_DB, build_bound, judge_range
from assay.models.judge.tolerances import coarse_tolerance
from assay.models.libraries import np
from assay.models.values.model import Layer, ModelReport, ModelRequest, Outline
from assay.models.values.tensors import TensorSpec, Tolerance
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import replace
from assay.values.verdict import Finding, VerdictKind

_SEVERAL = 8.0  # factor on the bound of a single tensor of a short float type
LEAST_COVERAGE = 0.5  # fraction of the smaller model's layers: with fewer pairs, agreement proves little


def check_ends(left: Outline, right: Outline) -> dict[str, str]:
    """Return the second model's inputs and outputs by the first model's names, paired in order if names differ. Raises
    UsageError if the two models cannot be compared."""
    problems, names = [], dict[str, str]()
    for word, mine, theirs in (("inputs", left.inputs, right.inputs), ("outputs", left.outputs, right.outputs)):
        known = {spec.name: spec for spec in theirs}
        if len(mine) != len(theirs):
            lists = [", ".join(spec.name for spec in each) for each in (mine, theirs)]
            problems.append(f"{left.stem} has the {word} {lists[0]}, {right.stem} has {lists[1]}")
            continue
        is_named = all(spec.name in known for spec in mine)
        for number, spec in enumerate(mine):
            counterpart = known[spec.name] if is_named else theirs[number]
            if names.setdefault(spec.name, counterpart.name) != counterpart.name:
                problems.append(f"{spec.name} is both an input and an output of {left.stem}")
            elif not _fits(spec, counterpart):
                problems.append(
                    f"{spec.name} is {describe(spec)} in {left.stem}, {describe(counterpart)} in {right.stem}"
                )
    if problems:
        hint = "both models must take and give the same tensors: give the two files of one network"
        raise UsageError(f"the two models cannot be compared: {'; '.join(problems)}", hint)
    return names


def _fits(one: TensorSpec, other: TensorSpec) -> bool:
    is_float = one.dtype in FLOATS and other.dtype in FLOATS
    if one.dtype and other.dtype and one.dtype != other.dtype and not is_float:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = zip(one.shape, other.shape, strict=False)
    known = [pair for pair in pairs if all(isinstance(dim, int) for dim in pair)]
    return len(one.shape) == len(other.shape) and all(mine == theirs for mine, theirs in known)


class ComparedCases(Cases):
    """The first model's cases, with parts of the second model for the target to compute."""

    quantized = False  # quantisation widens no default bound, since bounds are measured
    closed = None
    trivial_layers = ()

    def __init__(self, request: ModelRequest, builder: ArtifactBuilder) -> None:
        super().__init__(request, builder)
        self._bounds: dict[str, dict[str, Tolerance]] = {}  # case → tensor → bound
        self._same_ops: set[str] = set()  # cases whose operators are the same on both sides, in floats
        self.ends = check_ends(self.whole, self.other_outline)
        if load_product(request.model).sha == self.other.sha:
            text = f"{request.model} and {request.other} are equal: there is nothing to compare"
            raise UsageError(text, "give the model before and the model after the change")

    @cached_property
    def whole(self) -> Outline:
        """The first model with all its layers."""
        return build_outline(self.request.model, groups=self.request.groups)

    @cached_property
    def other(self) -> Product:
        return load_product(self.request.other)

    @cached_property
    def other_outline(self) -> Outline:
        return build_outline(self.request.other, groups=())

    @cached_property
    def left(self) -> ModelSide:
        find_order(self.proto)  # find_order() refuses a cycle; layers keep the order of the file
        return ModelSide(self.proto)

    @cached_property
    def right(self) -> ModelSide:
        return ModelSide(sort_nodes(load_model(self.request.other)))

    @cached_property
    def pairs(self) -> dict[str, GroupPair]:
        """The pairs of equal shape: tensors whose shapes a change of the layout has changed cannot be compared."""
        found = {}
        for root, pair in match_models(self.left, self.right, self.ends).items():
            sides = (self.left.specs.get(pair.left.value), self.right.specs.get(pair.right.value))
            if _fits(*(TensorSpec("", "", None if spec is None else spec.shape) for spec in sides)):
                found[root] = pair
        return found

    @cached_property
    def view(self) -> Any:
        return build_view(self.right, list(self.pairs.values()))

    @cached_property
    def wiring(self) -> Wiring:
        return build_wiring(self.view.graph)

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        return infer_specs(self.view)

    @cached_property
    def bits(self) -> tuple[int | None, int | None]:
        return find_bits(self.right)

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The tensors that are in both models, by the first model's names."""
        return tuple(pair.left.value for pair in self.pairs.values())

    @cached_property
    def _rows(self) -> dict[str, tuple[Layer, GroupPair]]:
        """The part of the first model between paired tensors, and the pair at its end, by name of the case."""
        owners = {index: layer for layer in self.whole.layers for index in layer.nodes}
        wiring = self.left.wiring
        rows, used = dict[int, tuple[Layer, GroupPair]](), set[int]()
        for pair in (each for each in self.pairs.values() if each.left.node in owners):
            found = wiring.find_ancestors([pair.left.value], stop=set(self.stops) - {pair.left.value})
            nodes = [index for index in found if not is_constant_node(wiring.nodes[index])]
            heavy = [owners[index] for index in nodes if name_kind(wiring.nodes[index].op_type) in WEIGHTED]
            main = next((layer for layer in heavy if layer.number not in used), owners[pair.left.node])
            main = owners[pair.left.node] if main.number in used else main
            known = rows.get(main.number)
            if known is not None:  # the tensor is another output of the same part
                rows[main.number] = replace(known[0], outputs=(*known[0].outputs, pair.left.value)), known[1]
                continue
            used.add(main.number)
            rows[main.number] = self._build_layer(main, nodes, pair), pair
        return {layer.name: (layer, pair) for _, (layer, pair) in sorted(rows.items())}

    def _build_layer(self, main: Layer, nodes: Sequence[int], pair: GroupPair) -> Layer:
        wiring = self.left.wiring
        inputs, _ = find_ends(wiring, nodes)
        others = [index for index in nodes if index not in main.nodes]
        ops = (*main.ops, *(wiring.nodes[index].op_type for index in others))
        names = tuple(wiring.nodes[index].name for index in (*main.nodes, *others))
        return replace(main, ops=ops, nodes=tuple(nodes), inputs=inputs, outputs=(pair.left.value,), node_names=names)

    @cached_property
    def outline(self) -> Outline:
        return replace(self.whole, layers=tuple(layer for layer, _ in self._rows.values()))

    def finish(self, report: ModelReport) -> ModelReport:
        """Add to the report how, and how many, layers were paired; too few pairs are a finding."""
        left, right = (sum(group.node >= 0 for group in side.groups.values()) for side in (self.left, self.right))
        ways = Counter(pair.description for pair in self.pairs.values() if pair.left.node >= 0)
        pairs, least = ways.total(), min(left, right)
        how = ", ".join(f"{count} by {way}" for way, count in ways.most_common())
        share = f"{pairs} of {least} ({100 * pairs / least:.0f}%)" if least else "0"
        others = f"{self.outline.stem} has {left}, {self.other_outline.stem} {right}"
        findings = report.findings
        if pairs < LEAST_COVERAGE * least or not pairs:
            text = f"only {render_count(pairs, 'layer')} of {least} could be paired: agreement proves little"
            findings = (*findings, Finding(VerdictKind.INCONCLUSIVE, self.outline.stem, text))
        report = super().finish(report)
        matched = {name: pair.description for name, (_, pair) in self._rows.items()}
        return replace(
            report,
            cases=tuple(replace(each, matched=matched.get(each.name, "")) for each in report.cases),
            findings=findings,
            other=self.request.other,
            coverage=f"layers paired: {share}: {how or 'none'}; {others}",
        )

    @cached_property
    def full(self) -> ModelCase:
        """The second file unchanged; inputs and outputs get the first model's names where names differ."""
        base, model = super().full, self.other
        if any(name != counterpart for name, counterpart in self.ends.items()):
            names = {counterpart: name for name, counterpart in self.ends.items()}
            model = self.write_model(rename_ends(self.right.model, names), self.other_outline.stem)
        inputs = [self._write_values(Tensors(sample.path), self.view) for sample in self.samples]
        trials = tuple(replace(trial, model=model, inputs=inputs[at], specs=()) for at, trial in enumerate(base.trials))
        self._bounds[base.name] = self._find_coarse(self.ends) | self._measure_whole(base.outputs)
        return replace(base, specs=(), trials=trials)

    @cached_property
    def marked(self) -> ModelCase:
        wanted = [name for layer in self.outline.layers for name in layer.outputs]
        name = f"{self.outline.stem}_marked"
        trials = []
        for number in range(len(self.samples)):
            types = {spec.name: spec for spec in load_specs(self.samples[number].path)}
            types = {each: replace(spec, dtype=self.specs[each].dtype or spec.dtype) for each, spec in types.items()}
            trials.append(self._build_trial(number, build_marked(self.view, wanted, types=types), name))
        self._bounds[name] = self._bound_inside(wanted)
        return ModelCase(name, None, tuple(dict.fromkeys(wanted)), (), tuple(trials))

    def cut(self, number: int, outputs: Sequence[str], name: str) -> CaseSample:
        self._bounds[name] = self._bound_inside(outputs)
        inputs = [spec.name for spec in self.outline.inputs]
        return self._build_trial(number, cut_model(self.view, self.wiring, inputs, outputs, self._types, name), name)

    def _build_trial(self, number: int, proto: Any, name: str) -> CaseSample:
        inputs = self._write_values(Tensors(self.samples[number].path), proto)
        return CaseSample(self.write_model(proto, name), inputs, self._cut_off(Tensors(self.activations[number])))

    def _bound_inside(self, names: Sequence[str]) -> dict[str, Tolerance]:
        counterparts = {pair.left.value: pair.right.value for pair in self.pairs.values()}
        return self._find_coarse(counterparts) | self._measure_whole(names)

    def iterate(self, names: Sequence[str]) -> Iterator[ModelCase]:
        pairs = list(zip(self.samples, self.activations, strict=True))
        for layer in self.outline.choose(names):
            yield self._build_alone(layer, [Tensors(sample.path, folder) for sample, folder in pairs])

    def _build_alone(self, layer: Layer, values: Sequence[Arrays]) -> ModelCase:
        proto = cut_model(self.view, self.wiring, self.stops, layer.outputs, self._types, layer.name)
        missing = [value.name for value in proto.graph.input if value.name not in values[0]]
        problem = f"{', '.join(missing)} of {self.other_outline.stem} is not paired" if missing else check(proto)
        if problem:
            return ModelCase(layer.name, layer, layer.outputs, (), (), problem)
        model = self.write_model(proto, layer.name)
        trials = [CaseSample(model, self._write_values(each, proto), self._cut_off(each)) for each in values]
        if any(map(is_rounding, proto.graph.node)):
            self._bounds[layer.name] = self._measure_alone(layer, values[0])
        elif [node.op_type for node in proto.graph.node] == [self.left.wiring.nodes[at].op_type for at in layer.nodes]:
            self._same_ops.add(layer.name)
        return ModelCase(layer.name, layer, layer.outputs, (), tuple(trials))

    @cached_property
    def _types(self) -> dict[str, TensorSpec]:
        """The type of each paired tensor in the second model, without sizes, since samples may differ in shape."""
        found = {}
        for folder in (self.samples[0].path, self.activations[0]):
            for spec in (each for each in load_specs(folder) if each.name in self.stops):
                dtype = self.specs.get(spec.name, spec).dtype or spec.dtype
                found[spec.name] = TensorSpec(spec.name, dtype, (None,) * len(spec.shape or ()))
        return found

    def _write_values(self, values: Arrays, proto: Any) -> Product:
        """Write the inputs of a part of the second model in its types."""
        kinds = {value.name: self.specs.get(value.name, TensorSpec("", "")).dtype for value in proto.graph.input}
        found = {name: values[name] for name in kinds}
        floats = {name for name, array in found.items() if np.issubdtype(array.dtype, np.floating)}
        typed = {name: found[name].astype(kinds[name]) for name in floats if kinds[name] in FLOATS}
        return self.write_inputs(found | typed)

    @cached_property
    def _ranges(self) -> dict[str, tuple[float, float, float]]:
        """The least and largest number that the second model's integers can express, and a step, by paired tensor."""
        found = {
            pair.left.value: self.right.find_range(pair.right) for pair in self.pairs.values() if pair.left.node >= 0
        }
        return {name: each for name, each in found.items() if each is not None}

    def _cut_off(self, values: Arrays) -> Arrays:
        """Clip tensors of the first model to the range that the second model's integers can express."""
        ranges = self._ranges

        def load(name: str) -> Any:
            found = values[name]
            return found.clip(*ranges[name][:2]).astype(found.dtype) if name in ranges else found

        return LazyArrays(values, load)

    def judge_integers(self, case: ModelCase) -> Iterator[Finding]:
        """Yield findings on the scales of a layer's outputs, which do not depend on the values."""
        for pair in (each for each in self.pairs.values() if each.left.value in case.outputs and each.left.node >= 0):
            name, readers = pair.left.value, self.left.readers.get(pair.left.root, ())
            contradiction = self.right.find_contradiction(pair.right)
            if contradiction:
                yield Finding(VerdictKind.FAIL, name, contradiction)
            if pair.weights == SHIFTED:
                text = "its dequantised weights are all off by about a step: a zero point"
                yield Finding(VerdictKind.FAIL, name, text)
            is_cut = len(readers) == 1 and readers[0].kind in ("Relu", "Clip")  # the integers do this clipping
            values = Tensors(self.activations[0])
            if name in self._ranges and name in values and not is_cut:
                found = judge_range(name, values[name], *self._ranges[name])
                yield from [found] if found else []

    def find_bounds(self, case: ModelCase) -> Mapping[str, Tolerance]:
        return {name: Tolerance(check_dtype=False) for name in case.outputs} | self._bounds.get(case.name, {})

    def _find_coarse(self, counterparts: Mapping[str, str]) -> dict[str, Tolerance]:
        """Return bounds of several steps, as errors add up, for each tensor after a cast to 16 bits or fewer."""
        coarse = find_coarse(self.right.model)
        own = {name: coarse_tolerance(coarse[other]) for name, other in counterparts.items() if other in coarse}
        return {name: replace(each, rel=_SEVERAL * (each.rel or 0.0), check_dtype=False) for name, each in own.items()}

    def find_origin(self, case: ModelCase, number: int) -> LayerOrigin | None:
        return super().find_origin(case, number) if case.name in self._same_ops else None

    @cached_property
    def _rounded(self) -> str:
        """The folder of the rounded first model's tensors; empty if the second model is not rounded, or on failure."""
        if self.bits == (None, None):
            return ""
        values = Tensors(self.samples[0].path, self.activations[0])
        proto = build_rounded(build_marked(self.proto), _find_ranges(values, self.stops), self.bits)
        return self._compute_rounded(proto, self.samples[0], f"{self.outline.stem}_rounded")

    def _compute_rounded(self, proto: Any, inputs: Product, name: str) -> str:
        names = tuple(value.name for value in proto.graph.output)
        try:
            with self._builder.keeping():
                return self.ask(self.write_model(proto, name), inputs, Wants(names), "rounded")
        except StepFailedError:
            return ""

    def _measure_whole(self, names: Sequence[str]) -> dict[str, Tolerance]:
        if not self._rounded:
            return {}
        exact, rounded = Tensors(self.activations[0]), Tensors(self._rounded)
        return {
            name: build_bound(exact[name], rounded[name], WORSE_INSIDE_DB)
            for name in names
            if name in exact and name in rounded
        }

    def _measure_alone(self, layer: Layer, values: Arrays) -> dict[str, Tolerance]:
        types = {name: replace(spec, dtype=str(values[name].dtype)) for name, spec in self._types.items()}
        proto = cut_model(self.proto, self.left.wiring, self.stops, layer.outputs, types, layer.name)
        names = [value.name for value in proto.graph.input]
        proto = build_rounded(proto, _find_ranges(values, (*names, *layer.outputs)), self.bits)
        folder = self._compute_rounded(proto, self.write_inputs({name: values[name] for name in names}), layer.name)
        rounded = Tensors(folder) if folder else {}
        return {name: build_bound(values[name], rounded[name], WORSE_DB) for name in layer.outputs if name in rounded}


def _find_ranges(values: Arrays, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the least and largest values of tensors of floats, including zero."""
    found = {}
    for name in names:
        array = values.get(name)
        if array is not None and array.size and array.dtype == np.float32 and np.isfinite(array).all():
            found[name] = min(0.0, float(array.min())), max(0.0, float(array.max()))
    return found

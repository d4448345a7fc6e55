"""The cases of a torch module: its calls of modules or ops, forward and backward, which correspond to layers.

The reference records every call with its tensors, once for each sample. Then the reference and the target execute each
call alone from the same inputs, rounded to the target's type, so that a difference begins in this call. How much may
differ is measured on the reference, with rounding of the target's type added to the tensors of each call: for a call
alone, and for the whole model, in which errors accumulate.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from assay.errors import UsageError
from assay.models.backends.torch_backend import PLAN_FILE, SURVEY_FILE, PartSpec
from assay.models.flow.artifact_builder import ArtifactBuilder, Product, Wants
from assay.models.flow.cases import Arrays, Cases, CaseSample, Judged, ModelCase, StepFailedError, Tensors, hash_refs
from assay.models.graph.tensorfile import load_refs
from assay.models.judge.alone import LayerOrigin
from assay.models.judge.peers import (
    COMPOSITE_FACTOR,
    FACTOR,
    TypicalError,
    find_floor,
    judge_peers,
    judge_slices,
    measure_typical,
)
from assay.models.judge.tensors import compare_tensors
from assay.models.judge.tolerances import FLOATS
from assay.models.values.model import (
    CaseReport,
    Layer,
    ModelRequest,
    Outline,
    StepEnding,
    StepOutcome,
    Target,
    Tolerances,
)
from assay.models.values.tensors import OTHER_LARGEST, TensorComparison, TensorSpec, Tolerance
from assay.show.formatting import join_first
from assay.system.fast_dataclasses import asdict, replace
from assay.values.verdict import Verdict

BACKWARD = ":backward"
NOISE_FACTOR = 4.0  # times the effect on the reference of rounding at calls
LOST_DB = -20 * math.log10(NOISE_FACTOR / 2)  # noise of half the tensor's size, with which its numbers prove nothing
_CHANCE = "random numbers"


class TorchCases(Cases):
    tests_voters = False  # float64 is correct by definition

    def __init__(self, request: ModelRequest, builder: ArtifactBuilder) -> None:
        super().__init__(request, builder)
        self.stem = os.path.splitext(os.path.basename(request.model))[0]
        self._alone: dict[str, dict[str, Tolerance]] = {}  # case → tensor → bound
        self._errors: dict[tuple[str, str], TypicalError] = {}  # (case, tensor) → error
        self._noisy: dict[tuple[str, int], Arrays] = {}  # (case, sample) → the reference's results with rounding
        self._unknown: set[str] = set()  # tensors that are only rounding errors

    @cached_property
    def samples(self) -> tuple[Product, ...]:
        """One recording for each sample, for which `build()` is called with another seed."""
        found = []
        for number in range(self.request.inputs.samples):
            spec = self._write(self._spec("trace", number))
            folder = self._compute(self.request.reference, spec, spec, f"{self.stem}_trace")
            found.append(Product(folder, hash_refs(load_refs(folder))))
        return tuple(found)

    @cached_property
    def activations(self) -> tuple[str, ...]:
        return tuple(each.path for each in self.samples)

    @cached_property
    def plans(self) -> list[dict[str, Any]]:
        return [_load(os.path.join(folder, PLAN_FILE)) for folder in self.activations]

    @cached_property
    def survey(self) -> dict[str, Any]:
        """The calls that the target can make, its type, and which of its inner tensors can be observed."""
        spec = self._write(self._spec("survey", 0))
        folder = self._compute(self.request.target, spec, self.samples[0], f"{self.stem}_survey")
        return _load(os.path.join(folder, SURVEY_FILE))

    @property
    def grain(self) -> str:
        """Return the coarser of the reference's and the target's type."""
        return str(max((self.plans[0]["grain"], self.survey["grain"]), key=find_floor))

    @cached_property
    def calls(self) -> list[dict[str, Any]]:
        """Calls in all samples that the target can make, in the order of their ends; notes name other calls."""
        plan, known = self.plans[0], self.survey["labels"]
        self.notes += plan["notes"]
        shared = set.intersection(*({call["label"] for call in each["calls"]} for each in self.plans))
        calls = [call for call in plan["calls"] if call["label"] in shared]
        missing = [call["label"] for call in calls if call["label"] not in known]
        if missing:
            what = f"{self.request.target.name} has no module of this name that takes these arguments"
            self.notes.append(f"{what}, so not judged alone: {join_first(missing, 4)}")
        drawing = [call["label"] for call in calls if call["draws"]]
        if drawing:
            self.notes.append(f"random numbers are drawn in {drawing[0]}: call module.eval() in build() to judge it")
        return [call for call in calls if call["label"] in known]

    @cached_property
    def outline(self) -> Outline:
        stem = self.stem
        backward = [call for call in self.calls if self.request.backward and call["grad_outs"]]
        backward.sort(key=lambda call: -call["order"])
        parts = [*((call, "") for call in self.calls), *((call, BACKWARD) for call in backward)]
        layers = tuple(_build_layer(call, direction, stem, number) for number, (call, direction) in enumerate(parts))
        outputs = tuple(TensorSpec(name, "") for name in self.plans[0]["outputs"])
        return Outline(stem, self.request.model, 0, (), outputs, layers)

    @cached_property
    def parts(self) -> dict[str, dict[str, Any]]:
        return {call["label"]: call for call in self.calls}

    @cached_property
    def full(self) -> ModelCase:
        """The whole module, with the gradients of parameters that the reference and the target have."""
        known = self.survey["params"]
        names = [
            name
            for name in self.plans[0]["outputs"]
            if not name.endswith(":grad") or name.startswith("input[") or known.get(name) == self._shapes[name]
        ]
        if len(names) < len(self.plans[0]["outputs"]):
            left = len(self.plans[0]["outputs"]) - len(names)
            self.notes.append(
                f"{self.request.target.name} has no parameter of this name and shape for {left} gradients"
            )
        known = self._choose_known(self.bounds, names)  # outputs of the module are always judged
        return self._build("full", self.outline.full_name, tuple(n for n in names if n in known or ":grad" not in n))

    @cached_property
    def marked(self) -> ModelCase:
        kinds = {"outputs": ("outputs",), "forward": ("inputs", "outputs")}
        chosen = kinds.get(self.survey["observes"], ("inputs", "outputs", "grad_outs", "grad_ins"))
        names = dict.fromkeys(name for call in self.calls for kind in chosen for name in call[kind])
        known = set.intersection(*(set(Tensors(folder)) for folder in self.activations))
        made = {name for call in self.calls for name in call["outputs"]}
        owned = tuple(f"{call['label']}{mark}" for call in self.calls for mark in "<:")
        seen = [name for name in names if name in known and (name in made or name.startswith(owned))]
        outputs = self._choose_known(self.bounds, seen)
        return self._build("marked", f"{self.outline.stem}_marked", outputs)

    def _build(self, part: str, name: str, outputs: tuple[str, ...]) -> ModelCase:
        trials, has_gradients = [], any(name.endswith(":grad") for name in self.plans[0]["outputs"])
        for number, sample in enumerate(self.samples):
            spec = replace(self._spec(part, number), grad_outs=("output",) if has_gradients else ())
            trials.append(CaseSample(self._write(spec), sample, Tensors(sample.path)))
        return ModelCase(name, None, outputs, (), tuple(trials), makers=self.makers)

    def iterate(self, names: Sequence[str]) -> Iterator[ModelCase]:
        return map(self._build_alone, self.outline.choose(names))

    def _build_alone(self, layer: Layer) -> ModelCase:
        label, direction = layer.label.removesuffix(BACKWARD), layer.label.endswith(BACKWARD)
        call = self.parts[label]
        problem = call["problem"] or ("it draws random numbers" if call["draws"] else "")
        trials, bounds = [], dict[str, Tolerance]()
        refs = [load_refs(folder) for folder in self.activations]
        for number, sample in enumerate(self.samples if not problem else ()):
            spec = self._spec("call", number)
            spec = replace(spec, label=label, backward=direction, grad_outs=tuple(call["grad_outs"]), grain=self.grain)
            product = self._write(spec)
            expected = Tensors(self._compute(self.request.reference, product, sample, layer.name))
            rough = self._write(replace(spec, noise=True))
            noisy = Tensors(self._compute(self.request.reference, rough, sample, layer.name))
            self._noisy[layer.name, number] = noisy
            terms = max((math.prod(ref.shape) for ref in refs[number] if ref.name in call["grad_outs"]), default=1)
            self._widen(bounds, expected, noisy, terms)
            problem = problem or self._find_state(spec, sample, expected)
            trials.append(CaseSample(product, sample, expected))
        shared = {f"{label}:grad.{name}" for name in self.survey["labels"][label]}
        outputs = self._choose_known(bounds, [name for name in bounds if ":grad." not in name or name in shared])
        self._alone[layer.name] = bounds
        return ModelCase(layer.name, layer, outputs, (), tuple(trials), problem)

    def _choose_known(self, bounds: Mapping[str, Tolerance], names: Sequence[str]) -> tuple[str, ...]:
        """Return the names without tensors that are only rounding errors, such as the gradient of a useless bias."""
        lost = {name for name, bound in bounds.items() if (bound.min_sqnr_db or 0.0) < LOST_DB}
        self._unknown |= lost & set(names)
        return tuple(name for name in names if name not in lost) or tuple(names)

    def _widen(self, bounds: dict[str, Tolerance], exact: Arrays, noisy: Arrays, size: int) -> None:
        """Widen each tensor's bound to several times the effect of rounding to the target's type. The gradient of a
        bias or a scale is a sum of `size` elements, and torch may round after each addition."""
        least, unit = self._least, FLOATS[self._kind].eps
        for name in noisy:
            if name not in exact:
                continue
            array = exact[name]
            known = bounds.get(name, least)
            compared = compare_tensors(name, array, noisy[name], worst=0)
            is_sum = ":grad" in name and array.ndim == 1
            sums = unit * math.sqrt(size / array.size) if is_sum and array.size else 0.0
            largest = max(compared.max_rel * NOISE_FACTOR, sums)
            if compared.sqnr_db is None:  # the tensor is empty, or none of its numbers is finite
                bounds[name] = known
                continue
            usual = max(10 ** (-compared.sqnr_db / 20) * NOISE_FACTOR, sums, least.rel or 0.0)
            worst_db = min(known.min_sqnr_db or math.inf, -20 * math.log10(usual))
            bounds[name] = replace(least, rel=max(known.rel or 0.0, largest), min_sqnr_db=worst_db)

    def _find_state(self, spec: PartSpec, sample: Product, expected: Arrays) -> str:
        """Return why a call is not a function of its inputs; empty if the reference's results alone are correct."""
        if spec.backward or self.grain != self.plans[0]["grain"]:
            return ""  # tensors of different types are not comparable
        inside = Tensors(sample.path)
        compared = [compare_tensors(name, inside[name], expected[name]) for name in expected if name in inside]
        worst = max((each.error for each in compared), default=0.0)
        return (
            "" if worst < FLOATS["bfloat16"].rel else "it depends on more than its inputs: alone, the reference differs"
        )

    def keep_inputs(self, label: str, rows: int) -> tuple[str, int]:
        """Return a folder with the arguments of a call, and how many rows they have."""
        spec = self._write(replace(self._spec("keep", 0), label=label, rows=rows))
        folder = self._compute(self.request.reference, spec, self.samples[0], f"{self.stem}_keep")
        return folder, int(Tensors(folder)["rows"])

    def discard(self, case: ModelCase) -> None:
        """Remove nothing: files of a call are small."""

    @cached_property
    def bounds(self) -> dict[str, Tolerance]:
        """The bounds by tensor: several times the effect of rounding to the target's type inside the reference."""
        found: dict[str, Tolerance] = {}
        for number, sample in enumerate(self.samples):
            spec = self._write(replace(self._spec("noise", number), grain=self.grain))
            noisy = self._compute(self.request.reference, spec, spec, f"{self.stem}_noise")
            terms = max((math.prod(ref.shape) for ref in load_refs(sample.path)), default=1)
            self._widen(found, Tensors(sample.path), Tensors(noisy), terms)
        return found

    @property
    def _least(self) -> Tolerance:
        """Return the tolerance of the coarser of the reference's and the target's type."""
        return Tolerance(rel=FLOATS[self._kind].rel, check_dtype=False)

    @property
    def _kind(self) -> str:
        return "float16" if self.grain == "tf32" else self.grain  # tf32 has as many bits as float16

    def choose_tolerances(self, given: Tolerances, case: ModelCase) -> Tolerances:
        """Return the bounds of a layer alone: the effect of rounding on the reference, unless a user gave a bound."""
        if given.model.rel is not None:
            return given
        model = replace(given.model, rel=self._least.rel, check_dtype=False)
        return replace(given, model=model, by_tensor={**self._alone.get(case.name, {}), **given.by_tensor})

    def look_closer(self, case: ModelCase, number: int, wanted: Arrays, actual: Arrays, judged: Judged) -> Judged:
        """Add findings on slices of a layer's tensors; remove flags on rankings from gradients of the whole model."""
        if case.layer is None:
            flags = [tuple(flag for flag in each.flags if not flag.startswith(OTHER_LARGEST)) for each in judged[1]]
            pairs = zip(judged[1], flags, strict=True)
            return judged[0], tuple(replace(each, flags=kept) if ":grad" in each.name else each for each, kept in pairs)
        compared = tuple(self._look_at(case, number, each, wanted[each.name], actual[each.name]) for each in judged[1])
        named = {each.name for each in compared}
        others = [finding for finding in judged[0].findings if finding.subject not in named]
        found = [finding for each in compared for finding in each.verdict.findings]
        return Verdict.of([*found, *others], judged[0].comparisons), compared

    def _look_at(
        self, case: ModelCase, number: int, compared: TensorComparison, expected: Any, actual: Any
    ) -> TensorComparison:
        noisy, floor = self._noisy[case.name, number].get(compared.name), find_floor(self.grain)
        error = measure_typical(expected, actual)
        if noisy is None or error is None or expected.ndim < 2:  # the gradient of a bias may be only rounding errors
            return compared
        label = case.layer.label if case.layer else ""
        call = self.parts[label.removesuffix(BACKWARD)]
        if label.endswith(BACKWARD) and not call["is_leaf"]:  # one activation at a threshold changes all gradients
            return compared
        shapes = str([self._shapes.get(name) for name in call["inputs"]])
        factor = FACTOR if call["is_leaf"] else COMPOSITE_FACTOR
        found = TypicalError(error, measure_typical(expected, noisy) or 0.0, factor, shapes)
        known = self._errors.get((case.name, compared.name), found)
        self._errors[case.name, compared.name] = max(known, found, key=lambda each: each.compare(floor))
        return judge_slices(compared, expected, actual, noisy, floor) if call["is_leaf"] else compared

    @cached_property
    def _shapes(self) -> dict[str, list[int]]:
        return {ref.name: list(ref.shape) for ref in load_refs(self.activations[0])}

    def judge_peers(self, reports: Sequence[CaseReport]) -> list[CaseReport]:
        if self._unknown:
            self.notes.append(f"not compared, as they are rounding alone: {join_first(sorted(self._unknown), 4)}")
        return judge_peers(reports, self._errors, find_floor(self.grain))

    def find_chance(self, case: ModelCase) -> dict[str, str]:
        if case.layer is None and any(call["draws"] for call in self.calls):
            return dict.fromkeys(case.outputs, _CHANCE)
        return {name: "rounding alone" for name in case.outputs if name in self._unknown}

    quantized = False
    closed = None
    trivial_layers = ()

    @property
    def steps(self) -> dict[str, float]:
        return {}

    def describe_idle(self, _layers: Sequence[Layer]) -> list[str]:
        return []  # the plan lists what is not called

    def find_magnitude(self, _case: ModelCase, _number: int, _tensor: str) -> Any:
        return 0.0

    def find_origin(self, _case: ModelCase, _number: int) -> LayerOrigin | None:
        return None

    def fix_hint(self, outcome: StepOutcome) -> StepOutcome:
        return outcome

    def _spec(self, part: str, number: int) -> PartSpec:
        request = self.request
        state = "" if part == "trace" else self.plans[number]["state"]
        seed = request.inputs.seed + number
        return PartSpec(request.model, request.folder, part, seed, request.ops, request.backward, state=state)

    def _write(self, spec: PartSpec) -> Product:
        text = json.dumps(asdict(spec))
        path = os.path.join(self._builder.make_folder("part"), f"{spec.part}.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return Product(path, hashlib.sha256(text.encode()).hexdigest())

    def _compute(self, engine: Target, spec: Product, inputs: Product, what: str) -> str:
        """Return a folder of tensors. Raises UsageError for errors in the user's code, StepFailedError for a crash."""
        with self._builder.keeping():
            work = self._builder.compute(engine, spec, inputs, Wants(()), what)
        if work.failed is None:
            return work.outputs
        if work.failed.ending is StepEnding.ERROR:
            raise UsageError(work.failed.message, work.failed.hint or None)
        raise StepFailedError(f"{engine.name} cannot compute this model", work.failed)


def _build_layer(call: dict[str, Any], direction: str, stem: str, number: int) -> Layer:
    """Return the layer of one call in one direction."""
    path, inputs, outputs = call["label"] + direction, call["inputs"], call["outputs"]
    if direction:
        grads = [f"{call['label']}:grad.{name}" for name in call["params"]]
        inputs, outputs = [*call["grad_outs"], *inputs], [*call["grad_ins"], *grads]
    name = f"{stem}_layer_{path}".replace("/", "_")
    return Layer(name, number, (call["kind"],), (number,), tuple(inputs), tuple(outputs), path=path)


def _load(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]

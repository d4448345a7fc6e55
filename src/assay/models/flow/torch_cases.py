"""The cases of a torch module: its calls of modules or ops, forward and backward, in the place of an ONNX model's layers.

The reference records every call with its tensors, once for each sample. A call is then made alone by the reference and by
the target, from the same inputs, rounded to the target's type: what differs is the call's own. Inside the model errors
accumulate; how much is right there is measured by the reference itself, with rounding of the target's type added at each
border.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from assay.errors import UsageError
from assay.models.backends.torch_backend import PLAN_FILE, SURVEY_FILE, PartSpec
from assay.models.flow.artifact_builder import Product, Wants
from assay.models.flow.cases import Arrays, Cases, CaseSample, ModelCase, StepFailedError, Tensors, hash_refs, load_specs
from assay.models.graph.tensorfile import load_refs
from assay.models.judge.alone import LayerOrigin
from assay.models.judge.peers import find_floor, judge_peers, judge_slices
from assay.models.judge.tensors import compare_tensors
from assay.models.judge.tolerances import FLOATS
from assay.models.values.model import (
    CaseReport,
    Layer,
    Outline,
    StepEnding,
    StepOutcome,
    Target,
    Tolerances,
)
from assay.models.values.tensors import TensorComparison, TensorSpec, Tolerance
from assay.system.fast_dataclasses import asdict, replace
from assay.values.verdict import Verdict

BACKWARD = ":backward"
NOISE_FACTOR = 6.0  # times what rounding at the borders does to the reference
_CHANCE = "random numbers"


class TorchCases(Cases):
    tests_voters = False  # float64 is right by definition

    # ------------------------------------------------------------ what the reference and the target have

    @cached_property
    def samples(self) -> tuple[Product, ...]:
        """One recording for each sample: `build()` is called with another seed."""
        found = []
        with self._builder.keeping():
            for number in range(self.request.inputs.samples):
                spec = self._write(self._spec("trace", number))
                folder = self._compute(self.request.reference, spec, spec, (), "trace").outputs
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
        """Which calls the target can make, its type, and what can be seen of its inside."""
        spec = self._write(self._spec("survey", 0))
        with self._builder.keeping():
            folder = self._compute(self.request.target, spec, self.samples[0], (), "survey").outputs
        return _load(os.path.join(folder, SURVEY_FILE))

    @property
    def grain(self) -> str:
        """The coarser of the two types."""
        return max((self.plans[0]["grain"], self.survey["grain"]), key=lambda name: find_floor(name))

    @cached_property
    def calls(self) -> list[dict[str, Any]]:
        """Calls of all samples that the target can make, in the order of their ends. Notes name the others."""
        plan, known = self.plans[0], self.survey["labels"]
        self.notes += plan["notes"]
        shared = set.intersection(*({call["label"] for call in each["calls"]} for each in self.plans))
        calls = [call for call in plan["calls"] if call["label"] in shared]
        missing = [call["label"] for call in calls if call["label"] not in known]
        if missing:
            named = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
            self.notes.append(
                f"{self.request.target.name} has no module of this name with these arguments, not judged alone: {named}"
            )
        drawing = [call["label"] for call in calls if call["draws"]]
        if drawing:
            self.notes.append(f"random numbers are drawn in {drawing[0]}: call module.eval() in build() to judge it")
        return [call for call in calls if call["label"] in known]

    # ------------------------------------------------------------ the outline

    @cached_property
    def outline(self) -> Outline:
        stem = os.path.splitext(os.path.basename(self.request.model))[0]
        forward = [_Part(call) for call in self.calls]
        backward = [_Part(call, is_backward=True) for call in sorted(self.calls, key=lambda call: -call["order"])]
        parts = [*forward, *(part for part in backward if self.request.backward and part.call["grad_outs"])]
        layers = tuple(part.build_layer(stem, number) for number, part in enumerate(parts))
        outputs = tuple(TensorSpec(name, "") for name in self.plans[0]["outputs"])
        return Outline(stem, self.request.model, 0, (), outputs, layers)

    @cached_property
    def parts(self) -> dict[str, dict[str, Any]]:
        return {call["label"]: call for call in self.calls}

    # ------------------------------------------------------------ cases

    @cached_property
    def full(self) -> ModelCase:
        names = tuple(self.plans[0]["outputs"])
        return self._build("full", self.outline.full_name, names)

    @cached_property
    def marked(self) -> ModelCase:
        kinds = {"outputs": ("outputs",), "forward": ("inputs", "outputs")}
        chosen = kinds.get(self.survey["observes"], ("inputs", "outputs", "grad_outs", "grad_ins"))
        names = dict.fromkeys(name for call in self.calls for kind in chosen for name in call[kind])
        known = set.intersection(*(set(Tensors(folder)) for folder in self.activations))
        return self._build("marked", f"{self.outline.stem}_marked", tuple(name for name in names if name in known))

    def _build(self, part: str, name: str, outputs: tuple[str, ...]) -> ModelCase:
        trials = []
        for number, sample in enumerate(self.samples):
            spec = replace(self._spec(part, number), grad_outs=("output",) if self._has_gradients else ())
            trials.append(CaseSample(self._write(spec), sample, Tensors(sample.path)))
        return ModelCase(name, None, outputs, (), tuple(trials), makers=self.makers)

    @property
    def _has_gradients(self) -> bool:
        return any(name.endswith(":grad") for name in self.plans[0]["outputs"])

    def iterate(self, names: Sequence[str]) -> Iterator[ModelCase]:
        wanted = set(names)
        for layer in self.outline.layers:
            if layer.name in wanted:
                yield self._build_alone(layer)

    def _build_alone(self, layer: Layer) -> ModelCase:
        label, _, direction = layer.label.partition(":")
        call = self.parts[label]
        problem = call["problem"] or ("it draws random numbers" if call["draws"] else "")
        trials, outputs = [], layer.outputs
        for number, sample in enumerate(self.samples if not problem else ()):
            spec = self._spec("call", number)
            spec = replace(spec, label=label, backward=bool(direction), grad_outs=tuple(call["grad_outs"]), grain=self.grain)
            product = self._write(spec)
            with self._builder.keeping():
                work = self._compute(self.request.reference, product, sample, (), layer.name)
            expected = Tensors(work.outputs)
            shared = {f"{label}:grad.{name}" for name in self.survey["labels"][label]}
            outputs = tuple(name for name in expected if ":grad." not in name or name in shared)
            problem = problem or self._find_state(spec, sample, expected)
            trials.append(CaseSample(product, sample, expected, load_specs(work.outputs)))
        return ModelCase(layer.name, layer, outputs, (), tuple(trials), problem)

    def _find_state(self, spec: PartSpec, sample: Product, expected: Arrays) -> str:
        """Why a call is not a function of its inputs: alone, the reference gives something else than in the model."""
        if spec.backward or self.grain != self.plans[0]["grain"]:
            return ""  # rounded to another type, they are not comparable
        inside = Tensors(sample.path)
        compared = [compare_tensors(name, inside[name], expected[name]) for name in expected if name in inside]
        worst = max((each.error for each in compared), default=0.0)
        return "" if worst < FLOATS["bfloat16"].rel else "it depends on more than its inputs: alone, the reference differs"

    def discard(self, case: ModelCase) -> None:
        """Files of a call are small, and go with the store."""

    # ------------------------------------------------------------ how far off is right

    @cached_property
    def bounds(self) -> dict[str, Tolerance]:
        """By tensor: what rounding of the target's type does to it inside the reference, several times."""
        found: dict[str, Tolerance] = {}
        least = self.choose_tolerances(Tolerances()).model
        for number, sample in enumerate(self.samples):
            spec = self._write(replace(self._spec("noise", number), grain=self.grain))
            with self._builder.borrowing():
                noisy = Tensors(self._compute(self.request.reference, spec, spec, (), "noise").outputs)
                exact = Tensors(sample.path)
                for name in noisy:
                    if name in exact:
                        error = compare_tensors(name, exact[name], noisy[name], worst=0).max_rel * NOISE_FACTOR
                        before = found.get(name, least).rel or 0.0
                        found[name] = replace(least, rel=max(before, error))
        return found

    def choose_tolerances(self, given: Tolerances) -> Tolerances:
        """Of a layer alone: what the coarser type allows, unless a bound was given."""
        kind = FLOATS["float16" if self.grain == "tf32" else self.grain]
        model = given.model if given.model.rel is not None else replace(given.model, rel=kind.rel)
        return replace(given, model=replace(model, check_dtype=False))

    def look_closer(
        self, wanted: Arrays, actual: Arrays, judged: tuple[Verdict, tuple[TensorComparison, ...]]
    ) -> tuple[Verdict, tuple[TensorComparison, ...]]:
        """Rows and columns of a layer alone."""
        floor = find_floor(self.grain)
        compared = tuple(judge_slices(each, wanted[each.name], actual[each.name], floor) for each in judged[1])
        named = {each.name for each in compared}
        others = [finding for finding in judged[0].findings if finding.subject not in named]
        found = [finding for each in compared for finding in each.verdict.findings]
        return Verdict.of([*found, *others], judged[0].comparisons), compared

    def judge_peers(self, reports: Sequence[CaseReport]) -> list[CaseReport]:
        return judge_peers(reports, find_floor(self.grain))

    def find_chance(self, case: ModelCase) -> dict[str, str]:
        is_drawn = case.layer is None and any(call["draws"] for call in self.calls)
        return dict.fromkeys(case.outputs, _CHANCE) if is_drawn else {}

    # ------------------------------------------------------------ what a torch module does not have

    quantized = False
    closed = None
    trivial_layers = ()

    @property
    def steps(self) -> dict[str, float]:
        return {}

    def find_magnitude(self, _case: ModelCase, _number: int, _tensor: str) -> Any:
        return 0.0

    def find_origin(self, _case: ModelCase, _number: int) -> LayerOrigin | None:
        return None

    def fix_hint(self, outcome: StepOutcome) -> StepOutcome:
        return outcome

    # ------------------------------------------------------------ jobs

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

    def _compute(self, engine: Target, spec: Product, inputs: Product, names: tuple[str, ...], what: str) -> Any:
        """Raises UsageError for what the user's own code does, StepFailedError for a crash or a limit."""
        work = self._builder.compute(engine, spec, inputs, Wants(names), what)
        if work.failed is None:
            return work
        if work.failed.ending is StepEnding.ERROR:
            raise UsageError(work.failed.message, work.failed.hint or None)
        raise StepFailedError(f"{engine.name} cannot compute this model", work.failed)


class _Part:
    """One call in one direction."""

    def __init__(self, call: dict[str, Any], *, is_backward: bool = False) -> None:
        self.call = call
        self._is_backward = is_backward

    def build_layer(self, stem: str, number: int) -> Layer:
        call, label = self.call, self.call["label"]
        if not self._is_backward:
            inputs, outputs, path = call["inputs"], call["outputs"], label
        else:
            grads = [f"{label}:grad.{name}" for name in call["params"]]
            inputs, outputs, path = [*call["grad_outs"], *call["inputs"]], [*call["grad_ins"], *grads], label + BACKWARD
        kinds = (call["kind"],)
        return Layer(f"{stem}_layer_{path}".replace("/", "_"), number, kinds, (number,), tuple(inputs), tuple(outputs), path=path)


def _load(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]

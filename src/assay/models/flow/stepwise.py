"""Runs a case step by step, for callers that need single steps: pytest's fixtures, any of which may be replaced.

A step gets its inputs from the caller, so that a replaced input counts; its result comes from the store if the store
has it. A case has a model, inputs and outputs for each sample; equal ones are made once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from assay.errors import UsageError
from assay.models.backends.programs import hash_tree
from assay.models.backends.registry import build_backend
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, Product, Wants, load_product
from assay.models.flow.cases import Cases, CaseSample, ModelCase, StepFailedError, Tensors
from assay.models.flow.check import Examination
from assay.models.graph.tensorfile import load_refs
from assay.models.values.model import CaseReport, ModelRequest, Step, StepOutcome, Target
from assay.system.fast_dataclasses import dataclass, field, replace

Samples = list[dict[str, Any]]  # arrays by name


class Stepwise:
    """All cases of a process. Tests run model by model: only the last models are kept in memory."""

    _MOST_MODELS = 2

    def __init__(self, builder: ArtifactBuilder, dumps: Dumps) -> None:
        self.builder = builder
        self.dumps = dumps  # only the tested target writes dumps
        self._cases: dict[str, Cases] = {}
        self._products: dict[str, Product] = {}  # path → the product that was returned for it
        self._chosen: dict[str, int] = {}  # model → index of the first reference that can compute it

    @contextmanager
    def visiting(self, keep: str) -> Iterator[None]:
        """Serve one test: artifacts that it takes may be removed from the store afterwards; inputs of a failed step are
        kept in `keep`."""
        try:
            with self.builder.borrowing(), self.builder.changing(failure_dir=keep):
                yield
        finally:
            self._products.clear()  # paths in the store that are no longer valid

    def open_case(self, request: ModelRequest, name: str, label: str) -> CaseSteps:
        """Open a case; `label`: its folder for dumps. Raises StepFailedError if the reference cannot compute it."""
        key = repr(request)
        cases = self._cases.pop(key, None) or Cases(request, self.builder)
        self._cases[key] = cases
        while len(self._cases) > self._MOST_MODELS:
            del self._cases[next(iter(self._cases))]
        return CaseSteps(self, cases, cases.find(name), label)

    def open_first(self, requests: Sequence[ModelRequest], name: str, label: str) -> CaseSteps:
        """Open a case with the first reference that can compute the model; else raise the first one's error."""
        path = requests[0].model
        for number in range(self._chosen.get(path, 0), len(requests)):
            try:
                found = self.open_case(requests[number], name, label)
            except StepFailedError:
                continue
            self._chosen[path] = number
            return found
        return self.open_case(requests[0], name, label)

    def hand_out(self, product: Product, path: str | None = None) -> str:
        """Return the path of a product, by which `take_in` finds it again."""
        shown = path or product.path
        self._products[shown] = product
        return shown

    def take_in(self, path: str | os.PathLike[str], artifact: str = "") -> Product:
        """Return the product of a path, our own or the user's; `artifact` is the file that counts in a folder."""
        given_path = os.path.abspath(path)
        if given_path in self._products:
            return self._products[given_path]
        if not os.path.exists(given_path):
            raise UsageError(f"there is no {given_path}")
        if given_path.endswith(".onnx"):
            with suppress(UsageError):  # a broken model has no external data either
                return load_product(given_path)
        chosen = given_path
        if os.path.isdir(given_path):
            files = os.listdir(given_path)
            if artifact and os.path.exists(os.path.join(given_path, artifact)):
                chosen = os.path.join(given_path, artifact)
            elif len(files) == 1:
                chosen = os.path.join(given_path, files[0])
        return Product(chosen, hash_tree(given_path))  # a tool may read files next to it


@dataclass(slots=True)
class CaseSteps:
    """One case of one test. Every step that fails raises StepFailedError."""

    stand: Stepwise
    cases: Cases
    case: ModelCase
    label: str
    steps: list[StepOutcome] = field(default_factory=list)  # steps of the tested target
    given: list[Product] = field(default_factory=list)  # inputs that are not the case's own

    @property
    def models(self) -> list[Product]:
        """The case as ONNX files, one for each sample; equal files if nothing depends on values."""
        return [trial.model for trial in self.case.trials]

    @property
    def inputs(self) -> Samples:
        return [dict(Tensors(trial.inputs.path)) for trial in self.case.trials]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(ref.name for ref in load_refs(self.case.trials[0].inputs.path))

    def write_inputs(self, samples: Samples) -> list[Product]:
        """Write the inputs as files for a run, unless they are the case's own. Raises UsageError for wrong names."""
        names, known = self.input_names, {trial.inputs.sha: trial.inputs for trial in self.case.trials}
        self.given = []
        for arrays in samples:
            missing = [name for name in names if name not in arrays]
            named = (("missing", missing), ("too many", [each for each in arrays if each not in names]))
            if problems := [f"{what}: {', '.join(each)}" for what, each in named if each]:
                raise UsageError(f"these inputs do not fit {self.case.name}; {'; '.join(problems)}")
            written = self.cases.write_inputs({name: arrays[name] for name in names})
            self.given.append(known.get(written.sha, written))
        return self.given

    def prepare(self, target: Target, *, tested: bool = True) -> list[Product]:
        """Return the results of all steps before the run."""
        sources = self.models
        for step in build_backend(target).steps:
            if step is not Step.RUN:
                sources = self.build(target, step, sources, tested=tested)
        return sources

    def build(self, target: Target, step: Step, sources: Sequence[Product], *, tested: bool = False) -> list[Product]:
        outcomes = self._each(
            target,
            [source.sha for source in sources],
            lambda number: self.stand.builder.build(target, step, sources[number], self.case.name),
            tested=tested,
        )
        return [Product(outcome.path, outcome.key) for outcome in outcomes]

    def run(
        self, target: Target, artifacts: Sequence[Product], inputs: Sequence[Product], *, tested: bool = False
    ) -> Samples:
        """Return the outputs of each sample. One artifact serves all samples, or each sample has its own."""
        chosen = [artifacts[min(number, len(artifacts) - 1)] for number in range(len(inputs))]
        known = {trial.inputs.sha: trial.specs for trial in self.case.trials}

        def work(number: int) -> StepOutcome:
            # samples may differ in shape: known specs hold for their own sample only
            wants = Wants(self.case.outputs, known.get(inputs[number].sha) or self.case.specs)
            return self.stand.builder.run(target, chosen[number], inputs[number], wants, self.case.name)

        keys = [f"{artifact.sha} {given.sha}" for artifact, given in zip(chosen, inputs, strict=True)]
        return [dict(Tensors(outcome.path)) for outcome in self._each(target, keys, work, tested=tested)]

    def _each(
        self, target: Target, keys: Sequence[str], work: Callable[[int], StepOutcome], *, tested: bool
    ) -> list[StepOutcome]:
        """Return the outcome of `work` for each number; equal keys share one. Only a tested target writes dumps."""
        made: dict[str, StepOutcome] = {}
        with self.stand.builder.changing(dumps=replace(self.stand.dumps, name=self.label) if tested else Dumps()):
            for number, key in enumerate(keys):
                if key not in made:
                    made[key] = outcome = work(number)
                    self.steps += [outcome] if tested else []
                    if not outcome.is_ok:
                        raise StepFailedError(f"{target.name} cannot compute {self.case.name}", outcome)
        return [made[key] for key in keys]

    def expect(self, reference: Target, inputs: Sequence[Product]) -> Samples:
        """Return the reference's outputs for these inputs: known for the case's own, computed for others."""
        if [product.sha for product in inputs] == [trial.inputs.sha for trial in self.case.trials]:
            return [{name: trial.expected[name] for name in self.case.outputs} for trial in self.case.trials]
        return self.run(reference, self.prepare(reference, tested=False), inputs)

    def compare(self, request: ModelRequest, keep: str, expected: Samples, actual: Samples) -> CaseReport:
        """Return the report of the case; tensors that differ are written below `keep`."""
        if len(expected) != len(actual):
            raise UsageError(f"{self.case.name}: {len(actual)} samples of results, {len(expected)} of the reference")
        trials = []
        for number, arrays in enumerate(expected):
            own = self.case.trials[min(number, len(self.case.trials) - 1)]
            inputs = self.given[number] if number < len(self.given) else own.inputs
            trials.append(CaseSample(own.model, inputs, arrays))
        case = replace(self.case, outputs=tuple(expected[0]) if expected else (), trials=tuple(trials))
        examination = Examination(request, self.stand.builder, self.cases, keep)
        return examination.compare(case, tuple(self.steps), actual)


def read_samples(value: Any, names: Sequence[str]) -> Samples:
    """Convert a user's fixture's result: arrays in the graph's order, arrays by name, or a list of arrays by name."""
    if isinstance(value, Mapping):
        return [dict(value)]
    if hasattr(value, "shape"):
        return [dict(zip(names, [value], strict=False))]
    several = list(value)
    if several and all(isinstance(each, Mapping) for each in several):
        return [dict(each) for each in several]
    surplus = [f"output {number}" for number in range(len(names), len(several))]
    return [dict(zip((*names, *surplus), several, strict=False))]

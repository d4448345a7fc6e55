"""`assay model judge`: the verdict on outputs that a check or a comparison kept, without running anything.

Kept outputs are checked like those of a target whose results exist already, without a back end or the model.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from assay.errors import FormatError
from assay.models.flow.artifact_builder import Product, Work
from assay.models.flow.cases import Arrays, Cases, CaseSample, LazyArrays, ModelCase
from assay.models.flow.check import Examination, check_cases
from assay.models.flow.output_keeper import FORMATS, INDEX_FILE, KIND, SIDES, KeptCase, KeptOutputs
from assay.models.graph.tensorfile import parse_dtype
from assay.models.judge.alone import LayerOrigin
from assay.models.judge.layers import judge_votes
from assay.models.libraries import np
from assay.models.store.entry import hash_file
from assay.models.values.model import Layer, ModelReport, ModelRequest, Target, Tolerances
from assay.models.values.tensors import TensorComparison, Tolerance
from assay.record.formats import build_damage, read_versioned
from assay.system.fast_dataclasses import replace
from assay.values.plain import parse_plain
from assay.values.verdict import Finding, Verdict


def load_kept(folder: str) -> KeptOutputs:
    """Load kept outputs. Raises FormatError if files are damaged, missing or changed."""
    path = os.path.join(folder, INDEX_FILE)
    with open(path, "rb") as file:
        content = read_versioned(file.read(), KIND, path, FORMATS)
    try:
        kept = parse_plain(KeptOutputs, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise build_damage(path, str(error), FORMATS[KIND]) from error
    for name, sha in kept.files.items():
        found = os.path.join(folder, os.path.basename(name))
        if not os.path.exists(found):
            raise FormatError(f"{found} is missing", FORMATS[KIND].remedy)
        if hash_file(found) != sha:
            raise FormatError(f"{found} was changed since the outputs were kept", FORMATS[KIND].remedy)
    return kept


def judge_kept(folder: str, tolerances: Tolerances | None) -> ModelReport:
    """Return the report on kept outputs, judged with `tolerances` or, if None, with the check's own tolerances."""
    kept = load_kept(folder)
    request = kept.request if tolerances is None else replace(kept.request, tolerances=tolerances)
    cases = KeptCases(request, folder, kept)
    examination = KeptExamination(request, _NoBuilder(), cases, "")  # type: ignore[arg-type]
    found = check_cases(examination)
    reports = tuple(replace(case, matched=kept.matched.get(case.name, "")) for case in found.cases)
    about_pairs = [each for each in kept.report.findings if each.subject == kept.outline.stem]
    return replace(
        kept.report,
        cases=reports,
        first_wrong=found.first.name if found.first else None,
        unseen=found.unseen,
        confirmed=found.confirmed,
        findings=(*found.findings, *about_pairs),
        notes=(f"judged again from {folder}: nothing was computed", *found.notes, *examination.notes),
        elapsed_s=0.0,
        run_dir="",
    )


class _NoBuilder:
    def borrowing(self) -> AbstractContextManager[None]:
        return nullcontext()

    forgetting = borrowing


class KeptCases(Cases):
    """Cases whose values are in files."""

    def __init__(self, request: ModelRequest, folder: str, kept: KeptOutputs) -> None:
        super().__init__(request, _NoBuilder())  # type: ignore[arg-type]
        self.kept, self.skipped = kept, kept.skipped
        self.known = {case.name: case for case in kept.cases}
        try:
            self._files = {side: np.load(os.path.join(folder, f"{side}.npz"), allow_pickle=False) for side in SIDES}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise FormatError(f"{folder} has arrays that cannot be read: {error}", FORMATS[KIND].remedy) from error
        self.outline, self.coarse, self.steps = kept.outline, dict(kept.coarse), dict(kept.step_sizes)

    def load(self, side: str, case: str, number: int) -> LazyArrays:
        """Return the arrays of one case and sample on one side."""
        file, dtypes, prefix = self._files[side], self.kept.dtypes, f"{case}/{number}/"

        def load(name: str) -> Any:
            array, dtype = file[prefix + name], dtypes.get(f"{side}/{prefix}{name}")
            return array.view(parse_dtype(dtype)) if dtype else array

        return LazyArrays((each.removeprefix(prefix) for each in file.files if each.startswith(prefix)), load)

    def get_kept(self, case: ModelCase) -> KeptCase:
        """Return what was kept of a case, which is empty for a case that was not computed."""
        return self.known.get(case.name, KeptCase(case.name))

    def build(self, name: str) -> ModelCase | None:
        case, nothing = self.known.get(name), Product("", "")
        if case is None:
            return None
        trials = [CaseSample(nothing, nothing, self.load("reference", name, each)) for each in range(case.samples)]
        return ModelCase(
            name, case.layer, case.outputs, (), tuple(trials), case.problem, case.quantized, dict(case.makers)
        )

    def _require(self, name: str) -> ModelCase:
        found = self.build(name)
        return found or ModelCase(name, None, (), (), problem="it was not computed when the outputs were kept")

    @cached_property
    def full(self) -> ModelCase:
        return self._require(self.outline.full_name)

    @cached_property
    def marked(self) -> ModelCase:
        return self._require(f"{self.outline.stem}_marked")

    @cached_property
    def closed(self) -> ModelCase | None:
        return self.build(f"{self.outline.full_name}_closed")

    @cached_property
    def trivial_layers(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.outline.layers if layer.name in self.kept.skipped)

    def iterate(self, names: Sequence[str]) -> Iterator[ModelCase]:
        return (replace(self._require(layer.name), layer=layer) for layer in self.outline.choose(names))

    def discard(self, case: ModelCase) -> None:
        """Remove nothing: no file was made for the case."""

    def find_bounds(self, case: ModelCase) -> Mapping[str, Tolerance]:
        return self.get_kept(case).bounds

    def find_chance(self, case: ModelCase) -> dict[str, str]:
        return dict(self.get_kept(case).chance)

    def judge_integers(self, case: ModelCase) -> Iterator[Finding]:
        return iter(self.get_kept(case).integers)

    def find_magnitude(self, case: ModelCase, number: int, tensor: str) -> Any:
        found = self.load("context", case.name, number)
        return found.get(f"{tensor}/magnitude", 0.0)

    def find_origin(self, case: ModelCase, number: int) -> LayerOrigin | None:
        kept, found = self.get_kept(case), self.load("context", case.name, number)
        if not kept.ops:
            return None

        def compute(name: str) -> Any:
            return found.get(f"{name}/unrounded")

        return LayerOrigin(kept.ops, lambda: kept.terms[number], compute)


class KeptExamination(Examination):
    cases: KeptCases

    def compute(self, case: ModelCase) -> tuple[Work, list[Arrays]]:
        kept = self.cases.get_kept(case)
        return Work(kept.steps), [self.cases.load("target", case.name, each) for each in range(kept.samples)]

    def vote(self, case: ModelCase, ours: tuple[TensorComparison, ...], verdict: Verdict, voter: Target) -> Verdict:  # noqa: ARG002 as it is called
        """Return the verdict with the kept vote of the second reference, if there is one."""
        results = [self.cases.load("voter", case.name, number) for number in range(len(case.trials))]
        if not all(results) or self.cases.get_kept(case).is_refused:
            return verdict
        return judge_votes(ours, self.judge(case, results)[1])

    def _keep_pair(self, *_: Any) -> None:
        """Keep nothing: the tensors are already kept."""

"""`--keep-outputs`: writes the tensors of both sides into plain files for `assay model judge` (`flow.kept_outputs`).

The folder contains `reference.npz`, `target.npz` and `inputs.npz`, whose arrays are named `CASE/SAMPLE/TENSOR`, and
`outputs.json`, which is written last: the request, the cases, and facts about their graph. `context.npz` has what
bounds are computed from (magnitudes of sums, values before they were rounded), `voter.npz` the outputs of a second
reference.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.models.flow.artifact_builder import Work
from assay.models.flow.cases import Arrays, Cases, ModelCase, Tensors, load_specs
from assay.models.graph.tensorfile import STRING, content_sha, name_dtype, store
from assay.models.libraries import np
from assay.models.store.entry import hash_file
from assay.models.values.model import Layer, ModelReport, ModelRequest, Outline, StepOutcome
from assay.models.values.tensors import TensorSpec, Tolerance
from assay.record.formats import Format, read_versioned, render_versioned
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import write_atomic
from assay.values.plain import build_plain
from assay.values.verdict import Finding

INDEX_FILE = "outputs.json"
KIND = "model outputs"
FORMATS = {KIND: Format(1, "keep the outputs again: assay model check … --keep-outputs DIR")}
SIDES = ("reference", "target", "inputs", "context", "voter")
_OWN = {INDEX_FILE, *(f"{side}.npz" for side in SIDES)}


@dataclass(frozen=True, slots=True)
class KeptCase:
    """One computed case, whose arrays are in the files under the case's name."""

    name: str
    layer: Layer | None = None
    outputs: tuple[str, ...] = ()
    makers: Mapping[str, str] = field(default_factory=dict)
    quantized: bool = False
    problem: str = ""
    samples: int = 0
    steps: tuple[StepOutcome, ...] = ()
    bounds: Mapping[str, Tolerance] = field(default_factory=dict)
    chance: Mapping[str, str] = field(default_factory=dict)
    integers: tuple[Finding, ...] = ()
    ops: tuple[str, ...] = ()  # operators of a layer that is judged by how much correct runtimes differ
    terms: tuple[int, ...] = ()  # number of terms of an element, by sample
    is_refused: bool = False  # whether the second reference has no vote in this case


@dataclass(frozen=True, slots=True)
class KeptOutputs:
    """The content of `outputs.json`."""

    request: ModelRequest
    report: ModelReport  # the check's report without its cases
    outline: Outline
    cases: tuple[KeptCase, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)  # case → why the case was not computed alone
    matched: Mapping[str, str] = field(default_factory=dict)
    coarse: Mapping[str, str] = field(default_factory=dict)
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)  # file name → sha256
    inputs: tuple[tuple[TensorSpec, ...], ...] = ()  # specs of the inputs, by sample
    files: Mapping[str, str] = field(default_factory=dict)  # file name → sha256
    dtypes: Mapping[str, str] = field(default_factory=dict)  # array → its type, if numpy's files do not support it


def choose_folder(path: str | None) -> str:
    """Return the folder for outputs. Raises UsageError if the folder contains other files."""
    if not path:
        return ""
    found = set(os.listdir(path)) if os.path.isdir(path) else set()
    if found and not (found <= _OWN and _is_index(os.path.join(path, INDEX_FILE))):
        what = "the folder has other files, or outputs of a check that did not end"
        raise UsageError(f"--keep-outputs {path}: {what}", "name a new or an empty folder")
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"--keep-outputs {path}: it is a file", "name a new or an empty folder")
    return os.path.abspath(path)


def _is_index(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return "request" in read_versioned(file.read(), KIND, path, FORMATS)
    except (OSError, FormatError):
        return False


class OutputKeeper:
    """Writes an examination's results case by case: the activations of a large model do not fit in memory."""

    def __init__(self, folder: str, cases: Cases) -> None:
        self._folder, self._cases = folder, cases
        self._found: dict[str, KeptCase] = {}
        self._dtypes: dict[str, str] = {}
        try:
            os.makedirs(folder, exist_ok=True)
            for name in _OWN.intersection(os.listdir(folder)):  # earlier outputs
                os.remove(os.path.join(folder, name))
            self._paths = {side: os.path.join(folder, f"{side}.npz") for side in SIDES}
            self._files = {side: zipfile.ZipFile(path, "w", allowZip64=True) for side, path in self._paths.items()}
        except OSError as error:
            raise InfrastructureError(f"outputs cannot be kept in {folder}: {error.strerror}") from error

    def add(self, case: ModelCase, work: Work, results: Sequence[Arrays]) -> None:
        if case.name in self._found:
            return
        cases, terms = self._cases, []
        origins = [cases.find_origin(case, number) for number in range(len(results))]
        for number, result in enumerate(results):
            expected = case.trials[number].expected
            origin = origins[number]
            terms += [origin.count_terms() if origin is not None else 0]
            for name in case.outputs:
                key = f"{case.name}/{number}/{name}"
                sides = {"reference": expected.get(name), "target": result.get(name)}
                self._write(key, {side: array for side, array in sides.items() if array is not None})
                hashes = {content_sha(array) for array in sides.values() if hasattr(array, "dtype")}
                if len(hashes) > 1:
                    unrounded = origin.compute_unrounded(name) if origin is not None else None
                    context = {"magnitude": cases.find_magnitude(case, number, name), "unrounded": unrounded}
                    for word in (word for word, each in context.items() if each is not None):
                        self._write(f"{key}/{word}", {"context": np.asarray(context[word])})
        self._found[case.name] = KeptCase(
            case.name, case.layer, case.outputs, case.makers, case.quantized, case.problem, len(results), work.steps,
            dict(cases.find_bounds(case)), cases.find_chance(case) if not case.problem else {},
            tuple(cases.judge_integers(case)) if case.layer is not None and results else (),
            origins[0].ops if origins and origins[0] is not None else (), tuple(terms),
        )  # fmt: skip

    def add_vote(self, case: ModelCase, results: Sequence[Arrays], *, is_refused: bool) -> None:
        for number, result in enumerate(results):
            for name in (name for name in case.outputs if name in result):
                self._write(f"{case.name}/{number}/{name}", {"voter": result[name]})
        self._found[case.name] = replace(self._found[case.name], is_refused=is_refused)

    def _write(self, key: str, arrays: Mapping[str, Any]) -> None:
        for side, array in arrays.items():
            if not hasattr(array, "dtype"):
                continue  # sequences are not compared
            if name_dtype(array) != STRING and array.dtype.isbuiltin != 1:
                self._dtypes[f"{side}/{key}"] = name_dtype(array)
            plain = array.astype(str) if name_dtype(array) == STRING else store(np.asarray(array, order="C"))
            with self._files[side].open(f"{key}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, plain, allow_pickle=False)

    def finish(self, request: ModelRequest, report: ModelReport) -> None:
        cases = self._cases
        for number, sample in enumerate(cases.samples):
            for name, array in Tensors(sample.path).items():
                self._write(f"{number}/{name}", {"inputs": array})
        for file in self._files.values():
            file.close()
        models = [path for path in (request.model, request.other) if path]
        kept = KeptOutputs(
            request,
            replace(report, cases=()),
            cases.outline,
            tuple(self._found.values()),
            {case.name: case.skipped for case in report.cases if case.skipped},
            {case.name: case.matched for case in report.cases if case.matched},
            cases.coarse,
            cases.steps,
            {os.path.basename(path): hash_file(path) for path in models},
            tuple(load_specs(sample.path) for sample in cases.samples),
            {os.path.basename(path): hash_file(path) for path in self._paths.values()},
            self._dtypes,
        )
        write_atomic(os.path.join(self._folder, INDEX_FILE), render_versioned(build_plain(kept), KIND, FORMATS))

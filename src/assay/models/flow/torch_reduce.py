"""`assay model reduce` of a torch module: the first wrong call as a file of its own, with as few rows as still fail."""

from __future__ import annotations

import os
import shlex
import shutil

from assay.models.backends.torch_backend import INPUTS_FILE
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.bisect import LayerSearch, find_wrong
from assay.models.flow.check import Examination, check_model
from assay.models.flow.torch_cases import BACKWARD, TorchCases
from assay.models.judge.layers import FaultSearch
from assay.models.values.model import WRONG, Layer, ModelReport, ModelRequest, Target, render_flags
from assay.system.fast_dataclasses import dataclass, replace

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


def reduce_call(examination: Examination) -> FaultSearch:
    search = LayerSearch(examination)
    with examination.builder.forgetting():
        find_wrong(search)
    first, notes = search.first, search.notes
    report = search.reports.get(first.name) if first else None
    if first is None or report is None or report.verdict.kind not in WRONG or examination.request.ops:
        why = "ops are not taken out of their graph" if examination.request.ops else "no call fails alone"
        notes.append(f"{why}: there is nothing to reduce")
        return search.conclude(*search.reports.values())
    found = Reduction(examination, first).shrink()
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
class Reduction:
    examination: Examination
    layer: Layer

    def shrink(self) -> tuple[str, int] | None:
        """The file and how many rows its inputs have, 0: all; None: it does not fail alone."""
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
        """The folder of the inputs; None: a part with so many rows does not fail."""
        examination, cases = self.examination, self.examination.cases
        assert isinstance(cases, TorchCases)
        folder, count = cases.keep_inputs(self._label, rows)
        path = self._write(os.path.join(examination.builder.make_folder("part"), self._file), folder)
        request = replace(build_request(examination.request, path), backward=self.layer.label.endswith(BACKWARD))
        report = check_part(request, examination.builder, examination.keep)
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
        part = self._label.partition("#")[0]
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
    """Of the part: a rewritten one is taken out of the rewritten whole."""
    target = request.target
    if "rewrite" in target.options:
        target = Target(f"{path}:target", target.backend, {**target.options, "rewrite": f"{path}:target"})
    manner = tuple((flag, target.name if flag == "--target" else value) for flag, value in request.manner)
    return replace(request, model=f"{path}:build", target=target, goal="check", manner=manner, notes=())


def build_command(request: ModelRequest) -> str:
    manner = request.manner or (("--target", request.target.name),)
    return f"assay model check {shlex.quote(request.model)} {render_flags((*manner, *request.origin))}".rstrip()


def check_part(request: ModelRequest, builder: ArtifactBuilder, keep: str) -> ModelReport:
    notes = list(builder.notes)
    with builder.forgetting():
        report = check_model(request, builder, keep)
    builder.notes[:] = notes
    if "rewrite" in request.target.options:
        builder.forget(request.target)
    return report

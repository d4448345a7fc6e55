"""Outputs that are kept are judged again as they were, and otherwise with another tolerance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.example_models import faulty, hide_library, off_where_large, request_for, write_chain
from tests.quantised_models import quantise, write_float

from assay.errors import FormatError, UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.check import check_model
from assay.models.flow.kept_outputs import judge_kept
from assay.models.flow.output_keeper import choose_folder
from assay.models.values.model import InputChoice, ModelReport, ModelRequest, Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import replace
from assay.values.verdict import VerdictKind

REFERENCE = Target("reference", "reference")


def summarise(report: ModelReport) -> Any:
    found = [
        (case.name, case.outcome, case.verdict, case.local, case.accumulated, case.matched) for case in report.cases
    ]
    return report.verdict, report.first_wrong, report.confirmed, found


@pytest.mark.parametrize(
    ("target", "further"),
    [
        (Target("ort", "ort"), {}),
        (faulty("scaled", "sum"), {"voter": REFERENCE, "inputs": InputChoice(samples=2)}),
        (off_where_large(), {"tolerances": Tolerances(Tolerance(rel=1e-5)), "voter": REFERENCE}),
        (Target("broken", "picky_backend:Picky", {"refuses": "Add"}), {}),
    ],
)
def test_a_check_that_was_kept_is_judged_as_it_was(
    shared: ArtifactBuilder, tmp_path: Path, target: Target, further: dict[str, Any]
) -> None:
    model, folder = write_chain(tmp_path / "chain.onnx"), str(tmp_path / "kept")
    report = check_model(request_for(model, target, keep_outputs=folder, **further), shared, str(tmp_path / "keep"))
    assert summarise(judge_kept(folder, None)) == summarise(report)


def test_a_check_whose_reference_failed_is_an_error_again(shared: ArtifactBuilder, tmp_path: Path) -> None:
    model, folder = write_chain(tmp_path / "chain.onnx"), str(tmp_path / "kept")
    broken = Target("broken", "picky_backend:Picky", {"refuses": "Add"})
    request = replace(request_for(model, keep_outputs=folder), reference=broken)
    report = check_model(request, shared, str(tmp_path / "keep"))
    assert (report.verdict.kind, judge_kept(folder, None).verdict.kind) == (VerdictKind.ERROR, VerdictKind.ERROR)


def test_another_tolerance_gives_another_verdict_where_no_back_end_is_installed(
    shared: ArtifactBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, folder = write_float(tmp_path / "net.onnx"), tmp_path / "kept"
    other = quantise(net, tmp_path / "int8.onnx")
    plain = Target("ort", "ort", {"optimize": "none"})
    request = ModelRequest(str(net), plain, plain, goal="compare", other=str(other), keep_outputs=str(folder))
    report = check_model(request, shared, str(tmp_path / "keep"))
    assert report.verdict.kind is VerdictKind.PASS
    assert summarise(judge_kept(str(folder), None)) == summarise(report)
    assert judge_kept(str(folder), Tolerances(Tolerance(rel=1e-6))).verdict.kind is VerdictKind.FAIL
    index = json.loads((folder / "outputs.json").read_text())
    assert set(index["models"]) == {"net.onnx", "int8.onnx"}
    with np.load(folder / "target.npz") as arrays:
        assert arrays["net_full_model/0/y"].shape == (1, 10)
    for name in ("onnx", "onnxruntime"):
        hide_library(name, tmp_path, monkeypatch)
    net.unlink()
    command = [sys.executable, "-m", "assay", "model", "judge", str(folder), "--tolerance", "rel=1e-6", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["verdict"] == "FAIL"


def test_files_that_are_damaged_are_refused(shared: ArtifactBuilder, tmp_path: Path) -> None:
    model, folder = write_chain(tmp_path / "chain.onnx"), tmp_path / "kept"
    check_model(request_for(model, keep_outputs=str(folder)), shared, str(tmp_path / "keep"))
    whole = (folder / "target.npz").read_bytes()
    (folder / "target.npz").write_bytes(whole[:-40])
    with pytest.raises(FormatError, match=r"target.npz was changed since"):
        judge_kept(str(folder), None)
    (folder / "target.npz").unlink()
    with pytest.raises(FormatError, match=r"target.npz is missing"):
        judge_kept(str(folder), None)
    (folder / "outputs.json").write_text('{"format": 1}')
    with pytest.raises(FormatError, match=r"outputs.json is damaged"):
        judge_kept(str(folder), None)


def test_a_folder_of_other_files_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    index = json.dumps({"format": 1, "request": {}})
    for name, text in (("outputs.json", index), ("reference.npz", "")):  # also beside outputs of an earlier check
        with pytest.raises(UsageError, match="has other files"):
            choose_folder(str(tmp_path))
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="it is a file"):
        choose_folder(str(tmp_path / "mine.txt"))
    (tmp_path / "mine.txt").unlink()
    assert choose_folder(str(tmp_path)) == str(tmp_path)
    (tmp_path / "outputs.json").write_text('{"my": "results"}')
    with pytest.raises(UsageError, match="has other files"):
        choose_folder(str(tmp_path))

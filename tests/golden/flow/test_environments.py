"""Goldens of several environments in one store: which one a check chooses, and what it prints about that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.two_sides import TwoSides

from assay.golden.flow.segments import build_key, describe_key, find_other


@pytest.fixture
def lab(tmp_path: Path) -> TwoSides:
    found = TwoSides(tmp_path / "lab")
    found.gather()
    return found


def state(path: Path, gpu: str, torch: str) -> None:
    """Change a golden as if it had been recorded with this GPU and torch."""
    content = json.loads(path.read_text())
    content["provenance"]["hardware"]["gpus"] = [{"name": gpu}] if gpu else []
    content["provenance"]["packages"] = {"torch": torch}
    path.write_text(json.dumps(content))


def test_a_golden_of_another_environment_stands_next_to_the_first(lab: TwoSides) -> None:
    lab.gather("--environment", "h100", SCALE="1.1")
    other = lab.folder / "golden" / "fit_h100@convergence_harness_manifest.json"
    state(other, "NVIDIA H100", "2.5.1")
    here = lab.run("check")
    assert here.code == 0, here.out
    assert "environment: default (no GPU, torch " in here.out
    assert "of 2 goldens in the store; this environment is no GPU" in here.out
    named = lab.run("check", "--environment", "h1", SCALE="1.1")
    assert named.code == 0, named.out
    assert "environment: h100 (NVIDIA H100, torch 2.5.1), of 2 goldens in the store\n" in named.out
    assert "the golden is of NVIDIA H100, torch 2.5.1; this environment is no GPU" in named.out
    rebased = lab.run("rebase", "--environment", "h100", "--reason", "x", SCALE="1.2")
    assert rebased.code == 0, rebased.out
    assert lab.run("check", "--environment", "default").code == 0, "the other one is as it was"


def test_without_a_fitting_one_the_choices_are_shown(lab: TwoSides) -> None:
    lab.gather("--environment", "a100")
    state(lab.manifest, "NVIDIA H100", "2.5.1")
    state(lab.folder / "golden" / "fit_a100@convergence_harness_manifest.json", "NVIDIA A100", "2.5.1")
    for words in (("check",), ("blame", "--b-env", "env A=1"), ("rebase", "--reason", "x")):
        ended = lab.run(*words)
        assert ended.code == 2, ended.out
        assert "--environment a100  # NVIDIA A100, torch 2.5.1" in ended.out + ended.err
        assert "--environment default  # NVIDIA H100, torch 2.5.1" in ended.out + ended.err
    odd = lab.run("gather", "--environment", "../a100")
    assert "'../a100' cannot name an environment" in odd.out
    assert odd.code == 2
    unknown = lab.run("check", "--environment", "b200")
    assert unknown.code == 2
    assert "no environment named 'b200'" in unknown.out


def test_a_golden_without_an_environment_is_used_everywhere(lab: TwoSides) -> None:
    content = json.loads(lab.manifest.read_text())
    lab.manifest.write_text(json.dumps({"ckpt_logs": content["ckpt_logs"], "format": 3}))
    assert lab.run("check").code == 0
    lab.gather("--environment", "h100")
    state(lab.folder / "golden" / "fit_h100@convergence_harness_manifest.json", "NVIDIA H100", "2.5.1")
    ended = lab.run("check")
    assert "environment: default (unknown), of 2 goldens in the store" in ended.out


def test_keys_hold_what_is_known() -> None:
    key = build_key({"hardware": {"gpus": [{"name": "H100"}, {"name": "H100"}]}, "image": "a.sif"})
    assert describe_key(key) == "H100, image a.sif"
    assert build_key({"hardware": None, "packages": [], "image": None}) == {}
    assert find_other(key, {"GPU": "A100", "torch": "2"}) == ["GPU"]
    assert find_other(key, {}) == []

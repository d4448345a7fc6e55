"""`assay golden blame`: two codes in two environments; and `rebase --environment-only`, which uses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden.two_sides import TwoSides

from assay.golden.flow.segments import build_key, describe_key, find_other


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lab = TwoSides(tmp_path_factory.mktemp("blame"))
    lab.gather()
    return lab.folder


@pytest.fixture
def lab(gathered: Path, tmp_path: Path) -> TwoSides:
    """A repository with one commit, and a golden of it."""
    shutil.copytree(gathered, tmp_path / "lab")
    found = object.__new__(TwoSides)
    found.folder = tmp_path / "lab"
    return found


def effects(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the effects on the only metric, by part."""
    return {
        each["part"]: {"kind": "unknown", **(each["shift"] or {}), "where": each["where"]} for each in found["effects"]
    }


MOVED = ("blame", "--b-env", "env SCALE=1.0000001")


def test_the_environment_moved_it_and_the_code_by_exactly_nothing(lab: TwoSides) -> None:
    (lab.folder / "train.py").write_text((lab.folder / "train.py").read_text() + "\n# a comment\n")
    before = lab.git("status", "--porcelain")
    found = lab.read(*MOVED)
    parts = effects(found)
    assert (found["code"], found["exit_code"]) == (0, 0)
    assert parts["environment"]["kind"] == "moved"
    assert parts["environment"]["effect"] / parts["environment"]["level"] == pytest.approx(1e-7, rel=1e-6)
    for part in ("code", "interaction"):
        assert (parts[part]["kind"], parts[part]["effect"], parts[part]["largest"]) == ("equal", 0.0, 0.0)
    assert [cell["runs"] for cell in found["cells"]] == [1, 1, 1, 1], "each is equal to another one"
    assert lab.git("status", "--porcelain") == before


def test_both_moved_it_and_every_cell_is_repeated(lab: TwoSides) -> None:
    lab.move_code()
    lab.commit("second")
    found = lab.read(*MOVED, "--b-rev", "HEAD", "--repeats", "3")
    parts = effects(found)
    assert found["code"] == 0
    assert parts["code"]["effect"] == pytest.approx(0.01)
    assert [parts[part]["kind"] for part in parts] == ["moved"] * 3
    assert [cell["runs"] for cell in found["cells"]] == [3, 3, 3, 3]
    assert parts["environment"]["reach"] is None, "no cell differs from itself"


def test_what_is_no_larger_than_the_repeats_differ_is_not_called_moved(lab: TwoSides) -> None:
    ended = lab.run("blame", "--a-env", "env NOISE=0.05", "--b-env", "env NOISE=0.05 SCALE=1.001").ended(3)
    assert "the environment moved loss by no more than the repeats differ (" in ended.out
    assert "the code is the same on both sides" in ended.out
    assert "within noise" in ended.out
    found = lab.read("blame", "--a-env", "env NOISE=0.01", "--b-env", "env NOISE=0.01 SCALE=1.5")
    assert effects(found)["environment"]["kind"] == "moved"
    assert effects(found)["environment"]["reach"] > 0


@pytest.mark.parametrize(
    ("environment", "problem"),
    [("env LOSS=nan", "it logs nan at step 3"), ("A=1 no-such-program", "'no-such-program' was not found")],
)
def test_a_cell_that_does_not_run_is_an_error_and_the_rest_is_reported(
    lab: TwoSides, environment: str, problem: str
) -> None:
    lab.move_code()
    found = lab.read("blame", "--b-env", environment)
    assert found["code"] == 1
    assert [problem in cell["problem"] for cell in found["cells"]] == [False, True, False, True]
    logs = [Path(cell["problem"].split("log: ")[1]) for cell in found["cells"] if "log: " in cell["problem"]]
    assert all(log.is_file() for log in logs)
    assert len(logs) == (0 if "found" in problem else 2)
    parts = effects(found)
    assert parts["code"]["kind"] == "moved"
    assert parts["environment"]["kind"] == parts["interaction"]["kind"] == "unknown"


def test_a_cell_that_crashed_is_in_the_report_and_leaves_the_other_effect(lab: TwoSides) -> None:
    lab.move_code()
    ended = lab.run("blame", "--b-env", "env CRASH=1").ended(1)
    assert "ERROR code a in environment b: " in ended.out
    assert "no such device" in ended.out
    assert "the environment moved loss by an unknown amount, the code by +0.01" in ended.out
    good = lab.git("rev-parse", "HEAD")
    (lab.folder / "train.py").write_text("import no_such_module\n")
    found = lab.read(*MOVED, "--a-rev", lab.commit("broken"), "--b-rev", good)
    assert found["code"] == 1
    assert effects(found)["environment"]["kind"] == "moved"
    assert effects(found)["environment"]["where"] == "code b"


def test_bad_sides_are_refused_before_anything_runs(lab: TwoSides) -> None:
    for words, message in (
        ((), "both sides have the same environment"),
        (("--a-env", "env A=1", "--b-env", "env A=1"), "both sides have the same environment"),
        (("--b-env", "./no-such-venv"), "--b-env: there is neither a folder nor a program './no-such-venv'"),
        (("--b-env", "no-such-program"), "--b-env: there is neither a folder nor a program 'no-such-program'"),
        (("--b-env", "golden"), "--b-env: the folder golden has no bin/python"),
        ((*MOVED[1:], "--a-rev", "no-such-branch"), "there is no commit 'no-such-branch'"),
        ((*MOVED[1:], "--b-rev", "no-such-branch"), "there is no commit 'no-such-branch'"),
        ((*MOVED[1:], "--repeats", "1"), "--repeats"),
        ((*MOVED[1:], "-s", "my store"), "gather it first: assay golden gather golden.yml -s 'my store'\n"),
    ):
        ended = lab.run("blame", *words)
        assert (ended.code, message in ended.err) == (2, True), ended.err
    lab.manifest.write_text(lab.manifest.read_text().replace('"dirty": false', '"dirty": true'))
    lab.run(*MOVED).ended(2, "was made with changes that were not committed", "as in --a-rev HEAD")
    study = lab.folder / "golden.yml"
    study.write_text(study.read_text().replace("train.py", str(lab.folder / "train.py")))
    ended = lab.run(*MOVED, "--a-rev", "HEAD").ended(2)
    assert "train.py is a file of the repository: both sides would use it as it is" in ended.err
    assert not list((lab.folder / "runs").glob("golden-fit-blame/aa-*"))


def test_a_rebase_for_the_environment_alone(lab: TwoSides) -> None:
    words = ("rebase", "--environment-only", "--reason", "new kernels")
    accepted = lab.run(*words, SCALE="1.001")
    assert accepted.code == 0, accepted.out + accepted.err
    assert "moved" in accepted.out
    lab.move_code()
    before = lab.manifest.read_text()
    refused = lab.run(*words, SCALE="1.002").ended(1)
    assert "refused: the code moved loss by 0.01 since " in refused.out
    assert lab.manifest.read_text() == before
    lab.manifest.write_text(before.replace('"commit": "', '"comment": "'))
    lab.run(*words).ended(1).printed("does not state the commit")


def test_a_recording_that_was_staged_by_other_code_is_not_accepted(lab: TwoSides) -> None:
    lab.move_code()
    staged = lab.run("rebase", "--reason", "x", "--replicas", "1")
    assert "1 recording of each segment instead of 2" in staged.out
    lab.git("checkout", "-q", "train.py")
    accepted = lab.run("rebase", "--environment-only", "--reason", "x", SCALE="1.0001")
    assert accepted.code == 0, accepted.out + accepted.err
    assert "+0.01%" in accepted.out, "the environment's effect, not that of the code"


def test_noise_that_may_hide_what_the_code_moved_is_refused(lab: TwoSides) -> None:
    lab.move_code(1.000001)
    refused = lab.run("rebase", "--environment-only", "--reason", "x", NOISE="0.2").ended(1)
    assert "refused: the code may have moved loss: the noise hides up to " in refused.out


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
    lab.run("gather", "--environment", "../a100").ended(2).printed("'../a100' cannot name an environment")
    lab.run("check", "--environment", "b200").ended(2).printed("no environment named 'b200'")


def test_a_golden_without_an_environment_is_used_everywhere_and_keys_hold_what_is_known(lab: TwoSides) -> None:
    content = json.loads(lab.manifest.read_text())
    lab.manifest.write_text(json.dumps({"ckpt_logs": content["ckpt_logs"], "format": 3}))
    assert lab.run("check").code == 0
    lab.gather("--environment", "h100")
    state(lab.folder / "golden" / "fit_h100@convergence_harness_manifest.json", "NVIDIA H100", "2.5.1")
    assert "environment: default (unknown), of 2 goldens in the store" in lab.run("check").out
    key = build_key({"hardware": {"gpus": [{"name": "H100"}, {"name": "H100"}]}, "image": "a.sif"})
    assert describe_key(key) == "H100, image a.sif"
    assert build_key({"hardware": None, "packages": [], "image": None}) == {}
    assert find_other(key, {"GPU": "A100", "torch": "2"}) == ["GPU"]
    assert find_other(key, {}) == []

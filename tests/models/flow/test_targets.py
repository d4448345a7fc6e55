"""A mistake in a target's table is told with its file and line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.flow.targets import Vote, choose_voter, is_same_engine, load_checked_target
from assay.models.values.model import Target

TABLES = """# targets
[targets.npu]
run = "runner {artifact}"
compile = "cp {modl} {artifact}"
[targets.near]
like = "npu"
artifact = "model.bin"
[targets.mended]
like = "npu"
compile = "cp {model} {artifact}"
[targets.lost]
compile = "cp {model} {artifact}"
[targets.fast]
backend = "ort"
optimize = "most"
[targets.mine]
backend = "nowhere:Mine"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assay.toml").write_text(TABLES)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("npu", "4:11 targets.npu.compile", "{modl} is not known here\n    did you mean 'model'?"),
        ("near", "4:11 targets.npu.compile", "{modl} is not known here"),
        ("lost", "11:10 targets.lost", "there is no run"),
        ("fast", "15:12 targets.fast.optimize", "optimize = 'most' is not known"),
    ],
)
def test_the_place_is_told(folder: Path, name: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checked_target(name, str(folder))
    assert str(caught.value).startswith(f"{folder}/assay.toml:{place}: {said}")


def test_what_is_right_is_the_target(folder: Path) -> None:
    assert load_checked_target("mended", str(folder)).options["compile"] == "cp {model} {artifact}"
    assert load_checked_target("ort", str(folder)).backend == "ort"


def test_somebody_s_own_is_loaded_where_it_runs(folder: Path) -> None:
    assert load_checked_target("mine", str(folder)).backend == "nowhere:Mine"


def test_other_mistakes_stay_what_they_are(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="'npuu'"):
        load_checked_target("npuu", str(folder))
    with pytest.raises(UsageError, match="no variant"):
        load_checked_target("iree:metal", str(folder))


ORT, IREE = Target("ort", "ort"), Target("iree", "iree", {"device": "llvm-cpu"})
SIM = Target("sim", "command", {"run": ["run", "{model}"], "folder": "/a"})


@pytest.mark.parametrize(
    ("name", "reference", "target", "role"),
    [
        ("iree", ORT, IREE, "target"),
        ("iree:vmvx", ORT, IREE, "target"),
        ("ort:unoptimized", IREE, ORT, "target"),
        ("ort", ORT, IREE, "reference"),
    ],
)
def test_one_of_the_two_has_no_voice(name, reference, target, role, tmp_path):
    words = f"{name} computes as the {role} does, and would always agree with it"
    with pytest.raises(UsageError, match=f"--vote {words}"):
        choose_voter(name, None, reference, target, str(tmp_path))
    found = choose_voter(None, name, reference, target, str(tmp_path))
    assert found.voter is None
    assert words in found.note


def test_a_project_s_target_does_not_vote_for_itself(tmp_path):
    """Nor under another name; told something else it is another one."""
    table = 'run = "python t.py {model}"\n'
    (tmp_path / "assay.toml").write_text(
        f"[targets.wrong]\n{table}[targets.again]\n{table}[targets.other]\n{table}run_flags = '--exact'\n"
    )
    target = Target("wrong", "command", {"run": "python t.py {model}", "folder": str(tmp_path)})
    for name in ("wrong", "again"):
        with pytest.raises(UsageError, match="computes as the target does"):
            choose_voter(name, None, ORT, target, str(tmp_path))
    assert choose_voter("other", None, ORT, target, str(tmp_path)).voter.name == "other"


def test_a_voter_that_is_not_known(tmp_path):
    with pytest.raises(NotFoundError, match="iree"):
        choose_voter("ire", None, ORT, IREE, str(tmp_path))


def test_a_third_one_votes_and_the_flag_goes_first(tmp_path):
    chosen = choose_voter("openvino", "iree", ORT, IREE, str(tmp_path))
    assert chosen == Vote(Target("openvino", "openvino"))
    assert choose_voter("none", "openvino", ORT, IREE, str(tmp_path)) == Vote()


@pytest.mark.parametrize(
    ("reference", "target", "voter"),
    [
        ("ort", "iree", "reference"),
        ("reference", "iree", "ort"),
        ("ort", "reference", None),
        ("ort", "ort", "reference"),
    ],
)
def test_unless_said_it_is_neither_of_the_two(reference, target, voter, tmp_path):
    chosen = choose_voter(None, None, Target(reference, reference), Target(target, target), str(tmp_path)).voter
    assert (chosen.name if chosen else None) == voter


def test_a_board_is_no_other_engine():
    board = Target("board", "ssh", {**SIM.options, "address": "root@b"})
    assert is_same_engine(SIM, board)
    assert not is_same_engine(SIM, replace(SIM, options={"run": ["other"]}))
    assert not is_same_engine(SIM, ORT)

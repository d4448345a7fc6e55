"""Targets by name and in tables, those of a project, and which one votes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.config.targets import choose_chips, load_chip
from assay.models.flow.discovery import load_project
from assay.models.flow.targets import (
    Extras,
    Vote,
    build_hardware_target,
    build_reference,
    build_target,
    choose_target_names,
    choose_voter,
    explain_hardware,
    is_same_engine,
    load_checked_target,
    load_reference,
)
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
def test_the_place_is_reported(folder: Path, name: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checked_target(name, str(folder))
    assert str(caught.value).startswith(f"{folder}/assay.toml:{place}: {said}")


def test_what_is_right_is_the_target_and_a_user_s_own_is_loaded_where_it_runs(folder: Path) -> None:
    assert load_checked_target("mended", str(folder)).options["compile"] == "cp {model} {artifact}"
    assert load_checked_target("ort", str(folder)).backend == "ort"
    assert load_checked_target("mine", str(folder)).backend == "nowhere:Mine"
    with pytest.raises(NotFoundError, match="'npuu'"):
        load_checked_target("npuu", str(folder))


def test_onnxruntime_does_not_optimise_as_a_reference_unless_its_table_sets_it(tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text('[targets.quick]\nlike = "ort"\noptimize = "all"\n')
    assert load_reference("ort", str(tmp_path)).options["optimize"] == "none"
    assert load_reference("quick", str(tmp_path)).options["optimize"] == "all"
    assert load_checked_target("ort", str(tmp_path)).options.get("optimize", "all") == "all"
    assert load_reference("reference", str(tmp_path)) == load_checked_target("reference", str(tmp_path))


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
    """Nor under another name; with other flags it is another one."""
    table = 'run = "python t.py {model}"\n'
    (tmp_path / "assay.toml").write_text(
        f"[targets.wrong]\n{table}[targets.again]\n{table}[targets.other]\n{table}run_flags = '--exact'\n"
    )
    target = Target("wrong", "command", {"run": "python t.py {model}", "folder": str(tmp_path)})
    for name in ("wrong", "again"):
        with pytest.raises(UsageError, match="computes as the target does"):
            choose_voter(name, None, ORT, target, str(tmp_path))
    assert choose_voter("other", None, ORT, target, str(tmp_path)).voter.name == "other"


def test_a_third_one_votes_and_the_flag_goes_first(tmp_path):
    chosen = choose_voter("openvino", "iree", ORT, IREE, str(tmp_path))
    assert chosen == Vote(Target("openvino", "openvino"))
    assert choose_voter("none", "openvino", ORT, IREE, str(tmp_path)) == Vote()
    with pytest.raises(NotFoundError, match="iree"):
        choose_voter("ire", None, ORT, IREE, str(tmp_path))


@pytest.mark.parametrize(
    ("reference", "target", "voter"),
    [
        ("ort", "iree", "reference"),
        ("reference", "iree", "ort"),
        ("ort", "reference", None),
        ("ort", "ort", "reference"),
    ],
)
def test_by_default_it_is_neither_of_the_two(reference, target, voter, tmp_path):
    chosen = choose_voter(None, None, Target(reference, reference), Target(target, target), str(tmp_path)).voter
    assert (chosen.name if chosen else None) == voter


def test_a_board_is_no_other_engine():
    board = Target("board", "ssh", {**SIM.options, "address": "root@b"})
    assert is_same_engine(SIM, board)
    assert not is_same_engine(SIM, replace(SIM, options={"run": ["other"]}))
    assert not is_same_engine(SIM, ORT)


SIM_TABLE = (
    '[tool.assay.targets.sim]\nrun = "tool {artifact} [--hw {hardware}] [--chip {chip}]"\ncompile_flags = ["-a"]\n'
)


@pytest.fixture
def sim_folder(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(SIM_TABLE)
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_targets_come_from_flags_then_the_list_then_what_is_described(sim_folder):
    project = load_project(str(sim_folder))
    assert choose_target_names(project, ["ort", "iree"]) == ("ort", "iree")
    assert choose_target_names(project, []) == ("sim",)
    (sim_folder / "pyproject.toml").write_text(SIM_TABLE + '[tool.assay.models]\ntargets = ["reference"]\n')
    assert load_project(str(sim_folder)).settings.targets == ("reference",)
    with pytest.raises(NotFoundError, match="'simm'"):
        choose_target_names(project, ["simm"])
    (sim_folder / "pyproject.toml").unlink()
    with pytest.raises(UsageError, match="no target to test the models on"):
        choose_target_names(load_project(str(sim_folder)), [])


def test_the_hardwares_name_is_a_target_of_the_project_or_torqs_tools(sim_folder):
    project = load_project(str(sim_folder))
    own = build_hardware_target(project, "sim", Extras(compile_flags=("-b",), run_flags=("-r",)))
    assert (own.name, own.backend, own.options["hardware"]) == ("sim", "command", "sim")
    assert (own.compile_flags, own.run_flags) == (("-a", "-b"), ("-r",))
    torq = build_hardware_target(project, "aws_fpga", Extras())
    assert (torq.name, torq.options["hardware"], torq.options["compile"][0]) == ("aws_fpga", "aws_fpga", "torq-compile")


def test_a_chip_gives_the_compiler_its_name_and_flags(sim_folder):
    chips = sim_folder / "tests" / "testdata" / "chips"
    chips.mkdir(parents=True)
    (chips / "x.json").write_text('{"target": "X1", "compile_flags": ["-x"], "run_flags": ["-y"]}')
    project = load_project(str(sim_folder))
    assert choose_chips("x", project.chip_folder) == ("x",)
    target = build_target(project, "sim", Extras(load_chip("x", project.chip_folder), compile_flags=("-z",)))
    assert target.options["chip"] == "X1"
    assert (target.compile_flags, target.run_flags) == (("-a", "-x", "-z"), ("-y",))
    with pytest.raises(UsageError, match="the target ort does not use chips"):
        build_target(project, "ort", Extras({"target": "X1"}))
    assert "chip" not in build_target(project, "ort", Extras()).options


def test_a_target_whose_commands_name_no_chip_is_not_tested_for_several(sim_folder):
    (sim_folder / "pyproject.toml").write_text('[tool.assay.targets.sim]\nrun = "tool {artifact}"\n')
    project = load_project(str(sim_folder))
    with pytest.raises(UsageError, match="the target sim does not use chips"):
        build_target(project, "sim", Extras({"target": "X1"}))
    assert build_target(project, "sim", Extras({"target": "X1", "run_flags": ["-x"]})).run_flags == ("-x",)


def test_a_board_makes_it_an_ssh_target(sim_folder):
    project = load_project(str(sim_folder))
    target = build_target(project, "sim", Extras(address="root@board", port=22))
    assert (target.name, target.backend) == ("sim", "ssh")
    assert (target.options["address"], target.options["port"], "key" in target.options) == ("root@board", 22, False)
    assert build_target(project, "sim", Extras(address="root@board", key="k")).options["key"] == "k"
    with pytest.raises(UsageError, match="runs in this machine"):
        build_target(project, "ort", Extras(address="root@board"))


def test_flags_of_a_reference_are_for_one_that_compiles(sim_folder):
    project = load_project(str(sim_folder))
    assert build_reference(project, "iree", ("-c",), ("-r",)).compile_flags == ("-c",)
    assert build_reference(project, None, ("-c",), ("-r",)).name == "ort"
    assert build_reference(project, None, ("-c",), ("-r",)).compile_flags == ()


def test_hardware_that_is_no_target_is_explained(sim_folder):
    project = load_project(str(sim_folder))
    assert explain_hardware(project, "sim") == ""
    told = "no target 'sym' in the settings, so Torq's own tools are called; did you mean 'sim'?"
    assert explain_hardware(project, "sym") == told

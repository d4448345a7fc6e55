"""What a project says about its models, and the targets that come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import NotFoundError, UsageError
from assay.models.flow.project import (
    Extras,
    build_hardware_target,
    build_reference,
    build_target,
    choose_chip_names,
    choose_project_voter,
    choose_target_names,
    explain_hardware,
    load_project,
    load_project_chip,
)

SIM = '[tool.assay.targets.sim]\nrun = "tool {artifact} [--hw {hardware}] [--chip {chip}]"\ncompile_flags = ["-a"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(SIM)
    (tmp_path / "tests").mkdir()
    return tmp_path


def test_folders_are_those_of_the_settings_wherever_one_stands(folder):
    project = load_project(str(folder / "tests"))
    assert project.folder == str(folder)
    assert project.folders == (str(folder / "tests/testdata/onnx_models"),)
    assert project.chip_folder == str(folder / "tests/testdata/chips")


def test_without_settings_the_folder_itself_counts(tmp_path):
    project = load_project(str(tmp_path))
    assert project.folder == str(tmp_path)
    assert project.targets == ()


def test_targets_come_from_flags_then_the_list_then_what_is_described(folder):
    project = load_project(str(folder))
    assert choose_target_names(project, ["ort", "iree"]) == ("ort", "iree")
    assert choose_target_names(project, []) == ("sim",)
    (folder / "pyproject.toml").write_text(SIM + '[tool.assay.models]\ntargets = ["reference"]\n')
    assert choose_target_names(load_project(str(folder)), []) == ("reference",)
    with pytest.raises(NotFoundError, match="'simm'"):
        choose_target_names(project, ["simm"])


def test_no_target_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no target to test the models on"):
        choose_target_names(load_project(str(tmp_path)), [])


def test_the_hardwares_name_is_a_target_of_the_project_or_torqs_tools(folder):
    project = load_project(str(folder))
    own = build_hardware_target(project, "sim", Extras(compile_flags=("-b",), run_flags=("-r",)))
    assert (own.name, own.backend, own.options["hardware"]) == ("sim", "command", "sim")
    assert (own.compile_flags, own.run_flags) == (("-a", "-b"), ("-r",))
    torq = build_hardware_target(project, "aws_fpga", Extras())
    assert (torq.name, torq.options["hardware"], torq.options["compile"][0]) == ("aws_fpga", "aws_fpga", "torq-compile")


def test_a_chip_tells_the_compiler_its_name_and_brings_flags(folder):
    chips = folder / "tests" / "testdata" / "chips"
    chips.mkdir(parents=True)
    (chips / "x.json").write_text('{"target": "X1", "compile_flags": ["-x"], "run_flags": ["-y"]}')
    project = load_project(str(folder))
    assert choose_chip_names(project, "x") == ("x",)
    target = build_target(project, "sim", Extras(load_project_chip(project, "x"), compile_flags=("-z",)))
    assert target.options["chip"] == "X1"
    assert (target.compile_flags, target.run_flags) == (("-a", "-x", "-z"), ("-y",))
    with pytest.raises(UsageError, match="the target ort does not use chips"):
        build_target(project, "ort", Extras({"target": "X1"}))
    assert "chip" not in build_target(project, "ort", Extras()).options


def test_a_target_whose_commands_name_no_chip_is_not_tested_for_several(folder):
    (folder / "pyproject.toml").write_text('[tool.assay.targets.sim]\nrun = "tool {artifact}"\n')
    project = load_project(str(folder))
    with pytest.raises(UsageError, match="the target sim does not use chips"):
        build_target(project, "sim", Extras({"target": "X1"}))
    assert build_target(project, "sim", Extras({"target": "X1", "run_flags": ["-x"]})).run_flags == ("-x",)


def test_a_board_makes_it_an_ssh_target(folder):
    project = load_project(str(folder))
    target = build_target(project, "sim", Extras(address="root@board", port=22, key="k"))
    assert target.backend == "ssh"
    assert (target.options["address"], target.options["port"], target.options["key"]) == ("root@board", 22, "k")
    with pytest.raises(UsageError, match="runs in this machine"):
        build_target(project, "ort", Extras(address="root@board"))


def test_flags_of_a_reference_are_for_one_that_compiles(folder):
    project = load_project(str(folder))
    assert build_reference(project, "iree", ("-c",), ("-r",)).compile_flags == ("-c",)
    assert build_reference(project, None, ("-c",), ("-r",)).name == "ort"
    assert build_reference(project, None, ("-c",), ("-r",)).compile_flags == ()


def test_the_voter_is_neither_of_the_two(folder):
    project = load_project(str(folder))
    ort, sim = build_reference(project, "ort", (), ()), build_target(project, "sim", Extras())
    voter = choose_project_voter(project, ort, sim).voter
    assert voter is not None
    assert voter.name == "reference"
    (folder / "pyproject.toml").write_text(SIM + '[tool.assay.models]\nvote = "none"\n')
    assert choose_project_voter(load_project(str(folder)), ort, sim).voter is None


def test_hardware_that_is_no_target_is_explained(folder):
    project = load_project(str(folder))
    assert explain_hardware(project, "sim") == ""
    told = "no target 'sym' in the settings, so Torq's own tools are called; did you mean 'sim'?"
    assert explain_hardware(project, "sym") == told

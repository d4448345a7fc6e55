"""The guide of Torq's model tests, command by command, on the example project; its board and compiler are stand-ins."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import onnx
import pytest
from tests.models.backends.loopback import NEEDS_SSHD, open_board
from tests.models.pytest_support.nested_project import TORQ, Project, build_project
from tests.models.pytest_support.test_case import paste

pytestmark = pytest.mark.services("kills")  # each command is a session of pytest with ONNX Runtime
EXAMPLE = Path(__file__).parents[2] / "examples" / "models"
NAME = "test_onnx_model_llvmcpu_torq"


class GuideProject(Project):
    """Commands as the guide prints them."""

    def type(self, command, **variables):
        words = shlex.split(command)
        assert words[0] == "pytest"
        return self.pytest(*words[1:], env=variables)


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The example as it is in the repository; its models are made by the first pytest that runs."""
    folder = tmp_path_factory.mktemp("example") / "models"
    leave = shutil.ignore_patterns("*.onnx", "__pycache__", ".pytest_cache", "ir_dump", "profile")
    shutil.copytree(EXAMPLE, folder, ignore=leave)
    return GuideProject(folder)


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    with open_board(tmp_path_factory.mktemp("board")) as made:
        yield made


@NEEDS_SSHD
def test_a_board(guide, board):
    """The hardware's name is a target of the project; the address comes from the command line."""
    path = guide.folder / "pyproject.toml"
    before = path.read_text()
    tool = guide.folder / "sim" / "sim-run"
    tool.write_text(tool.read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable}"))
    options = "".join(f"{name} = {board.options[name]!r}\n" for name in ("ssh_options", "lock", "remote_root"))
    path.write_text(f'{before}\n[tool.assay.targets.astra_machina]\nlike = "sim"\ndeploy = ["sim/sim-run"]\n{options}')
    address, port, key = (board.options[name] for name in ("address", "port", "key"))
    run = guide.type(
        "pytest tests/test_onnx_model.py -v -k example-matmul_layer --torq-runtime-hw-type=astra_machina "
        f"--torq-addr {address} --torq-port {port} --torq-private-key '{key}'"
    )
    name = f"{NAME}[example-matmul_layer_MatMul_0-astra_machina-default]"
    assert run.verdicts == {name: "PASSED"}, run.out
    run = guide.type(
        "pytest tests/test_onnx_model.py -v -k example-matmul_layer --torq-runtime-hw-type=astra_machina "
        f"--torq-addr {address} --torq-port 1 --torq-private-key '{key}'"
    )
    assert run.verdicts == {name: "ERROR"}
    assert "torq_" in run.section(name)
    path.write_text(before)


@pytest.mark.services("backends")
def test_two_processes_come_to_the_same_verdicts_as_one(guide, tmp_path):
    """Each with an empty cache of its own, so that all is really done; good ones and bad ones."""
    choice = "-v -k 'example-matmul or quantised_layer_M' --hardware-type sim,sim-faulty"
    one = guide.type(f"pytest {choice}", ASSAY_CACHE=str(tmp_path / "one"))
    two = guide.type(f"pytest {choice} -n 2", ASSAY_CACHE=str(tmp_path / "two"))
    assert one.verdicts == two.verdicts
    assert len(one.verdicts) >= 8
    assert set(one.verdicts.values()) == {"PASSED", "FAILED"}
    assert one.code == two.code == 1


@pytest.mark.long
def test_every_model_of_the_example_passes_on_the_simulator(guide):
    run = guide.type("pytest -n 2")
    assert run.code == 0, run.out
    assert re.search(r"\b(8|9)\d passed", run.out)


@pytest.mark.services("backends")
def test_an_old_opset_is_named_and_the_command_that_converts_it_works(tmp_path):
    project = build_project(tmp_path / "old models", tests=TORQ)
    path = project.model("net", "g (float[4] x) => (float[1,4] y) { y = Unsqueeze <axes = [0]> (x) }", opset=11)
    run = project.pytest("-v", "-k", "full")
    name = f"{NAME}[net_full_model-sim-default]"
    assert run.verdicts == {name: "ERROR"}, run.out
    text = run.section(name)
    assert text.startswith(("onnx_mlir_model_file: ", "llvmcpu_compiled_model: "))
    assert "opset 11" in text
    (command,) = re.findall(r"(assay model convert .*)", text)
    assert shlex.split(command)[3] == str(path)
    done = paste(command, project.folder)
    assert done.returncode == 0, done.stderr
    converted = next(
        each
        for each in path.parent.parent.parent.parent.rglob("*.onnx")
        if onnx.load(each).opset_import[0].version == 17
    )
    os.replace(converted, path)
    assert project.pytest("-v", "-k", "full").verdicts == {name: "PASSED"}


@pytest.mark.services("backends")
def test_a_layer_that_iree_cannot_compile_leaves_the_others_alone(tmp_path):
    """The reference of one layer fails; the others are tested all the same, with the values that they see."""
    project = build_project(tmp_path / "project", tests=TORQ)
    project.model("net", "g (float[4] x) => (float[1,4] y) { t = Relu(x) y = Unsqueeze <axes = [0]> (t) }", opset=11)
    run = project.pytest("-v")
    assert run.verdicts == {
        f"{NAME}[net_layer_Relu_0-sim-default]": "PASSED", f"{NAME}[net_layer_Unsqueeze_1-sim-default]": "ERROR",
        f"{NAME}[net_full_model-sim-default]": "ERROR",
    }  # fmt: skip

"""What tests of models say: ERROR with the step, FAIL with the numbers; and when artifacts are made anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.example_models import parse
from tests.models.pytest_support.lab import MATMUL, MATMUL_NEG, RELU, RELU_NEG, TWO_OUTPUTS, Said

from assay.errors import UsageError
from assay.models.flow.cases import StepFailedError
from assay.models.pytest_support.case import render_error, render_failed_step
from assay.models.values.model import Ending, Step, StepOutcome

FULL = "test_onnx_model[net_full_model-sim-default]"


def short(said: Said) -> dict[str, str]:
    return {name.split("[")[1].removesuffix("-default]"): verdict for name, verdict in said.verdicts.items()}


def paste(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user does, in a shell, where `assay` is installed."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------- verdicts


def test_everything_passes(project):
    project.model("net", RELU_NEG)
    said = project.pytest("-v")
    assert short(said) == dict.fromkeys(["net_layer_Relu_0-sim", "net_layer_Neg_1-sim", "net_full_model-sim"], "PASSED")
    assert "tests/test_onnx_model.py::test_onnx_model[net_full_model-sim-default] PASSED" in said.out


def test_a_step_that_fails_is_an_error_with_its_command_and_all_that_was_said(project):
    project.model("net", RELU_NEG)
    said = project.pytest("-v", "--extra-torq-compiler-options", "--lacks Neg")
    assert short(said) == {
        "net_layer_Relu_0-sim": "PASSED",
        "net_layer_Neg_1-sim": "ERROR",
        "net_full_model-sim": "ERROR",
    }
    text = said.section("test_onnx_model[net_layer_Neg_1-sim-default]")
    head, command, *rest = text.splitlines()
    assert head.startswith("assay_compiled_model: sim cannot compute net_layer_Neg_1: compile error: sim-compile ")
    assert rest == ["stdout:", "compiling net_layer_Neg_1.onnx", "stderr:", "no Neg on this chip"]
    assert "Traceback" not in said.out
    done = paste(command.removeprefix("command: "), project.folder)
    assert (done.returncode, done.stderr) == (3, "no Neg on this chip\n"), command


@pytest.mark.services("backends")
def test_crashes_hangs_and_missing_tools_are_errors_of_their_step(project):
    project.model("net", RELU)
    said = project.pytest("-v", "-k", "full", "--extra-compiler-options=--crash")
    assert short(said) == {"net_full_model-sim": "ERROR"}
    assert "SIGSEGV" in said.section(FULL)
    said = project.pytest("-v", "-k", "full", "--extra-runtime-options=--hang", "--torq-runtime-timeout", "1")
    assert short(said) == {"net_full_model-sim": "ERROR"}
    text = said.section(FULL)
    assert "assay_target_results: sim cannot compute net_full_model: run timeout: still running after 1 s" in text
    words = shlex.split(re.search(r"^command: (.*)$", text, re.MULTILINE)[1])
    assert words[0] == str(project.folder / "tools" / "sim-run"), "the command line of a hang, for a debugger"
    assert words[-1] == "--hang"
    assert os.path.isfile(words[1]), "and its files are still there"
    assert os.path.isfile(words[2].removeprefix("--input="))
    assert os.path.isdir(os.path.dirname(words[3].removeprefix("--output=")))
    (project.folder / "tools" / "sim-compile").unlink()
    said = project.pytest("-v", "-k", "full")
    assert short(said) == {"net_full_model-sim": "ERROR"}
    assert "sim-compile is not a program" in said.section(FULL)


def test_what_differs_fails_with_the_numbers_and_a_command_that_works(project):
    project.model("net", TWO_OUTPUTS)
    said = project.pytest("-v", "--assay-target", "wrong")
    assert short(said) == dict.fromkeys(
        ["net_layer_Relu_0-wrong", "net_layer_Abs_1-wrong", "net_full_model-wrong"], "FAILED"
    )
    text = said.section("test_onnx_model[net_full_model-wrong-default]")
    assert text.startswith("net_full_model-wrong-default: wrong differs from ort: y: ")
    assert "max abs error" in text
    assert "Worst elements" in text
    commands = re.findall(r"show it: (assay model diff .*)", text)
    assert len(commands) == 2, "one for each output"
    for command in commands:
        expected, actual = shlex.split(command)[3:]
        assert np.allclose(np.load(expected) * 1.5, np.load(actual))
        assert np.load(expected).any()
        done = paste(command, project.folder)
        assert done.returncode == 1, done.stderr
        assert "FAIL" in done.stdout
    assert len({path for command in commands for path in shlex.split(command)[3:]}) == 4, "no file is overwritten"
    assert "Traceback" not in said.out
    assert "pytest_plugin" not in said.out


@pytest.mark.services("backends")
def test_an_output_that_proves_nothing_is_no_pass(project):
    """Zeros on both sides; and the setting that allows them does not allow anything else."""
    body = "g (float[4] x) => (float[4] y) { z = Sub(x, x) y = Mul(z, x) }"
    project.model("net", body)
    said = project.pytest("-v", "-k", "full")
    assert short(said) == {"net_full_model-sim": "FAILED"}
    text = said.section(FULL)
    assert "sim cannot be distinguished from ort: y: both are all zero" in text
    assert "tolerance = {allow_constant = true} in the model's settings lets it pass" in text
    assert "--tolerance" not in text, "that is no option here"
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text() + "\n[tool.assay.models.tolerance]\nallow_constant = true\n")
    assert short(project.pytest("-v", "-k", "full")) == {"net_full_model-sim": "PASSED"}


def test_broken_files_and_missing_weights_are_errors_and_others_go_on(project):
    project.model("net", RELU)
    project.write("tests/testdata/onnx_models/broken.onnx", "no model")
    weights = {"w": np.ones(4, np.float32)}
    heavy = parse("g (float[4] x) => (float[4] y) { y = Add(x, w) }", weights=weights)
    onnx.external_data_helper.convert_model_to_external_data(heavy, location="heavy.bin", size_threshold=0)
    folder = project.folder / "tests" / "testdata" / "onnx_models"
    onnx.save(heavy, folder / "heavy.onnx")
    (folder / "heavy.bin").unlink()
    said = project.pytest("-v", "-k", "full")
    assert short(said) == {
        "broken_full_model-sim": "ERROR",
        "heavy_full_model-sim": "ERROR",
        "net_full_model-sim": "PASSED",
    }
    assert "broken.onnx is not an ONNX model" in said.section("test_onnx_model[broken_full_model-sim-default]")
    assert "heavy.bin is missing" in said.section("test_onnx_model[heavy_full_model-sim-default]")


@pytest.mark.services("backends")
def test_a_reference_that_disagrees_with_the_voter_is_said_instead_of_failing(project):
    """The target is as far off as a second reference is, which is right with ordinary numbers: nobody knows."""
    path = project.folder / "pyproject.toml"
    settings = 'targets = ["wrong"]\nvote = "voter"\nmodels.net.ranges = {x = [20, 40]}'
    path.write_text(path.read_text().replace('targets = ["sim"]', settings) + VOTER)
    project.model("net", RELU)
    said = project.pytest("-v", "-rs", "-k", "full")
    assert short(said) == {"net_full_model-wrong": "SKIPPED"}
    assert "the references disagree" in said.out
    path.write_text(path.read_text().replace('vote = "voter"', 'vote = "none"'))
    assert short(project.pytest("-v", "-k", "full")) == {"net_full_model-wrong": "FAILED"}


def test_a_target_does_not_vote_for_itself(project):
    """It would always agree with itself, and every failure were a skip."""
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text().replace('targets = ["sim"]', 'targets = ["wrong"]\nvote = "wrong"'))
    project.model("net", RELU)
    said = project.pytest("-v", "-k", "full")
    assert short(said) == {"net_full_model-wrong": "FAILED"}
    assert "no second reference votes: vote = 'wrong' of the settings" in said.section(
        "test_onnx_model[net_full_model-wrong-default]"
    )


VOTER = """
[tool.assay.targets.voter]
like = "sim"
run_flags = ["--by", "1.4", "--above", "10"]
"""


@pytest.mark.services("backends")
def test_several_samples_are_all_compared(project):
    """A target that is wrong in the second sample only."""
    project.model("net", RELU)
    run = project.folder / "tools" / "sim-run"
    text = run.read_text().replace(
        "session.run(None, feeds)", "[a if feeds['x'][0] > 0 else a + 1 for a in session.run(None, feeds)]"
    )
    run.write_text(text)
    said = project.pytest("-v", "-k", "full", "--samples", "8")
    assert short(said) == {"net_full_model-sim": "FAILED"}
    assert project.calls.count("run") == 8
    expected, actual = shlex.split(re.search(r"show it: (assay model diff .*)", said.out)[1])[3:]
    assert np.allclose(np.load(expected) + 1, np.load(actual)), "the sample that is wrong is the one to look at"


# ---------------------------------------------------------------- artifacts


@pytest.mark.services("backends")
def test_an_edited_model_is_never_served_from_the_cache(project):
    """MatMul → MatMul + Neg under the same name: the layer's case keeps its name, and the whole is another model."""
    project.model("net", MATMUL)
    assert project.pytest("-v").code == 0
    assert len(project.calls) == 4
    assert project.pytest("-v").code == 0
    assert project.calls == [], "nothing has changed: all from the cache"
    project.model("net", MATMUL_NEG)
    said = project.pytest("-v", "--assay-target", "sim")
    assert short(said) == dict.fromkeys(
        ["net_layer_MatMul_0-sim", "net_layer_Neg_1-sim", "net_full_model-sim"], "PASSED"
    )
    compiled = [call.split()[1] for call in project.calls if call.startswith("compile")]
    assert compiled == ["net_layer_MatMul_0.onnx", "net_layer_Neg_1.onnx", "net.onnx"]


@pytest.mark.services("backends")
def test_a_changed_tool_or_flag_is_never_served_from_the_cache(project):
    project.model("net", RELU)
    assert project.pytest("-k", "full").code == 0
    assert len(project.calls) == 2
    assert project.pytest("-k", "full", "--extra-runtime-options=--by 1.5").code == 1
    assert project.calls == ["run"]
    run = project.folder / "tools" / "sim-run"
    run.write_text(run.read_text().replace("array * given.by", "array * 2"))
    assert project.pytest("-k", "full").code == 1
    assert "run" in project.calls


def test_the_cache_tells_why_and_can_be_passed_over(project):
    project.model("net", RELU)
    first = project.pytest("-k", "full", "--debug-cache")
    assert re.search(r"=+ artifact cache =+", first.out)
    assert re.search(r"net_full_model sim compile: .*(miss|new|no entry|never)", first.out, re.IGNORECASE), first.out
    assert len(project.calls) == 2
    second = project.pytest("-k", "full", "--debug-cache")
    assert re.search(r"net_full_model sim run: .*hit", second.out, re.IGNORECASE), second.out
    assert project.calls == []
    assert "artifact cache" not in project.pytest("-k", "full").out
    assert project.pytest("-k", "full", "--recompute-cache").code == 0
    assert len(project.calls) == 2


def test_dumps_pass_over_the_cache_and_lie_in_a_folder_for_each_case(project):
    project.model("net", RELU)
    assert project.pytest().code == 0
    assert len(project.calls) == 4
    said = project.pytest(
        "--debug-ir", "ir dump", "--torq-compile-time-profiling-output-dir=profile", "--run-profile=profile"
    )
    assert said.code == 0
    assert len(project.calls) == 4, "dumps are written by doing the work"
    for case in ("net_layer_Relu_0", "net_full_model"):
        label = f"{case}-sim-default"
        assert (project.folder / "ir dump" / label / "0.txt").read_text() == "intermediate"
        made = {path.name for path in (project.folder / "profile" / label).iterdir()}
        assert {f"{case}_{kind}.{end}" for kind in ("compile", "runtime") for end in ("csv", "pb")} <= made
        assert (project.folder / "profile" / label / f"{case}_compile.csv").read_text().startswith("ID,Start,End")
    assert f"IR: {project.folder / 'ir dump'}" in said.out
    assert f"run profiles: {project.folder / 'profile'}" in said.out


@pytest.mark.services("backends")
def test_dumps_of_several_chips_do_not_meet_and_without_a_folder_lie_in_the_cache(project):
    project.model("net", RELU)
    for chip in ("a", "b"):
        project.write(f"tests/testdata/chips/{chip}.json", f'{{"target": "{chip.upper()}"}}')
    said = project.pytest("-k", "full", "--torq-chips", "a,b", "tests", "--debug-ir")
    assert said.code == 0, said.out
    folder = Path(re.search(r"^IR: (.*)$", said.out, re.MULTILINE)[1])
    assert {path.name for path in folder.iterdir()} == {"net_full_model-sim-a", "net_full_model-sim-b"}
    assert [call for call in project.calls if "compile" in call] == [f"compile net.onnx chip={c} hw=None" for c in "AB"]


@pytest.mark.services("backends")
def test_other_processes_dump_and_tell_as_well(project):
    project.model("net", RELU)
    said = project.pytest("-n", "2", "--debug-ir", "--debug-cache", "tests", "--debug-ir")
    assert said.code == 0, said.out
    folder = Path(re.search(r"^IR: (.*)$", said.out, re.MULTILINE)[1])
    assert len(list(folder.iterdir())) == 2
    assert re.search(r"net_full_model sim compile: ", said.out)


@pytest.mark.services("backends")
def test_with_s_the_tools_are_heard_live(project):
    project.model("net", RELU)
    first = project.pytest("-s", "-k", "full").out
    assert "compiling net.onnx" in first
    assert "from the cache" not in first
    again = project.pytest("-s", "-k", "full").out
    assert "compiling net.onnx" not in again
    for step in ("compile", "run"):
        assert f"net_full_model-sim-default {step}: from the cache; --recompute-cache runs the tools" in again
    assert "from the cache" not in project.pytest("-k", "full").out, "nobody wants to hear the tools"
    assert "compiling net.onnx" not in project.pytest("-k", "full", "--recompute-cache").out


def test_a_folder_of_dumps_is_named_only_where_something_is_in_it(project):
    """A compiler that dumps nothing: its folder is made, and stays empty."""
    project.model("net", RELU)
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text().replace(" [--ir {ir_dir}]", ""))
    said = project.pytest("-k", "full", "--debug-ir", "ir dump")
    assert said.code == 0
    assert (project.folder / "ir dump").is_dir()
    assert "IR: " not in said.out


# ---------------------------------------------------------------- the short summary


def test_the_short_summary_has_the_reason(project):
    project.model("net", RELU_NEG)
    project.model("bad", RELU)
    arguments = ("-k", "full", "--extra-torq-compiler-options", "--lacks Neg", "--extra-runtime-options=--by 1.5")
    for more in ((), ("-n", "2")):
        said = project.pytest(*arguments, *more)
        path = "tests/test_onnx_model.py::test_onnx_model"
        assert f"ERROR {path}[net_full_model-sim-default] - compile error: sim-compile ended with" in said.out, said.out
        assert f"FAILED {path}[bad_full_model-sim-default] - sim differs from ort: y: " in said.out
        assert "models that did not pass" not in said.out


def test_where_a_name_fills_the_line_the_reason_has_its_own(project):
    project.model("net", RELU)
    said = project.pytest("-k", "full", "--extra-compiler-options=--crash", env={"COLUMNS": "80"})
    assert re.search(r"=+ models that did not pass =+\nERROR net_full_model-sim-default: compile crash: ", said.out)


def test_arguments_in_a_tools_own_variable_are_never_served_from_the_cache(project):
    """A changed flag is another tool."""
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text().replace('run = "tools/sim-run ', 'run = "vendor-run '))
    project.model("net", RELU)
    tool = project.folder / "tools" / "sim-run"
    seen = []
    for by in ("1", "2", "1"):
        env = {"VENDOR_RUN": f"{shlex.quote(str(tool))} --by {by}"}
        seen.append(short(project.pytest("-v", "-k", "full", env=env))["net_full_model-sim"])
    assert seen == ["PASSED", "FAILED", "PASSED"]


# ---------------------------------------------------------------- texts


def failed(**more: str) -> StepOutcome:
    return StepOutcome(Step.COMPILE, Ending.ERROR, "tool said no", **more)


def test_everything_that_the_tool_said_is_there():
    outcome = failed(
        command="tool x", stdout="working\n", stderr="\nno\n", hint="try: assay model convert MODEL --opset 17"
    )
    text = render_failed_step("torq_results", StepFailedError("sim", outcome), "/my models/a.onnx")
    assert text.splitlines() == [
        "torq_results: sim: compile error: tool said no",
        "command: tool x",
        "stdout:",
        "working",
        "stderr:",
        "no",
        "what to do: try: assay model convert '/my models/a.onnx' --opset 17",
    ]


def test_silence_is_said_too():
    outcome = failed()
    lines = render_failed_step("f", StepFailedError("sim", outcome), "m").splitlines()
    assert lines[1:] == ["stdout:", "(nothing)", "stderr:", "(nothing)"]


def test_a_flood_is_cut_in_the_middle():
    outcome = failed(stderr="\n".join(f"line {number}" for number in range(1000)))
    text = render_failed_step("f", StepFailedError("sim", outcome), "m")
    assert "line 99\n… 800 lines left out …\nline 900" in text
    assert text.endswith("line 999")


def test_an_error_without_a_step():
    assert render_error("f", UsageError("bad", "do MODEL better"), "x.onnx") == "f: bad\n  do x.onnx better"
    assert render_error("f", UsageError("bad"), "x") == "f: bad"

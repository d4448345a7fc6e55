"""The output of tests of models: ERROR with the step, FAIL with the numbers; and when artifacts are made again.

Most tests here read the output of one session (`session`), in which every verdict occurs.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from tests.example_models import parse
from tests.models.pytest_support.nested_project import (
    RELU,
    RELU_NEG,
    TWO_OUTPUTS,
    Project,
    PytestRun,
    build_project,
)
from tests.models.pytest_support.test_options import configure

from assay.errors import UsageError
from assay.models.flow.cases import StepFailedError
from assay.models.pytest_support.case import render_failed_step, reporting
from assay.models.pytest_support.collection import pytest_terminal_summary
from assay.models.values.model import Step, StepEnding, StepOutcome

FULL = "test_onnx_model[net_full_model-sim-default]"
LONG = "long" * 40  # a name that fills pytest's line
PATH = "tests/test_onnx_model.py::test_onnx_model"


def short(run: PytestRun) -> dict[str, str]:
    return {name.split("[")[1].removesuffix("-default]"): verdict for name, verdict in run.verdicts.items()}


def paste(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As a user does, in a shell, where `assay` is installed."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, PytestRun]:
    """Models that pass, differ, cannot be compiled and cannot be read. `wrong` is also named as the voter."""
    project = build_project(tmp_path_factory.mktemp("my project"))
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace('targets = ["sim"]', 'targets = ["sim"]\nvote = "wrong"'))
    project.model("net", RELU_NEG)
    project.model("two", TWO_OUTPUTS)
    project.model(LONG, "g (float[4] x) => (float[4] y) { y = Neg(x) }")
    project.write("tests/testdata/onnx_models/broken.onnx", "no model")
    heavy = parse("g (float[4] x) => (float[4] y) { y = Add(x, w) }", weights={"w": np.ones(4, np.float32)})
    onnx.external_data_helper.convert_model_to_external_data(heavy, location="heavy.bin", size_threshold=0)
    folder = project.folder / "tests" / "testdata" / "onnx_models"
    onnx.save(heavy, folder / "heavy.onnx")
    (folder / "heavy.bin").unlink()
    targets = [f"--assay-target={name}" for name in ("sim", "wrong", "lacking")]
    chosen = f"net and (sim or lacking) or two and wrong or (broken or heavy) and sim or {LONG}_full and lacking"
    return project, project.pytest("-v", "--debug-cache", *targets, "-k", chosen)


def test_each_case_has_its_verdict_and_others_go_on(session):
    cases = ("layer_Relu_0", "layer_Neg_1", "full_model")
    assert short(session[1]) == {
        "broken_full_model-sim": "ERROR",
        "heavy_layer_Add_0-sim": "ERROR",
        "heavy_full_model-sim": "ERROR",
        f"{LONG}_full_model-lacking": "ERROR",
        **{f"net_{case}-sim": "PASSED" for case in cases},
        **dict(zip((f"net_{case}-lacking" for case in cases), ("PASSED", "ERROR", "ERROR"), strict=True)),
        **{f"two_{case}-wrong": "FAILED" for case in ("layer_Relu_0", "layer_Abs_1", "full_model")},
    }
    assert f"{PATH}[net_full_model-sim-default] PASSED" in session[1].out
    assert "Traceback" not in session[1].out
    assert "pytest_plugin" not in session[1].out


def test_a_step_that_fails_is_an_error_with_its_command_and_all_of_its_output(session):
    project, run = session
    head, command, *rest = run.section("test_onnx_model[net_layer_Neg_1-lacking-default]").splitlines()
    assert head.startswith("assay_compiled_model: lacking cannot compute net_layer_Neg_1: compile error: sim-compile ")
    assert rest[:4] == ["stdout:", "compiling net_layer_Neg_1.onnx", "stderr:", "no Neg on this chip"]
    assert "artifact cache" in rest[4], "what --debug-cache adds"
    done = paste(command.removeprefix("command: "), project.folder)
    assert (done.returncode, done.stderr) == (3, "no Neg on this chip\n"), command


def test_what_differs_fails_with_the_numbers_and_a_command_that_works(session):
    project, run = session
    text = run.section("test_onnx_model[two_full_model-wrong-default]")
    assert text.startswith("two_full_model-wrong-default: wrong differs from ort: y: ")
    assert "max abs error" in text
    assert "Worst elements" in text
    commands = re.findall(r"show it: (assay model diff .*)", text)
    assert len(commands) == 2, "one for each output"
    for command in commands:
        expected, actual = shlex.split(command)[3:]
        assert np.allclose(np.load(expected) * 1.5, np.load(actual))
        assert np.load(expected).any()
    assert len({path for command in commands for path in shlex.split(command)[3:]}) == 4, "no file is overwritten"
    done = paste(commands[0], project.folder)
    assert done.returncode == 1, done.stderr
    assert "FAIL" in done.stdout


def test_what_is_reported_of_a_case(session):
    out, section = session[1].out, session[1].section
    assert "broken.onnx is not an ONNX model" in section("test_onnx_model[broken_full_model-sim-default]")
    assert "heavy.bin is missing" in section("test_onnx_model[heavy_full_model-sim-default]")
    # a target that voted for itself would always agree, and every failure would be a skip
    no_vote = "no second reference votes: vote = 'wrong' of the settings"
    assert no_vote in section("test_onnx_model[two_full_model-wrong-default]")
    # the short summary has the reason; where a name fills its line, the reason has a line of its own
    assert f"ERROR {PATH}[net_full_model-lacking-default] - compile error: sim-compile ended with" in out
    assert f"FAILED {PATH}[two_full_model-wrong-default] - wrong differs from ort: y: " in out
    lines = out.partition(" models that did not pass ")[2].splitlines()
    (line,) = [line for line in lines if line.startswith(("ERROR ", "FAILED ")) and PATH not in line]
    assert line.startswith(f"ERROR {LONG}_full_model-lacking-default: compile error: sim-compile ended with")


@pytest.mark.services("backends")
def test_other_processes_give_reasons_dump_and_explain_as_well(project):
    project.model("net", RELU_NEG)
    targets = ("--assay-target=sim", "--assay-target=lacking")
    out = project.pytest("-n", "2", "-k", "full", *targets, "tests", "--debug-cache", "--debug-ir").out
    assert f"ERROR {PATH}[net_full_model-lacking-default] - compile error: sim-compile ended with" in out
    folder = Path(re.search(r"^IR: (.*)$", out, re.MULTILINE)[1])
    assert (folder / "net_full_model-sim-default" / "0.txt").exists()
    assert re.search(r"net_full_model sim compile: ", out)


@pytest.mark.services("backends")
def test_crashes_hangs_and_missing_tools_are_errors_of_their_step(project):
    project.model("net", RELU)
    output = project.pytest("-v", "-k", "full", "--extra-compiler-options=--crash")
    assert short(output) == {"net_full_model-sim": "ERROR"}
    assert "SIGSEGV" in output.section(FULL)
    output = project.pytest("-v", "-k", "full", "--extra-runtime-options=--hang", "--torq-runtime-timeout", "1")
    assert short(output) == {"net_full_model-sim": "ERROR"}
    text = output.section(FULL)
    assert "assay_target_results: sim cannot compute net_full_model: run timeout: still running after 1 s" in text
    words = shlex.split(re.search(r"^command: (.*)$", text, re.MULTILINE)[1])
    assert words[0] == str(project.folder / "tools" / "sim-run"), "the command line of a hang, for a debugger"
    assert words[-1] == "--hang"
    assert os.path.isfile(words[1]), "and its files are still there"
    assert os.path.isfile(words[2].removeprefix("--input="))
    assert os.path.isdir(os.path.dirname(words[3].removeprefix("--output=")))
    (project.folder / "tools" / "sim-compile").unlink()
    output = project.pytest("-v", "-k", "full")
    assert short(output) == {"net_full_model-sim": "ERROR"}
    assert "sim-compile is not a program" in output.section(FULL)


@pytest.mark.services("backends")
def test_an_output_that_proves_nothing_is_no_pass(project):
    """Zeros on both sides; and the setting that allows them does not allow anything else."""
    project.model("net", "g (float[4] x) => (float[4] y) { z = Sub(x, x) y = Mul(z, x) }")
    output = project.pytest("-v", "-k", "full")
    assert short(output) == {"net_full_model-sim": "FAILED"}
    text = output.section(FULL)
    assert "sim cannot be distinguished from ort: y: both are all zero" in text
    assert "tolerance = {allow_constant = true} in the model's settings lets it pass" in text
    assert "--tolerance" not in text, "that is no option here"
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text() + "\n[tool.assay.models.tolerance]\nallow_constant = true\n")
    assert short(project.pytest("-v", "-k", "full")) == {"net_full_model-sim": "PASSED"}


@pytest.mark.services("backends")
def test_a_reference_that_disagrees_with_the_voter_skips_the_test(project):
    """The target is as far off as a second reference is, which is right with ordinary numbers."""
    path = project.folder / "pyproject.toml"
    settings = 'targets = ["wrong"]\nvote = "voter"\nmodels.net.ranges = {x = [20, 40]}'
    path.write_text(path.read_text().replace('targets = ["sim"]', settings) + VOTER)
    project.model("net", RELU)
    output = project.pytest("-v", "-rs", "-k", "full")
    assert short(output) == {"net_full_model-wrong": "SKIPPED"}
    assert "the references disagree" in output.out
    path.write_text(path.read_text().replace('vote = "voter"', 'vote = "none"'))
    assert short(project.pytest("-v", "-k", "full")) == {"net_full_model-wrong": "FAILED"}


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
    run.write_text(run.read_text().replace("change(known[name])", "(x + (known['x'][0] <= 0) for x in known[name])"))
    output = project.pytest("-v", "-k", "full", "--samples", "8")
    assert short(output) == {"net_full_model-sim": "FAILED"}
    assert project.calls.count("run") == 8
    expected, actual = shlex.split(re.search(r"show it: (assay model diff .*)", output.out)[1])[3:]
    assert np.allclose(np.load(expected) + 1, np.load(actual)), "the sample that is wrong is the one to look at"


def test_the_cache_gives_its_reasons_and_can_be_ignored(session):
    project, first = session
    chosen = ("-k", "net_full_model-sim")
    assert re.search(r"=+ artifact cache =+", first.out)
    assert re.search(r"net_full_model sim compile: .*(miss|new|no entry|never)", first.out, re.IGNORECASE), first.out
    _ = project.calls  # of this session, and of the tests before
    second = project.pytest(*chosen, "--debug-cache")
    assert re.search(r"net_full_model sim run: .*hit", second.out, re.IGNORECASE), second.out
    assert project.calls == []
    third = project.pytest(*chosen, "--recompute-cache")
    assert third.code == 0
    assert "artifact cache" not in third.out
    assert len(project.calls) == 2


def test_dumps_are_written_by_doing_the_work_into_a_folder_for_each_case(session):
    project, _ = session
    _ = project.calls
    dumps = ("--debug-ir", "ir dump", "--torq-compile-time-profiling-output-dir=profile", "--run-profile=profile")
    run = project.pytest("-k", "(net_layer_Relu_0 or net_full_model) and sim", *dumps)
    assert run.code == 0
    assert len(project.calls) == 4, "the cache has these results, but not the dumps"
    for case in ("net_layer_Relu_0", "net_full_model"):
        label = f"{case}-sim-default"
        assert (project.folder / "ir dump" / label / "0.txt").read_text() == "intermediate"
        made = {path.name for path in (project.folder / "profile" / label).iterdir()}
        assert {f"{case}_{kind}.{end}" for kind in ("compile", "runtime") for end in ("csv", "pb")} <= made
        assert (project.folder / "profile" / label / f"{case}_compile.csv").read_text().startswith("ID,Start,End")
    assert f"IR: {project.folder / 'ir dump'}" in run.out
    assert f"run profiles: {project.folder / 'profile'}" in run.out


def test_a_folder_of_dumps_is_named_only_where_something_is_in_it(tmp_path):
    """A compiler that dumps nothing: its folder is made, and stays empty."""
    lines: list[str] = []
    reporter = SimpleNamespace(stats={}, write_line=lines.append, _tw=SimpleNamespace(fullwidth=80))
    config = configure(f"--debug-ir={tmp_path}", f"--run-profile={tmp_path}")
    pytest_terminal_summary(reporter, config)
    assert lines == []
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "0.txt").touch()
    pytest_terminal_summary(reporter, config)
    assert lines == [f"IR: {tmp_path}", f"run profiles: {tmp_path}"]


@pytest.mark.services("backends")
def test_dumps_of_several_chips_do_not_meet_and_without_a_folder_are_in_the_cache(project):
    project.model("net", RELU)
    for chip in ("a", "b"):
        project.write(f"tests/testdata/chips/{chip}.json", f'{{"target": "{chip.upper()}"}}')
    output = project.pytest("-k", "full", "--torq-chips", "a,b", "tests", "--debug-ir")
    assert output.code == 0, output.out
    folder = Path(re.search(r"^IR: (.*)$", output.out, re.MULTILINE)[1])
    assert {path.name for path in folder.iterdir()} == {"net_full_model-sim-a", "net_full_model-sim-b"}
    assert [call for call in project.calls if "compile" in call] == [f"compile net.onnx chip={c} hw=None" for c in "AB"]


@pytest.mark.services("backends")
def test_with_s_the_tools_output_is_live(project):
    project.model("net", RELU)
    first = project.pytest("-s", "-k", "full").out
    assert "compiling net.onnx" in first
    assert "from the cache" not in first
    again = project.pytest("-s", "-k", "full").out
    assert "compiling net.onnx" not in again
    for step in ("compile", "run"):
        assert f"net_full_model-sim-default {step}: from the cache; --recompute-cache runs the tools" in again
    assert "from the cache" not in project.pytest("-k", "full").out
    assert "compiling net.onnx" not in project.pytest("-k", "full", "--recompute-cache").out


def render(**more: str) -> str:
    outcome = StepOutcome(Step.COMPILE, StepEnding.ERROR, "tool said no", **more)
    return render_failed_step("torq_results", StepFailedError("sim", outcome), "/my models/a.onnx")


def test_a_failed_step_shows_the_tools_output_or_that_it_was_silent():
    hint = "try: assay model convert MODEL --opset 17"
    assert render(command="tool x", stdout="working\n", stderr="\nno\n", hint=hint).splitlines() == [
        "torq_results: sim: compile error: tool said no",
        "command: tool x",
        "stdout:",
        "working",
        "stderr:",
        "no",
        "what to do: try: assay model convert '/my models/a.onnx' --opset 17",
    ]
    assert render(stderr=" \n" * 999).splitlines()[1:] == ["stdout:", "(nothing)", "stderr:", "(nothing)"]
    flood = render(stderr="\n".join(f"line {number}" for number in range(1000)))
    assert "line 99\n… 800 lines left out …\nline 900" in flood
    assert flood.endswith("line 999")


def test_an_error_without_a_step():
    for hint, note, text in (("do MODEL better", "", "f: bad\n  do x.onnx better"), (None, "try", "f: bad\n  try")):
        with pytest.raises(pytest.fail.Exception) as caught, reporting("f", "x.onnx", note):
            raise UsageError("bad", hint)
        assert caught.value.msg == text

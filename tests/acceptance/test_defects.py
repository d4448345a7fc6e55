"""What was broken in runx, logx, sumx and mlrunner works here: the defects of the reference page, by their numbers.

Those that are not here are asserted below tests/compat, with their numbers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.user_folder import INTRO, INTRO_LINES, UserFolder, open_user_folder

FARM = "LOGROOT: logs\nFARM: {name}\n{name}:\n  SUBMIT_CMD: submit_job\n  RESOURCES: {{gpu: 2}}\n"
TASKS = """\
template:
  train: {train}
resource: [0]
---
{axes}
"""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write("sweep.yml", INTRO)
        user.note_calls()
        yield user


def sweep(user: UserFolder, hparams: str, command: str = "python train.py") -> None:
    user.write("sweep.yml", f"CMD: {command}\nHPARAMS: {hparams}\n")


def tasks(user: UserFolder, train: str, axes: str = "lr: [1, 2]") -> None:
    user.write("params.yaml", TASKS.format(train=train, axes=axes))


def write_results(user: UserFolder, name: str, lines: list[str], hparams: str | None = "{}") -> None:
    if hparams is not None:
        user.write(f"logs/sweep/{name}/hparams.json", hparams)
    text = "".join(f"{line}\r\n" for line in ["start,start/step,0,timestamp,1000.0", *lines])
    user.write(f"logs/sweep/{name}/metrics.csv", text)


def val(epoch: int, **metrics: float) -> str:
    return ",".join(["val", *(f"{k},{v}" for k, v in metrics.items()), f"epoch,{epoch},timestamp,{1000.0 + epoch}"])


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:]]


# ---------------------------------------------------------------- runx


def test_the_readme_intro_runs_without_a_runx_file(user: UserFolder) -> None:
    """B1"""
    said = user.well("runx", "sweep.yml", "-i")
    assert said.lines == INTRO_LINES
    assert user.calls == [line.removeprefix("python train.py ") for line in INTRO_LINES]
    assert "no LOGROOT in .runx: runs go to runs/sweep" in said.err


@pytest.mark.needs(farms=True)
def test_a_farm_of_any_name_is_submitted_to(user: UserFolder) -> None:
    """B2"""
    user.write(".runx", FARM.format(name="bigfarm"))
    assert user.well("runx", "sweep.yml").lines == [f'submit_job --gpu 2 -c "{line}"' for line in INTRO_LINES]
    user.until_ended("logs/sweep", 4)
    assert len(user.calls) == 4


def test_a_relative_logroot_works(user: UserFolder) -> None:
    """B3"""
    user.write(".runx", "LOGROOT: my/logs\n")
    user.well("runx", "sweep.yml")
    assert len(user.calls) == 4
    assert len(user.runs("my/logs/sweep")) == 4
    assert not list((user.folder / "my/logs/sweep").glob("*/*/*/run.json")), "no run inside another"


def test_a_logroot_inside_the_source_is_not_copied_into_itself(user: UserFolder) -> None:
    """B4"""
    user.write(".runx", f"LOGROOT: {user.folder}/logs\n")
    for _ in range(2):
        user.well("runx", "sweep.yml")
    assert not (user.runs("logs/sweep")[-1] / "code/logs").exists()


@pytest.mark.parametrize(("line", "expected"), [("", "{run}/code"), ("PYTHONPATH: /one:LOGDIR/two", "/one:{run}/two")])
def test_pythonpath_counts_without_a_farm(user: UserFolder, line: str, expected: str) -> None:
    """B5"""
    user.write("sweep.yml", f"{line}\nCMD: python train.py\nHPARAMS: {{lr: 1}}\n")
    user.write("train.py", "import os; print(os.environ['PYTHONPATH'])")
    user.well("runx", "sweep.yml")
    (run,) = user.runs()
    assert (run / "train.log").read_text() == expected.format(run=run) + "\n"


@pytest.mark.needs(farms=True)
def test_the_experiment_overrides_runx(user: UserFolder) -> None:
    """B6"""
    user.write(".runx", FARM.format(name="bigfarm"))
    user.write("sweep.yml", "LOGROOT: other\nRESOURCES: {gpu: 8, mem: 1}\nCMD: python train.py\nHPARAMS: {lr: 1}\n")
    assert user.well("runx", "sweep.yml").lines == ['submit_job --gpu 8 --mem 1 -c "python train.py --lr 1"']
    user.until_ended("other/sweep", 1)


@pytest.mark.parametrize(
    ("arguments", "code"), [(["sweep.yml", "-i"], 1), (["nofile.yml"], 2), (["sweep.yml", "-c", "nofile"], 2)]
)
def test_failures_and_missing_files_are_not_exit_code_0(user: UserFolder, arguments: list[str], code: int) -> None:
    """B7"""
    user.write("train.py", "raise SystemExit(3)")
    assert user.assay("runx", *arguments).code == code


def test_a_tag_does_not_leak_and_a_skipped_first_item_is_a_template(user: UserFolder) -> None:
    """B9"""
    sweep(user, "[{RUNX.SKIP: true, a: 1}, {b: 1, RUNX.TAG: one}, {b: 2}]")
    user.well("runx", "sweep.yml")
    assert user.calls == ["--a 1 --b 1", "--a 1 --b 2"]
    assert [run.name.startswith("one_") for run in user.runs()] == [True, False]


@pytest.mark.needs(farms=True)
def test_quotes_in_the_command_survive_the_farm(user: UserFolder) -> None:
    """B10"""
    user.write(".runx", FARM.format(name="draco"))
    sweep(user, '{say: \'"a  b"\', it: "it\\\\\'s"}', command="python train.py 'one  word' \"$HOME\"")
    user.write("train.py", f"import sys, json; json.dump(sys.argv[1:], open({str(user.folder / 'argv')!r}, 'w'))")
    user.well("runx", "sweep.yml")
    user.until_ended("logs/sweep", 1)
    assert json.loads(user.read("argv")) == ["one  word", os.environ["HOME"], "--say", "a  b", "--it", "it's"]


# ---------------------------------------------------------------- sumx and logx


def test_sorting_compares_numbers_and_a_loss_is_best_when_low(user: UserFolder) -> None:
    """B14"""
    write_results(user, "a", [val(1, acc=9.5, loss=3.0), val(2, acc=100.0, loss=2.0), val(3, acc=50.0, loss=4.0)])
    write_results(user, "b", [val(1, acc=99.0, loss=1.0)])
    assert first_column(user.well("sumx", "sweep", "--logroot", "logs", "-s", "acc").out) == ["a", "b"]
    assert first_column(user.well("sumx", "sweep", "--logroot", "logs", "-s", "loss").out) == ["b", "a"]
    best = user.well("sumx", "sweep", "--logroot", "logs", "-s", "acc").lines[2]
    assert best.split()[:3] == ["a", "50", "100"]


def test_a_run_that_gave_logx_no_hparams_is_tabled(user: UserFolder) -> None:
    """B18"""
    write_results(user, "a", [val(1, acc=1.0)], hparams=None)
    assert first_column(user.well("sumx", "sweep", "--logroot", "logs").out) == ["a"]
    sweep(user, "{lr: [1, 2], logdir: LOGDIR}")
    text = "import sys\nfrom assay.logx import logx\nlogx.initialize(sys.argv[-1])\nlogx.metric('val', {'acc': 1}, 1)\n"
    user.write("train.py", text)
    user.well("runx", "sweep.yml")
    assert user.well("sumx", "sweep").lines[0].split() == ["lr", "acc", "epoch", "epoch_time"]


@pytest.mark.needs(farms=True)
def test_an_environment_prefix_with_submit_job(user: UserFolder) -> None:
    """B18b"""
    user.write(".runx", FARM.format(name="bigfarm"))
    sweep(user, "{lr: 1}", command="CUDA_VISIBLE_DEVICES=0 python train.py")
    assert user.well("runx", "sweep.yml", "-i").lines == ["CUDA_VISIBLE_DEVICES=0 python train.py --lr 1"]
    user.well("runx", "sweep.yml")
    user.until_ended("logs/sweep", 1)
    assert user.calls == ["--lr 1"] * 2


# ---------------------------------------------------------------- mlrunner


def test_an_over_long_name_and_a_closed_pipe_end_nothing(user: UserFolder) -> None:
    """B19"""
    tasks(user, "echo {text}", f"text: [{'x' * 400}, y]\nother: [{'z' * 200}]\nthird: [{'w' * 200}]")
    command = f"{sys.executable} -m assay mlrunner | head -1"
    piped = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert piped.stdout.startswith("Orphan params:")
    assert "Traceback" not in piped.stderr
    user.well("mlrunner")
    assert len(user.runs("output")) == 2


def test_what_a_killed_runner_left_running_is_run_again(user: UserFolder) -> None:
    """B21"""
    gate = user.folder / "go"
    tasks(user, f"python train.py {{lr}} && while [ ! -e '{gate}' ]; do sleep 0.05; done", "lr: [1]")
    with user.beside("mlrunner") as program:
        user.until(lambda: user.calls == ["1"], "it runs")
        program.kill()
    stat = next(Path("output").glob("*/stat"))
    assert stat.read_text() == "train: running\n"
    (pid,) = {json.loads(path.read_text())["pid"] for path in Path("output").glob("*/lease.1")}
    os.killpg(pid, signal.SIGKILL)
    gate.touch()
    user.well("mlrunner")
    assert user.calls == ["1", "1"]
    assert stat.read_text() == "train: finished\n"


def test_failures_are_counted_and_are_exit_code_1(user: UserFolder) -> None:
    """B24"""
    tasks(user, "test {lr} -gt 2", "lr: [1, 2, 3, 4, 5]")
    for _ in range(2):
        said = user.assay("mlrunner")
        assert said.code == 1
        assert "Failed tasks: 2/5" in said.lines


def test_environment_and_log_cover_the_whole_command(user: UserFolder) -> None:
    """B25"""
    user.write("sub/here.txt", "found\n")
    text = "echo first $CUDA_VISIBLE_DEVICES; cd sub && cat here.txt && bash -c 'echo $CUDA_VISIBLE_DEVICES' && echo {lr} >&2"
    tasks(user, json.dumps(text), "lr: [7]")
    user.well("mlrunner")
    assert next(Path("output").glob("*/log.train.*")).read_text() == "first 0\nfound\n0\n7\n"


def test_the_examiner_tables_parameters_that_are_lists(user: UserFolder) -> None:
    """B30"""
    from assay.examine import Examiner

    tasks(user, "echo {l}", "l: [[1, 2], [3]]")
    user.well("mlrunner")
    examiner = Examiner()
    examiner.exam("output")
    table: Any = examiner.table()
    assert user.capture.readouterr().out.splitlines() == ["l", "[1, 2]", "[3]"]
    assert len(table) == 2


def test_only_the_documented_lines_are_printed(user: UserFolder) -> None:
    """B31"""
    tasks(user, "python train.py {lr}")
    forms = (
        r"Orphan params: set\(\)",
        r"Tasks: 2, commands to run: 2",
        r"START   gpu: 0, train: \d/ 2, output/Lr_\d",
        r"No task failed\.",
    )
    lines = user.well("mlrunner").lines
    assert all(any(re.fullmatch(form, line) for form in forms) for line in lines)
    assert len(lines) == 5
    assert yaml.safe_load(user.read("output/Lr_1/stat")) == {"train": "finished"}

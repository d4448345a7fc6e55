"""What was broken in runx, logx, sumx and mlrunner works here: one test for each defect of the reference page."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.user_folder import INTRO, INTRO_LINES, Desk, open_desk

FARM = "LOGROOT: logs\nFARM: {name}\n{name}:\n  SUBMIT_CMD: submit_job\n  RESOURCES: {{gpu: 2}}\n"
TASKS = """\
template:
  train: {train}
resource: [0]
---
{axes}
"""


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with open_desk(monkeypatch, capfd) as desk:
        desk.write("sweep.yml", INTRO)
        desk.note_calls()
        yield desk


def sweep(desk: Desk, hparams: str, command: str = "python train.py") -> None:
    desk.write("sweep.yml", f"CMD: {command}\nHPARAMS: {hparams}\n")


def tasks(desk: Desk, train: str, axes: str = "lr: [1, 2]") -> None:
    desk.write("params.yaml", TASKS.format(train=train, axes=axes))


def write_results(desk: Desk, name: str, lines: list[str], hparams: str | None = "{}") -> None:
    if hparams is not None:
        desk.write(f"logs/sweep/{name}/hparams.json", hparams)
    text = "".join(f"{line}\r\n" for line in ["start,start/step,0,timestamp,1000.0", *lines])
    desk.write(f"logs/sweep/{name}/metrics.csv", text)


def val(epoch: int, **metrics: float) -> str:
    return ",".join(["val", *(f"{k},{v}" for k, v in metrics.items()), f"epoch,{epoch},timestamp,{1000.0 + epoch}"])


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:]]


# ---------------------------------------------------------------- runx


def test_the_readme_intro_runs_without_a_runx_file(desk: Desk) -> None:
    """B1"""
    assert desk.well("runx", "sweep.yml", "-i").lines == INTRO_LINES
    assert len(desk.calls) == 4


def test_a_farm_of_any_name_is_submitted_to(desk: Desk) -> None:
    """B2"""
    desk.write(".runx", FARM.format(name="bigfarm"))
    assert desk.well("runx", "sweep.yml").lines == [f'submit_job --gpu 2 -c "{line}"' for line in INTRO_LINES]
    desk.until_ended("logs/sweep", 4)
    assert len(desk.calls) == 4


def test_a_relative_logroot_works(desk: Desk) -> None:
    """B3"""
    desk.write(".runx", "LOGROOT: my/logs\n")
    desk.well("runx", "sweep.yml")
    assert len(desk.calls) == 4
    assert len(desk.runs("my/logs/sweep")) == 4
    assert not list((desk.folder / "my/logs/sweep").glob("*/*/*/run.json")), "no run inside another"


def test_a_logroot_inside_the_source_is_not_copied_into_itself(desk: Desk) -> None:
    """B4"""
    desk.write(".runx", f"LOGROOT: {desk.folder}/logs\n")
    for _ in range(2):
        desk.well("runx", "sweep.yml")
    assert not (desk.runs("logs/sweep")[-1] / "code/logs").exists()


@pytest.mark.parametrize(("line", "expected"), [("", "{run}/code"), ("PYTHONPATH: /one:LOGDIR/two", "/one:{run}/two")])
def test_pythonpath_counts_without_a_farm(desk: Desk, line: str, expected: str) -> None:
    """B5"""
    desk.write("sweep.yml", f"{line}\nCMD: python train.py\nHPARAMS: {{lr: 1}}\n")
    desk.write("train.py", "import os; print(os.environ['PYTHONPATH'])")
    desk.well("runx", "sweep.yml")
    (run,) = desk.runs()
    assert (run / "train.log").read_text() == expected.format(run=run) + "\n"


def test_the_experiment_overrides_runx(desk: Desk) -> None:
    """B6"""
    desk.write(".runx", FARM.format(name="bigfarm"))
    desk.write("sweep.yml", "LOGROOT: other\nRESOURCES: {gpu: 8, mem: 1}\nCMD: python train.py\nHPARAMS: {lr: 1}\n")
    assert desk.well("runx", "sweep.yml").lines == ['submit_job --gpu 8 --mem 1 -c "python train.py --lr 1"']
    desk.until_ended("other/sweep", 1)


@pytest.mark.parametrize(
    ("arguments", "code"), [(["sweep.yml", "-i"], 1), (["nofile.yml"], 2), (["sweep.yml", "-c", "nofile"], 2)]
)
def test_failures_and_missing_files_are_not_exit_code_0(desk: Desk, arguments: list[str], code: int) -> None:
    """B7"""
    desk.write("train.py", "raise SystemExit(3)")
    assert desk.assay("runx", *arguments).code == code


def test_no_cooldir_with_several_runs(desk: Desk) -> None:
    """B8"""
    desk.well("runx", "sweep.yml", "--no_cooldir", "--tag", "exp")
    assert len(desk.runs()) == 4
    assert all(run.name.startswith("exp") for run in desk.runs())


def test_a_tag_does_not_leak_and_a_skipped_first_item_is_a_template(desk: Desk) -> None:
    """B9"""
    sweep(desk, "[{RUNX.SKIP: true, a: 1}, {b: 1, RUNX.TAG: one}, {b: 2}]")
    desk.well("runx", "sweep.yml")
    assert desk.calls == ["--a 1 --b 1", "--a 1 --b 2"]
    assert [run.name.startswith("one_") for run in desk.runs()] == [True, False]


def test_quotes_in_the_command_survive_the_farm(desk: Desk) -> None:
    """B10"""
    desk.write(".runx", FARM.format(name="draco"))
    sweep(desk, '{say: \'"a  b"\', it: "it\\\\\'s"}', command="python train.py 'one  word' \"$HOME\"")
    desk.write("train.py", f"import sys, json; json.dump(sys.argv[1:], open({str(desk.folder / 'argv')!r}, 'w'))")
    desk.well("runx", "sweep.yml")
    desk.until_ended("logs/sweep", 1)
    assert json.loads(desk.read("argv")) == ["one  word", os.environ["HOME"], "--say", "a  b", "--it", "it's"]


def test_null_leaves_the_flag_out(desk: Desk) -> None:
    """B11"""
    sweep(desk, "{a: null, b: ~, c: 1}")
    assert desk.well("runx", "sweep.yml", "-n").lines == ["python train.py --c 1"]


def test_a_tag_is_filled_literally(desk: Desk) -> None:
    """B12"""
    sweep(desk, r"{a.b: 'x\1y', axb: no, RUNX.TAG: 'v{a.b}'}")
    desk.well("runx", "sweep.yml")
    assert desk.runs()[0].name.startswith(r"vx\1y_")


def test_the_older_lower_case_spelling(desk: Desk) -> None:
    """B13"""
    desk.write("sweep.yml", "cmd: python train.py\nhparams: [{lr: [1, 2]}]\n")
    assert desk.well("runx", "sweep.yml", "-n").lines == ["python train.py --lr 1", "python train.py --lr 2"]


# ---------------------------------------------------------------- sumx and logx


def test_sorting_compares_numbers_and_a_loss_is_best_when_low(desk: Desk) -> None:
    """B14"""
    write_results(desk, "a", [val(1, acc=9.5, loss=3.0), val(2, acc=100.0, loss=2.0), val(3, acc=50.0, loss=4.0)])
    write_results(desk, "b", [val(1, acc=99.0, loss=1.0)])
    assert first_column(desk.well("sumx", "sweep", "--logroot", "logs", "-s", "acc").out) == ["a", "b"]
    assert first_column(desk.well("sumx", "sweep", "--logroot", "logs", "-s", "loss").out) == ["b", "a"]
    best = desk.well("sumx", "sweep", "--logroot", "logs", "-s", "acc").lines[2]
    assert best.split()[:3] == ["a", "50", "100"]


def test_unknown_names_get_a_suggestion_and_ragged_metrics_a_table(desk: Desk) -> None:
    """B15"""
    write_results(desk, "a", [val(1, acc=1.0)])
    write_results(desk, "b", [val(1, acc=2.0, miou=0.5)])
    said = desk.well("sumx", "sweep", "--logroot", "logs", "-s", "acc")
    assert [line.split() for line in said.lines[2:]] == [["b", "2", "0.5", "1", "0:01"], ["a", "1", "-", "1", "0:01"]]
    for arguments in (["sweep", "-s", "ac"], ["sweeep"]):
        said = desk.assay("sumx", *arguments, "--logroot", "logs")
        assert said.code == 2
        assert "did you mean" in said.err


def test_logx_before_initialize_and_with_a_bad_phase(desk: Desk) -> None:
    """B16"""
    from assay.errors import UsageError
    from assay.logx import LogX

    logx = LogX()
    logx.msg("hello")
    assert desk.capture.readouterr().out == "hello\n"
    with pytest.raises(UsageError, match=r"call logx\.initialize"):
        logx.metric("val", {"acc": 1.0}, 1)
    logx.initialize(logdir=str(desk.folder / "log"))
    with pytest.raises(ValueError, match="phase 'valid' is none of"):
        logx.metric("valid", {"acc": 1.0}, 1)
    logx.close()


def save_as_torch_does(content: object, path: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))


def test_a_model_saved_with_a_numpy_metric_is_resumed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """B17"""
    import numpy as np

    from assay.logx import LogX

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(save=save_as_torch_does))
    for epoch, metric, is_better in ((1, 0.9, True), (2, 0.8, False), (3, 0.95, True)):
        logx = LogX()
        logx.initialize(logdir=str(desk.folder / "log"))
        assert logx.save_model({"state_dict": {}}, metric=np.float64(metric), epoch=epoch) is is_better
        logx.close()
    assert os.path.basename(logx.get_best_checkpoint() or "") == "best_checkpoint_ep3.pth"


def test_a_run_that_gave_logx_no_hparams_is_tabled(desk: Desk) -> None:
    """B18"""
    write_results(desk, "a", [val(1, acc=1.0)], hparams=None)
    assert first_column(desk.well("sumx", "sweep", "--logroot", "logs").out) == ["a"]
    sweep(desk, "{lr: [1, 2], logdir: LOGDIR}")
    text = "import sys\nfrom assay.logx import logx\nlogx.initialize(sys.argv[-1])\nlogx.metric('val', {'acc': 1}, 1)\n"
    desk.write("train.py", text)
    desk.well("runx", "sweep.yml")
    assert desk.well("sumx", "sweep").lines[0].split() == ["lr", "acc", "epoch", "epoch_time"]


def test_an_environment_prefix_with_submit_job(desk: Desk) -> None:
    """B18b"""
    desk.write(".runx", FARM.format(name="bigfarm"))
    sweep(desk, "{lr: 1}", command="CUDA_VISIBLE_DEVICES=0 python train.py")
    assert desk.well("runx", "sweep.yml", "-i").lines == ["CUDA_VISIBLE_DEVICES=0 python train.py --lr 1"]
    desk.well("runx", "sweep.yml")
    desk.until_ended("logs/sweep", 1)
    assert desk.calls == ["--lr 1"] * 2


# ---------------------------------------------------------------- mlrunner


def test_an_over_long_name_and_a_closed_pipe_end_nothing(desk: Desk) -> None:
    """B19"""
    tasks(desk, "echo {text}", f"text: [{'x' * 400}, y]\nother: [{'z' * 200}]\nthird: [{'w' * 200}]")
    command = f"{sys.executable} -m assay mlrunner | head -1"
    piped = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert piped.stdout.startswith("Orphan params:")
    assert "Traceback" not in piped.stderr
    desk.well("mlrunner")
    assert len(desk.runs("output")) == 2


def test_a_dry_run_does_not_make_the_next_run_skip_everything(desk: Desk) -> None:
    """B20"""
    tasks(desk, "python train.py {lr}")
    desk.well("mlrunner", "--dry-run")
    assert not Path("output").exists()
    desk.well("mlrunner")
    assert sorted(desk.calls) == ["1", "2"]


def test_what_a_killed_runner_left_running_is_run_again(desk: Desk) -> None:
    """B21"""
    gate = desk.folder / "go"
    tasks(desk, f"python train.py {{lr}} && while [ ! -e '{gate}' ]; do sleep 0.02; done", "lr: [1]")
    with desk.beside("mlrunner") as program:
        desk.until(lambda: desk.calls == ["1"], "it runs")
        program.kill()
    stat = next(Path("output").glob("*/stat"))
    assert stat.read_text() == "train: running\n"
    (pid,) = {json.loads(path.read_text())["pid"] for path in Path("output").glob("*/lease.1")}
    os.killpg(pid, signal.SIGKILL)
    gate.touch()
    desk.well("mlrunner")
    assert desk.calls == ["1", "1"]
    assert stat.read_text() == "train: finished\n"


def test_no_subdir_runs_every_task(desk: Desk) -> None:
    """B22"""
    tasks(desk, "python train.py {lr}", "lr: [1, 2, 3]")
    desk.well("mlrunner", "--no-subdir")
    assert sorted(desk.calls) == ["1", "2", "3"]


@pytest.mark.parametrize("axes", ["lr: [0.1234567, 0.12345671]", "lr: [a/b, a_b]"])
def test_different_values_never_share_a_folder(desk: Desk, axes: str) -> None:
    """B23"""
    tasks(desk, "python train.py {lr}", axes)
    desk.well("mlrunner")
    assert len(desk.calls) == 2
    assert len(desk.runs("output")) == 2


def test_failures_are_counted_and_are_exit_code_1(desk: Desk) -> None:
    """B24"""
    tasks(desk, "test {lr} -gt 2", "lr: [1, 2, 3, 4, 5]")
    for _ in range(2):
        said = desk.assay("mlrunner")
        assert said.code == 1
        assert "Failed tasks: 2/5" in said.lines


def test_environment_and_log_cover_the_whole_command(desk: Desk) -> None:
    """B25"""
    desk.write("sub/here.txt", "found\n")
    text = "echo first $CUDA_VISIBLE_DEVICES; cd sub && cat here.txt && bash -c 'echo $CUDA_VISIBLE_DEVICES' && echo {lr} >&2"
    tasks(desk, json.dumps(text), "lr: [7]")
    desk.well("mlrunner")
    assert next(Path("output").glob("*/log.train.*")).read_text() == "first 0\nfound\n0\n7\n"


def test_the_shell_s_own_braces_and_brackets_stay(desk: Desk) -> None:
    """B26"""
    text = 'echo ${HOME} ${X:-none} "l[0]" [0] {{lr}} [[lr]] {lr}'
    tasks(desk, json.dumps(text), "lr: [1]")
    desk.well("mlrunner")
    home = os.environ["HOME"]
    assert next(Path("output").glob("*/log.train.*")).read_text() == f"{home} none l[0] [0] {{lr}} [lr] 1\n"


def test_null_lists_and_booleans_are_values(desk: Desk) -> None:
    """B27"""
    tasks(desk, "echo {b} [n] [l] [f]", "b: [true]\nn: [null]\nl: [[1, 2]]\nf: [false]")
    desk.well("mlrunner")
    assert next(Path("output").glob("*/log.train.*")).read_text() == "True --l 1 2\n"


def test_a_sample_of_mixed_values(desk: Desk) -> None:
    """B28"""
    tasks(desk, "echo {lr} {b}", "lr: [1, a, 2.5]\nb: [x, 3]")
    desk.well("mlrunner", "--sample", "3")
    assert len(desk.runs("output")) == 3


def test_an_empty_document_is_passed_over(desk: Desk) -> None:
    """B29"""
    tasks(desk, "python train.py {lr}", "lr: [1]\n---\n---\nlr: [2]\n---")
    said = desk.well("mlrunner")
    assert sorted(desk.calls) == ["1", "2"]
    assert "this document is empty" in said.err


def test_the_examiner_tables_parameters_that_are_lists(desk: Desk) -> None:
    """B30"""
    from assay.examine import Examiner

    tasks(desk, "echo {l}", "l: [[1, 2], [3]]")
    desk.well("mlrunner")
    examiner = Examiner()
    examiner.exam("output")
    table: Any = examiner.table()
    assert desk.capture.readouterr().out.splitlines() == ["l", "[1, 2]", "[3]"]
    assert len(table) == 2


def test_only_the_documented_lines_are_printed(desk: Desk) -> None:
    """B31"""
    tasks(desk, "python train.py {lr}")
    forms = (
        r"Orphan params: set\(\)",
        r"Tasks: 2, commands to run: 2",
        r"START   gpu: 0, train: \d/ 2, output/Lr_\d",
        r"No task failed\.",
    )
    lines = desk.well("mlrunner").lines
    assert all(any(re.fullmatch(form, line) for form in forms) for line in lines)
    assert len(lines) == 5
    assert yaml.safe_load(desk.read("output/Lr_1/stat")) == {"train": "finished"}

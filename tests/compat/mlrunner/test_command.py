"""mlrunner's document, example by example, through `assay mlrunner` and `assay run`; its half-done folders continued."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.user_folder import ORIGINALS, UserFolder, open_user_folder

from assay.record import run_directory
from assay.values.run import Outcome, State

PARAMS = """\
---
template:
  train: >
    python train.py data-bin/{data} --seed 1
      --save-dir {_output}
      --tensorboard-logdir {_output}
      --max-epochs 80
      --normalization {norm}
      [moment] [early-stop]

  avg: >
    python scripts/average_checkpoints.py --inputs {_output}
      --num-epoch-checkpoints 5 --output {_output}/averaged_model.pt

  test: >
    python generate.py data-bin/{data}
        --max-tokens 4096 --beam 5 --lenpen 1.0 --remove-bpe
        --path {_output}/averaged_model.pt --gen-subset test

default:
  data: iwslt14
  norm: batch
  moment: 0.1
  early-stop: False

resource: [ 0, 1, 2, 3 ]


---
norm: [ new, batch ]
moment: [ 0.1, 0.05 ]

---
norm: [ batch ]
early-stop: [ True, False ]
"""
TASKS = [
    "Norm_new-Moment_0.1",
    "Norm_new-Moment_0.05",
    "Norm_batch-Moment_0.1",
    "Norm_batch-Moment_0.05",
    "Norm_batch-EaStop_T",
]
SHARED = "(1 task shares the results of Norm_batch-Moment_0.1)"
# The three programs, in the place of Python: they do a little of what their names say, and keep what they were called
# with. The shell starts in a tenth of the time.
PYTHON = """#!/bin/sh
script=$1; shift
given="$*"
while [ $# -gt 0 ]; do
  case $1 in --save-dir | --inputs) out=$2 ;; --path) out=${2%/*} ;; --output) made=$2 ;; esac
  shift
done
note() { echo "$CUDA_VISIBLE_DEVICES $1 ${out##*/}" >> calls.txt; }
case $script in
train.py) : > "$out/checkpoint51.pt"; : > "$out/checkpoint52.pt"; note train; echo "trained $given" ;;
generate.py) note test; echo "BLEU4 = 34.5" ;;
*)
  note avg
  case $out in *new-Moment_0.1) if [ -e FAIL ]; then echo "no checkpoint is good" >&2; exit 1; fi ;; esac
  : > "$made" ;;
esac
"""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write("params.yaml", PARAMS)
        python = user.farm / "bin" / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        yield user


def done(user: UserFolder) -> list[str]:
    """What ran, without the GPU: `train Norm_new-Moment_0.1`."""
    return sorted(call.partition(" ")[2] for call in user.calls)


def all_of(*commands: str) -> list[str]:
    return sorted(f"{command} {task}" for command in commands for task in TASKS)


def stat(user: UserFolder, task: str, output: str = "output") -> dict[str, str]:
    return yaml.safe_load(user.read(f"{output}/{task}/stat"))


class TestReadme:
    def test_five_tasks_run_and_one_shares_the_results(self, user: UserFolder) -> None:
        """B20: a dry run before it makes it skip nothing. B31: only these lines are printed."""
        before = user.everything()
        dry = user.well("mlrunner", "--dry-run")
        assert user.everything() == before
        assert dry.lines[:2] == ["Orphan params: set()", f"Tasks: 6, commands to run: 15 {SHARED}"]
        assert len(dry.lines) == 2 + 15 * 2
        said = user.well("mlrunner")
        assert said.lines[:6] == [
            *dry.lines[:2],
            "START   gpu: 0, train: 1/ 4, output/Norm_new-Moment_0.1",
            "START   gpu: 1, train: 2/ 4, output/Norm_new-Moment_0.05",
            "START   gpu: 2, train: 3/ 4, output/Norm_batch-Moment_0.1",
            "START   gpu: 3, train: 4/ 4, output/Norm_batch-Moment_0.05",
        ]
        assert [line.split()[0] for line in said.lines[6:]] == ["START"] * 11 + ["No"]
        assert said.lines[-1] == "No task failed."
        assert done(user) == all_of("train", "avg", "test")
        assert os.readlink("output/Norm_batch-EaStop_F") == "Norm_batch-Moment_0.1"
        out = "output/Norm_batch-EaStop_T"  # as in mlrunner: relative, so that s3://bucket/{_output} is a path
        assert next(Path(out).glob("log.train.*")).read_text() == (
            f"trained data-bin/iwslt14 --seed 1 --save-dir {out} --tensorboard-logdir {out} --max-epochs 80 "
            "--normalization batch --moment 0.1 --early-stop\n"
        )
        self.check_files(user)
        text, frame = examine(".*Norm_.*")
        assert text.splitlines() == [
            "early-stop\tmoment\tnorm\ttest_bleu",
            "True\t0.1\tbatch\t34.5",
            "False\t0.05\tbatch\t34.5",
            "False\t0.1\tbatch\t34.5",
            "False\t0.05\tnew\t34.5",
            "False\t0.1\tnew\t34.5",
        ]
        assert list(frame["test_bleu"]) == [34.5] * 5

    def check_files(self, user: UserFolder) -> None:
        names = set(os.listdir("output/Norm_batch-Moment_0.1"))
        assert {"checkpoint51.pt", "checkpoint52.pt", "averaged_model.pt", "param", "stat"} <= names
        logs = {name for name in names if re.fullmatch(r"log\.(train|avg|test)\.\d{8}\.\d{6}", name)}
        assert (len(logs), len({name.partition(".2")[2] for name in logs})) == (3, 1)
        param = yaml.safe_load(user.read("output/Norm_batch-Moment_0.1/param"))
        assert param["_name"] == "Norm_batch-Moment_0.1"
        assert param["_output"] == "output/Norm_batch-Moment_0.1"
        assert set(param["_scripts"]) == {"train", "avg", "test"}
        assert {key: param[key] for key in ("data", "norm", "moment", "early-stop")} == {
            "data": "iwslt14", "norm": "batch", "moment": 0.1, "early-stop": False,
        }  # fmt: skip
        assert stat(user, "Norm_batch-Moment_0.1") == {"train": "finished", "avg": "finished", "test": "finished"}
        assert user.read("output/params.yaml") == PARAMS

    def test_a_failure_ends_that_task_only_and_the_next_call_repeats_it(self, user: UserFolder) -> None:
        """B24"""
        user.write("FAIL", "")
        said = user.assay("mlrunner", code=1)
        assert "FAIL    gpu: 0, avg  : 1/ 4, output/Norm_new-Moment_0.1" in said.lines
        assert said.lines[-2:] == ["Failed tasks: 1/5", "    output/Norm_new-Moment_0.1"]
        assert "no checkpoint is good" in said.err
        assert done(user) == sorted(set(all_of("train", "avg", "test")) - {"test Norm_new-Moment_0.1"})
        assert stat(user, "Norm_new-Moment_0.1") == {"train": "finished", "avg": "failed"}
        (user.folder / "FAIL").unlink()
        (user.folder / "calls.txt").unlink()
        said = user.well("mlrunner")
        assert done(user) == ["avg Norm_new-Moment_0.1", "test Norm_new-Moment_0.1"]
        assert said.lines[1] == f"Tasks: 6, commands to run: 2 {SHARED}"
        assert said.lines[2:5] == [
            "SKIP    gpu: 0, train: 1/ 4, output/Norm_new-Moment_0.1",
            "START   gpu: 0, avg  : 1/ 4, output/Norm_new-Moment_0.1",
            "START   gpu: 0, test : 1/ 4, output/Norm_new-Moment_0.1",
        ]
        assert said.lines[-1] == "No task failed."

    def test_a_changed_command_leaves_a_script_that_can_be_executed(self, user: UserFolder) -> None:
        user.well("mlrunner")
        script = user.folder / "output/Norm_new-Moment_0.1/job.sh"
        before = script.read_text(), script.stat().st_mode
        user.write("params.yaml", PARAMS.replace("train.py", "train.py --fast"))
        user.well("mlrunner")
        assert script.read_text() != before[0]
        assert script.stat().st_mode == before[1]

    def test_assay_run_runs_the_same(self, user: UserFolder) -> None:
        before = user.everything()
        shown = user.well("mlrunner", "--dry-run").lines[3::2]
        plain = [re.fullmatch(r"CUDA_VISIBLE_DEVICES=\d (.*) > output/\S+/log\.\S+ 2>&1", line) for line in shown]
        lines = [line.replace("runs/params/", "output/") for line in user.well("run", "params.yaml", "-n").lines]
        assert lines == [match[1] for match in plain if match]
        assert user.everything() == before
        user.well("run", "params.yaml")
        assert done(user) == all_of("train", "avg", "test")
        assert sorted(os.listdir("runs/params")) == sorted([".assay", "Norm_batch-EaStop_F", *TASKS])

    def test_orphans_are_named(self, user: UserFolder) -> None:
        text = PARAMS.replace("  data: iwslt14", "  data: iwslt14\n  spare: 1")
        user.write("params.yaml", text.replace("early-stop: [ True, False ]", "early-stop: [ True ]\nextra: [ 1 ]"))
        assert user.well("mlrunner", "--dry-run").lines[0] == "Orphan params: {'extra', 'spare'}"

    def test_a_failure_is_printed_before_the_start_that_it_made_room_for(self, user: UserFolder) -> None:
        user.write("params.yaml", "template: {a: 'exit {code}'}\nresource: [0]\n---\ncode: [3, 4, 5]\n")
        words = [line.split()[0] for line in user.assay("mlrunner").lines if line.startswith(("START", "FAIL"))]
        assert words == ["START", "FAIL"] * 3

    def test_attempts_within_one_second_have_logs_of_their_own(self, user: UserFolder) -> None:
        text = "template: {a: 'echo $ASSAY_ATTEMPT_NUMBER {_time}; exit {code}'}\nresource: [0]\n---\ncode: [3]\n"
        user.write("params.yaml", text)
        for _ in range(3):
            user.assay("mlrunner")
        logs = sorted(Path("output/Code_3").glob("log.a.*"))
        assert [path.read_text() for path in logs] == [f"{n} {path.name[6:]}\n" for n, path in enumerate(logs, 1)]
        assert len(logs) == 3
        assert yaml.safe_load(user.read("output/Code_3/param"))["_time"] == logs[-1].name[6:]

    def test_a_closed_pipe_and_an_over_long_name_end_nothing(self, user: UserFolder) -> None:
        """B19"""
        long = f"a: [{'x' * 400}, y]\nb: [{'z' * 200}]\nc: [{'w' * 200}]\n"
        user.write("params.yaml", f"template: {{train: 'echo {{a}}'}}\nresource: [0]\n---\n{long}")
        command = f"{sys.executable} -m assay mlrunner | head -1"
        piped = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
        assert piped.stdout.startswith("Orphan params:")
        assert "Traceback" not in piped.stderr
        user.well("mlrunner")
        assert len(user.runs("output")) == 2

    def test_what_a_killed_runner_left_running_is_run_again(self, user: UserFolder) -> None:
        """B21"""
        train = "echo {lr} >> calls.txt && until [ -e go ]; do sleep 0.05; done"
        user.write("params.yaml", f"template: {{train: '{train}'}}\nresource: [0]\n---\nlr: [1]\n")
        with user.beside("mlrunner") as program:
            user.until(lambda: user.calls == ["1"], "it runs")
            program.kill()
        assert user.read("output/Lr_1/stat") == "train: running\n"
        os.killpg(json.loads(user.read("output/Lr_1/lease.1"))["pid"], signal.SIGKILL)
        user.write("go", "")
        user.well("mlrunner")
        assert user.calls == ["1", "1"]
        assert user.read("output/Lr_1/stat") == "train: finished\n"
        (user.folder / "go").unlink()
        with user.beside("mlrunner", "-f") as program:
            user.until(lambda: len(user.calls) == 3, "it runs again")
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 130
        assert user.read("output/Lr_1/stat") == "train: failed\n", "what was stopped is not running"

    def test_environment_and_log_cover_the_whole_command(self, user: UserFolder) -> None:
        """B25"""
        user.write("sub/here.txt", "found\n")
        train = 'echo first $GPU; cd sub && cat here.txt && bash -c "echo $GPU" && echo {lr} >&2'
        train = train.replace("GPU", "CUDA_VISIBLE_DEVICES")
        user.write("params.yaml", f"template: {{train: '{train}'}}\nresource: [0]\n---\nlr: [7]\n")
        user.well("mlrunner")
        assert next(Path("output").glob("*/log.train.*")).read_text() == "first 0\nfound\n0\n7\n"


class TestFlags:
    def test_a_dry_run_shows_folder_gpu_log_and_the_run_s_own_values(self, user: UserFolder) -> None:
        text = "template:\n  a: cp {_output}/x s3://b/{_output} {_name} '{_time}' [p]\n  b: 'true'\n"
        user.write("params.yaml", f"{text}resource: [3, '1,2']\n---\np: [1, 2 3]\n")
        lines = user.well("mlrunner", "--dry-run", "-o", "./my out").lines[2:]
        stamp = re.findall(r"\d{8}\.\d{6}", lines[1])[0]
        assert lines[0] == "START   gpu: 3, a: 1/ 2, ./my out/P_1"
        assert lines[1] == (
            f"CUDA_VISIBLE_DEVICES=3 cp './my out/P_1'/x s3://b/'./my out/P_1' P_1 ''{stamp}'' --p 1"
            f" > './my out/P_1/log.a.{stamp}' 2>&1"
        )
        assert lines[4] == "START   gpu: 1,2, a: 2/ 2, ./my out/P_2 3"
        assert lines[7] == f"CUDA_VISIBLE_DEVICES=1,2 true > './my out/P_2 3/log.b.{stamp}' 2>&1"
        shared = user.well("mlrunner", "--dry-run", "--no-subdir").lines[3]
        assert re.search(r"cp output/x s3://b/output P_1 .* > output/log\.a\.\S+\.P_1 2>&1", shared)

    def test_param_holds_the_gpu_and_the_log(self, user: UserFolder) -> None:
        user.write("params.yaml", "template:\n  a: echo {_output} {_name} {_time}\nresource: ['1,2']\n---\np: [1]\n")
        user.well("mlrunner", "-o", "out")
        log = next(Path("out/P_1").glob("log.a.*"))
        param = yaml.safe_load(user.read("out/P_1/param"))
        stamp = log.name.removeprefix("log.a.")
        assert param["_scripts"] == {"a": f"CUDA_VISIBLE_DEVICES=1,2 echo out/P_1 P_1 {stamp} > {log} 2>&1"}
        assert param["_time"] == stamp
        assert log.read_text() == f"out/P_1 P_1 {stamp}\n"

    def test_finished_tasks_are_skipped_or_forced(self, user: UserFolder) -> None:
        user.well("mlrunner", "-c", "train", "-r", "1,2", "5")
        assert {call.split()[0] for call in user.calls} == {"1,2", "5"}
        lines = user.well("mlrunner", "-c", "train").lines
        assert lines[-7:-1] == ["Skipped tasks: 5/5", *(f"    output/{task}" for task in TASKS)]
        dry = user.well("mlrunner", "-c", "train", "--dry-run").lines
        assert [line.split()[0] for line in dry[2:]] == ["SKIP"] * 5
        said = user.well("mlrunner", "-c", "train", "-f")
        assert done(user) == sorted(all_of("train") * 2)
        assert not any(line.startswith("SKIP") for line in said.lines)

    def test_a_copy_of_the_code_finds_the_folder(self, user: UserFolder) -> None:
        user.write("params.yaml", "template:\n  a: touch {_output}/here\nresource: [0]\n---\np: [1]\n")
        user.well("run", "params.yaml", "--code", "snapshot")
        assert Path("runs/params/P_1/here").exists()

    def test_title_selects_documents(self, user: UserFolder) -> None:
        user.write("params.yaml", PARAMS.replace("---\nnorm: [ batch ]", "---\n_title: stop\nnorm: [ batch ]"))
        assert user.well("mlrunner", "-t", "stop").lines[1] == "Tasks: 2, commands to run: 6"
        assert {call.split()[1] for call in done(user)} == {"Norm_batch-EaStop_T", "Norm_batch-EaStop_F"}
        assert len(user.calls) == 6
        assert Path("output/params.yaml.stop").exists()

    def test_commands_can_be_chosen_and_the_rest_done_later(self, user: UserFolder) -> None:
        user.well("mlrunner", "-c", "avg", "train")
        assert done(user) == all_of("train", "avg")
        said = user.well("mlrunner")
        assert said.lines[1] == f"Tasks: 6, commands to run: 5 {SHARED}"
        assert done(user) == all_of("train", "avg", "test")
        assert sum(line.startswith("SKIP") for line in said.lines) == 10

    def test_debug_shows_the_first_task_s_output_in_order(self, user: UserFolder) -> None:
        user.write("FAIL", "")
        said = user.assay("mlrunner", "-d", code=1)
        words = [
            line.split(",")[-1].split("/")[-1] if line.startswith(("START", "FAIL")) else line.split()[0]
            for line in said.lines[2:]
        ]
        task = "Norm_new-Moment_0.1"
        assert words == [task, "trained", task, "no", task, "Failed", f"output/{task}"]
        assert done(user) == [f"avg {task}", f"train {task}"]
        (user.folder / "FAIL").unlink()
        user.well("mlrunner", "-d")
        said = user.well("mlrunner", "-d", "-c", "test")
        assert "BLEU4 = 34.5" in said.lines, "what is finished is repeated"
        assert "trained" not in said.out
        assert done(user).count("test Norm_new-Moment_0.1") == 2

    def test_no_subdir_puts_the_logs_side_by_side(self, user: UserFolder) -> None:
        """B22"""
        user.well("mlrunner", "--no-subdir")
        logs = [re.sub(r"\.\d{8}\.\d{6}\.", " ", name)[4:] for name in os.listdir("output") if name.startswith("log.")]
        assert sorted(logs) == all_of("train", "avg", "test")
        assert Path("output/averaged_model.pt").exists()
        assert len(user.calls) == 15
        assert user.well("mlrunner", "--no-subdir").lines[1] == f"Tasks: 6, commands to run: 0 {SHARED}"


class TestHalfDone:
    """The sample tree: finished, failed, left `running` by a killed runner, half of its commands done, and empty."""

    LEFT = (
        "test Norm_batch-EaStop_T",
        "test Norm_batch-Moment_0.05",
        "test Norm_batch-Moment_0.1",
        "test Norm_new-Moment_0.05",
        "train Norm_batch-EaStop_T",
        "train Norm_batch-Moment_0.1",
    )

    @pytest.fixture
    def half(self, user: UserFolder) -> UserFolder:
        shutil.copytree(ORIGINALS / "mlrunner", user.folder, dirs_exist_ok=True)
        return user

    def test_it_is_continued(self, half: UserFolder) -> None:
        before = {path: path.stat().st_mtime_ns for path in half.folder.rglob("*")}
        dry = half.well("mlrunner", "--dry-run")
        assert {path: path.stat().st_mtime_ns for path in half.folder.rglob("*")} == before
        assert sum(line.startswith("CUDA_VISIBLE_DEVICES=") for line in dry.lines) == 6
        said = half.well("mlrunner")
        assert done(half) == list(self.LEFT)
        assert said.lines[1] == "Tasks: 5, commands to run: 6"
        assert all(stat(half, task) == {"train": "finished", "test": "finished"} for task in TASKS)
        first = run_directory.load_history("output/Norm_batch-Moment_0.05").attempts[0].outcome
        assert first == Outcome(State.STOPPED, 1, {"train": 0}, "left unfinished by mlrunner")
        assert half.well("mlrunner").lines[1] == "Tasks: 5, commands to run: 0"
        assert done(half) == list(self.LEFT)

    def test_assay_run_continues_it_and_leaves_what_failed(self, half: UserFolder) -> None:
        said = half.assay("run", "params.yaml", "--root", ".", "--study", "output", code=1)
        assert "test failed under mlrunner" in said.err
        assert done(half) == [call for call in self.LEFT if call != "test Norm_new-Moment_0.05"]
        half.well("run", "params.yaml", "--root", ".", "--study", "output", "--retry", "failed")
        assert done(half) == list(self.LEFT)

    def test_a_folder_of_other_parameters_is_left_alone(self, half: UserFolder) -> None:
        path = "output/Norm_new-Moment_0.1/param"
        half.write(path, half.read(path).replace("data: iwslt14", "data: wmt16"))
        half.well("mlrunner", "-c", "train")
        assert "train Norm_new-Moment_0.1" in {call.partition("~")[0] for call in done(half)}
        assert not Path("output/Norm_new-Moment_0.1/run.json").exists()
        assert yaml.safe_load(half.read(path))["data"] == "wmt16"

    def test_it_is_tabled_before_and_after(self, half: UserFolder) -> None:
        states = {line.split()[0]: line.split()[1] for line in half.well("sum", "output").lines[2:]}
        assert states == {
            "Norm_new-Moment_0.1": "done",
            "Norm_new-Moment_0.05": "failed",
            "Norm_batch-Moment_0.1": "stopped",
            "Norm_batch-Moment_0.05": "stopped",
            "Norm_batch-EaStop_T": "stopped",
        }
        half.well("index", "ingest", "output")
        half.well("mlrunner")
        assert all(line.split()[1] == "done" for line in half.well("ls", "output").lines[2:-1])


def examine(regex: str) -> tuple[str, Any]:
    """The document's notebook, with `assay.examine` in the place of `runner.examine`."""
    from assay.examine import Examiner, latest_log

    def parse_bleu(path: Path | None) -> float | None:
        found = re.search(r"BLEU4 = ([\d.]+)", path.read_text()) if path else None
        return float(found[1]) if found else None

    def add_bleu(output_dir: Path, experiment: Any, caches: Any) -> None:
        latest_test_log = latest_log("test", output_dir)
        bleu = parse_bleu(latest_test_log)
        experiment.metric["test_bleu"] = bleu

    with contextlib.redirect_stdout(io.StringIO()) as said:
        examiner = Examiner()
        examiner.add(add_bleu)
        examiner.exam(output="output", regex=regex)
        frame = examiner.table()
    return said.getvalue(), frame


class TestBadInput:
    def test_without_params_yaml_a_smallest_file_is_shown_and_works(self, user: UserFolder) -> None:
        (user.folder / "params.yaml").unlink()
        said = user.assay("mlrunner", code=2)
        assert "there is no file params.yaml" in said.err
        assert not Path("output").exists()
        user.write("params.yaml", textwrap.dedent(said.err.split("-y:\n")[1]) + "\n")
        assert user.well("mlrunner", "--dry-run").lines[1] == "Tasks: 2, commands to run: 2"

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (["-t", "stpo"], "did you mean 'stop'?"),
            (["-c", "tset"], "did you mean 'test'?"),
            (["--sample", "0"], "1 or more"),
            (["--sample", "many"], "invalid int value"),
        ],
    )
    def test_refused_with_a_hint(self, user: UserFolder, arguments: list[str], hint: str) -> None:
        user.write("params.yaml", PARAMS.replace("---\nnorm: [ batch ]", "---\n_title: stop\nnorm: [ batch ]"))
        assert hint in user.assay("mlrunner", *arguments, code=2).err
        assert not Path("output").exists()

    def test_a_missing_program(self, user: UserFolder) -> None:
        user.write("params.yaml", PARAMS.replace("python generate.py", "pyhton generate.py"))
        assert "the program 'pyhton' was not found" in user.assay("mlrunner", code=2).err
        assert not Path("output").exists()


def test_an_edited_template_keeps_the_folder_and_what_was_trained(user: UserFolder) -> None:
    """Train once, mend the test command, `-c test -f`: the everyday way."""
    text = "template:\n  train: echo model > {{_output}}/m.pt\n  test: cat {{_output}}/m.pt; echo {word} {{norm}}\nresource: [0]\n---\nnorm: [a]\n"
    user.write("params.yaml", text.format(word="BLEU"))
    user.well("mlrunner")
    user.write("params.yaml", text.format(word="BLEU4"))
    user.well("mlrunner", "-c", "test", "-f")
    (folder,) = user.runs("output")
    newest = max(folder.glob("log.test.*"), key=lambda path: path.stat().st_mtime_ns)
    assert newest.read_text().endswith("model\nBLEU4 a\n")

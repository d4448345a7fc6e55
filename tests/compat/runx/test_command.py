"""runx's document, example by example, through `assay runx` and through `assay run`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest
from tests.fork_server import ForkedProcess, start_assay
from tests.user_folder import INTRO, INTRO_LINES, UserFolder, open_user_folder

COOLNAME = r"[a-z]+-[a-z]+_\d{4}\.\d\d\.\d\d_\d\d\.\d\d"
ONE = "CMD: python train.py\nHPARAMS: {lr: 0.01, solver: sgd}\n"
TWO = "CMD: python train.py\nHPARAMS: {lr: [0.01, 0.02]}\n"
BOTH_COMMANDS = pytest.mark.parametrize("command", [("runx", "-i"), ("run", "--jobs", "1")], ids=["runx", "run"])


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write("sweep.yml", INTRO)
        user.note_calls()
        yield user


def note_and(user: UserFolder, more: str) -> str:
    """A Python script that keeps what it was called with, and does more."""
    return f"import sys\nopen({str(user.folder / 'calls.txt')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n{more}"


@contextmanager
def beside(user: UserFolder, *arguments: str) -> Iterator[tuple[ForkedProcess, IO[str]]]:
    """The program in a process of its own, and all that it prints."""
    with tempfile.TemporaryFile("w+") as log:
        yield start_assay(arguments, cwd=user.folder, env=os.environ, log=log), log


def interrupt(program: ForkedProcess, log: IO[str]) -> str:
    """What it has printed when it is gone."""
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == 130
    log.seek(0)
    return log.read()


def flags(lines: list[str]) -> list[str]:
    return [line.removeprefix("python train.py ") for line in lines]


class TestIntroduction:
    @pytest.mark.parametrize("command", ["runx", "run"])
    def test_n_prints_the_commands_and_writes_nothing(self, user: UserFolder, command: str) -> None:
        before = user.everything()
        assert user.well(command, "sweep.yml", "-n").lines == INTRO_LINES
        assert user.everything() == before
        assert user.calls == []

    def test_the_output_of_each_run_is_live_and_in_its_log(self, user: UserFolder) -> None:
        """B1"""
        user.write("sweep.yml", TWO.replace("python train.py", "echo training"))
        said = user.well("runx", "sweep.yml", "-i")
        assert said.lines == [f"{word} --lr {lr}" for lr in (0.01, 0.02) for word in ("echo training", "training")]
        assert "no LOGROOT in .runx: runs go to runs/sweep" in said.err
        assert [(run / "train.log").read_text() for run in user.runs()] == [f"{line}\n" for line in said.lines[1::2]]

    def test_the_gpus_are_left_alone_or_slots(self, user: UserFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
        user.write("sweep.yml", "CMD: echo $CUDA_VISIBLE_DEVICES; true\nHPARAMS: {lr: [1, 2]}\n")
        assert user.well("runx", "sweep.yml", "-i").lines[1::2] == ["6,7"] * 2
        user.well("runx", "sweep.yml", "-i", "--slots", "4,5")
        assert {(run / "train.log").read_text() for run in user.runs()[2:]} == {"4\n", "5\n"}


class TestDirectories:
    @BOTH_COMMANDS
    def test_logdir_is_a_directory_of_its_own(self, user: UserFolder, command: tuple[str, ...]) -> None:
        """B4: LOGROOT is inside of the source, and is not copied with it."""
        user.write("sweep.yml", INTRO + "  logdir: LOGDIR\n")
        user.write(".runx", f"LOGROOT: {user.folder}/logs\n")
        user.write("logs/notes.txt", "")
        user.well(command[0], "sweep.yml", *command[1:])
        passed = [call.split("--logdir ")[1] for call in user.calls]
        assert passed == [str(run) for run in user.runs("logs/sweep")]
        assert not [*user.folder.glob("logs/sweep/*/code/logs")]
        assert all(re.fullmatch(COOLNAME, os.path.basename(path)) for path in passed)
        assert len(set(passed)) == 4

    def test_a_tag_stands_in_front_and_exp_name_names_the_folder(self, user: UserFolder) -> None:
        """B3"""
        user.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: 1}\n")
        user.write("conf/mine.runx", "LOGROOT: here\n")
        user.well("runx", "sweep.yml", "-c", "conf/mine.runx", "--tag", "first", "--exp_name", "other")
        (run,) = user.runs("conf/here/other")
        assert re.fullmatch("first_" + COOLNAME, run.name)


class TestCode:
    def test_editing_the_source_during_a_sweep_changes_nothing(self, user: UserFolder) -> None:
        source = str(user.folder / "train.py")
        user.write("train.py", f"print('as it was')\nopen({source!r}, 'w').write('print(\"edited\")')\n")
        user.write("sweep.yml", TWO)
        assert user.well("runx", "sweep.yml", "-i").lines[1::2] == ["as it was"] * 2
        assert user.read("train.py") == 'print("edited")'

    def test_the_originals_files_are_there_and_submit_cmd_repeats_the_run_with_its_own_code(
        self, user: UserFolder
    ) -> None:
        """B5: PYTHONPATH counts without a farm."""
        user.write("sweep.yml", ONE.replace("}", ", logdir: LOGDIR}"))
        user.write("train.py", "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'], *sys.argv[1:])")
        user.well("runx", "sweep.yml")
        (first,) = user.runs()
        assert json.loads((first / "hparams.json").read_text()) == {"lr": 0.01, "solver": "sgd", "logdir": str(first)}
        user.write("train.py", "raise SystemExit(1)")
        again = subprocess.run(["bash", first / "submit_cmd.sh"], capture_output=True, text=True, check=True, cwd="/")
        assert again.stdout == f"{first}/code {first}/code --lr 0.01 --solver sgd --logdir {first}\n"
        assert (first / "train.log").read_text() == again.stdout


class TestFoundConfigurations:
    def test_a_key_said_twice_is_a_warning_once(self, user: UserFolder) -> None:
        user.write("sweep.yml", "CMD: python train.py\nHPARAMS:\n  lr: 1\n  lr: 2\n")
        said = user.well("runx", "sweep.yml", "-n")
        assert said.lines == user.well("run", "sweep.yml", "-n").lines == ["python train.py --lr 2"]
        assert said.err.count("sweep.yml:4:3 HPARAMS.lr: this key is here twice") == 1

    def test_an_environment_in_front_of_the_command(self, user: UserFolder) -> None:
        """B18b"""
        user.write("sweep.yml", "CMD: VAR=7 sh show.sh\nHPARAMS: {lr: 1}\n")
        user.write("show.sh", "echo $VAR\n")
        assert user.well("runx", "sweep.yml", "-i").lines == ["VAR=7 sh show.sh --lr 1", "7"]

    @pytest.mark.needs(farms=True)
    def test_submit_cmd_bash_runs_here(self, user: UserFolder) -> None:
        user.write(".runx", "LOGROOT: logs\nFARM: here\nhere:\n  SUBMIT_CMD: bash\n")
        said = user.well("runx", "sweep.yml")
        assert said.lines == [f'bash -c "{line}"' for line in INTRO_LINES]
        assert sorted(user.calls) == sorted(flags(INTRO_LINES))
        assert "4 done" in said.err

    @pytest.mark.needs(farms=True)
    def test_the_experiment_overrides_runx(self, user: UserFolder) -> None:
        """B6"""
        user.write(".runx", "LOGROOT: logs\nFARM: big\nbig: {SUBMIT_CMD: submit_job, RESOURCES: {gpu: 2}}\n")
        user.write("sweep.yml", f"LOGROOT: other\nRESOURCES: {{gpu: 8, mem: 1}}\n{ONE}")
        said = user.well("runx", "sweep.yml")
        assert said.lines == ['submit_job --gpu 8 --mem 1 -c "python train.py --lr 0.01 --solver sgd"']
        user.until_ended("other/sweep", 1)

    @pytest.mark.needs(farms=True)
    def test_quotes_in_the_command_survive_the_farm(self, user: UserFolder) -> None:
        """B10"""
        user.write(".runx", "LOGROOT: logs\nFARM: draco\ndraco: {SUBMIT_CMD: submit_job}\n")
        flags = '{say: \'"a  b"\', it: "it\\\\\'s"}'
        user.write("sweep.yml", f"CMD: python train.py 'one  word' \"$HOME\"\nHPARAMS: {flags}\n")
        user.write("train.py", f"import sys, json; json.dump(sys.argv[1:], open({str(user.folder / 'argv')!r}, 'w'))")
        user.well("runx", "sweep.yml")
        user.until_ended("logs/sweep", 1)
        assert json.loads(user.read("argv")) == ["one  word", os.environ["HOME"], "--say", "a  b", "--it", "it's"]


class TestSets:
    def test_a_finished_sweep_is_run_again_and_kept_by_assay_run(self, user: UserFolder) -> None:
        user.well("runx", "sweep.yml")
        user.well("run", "sweep.yml")
        assert user.calls == flags(INTRO_LINES)
        user.well("runx", "sweep.yml")
        assert len(user.runs()) == 8
        assert user.calls == flags(INTRO_LINES) * 2

    def test_assay_run_keeps_what_is_finished_when_the_file_grows_and_shrinks(self, user: UserFolder) -> None:
        user.well("run", "sweep.yml", "--jobs", "1")
        user.write("sweep.yml", INTRO.replace("0.02]", "0.02, 0.03]"))
        user.well("run", "sweep.yml", "--jobs", "1")
        grown = [*INTRO_LINES, "python train.py --lr 0.03 --solver sgd", "python train.py --lr 0.03 --solver adam"]
        assert user.calls == flags(grown)
        user.write("sweep.yml", INTRO.replace("0.01, 0.02]", "0.01]"))
        user.well("run", "sweep.yml", "--jobs", "1")
        user.write("sweep.yml", INTRO.replace("0.02]", "0.02, 0.03]"))
        user.well("run", "sweep.yml", "--jobs", "1")
        assert user.calls == flags(grown)
        assert len(user.runs()) == 6

    def test_runs_without_random_names_are_run_again_too(self, user: UserFolder) -> None:
        """B8"""
        user.well("runx", "sweep.yml", "--no_cooldir", "--tag", "exp")
        user.well("runx", "sweep.yml", "--no_cooldir", "--tag", "exp")
        assert user.calls == flags(INTRO_LINES) * 2
        assert len(user.runs()) == 8
        assert all(run.name.startswith("exp") for run in user.runs())

    def test_an_interrupted_sweep_is_continued_and_the_old_code_is_named(self, user: UserFolder) -> None:
        wait = "import sys, time\nprint('old', flush=True)\n'0.02' in sys.argv and time.sleep(600)\n"
        user.write("train.py", note_and(user, wait))
        with beside(user, "runx", "sweep.yml", "-i") as (program, log):
            user.until(lambda: len(user.calls) == 3, "the third run began")
            assert "continue with: assay runx sweep.yml -i" in interrupt(program, log)
        user.write("train.py", note_and(user, "print('new')\n"))
        with beside(user, "runx", "sweep.yml", "-i") as (program, log):
            user.until(lambda: len(user.calls) == 4, "the third run began again")
            text = interrupt(program, log)
        changed = "continue with the recorded snapshot: train.py has changed since"
        advice = "for the current code stop and call: assay runx sweep.yml --interactive --new-code"
        (line,) = [line for line in text.splitlines() if changed in line]
        assert advice in line
        assert text.index(line) < text.index("old"), "it is printed first"
        said = user.well("runx", "sweep.yml", "--interactive", "--new-code")
        assert said.lines == [INTRO_LINES[2], "new", INTRO_LINES[3], "new"], "nothing of an earlier attempt"
        assert len(user.runs()) == 4
        assert user.calls == flags([*INTRO_LINES[:3], INTRO_LINES[2], *INTRO_LINES[2:]])

    def test_a_second_call_while_the_first_runs_starts_new_runs_with_the_current_code(self, user: UserFolder) -> None:
        gate = user.folder / "go"
        wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(.01)\n"
        user.write("train.py", note_and(user, wait))
        with beside(user, "runx", "sweep.yml", "-i") as (first, _):
            user.until(lambda: len(user.calls) == 1, "the first run began")
            user.note_calls()
            said = user.assay("runx", "sweep.yml", "-i", "--tag", "new")
            gate.touch()
            assert first.wait(60) == 0
        assert said.code == 0
        assert said.lines == INTRO_LINES
        assert "4 runs of earlier calls are still waiting or running, and this call starts new ones" in said.err
        assert sum(run.name.startswith("new_") for run in user.runs()) == 4
        assert len(user.runs()) == 8
        assert not [*(user.folder / "runs/sweep/.assay").glob("plan*.json")]

    def test_a_repeated_run_does_not_print_the_log_of_its_earlier_attempt(self, user: UserFolder) -> None:
        user.write("sweep.yml", "CMD: 'n=$ASSAY_ATTEMPT_NUMBER; echo attempt $n; [ $n = 2 ]'\nHPARAMS: {}\n")
        assert user.assay("runx", "sweep.yml", "-i").code == 1
        assert user.well("runx", "sweep.yml", "-i", "--retry", "failed").lines[1:] == ["attempt 2"]


class TestFailures:
    def test_a_failed_run_is_repeated_with_its_own_code_and_that_is_printed_first(self, user: UserFolder) -> None:
        user.write("train.py", "import sys; print('old'); sys.exit(1)")
        user.write("sweep.yml", "CMD: 'python train.py'\nHPARAMS: {lr: 1}\n")
        hint = re.findall(r"assay (rerun \S+)", user.assay("runx", "sweep.yml", "-i").err)[0].split()
        user.write("train.py", "print('new')")
        again = user.assay(*hint, code=1)
        line = "1 run has the recorded snapshot: train.py has changed since (--new-code takes the current code)\n"
        assert again.err.startswith(line)
        user.well(*hint, "--new-code")
        assert (user.runs()[0] / "train.3.log").read_text() == "new\n"

    def test_the_end_of_the_log_and_exit_code_1(self, user: UserFolder) -> None:
        """B7"""
        user.write("train.py", "import sys; print('loss is nan'); sys.exit('0.02' in sys.argv)")
        user.write("sweep.yml", TWO)
        said = user.assay("runx", "sweep.yml", "-i", code=1)
        assert said.err.count("train ended with exit code 1") == 1
        assert "  | loss is nan" in said.err
        assert "1 done, 1 failed" in said.err

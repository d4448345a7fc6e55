"""`assay run --force`, interrupted: the next call continues that pass and repeats no run that the pass had finished."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Result
from tests.study_processes import StudyProcesses, until

from assay.record import run_directory
from assay.values.run import State

WAIT = 'touch "$ASSAY_RUN_DIR/up"; until [ -e "$GO" ]; do sleep 0.05; done'
D, S = State.DONE, State.STOPPED


def write_study(shop: StudyProcesses, script: str, command: str = "command: bash train.sh {n}") -> None:
    shop.write("train.sh", f"echo begin $1\n{script}\necho end $1\n")
    shop.write("study.yml", f"study: study\n{command}\nparams: {{n: [1, 2, 3]}}\n")


def finish_once(shop: StudyProcesses, script: str = "", command: str = "command: bash train.sh {n}") -> None:
    """Finish all runs; in every later attempt the second run waits until it may go on."""
    write_study(shop, f"if [ $1 = 2 ] && [ $ASSAY_ATTEMPT_NUMBER != 1 ]; then {WAIT}; fi\n{script}", command)
    assert shop.run("--slots", "0").code == 0


def interrupt(shop: StudyProcesses, number: signal.Signals, *arguments: str) -> str:
    program = shop.start("--plain", "--slots", "0", *arguments)
    until((shop.dir("n=2") / "up").exists, "the second run is repeated")
    assert shop.end(program, number) == (130 if number is not signal.SIGKILL else -signal.SIGKILL)
    return shop.words(program)


def states(shop: StudyProcesses) -> list[list[State | None]]:
    return [shop.states(f"n={n}") for n in (1, 2, 3)]


def passes(shop: StudyProcesses) -> list[str]:
    return run_directory.find_passes(str(shop.root / "study"))


def paste(shop: StudyProcesses, command: str) -> Result:
    words = shlex.split(command)
    assert words[0] == "assay"
    return shop.call(*words[1:])


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_the_command_advised_after_an_interrupted_force_repeats_nothing_that_it_finished(
    shop: StudyProcesses, number: signal.Signals
) -> None:
    finish_once(shop)
    words = interrupt(shop, number, "--force")
    assert states(shop) == [[D, D], [D, S], [D]]
    (shop.base / "go").touch()
    advised = next(line for line in words.splitlines() if "continue with: " in line).partition("continue with: ")[2]
    again = paste(shop, advised)
    assert again.code == 0, again.err
    assert states(shop) == [[D, D], [D, S, D], [D, D]]
    assert "continues an unfinished --force: 1 of 3 runs has been repeated and is kept" in again.err
    assert passes(shop) == []
    assert shop.run("--slots", "0", "--force").code == 0
    assert [len(each) for each in states(shop)] == [3, 4, 3], "a pass that came to its end is not continued"


def test_a_force_whose_supervisor_was_killed_is_continued_by_the_same_call(shop: StudyProcesses) -> None:
    """The next call watches the job that was left running, and its result counts."""
    finish_once(shop)
    interrupt(shop, signal.SIGKILL, "--force")
    (shop.base / "go").touch()
    until((shop.dir("n=2") / "run.2.exit.0").exists, "the run that was left alone ends")
    assert shop.run("--slots", "0", "--force").code == 0
    assert states(shop) == [[D, D], [D, D], [D, D]]
    assert passes(shop) == []


@pytest.mark.parametrize("content", [None, "{"])
def test_what_finished_without_a_supervisor_is_repeated_by_a_force_too(
    shop: StudyProcesses, content: str | None
) -> None:
    """A supervisor that was killed before the end of its run leaves no outcome, a power cut perhaps half of one."""
    write_study(shop, "")
    assert shop.run("--slots", "0").code == 0
    outcome = shop.dir("n=1") / "outcome.1"
    outcome.unlink()
    if content is not None:
        outcome.write_text(content)
    assert shop.run("--slots", "0", "--force").code == 0
    assert states(shop) == [[D, D], [D, D], [D, D]]
    assert passes(shop) == []


@pytest.mark.long
def test_the_last_run_of_a_force_is_interrupted_and_the_others_are_kept(shop: StudyProcesses) -> None:
    finish_once(shop)
    program = shop.start("--plain", "--slots", "cpu:3", "--force")
    until(lambda: (shop.dir("n=2") / "up").exists() and all(len(states(shop)[n]) == 2 for n in (0, 2)), "two are done")
    until(lambda: [D, D] == states(shop)[0] == states(shop)[2], "two have ended")
    assert shop.end(program, signal.SIGINT) == 130
    (shop.base / "go").touch()
    assert shop.run("--slots", "0", "--force").code == 0
    assert states(shop) == [[D, D], [D, S, D], [D, D]]


@pytest.mark.long
def test_a_force_that_failed_in_part_is_not_repeated_for_the_failures(shop: StudyProcesses) -> None:
    finish_once(shop, "[ $1 != 1 ] || [ $ASSAY_ATTEMPT_NUMBER != 2 ] || exit 1")
    interrupt(shop, signal.SIGINT, "--force")
    (shop.base / "go").touch()
    assert shop.run("--slots", "0", "--force").code == 1
    assert states(shop) == [[D, State.FAILED], [D, S, D], [D, D]]


@pytest.mark.long
def test_a_run_stopped_by_hand_is_repeated_by_the_next_force(shop: StudyProcesses) -> None:
    finish_once(shop)
    program = shop.start("--plain", "--slots", "0", "--force")
    until((shop.dir("n=2") / "up").exists, "the second run is repeated")
    program.kill()
    program.wait()
    assert shop.call("stop", "study/n=2", "--root", str(shop.root)).code == 0
    (shop.base / "go").touch()
    assert shop.run("--slots", "0", "--force").code == 0
    assert states(shop) == [[D, D], [D, S, D], [D, D]]


@pytest.mark.parametrize("is_edited", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_interrupted_force_with_new_code_keeps_what_has_that_code(shop: StudyProcesses, is_edited: bool) -> None:
    """It is begun again where the code was edited since."""
    finish_once(shop)
    text = (shop.source / "train.sh").read_text()
    shop.write("train.sh", f"echo newer\n{text}")
    interrupt(shop, signal.SIGINT, "--force", "--new-code")
    (shop.base / "go").touch()
    if is_edited:
        shop.write("train.sh", f"echo newest\n{text}")
    assert shop.run("--slots", "0", "--force", "--new-code").code == 0
    assert states(shop) == [[D, D, D] if is_edited else [D, D], [D, S, D], [D, D]]
    logs = [shop.dir("n=3") / "run.2.log", *(shop.dir(f"n={n}") / "run.3.log" for n in (1, 2) if is_edited)]
    assert all(log.read_text().startswith("newest" if is_edited else "newer") for log in logs)


def test_commands_that_the_interrupted_force_finished_are_not_repeated(shop: StudyProcesses) -> None:
    command = 'commands: {a: "true {n}", b: "bash train.sh {n}"}'
    finish_once(shop, command=command)
    interrupt(shop, signal.SIGINT, "--force")
    (shop.base / "go").touch()
    assert shop.run("--slots", "0", "--force").code == 0
    assert shop.history("n=2").attempts[-1].codes == {"b": 0}
    assert shop.history("n=3").attempts[-1].codes == {"a": 0, "b": 0}


def test_a_run_that_force_was_repeating_is_not_done_because_it_was_before(shop: StudyProcesses) -> None:
    """Without --force the next call finishes the interrupted run, and the report names what is left."""
    finish_once(shop)
    interrupt(shop, signal.SIGINT, "--force")
    (shop.base / "go").touch()
    again = shop.run("--slots", "0").ended(0)
    assert states(shop) == [[D, D], [D, S, D], [D]]
    assert (shop.dir("n=2") / "run.3.log").read_text() == "begin 2\nend 2\n"
    assert "1 run has not been repeated yet by a --force that was interrupted" in again.err
    assert paste(shop, again.err.splitlines()[-1].strip()).code == 0
    assert states(shop) == [[D, D], [D, S, D], [D, D]]
    assert passes(shop) == []


def test_two_supervisors_with_force_repeat_each_run_once(shop: StudyProcesses) -> None:
    finish_once(shop)
    first = shop.start("--plain", "--slots", "cpu:2", "--force")
    until((shop.dir("n=2") / "up").exists, "the second run is repeated")
    second = shop.start("--plain", "--slots", "cpu:2", "--force")
    until(lambda: "found n=2 still running" in shop.words(second), "the second supervisor watches it")
    (shop.base / "go").touch()
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert states(shop) == [[D, D]] * 3
    assert passes(shop) == []


def test_a_dry_run_shows_what_an_interrupted_force_has_left(shop: StudyProcesses) -> None:
    finish_once(shop)
    assert len(shop.run("-n", "--force").out.splitlines()) == 3
    interrupt(shop, signal.SIGINT, "--force")
    lines = shop.run("-n", "--force").out.splitlines()
    assert [line.split()[-1] for line in lines[:-1]] == ["2", "3"]
    assert lines[-1].startswith("# 1 of 3 runs is kept")


@pytest.mark.long
def test_an_interrupted_rerun_is_continued_and_another_choice_of_runs_is_not(shop: StudyProcesses) -> None:
    finish_once(shop)
    names = [f"study/n={n}" for n in (1, 2, 3)]
    words = [sys.executable, "-m", "assay", "rerun", *names, "--root", str(shop.root), "--slots", "0", "--quiet"]
    program = subprocess.Popen(words, cwd=shop.source, env=shop.env, stdin=subprocess.DEVNULL, text=True)
    shop.started.append(program)
    until((shop.dir("n=2") / "up").exists, "the second run is repeated")
    assert shop.end(program, signal.SIGINT) == 130
    (shop.base / "go").touch()
    assert shop.call("rerun", *names, "--root", str(shop.root), "--slots", "0").code == 0
    assert states(shop) == [[D, D], [D, S, D], [D, D]]
    assert passes(shop) == []
    assert shop.call("rerun", names[0], "--root", str(shop.root), "--slots", "0").code == 0
    assert shop.states("n=1") == [D, D, D]


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("text", ["", "[]", '{"runs": 3}', '{"runs": {"a": "x", "b": -1, "c": true}}', "{"])
def test_a_damaged_file_of_a_force_begins_it_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pass-1.json"
    path.write_text(text)
    assert run_directory.join_pass(str(path), {"a": 2, "b": 0}) == {"a": 2, "b": 0}
    assert run_directory.load_pass(str(path)) == {"a": 2, "b": 0}


def test_a_run_whose_folder_was_removed_counts_from_its_first_attempt(tmp_path: Path) -> None:
    path = str(tmp_path / "pass-1.json")
    run_directory.join_pass(path, {"a": 2, "b": 1})
    assert run_directory.join_pass(path, {"a": 0, "b": 3, "c": 1}) == {"a": 0, "b": 1, "c": 1}


def test_a_pass_is_left_only_when_all_of_its_runs_were_repeated(tmp_path: Path) -> None:
    path = str(tmp_path / "pass-1.json")
    run_directory.join_pass(path, {"a": 1, "b": 1, "other": 1})
    run_directory.leave_pass(path, {"a": 2, "b": 1})
    assert run_directory.load_pass(path) == {"a": 1, "b": 1, "other": 1}
    run_directory.leave_pass(path, {"a": 2, "b": 2})
    assert json.loads(Path(path).read_text())["runs"] == {"other": 1}
    run_directory.leave_pass(path, {"other": 2})
    assert not os.path.exists(path)

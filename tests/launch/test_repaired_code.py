"""After a crash and a fix: which code a repeated run gets, and what is printed about it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from tests.fork_server import call_assay
from tests.study_processes import StudyProcesses, until

from assay.record import run_directory

RUN = "run"
TAKES = "1 failed run takes the current code: train.sh has changed since (--old-code keeps the recorded snapshot)"
RUN_AGAIN = ("run", "study.yml", "--slots", "0")
AGAIN = [(*RUN_AGAIN, "--retry", "failed"), (*RUN_AGAIN, "--force"), ("rerun", "study")]


@pytest.fixture(autouse=True)
def root(shop: StudyProcesses) -> None:
    shop.env["ASSAY_ROOT"] = str(shop.root)


def fail_and_repair(shop: StudyProcesses, more: str = "") -> str | None:
    """Let a run fail and fix the code; return the snapshot of the failed run."""
    shop.write("train.sh", "echo old\nexit 1\n")
    shop.write_study("bash train.sh", more)
    failed = shop.run("--slots", "0").ended(1)
    assert "assay rerun study/run" in failed.err, "the advice"
    shop.write("train.sh", "echo new\n")
    return shop.code_hash()


def test_after_a_crash_and_a_fix_the_fixed_code_runs_and_that_is_printed(shop: StudyProcesses) -> None:
    """Every way to repeat the run uses the fixed code, except --old-code, which repeats it as it was."""
    shop.write("train.sh", "echo old\nexit 1\n")
    shop.write_study("bash train.sh {n}", "params: {n: [0, 1, 2]}\n")
    assert shop.run("--slots", "0").code == 1
    shop.write("train.sh", "echo new\n")
    for number in range(3):
        run, command = f"n={number}", [*AGAIN[number][:-1], f"study/n={number}"]
        if number < 2:
            command = [*AGAIN[number], "--where", f"n=={number}"]
        before = shop.code_hash(run)
        assert "--new-code and --old-code contradict" in shop.call(*command, "--old-code", "--new-code").err
        as_it_was = shop.call(*command, "--old-code")
        assert (as_it_was.code, shop.log(run, attempt=2), shop.code_hash(run)) == (1, "old\n", before)
        assert "current code:" not in as_it_was.err
        again = shop.call(*command)
        assert (again.code, shop.log(run, attempt=3)) == (0, "new\n")
        assert again.err.count(TAKES) == 1
        assert (shop.dir(run) / "code.2/train.sh").read_text() == "echo old\nexit 1\n"
        record = run_directory.load_record(str(shop.dir(run)))
        assert (record.find_code(1), record.find_code(3)) == (before, shop.code_hash(run))
        assert before != shop.code_hash(run)
    shown = json.loads(shop.call("show", "study/n=0", "--json").out)
    assert [attempt["code_hash"] for attempt in shown["attempts"]] == [before, before, shop.code_hash("n=0")]
    assert f"{before} until attempt 2, kept in code.2/" in shop.call("show", "study/n=0").out


def test_a_failed_run_whose_code_is_the_same_is_repeated_without_a_word_about_code(shop: StudyProcesses) -> None:
    """The study's own file is not code, also if it is in the same folder."""
    fail_and_repair(shop)
    shop.write("train.sh", "echo old\nexit 1\n")
    before = shop.code_hash()
    shop.write_study("bash train.sh", "timeout: 1h\n")
    for command in (*AGAIN, ("rerun", "study", "--new-code")):
        again = shop.call(*command)
        assert (again.code, shop.code_hash()) == (1, before)
        assert "current code" not in again.err
    assert not [*shop.dir(RUN).glob("code.*")]


def test_a_failed_run_gets_the_code_of_its_own_folder_wherever_it_is_repeated(shop: StudyProcesses) -> None:
    fail_and_repair(shop)
    elsewhere = shop.base / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.sh").write_text("echo wrong\n")
    again = call_assay(["rerun", str(shop.dir(RUN))], cwd=elsewhere, env=shop.env, timeout=60)
    assert (again.returncode, shop.log(attempt=2)) == (0, "new\n")


def test_a_failed_run_whose_folder_is_gone_is_repeated_with_its_own_code_and_that_is_printed(
    shop: StudyProcesses,
) -> None:
    fail_and_repair(shop)
    moved = shop.source.rename(shop.base / "moved")
    again = call_assay(["rerun", str(shop.dir(RUN))], cwd=shop.base, env=shop.env, timeout=60)
    assert (again.returncode, shop.log(attempt=2)) == (1, "old\n")
    assert "run was repeated with the code that it had: the code of run came from" in again.stderr
    moved.rename(shop.source)


def test_of_a_whole_study_only_what_failed_gets_the_current_code(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n[ $1 = 1 ]\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2]}\n")
    assert shop.run("--slots", "0").code == 1
    shop.write("train.sh", "echo new\n")
    again = shop.call("rerun", "study")
    assert (again.code, again.err.count(TAKES)) == (0, 1)
    assert [shop.log(f"n={n}", attempt=2) for n in (1, 2)] == ["old\n", "new\n"]


def test_a_run_that_failed_without_a_supervisor_gets_the_current_code(shop: StudyProcesses) -> None:
    shop.write("train.sh", 'echo old\nuntil [ -e "$ALL" ]; do sleep 0.05; done\nexit 1\n')
    shop.write_study("bash train.sh")
    program = shop.start("--plain", "--slots", "0")
    until(lambda: (shop.dir(RUN) / "run.log").exists() and shop.log(), "the run")
    program.kill()
    program.wait(60)
    (shop.base / "all").touch()
    until(lambda: "failed" in shop.call("ls", "study").out, "the run has failed")
    shop.write("train.sh", "echo new\n")
    again = shop.call("rerun", "study")
    assert (again.code, shop.log(attempt=2), again.err.count(TAKES)) == (0, "new\n", 1)


def test_an_interrupted_run_is_continued_with_its_code_and_that_is_printed_first(shop: StudyProcesses) -> None:
    shop.write("train.sh", 'echo old $1\n[ -e "$ALL" ] || { touch "$ALL"; sleep 600; }\n')
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2]}\n")
    program = shop.start("--plain", "--slots", "0")
    until((shop.base / "all").exists, "the first run")
    assert shop.end(program, signal.SIGINT) == 130
    shop.write("train.sh", "echo new $1\n")
    again = shop.run("--plain", "--slots", "0").ended(0)
    line = "runs that were begun earlier continue with the recorded snapshot: train.sh has changed since; for the"
    assert again.err.count(line) == 1
    assert again.err.index(line) < again.err.index("n=1")
    advised = again.err.partition("current code stop and call: ")[2].splitlines()[0]
    assert shop.call(*advised.split()[1:]).code == 0
    assert [shop.log("n=1", attempt=2), shop.log("n=2")] == ["old 1\n", "old 2\n"]


def test_a_new_run_from_a_failed_one_has_the_current_code(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\nexit 1\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1]}\n")
    assert shop.run("--slots", "0").code == 1
    shop.write("train.sh", "echo new\n")
    again = shop.call("rerun", "study/n=1", "n=2", "--slots", "0")
    assert (again.code, shop.log("n=2")) == (0, "new\n")
    assert "1 new run takes the current code: train.sh has changed since (--old-code" in again.err
    assert shop.call("rerun", "study/n=1", "n=3", "--slots", "0", "--old-code").code == 1
    assert shop.log("n=3") == "old\n"
    well = shop.call("rerun", "study/n=2", "n=4", "--slots", "0")
    assert (well.code, "current code" in well.err) == (0, False)


def test_a_rerun_that_was_interrupted_goes_on_with_the_code_that_it_began_with(shop: StudyProcesses) -> None:
    shop.write("train.sh", "exit 1\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2, 3]}\n")
    assert shop.run("--slots", "0").code == 1
    shop.write("train.sh", '[ $1 != 2 ] || [ -e "$ALL" ] || { touch "$ALL"; sleep 600; }\necho new\n')
    words = [sys.executable, "-m", "assay", "rerun", "study", "--plain", "--slots", "0"]
    program = subprocess.Popen(words, cwd=shop.source, env=shop.env, text=True)
    shop.started.append(program)
    until((shop.base / "all").exists, "the second run")
    assert shop.end(program, signal.SIGINT) == 130
    shop.call("rerun", "study", "--slots", "0").ended(0, "1 of 3 runs has been repeated and is kept")
    assert [len(shop.states(f"n={n}")) for n in (1, 2, 3)] == [2, 3, 2]


KEEPS = "the recorded snapshot: train.sh has changed since (--new-code takes the current code)\n"


def test_a_run_that_was_well_is_repeated_with_its_code_and_that_is_printed_first(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2]}\n")
    assert shop.run("--slots", "0").code == 0
    assert "snapshot" not in shop.call("rerun", "study", "--slots", "0").err, "nothing has changed"
    shop.write("train.sh", "echo new\n")
    again = shop.call("rerun", "study", "--slots", "0", "--plain")
    assert (again.code, shop.log("n=1", attempt=3)) == (0, "old\n")
    assert again.err.startswith(f"2 runs have {KEEPS}")
    current = shop.call("rerun", "study", "--slots", "0", "--new-code")
    assert (shop.log("n=1", attempt=4), "recorded snapshot" in current.err) == ("new\n", False)


@pytest.mark.parametrize("option", [(), ("--old-code",)])
def test_a_new_run_from_one_that_was_well_has_its_code_and_that_is_printed_first(
    shop: StudyProcesses, option: tuple[str, ...]
) -> None:
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1]}\n")
    assert shop.run("--slots", "0").code == 0
    shop.write("train.sh", "echo new\n")
    again = shop.call("rerun", "study/n=1", "n=2", "--slots", "0", "--plain", *option)
    assert (again.code, shop.log("n=2")) == (0, "old\n")
    assert again.err.startswith(f"1 run has {KEEPS}")
    assert "snapshot" not in shop.call("rerun", "study/n=1", "n=2", "--slots", "0").err, "it is there, and is kept"


def test_old_code_of_a_failed_run_is_printed_first(shop: StudyProcesses) -> None:
    fail_and_repair(shop)
    assert shop.call("rerun", "study", "--old-code", "--plain").err.startswith(f"1 run has {KEEPS}")

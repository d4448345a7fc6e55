"""`assay rerun`."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
from tests.study.workbench import BAD, GOOD, LONG, Bench, until


@pytest.fixture
def copied(own_bench: Bench, bench: Bench) -> Bench:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    return own_bench


def starts(bench: Bench, run: str) -> list[str]:
    lines = (bench.root / "fit" / run / "job.log").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith("start")]


def test_a_finished_run_is_run_again_from_its_first_command(cli, copied: Bench) -> None:
    result = cli("rerun", f"fit/{GOOD}", "--plain")
    assert result.code == 0
    assert "attempt 2" in result.err
    assert starts(copied, GOOD) == ["train", "test", "train", "test"]
    assert json.loads((copied.root / "fit" / GOOD / "outcome.2").read_text())["state"] == "done"
    assert (copied.root / "fit" / GOOD / "train.log").exists()  # of the first attempt


def test_the_study_file_is_not_needed(cli, copied: Bench) -> None:
    assert not (copied.folder / "study.yml").exists()
    assert cli("rerun", "fit", "--quiet", "-j", "2").code == 1
    states = {row["name"]: (row["state"], row["attempt"]) for row in json.loads(cli("ls", "fit", "--json").out)}
    assert states[GOOD] == ("done", 2)
    assert states[BAD] == ("failed", 2)


def test_some_commands_only(cli, copied: Bench) -> None:
    assert cli("rerun", f"fit/{GOOD}", "-c", "test", "--quiet").code == 0
    assert starts(copied, GOOD) == ["train", "test", "test"]
    shown = json.loads(cli("show", GOOD, "--json").out)
    assert shown["metrics"]["loss"]["count"] == 3  # of the attempt that trained
    assert shown["metrics"]["test.acc"]["count"] == 1


def test_a_command_alone_does_not_make_a_failed_run_done(cli, copied: Bench) -> None:
    result = cli("rerun", f"fit/{BAD}", "-c", "test")
    assert result.code == 2
    assert "train has not finished well" in result.err
    assert "-c train" in result.err
    assert not (copied.root / "fit" / BAD / "lease.2").exists()


def test_as_json(cli, copied: Bench) -> None:
    facts = json.loads(cli("rerun", "fit/lr=0.5*", "--json").out)
    assert facts["exit_code"] == 1
    assert [(run["name"], run["attempt"], run["state"]) for run in facts["runs"]] == [
        ("lr=0.5,n=7", 2, "failed"),
        ("lr=0.5,n=8", 2, "failed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit/nothing",), "no run named"),
        ((f"fit/{GOOD}", "-c", "tset"), "did you mean 'test'?"),
        ((f"fit/{GOOD}", "--slots", "0", "-j", "2"), "the same thing"),
        ((f"fit/{GOOD}", "--slots", "cpu:0"), "cpu:0"),
    ],
)
def test_what_is_refused(cli, bench: Bench, arguments: tuple[str, ...], said: str) -> None:
    result = cli("rerun", *arguments)
    assert result.code == 2
    assert said in result.err
    assert not (bench.root / "fit" / GOOD / "lease.2").exists()


def test_a_run_of_a_script_cannot_be_repeated(cli, own_bench: Bench) -> None:
    run_dir = own_bench.root / "adhoc" / "mine"
    run_dir.mkdir(parents=True)
    fields = {"format": 1, "study": "adhoc", "name": "mine", "params": {}}
    (run_dir / "run.json").write_text(json.dumps(fields))
    result = cli("rerun", "adhoc/mine")
    assert (result.code, "opened by a script of its own" in result.err) == (2, True)


def test_a_running_run_is_refused(cli, own_bench: Bench) -> None:
    supervisor = own_bench.start("run", own_bench.write("long.yml", LONG), "-j", "3", "--quiet")
    until(lambda: len(list(own_bench.root.glob("long/*/run.log"))) == 3, "they run")
    result = cli("rerun", "long")
    assert result.code == 2
    assert "still running: long/x=1, long/x=2, long/x=3" in result.err
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=60)


def test_a_repeat_that_is_killed_is_not_taken_for_done(cli, own_bench: Bench) -> None:
    """The first attempt finished the command; that says nothing about the second."""
    gate = own_bench.folder / "gate"
    text = f"study: k\ncommand: touch {{run.dir}}/began; while [ -e {gate} ]; do sleep 0.02; done\nresources: {{gpus: 0}}\n"
    assert own_bench.run(text).returncode == 0
    (run_dir,) = (path.parent for path in own_bench.root.glob("k/*/run.json"))
    (run_dir / "began").unlink()
    gate.touch()
    repeat = own_bench.start("rerun", "k", "--quiet")
    until((run_dir / "began").exists, "the repeat has begun")
    repeat.kill()
    repeat.communicate(timeout=60)
    os.killpg(json.loads((run_dir / "lease.2").read_text())["pid"], signal.SIGKILL)
    until(lambda: json.loads(cli("ls", "k", "--json").out)[0]["state"] != "running", "it is dead")
    assert json.loads(cli("ls", "k", "--json").out)[0]["state"] == "lost"


def test_with_new_code(cli, own_bench: Bench) -> None:
    (own_bench.folder / "say.sh").write_text("echo old\n")
    assert own_bench.run("study: c\ncommand: bash say.sh\nresources: {gpus: 0}\n").returncode == 0
    (run_dir,) = (path.parent for path in own_bench.root.glob("c/*/run.json"))
    before = json.loads((run_dir / "run.json").read_text())["code_hash"]
    (own_bench.folder / "say.sh").write_text("echo new\n")
    assert cli("rerun", "c", "--quiet").code == 0
    assert (run_dir / "run.2.log").read_text() == "old\n"
    result = cli("rerun", "c", "--quiet", "--new-code")
    assert "changed for 1 of 1" in result.err
    assert (run_dir / "run.3.log").read_text() == "new\n"
    assert (run_dir / "code.2" / "say.sh").read_text() == "echo old\n"
    assert json.loads((run_dir / "run.json").read_text())["code_hash"] != before
    assert "changed for 0 of 1" in cli("rerun", "c", "--quiet", "--new-code").err

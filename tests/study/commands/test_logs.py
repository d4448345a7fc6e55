"""`assay logs`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.study.workbench import BAD, GOOD, Bench, until

TALK = r"""
study: talk
commands:
  train: for i in 1 2; do echo "train {x} $i"; done; while [ ! -e {go} ]; do sleep 0.02; done; echo "train {x} end"
  test: 'printf "test {x}\nno newline"'
params: {x: [1, 2], go: GO}
resources: {gpus: 0}
"""


def test_the_failed_commands_log(cli, bench: Bench) -> None:
    assert cli("logs", f"fit/{BAD}").out == (bench.root / "fit" / BAD / "train.log").read_text()


def test_the_last_commands_log(cli) -> None:
    assert cli("logs", f"fit/{GOOD}").out == "acc=0.7\n"


def test_a_commands_log(cli) -> None:
    assert cli("logs", GOOD, "-c", "train", "-n", "1").out == "step 3 loss 1.7 lr 0.1\n"


@pytest.mark.parametrize(("count", "first"), [("0", None), ("2", "step 2"), ("3", "step 1"), ("99", "step 1")])
def test_the_last_lines(cli, count: str, first: str | None) -> None:
    out = cli("logs", GOOD, "-c", "train", "-n", count).out
    assert out.startswith(first) if first else out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((GOOD, "-c", "tran"), "did you mean 'train'?"),
        ((GOOD, "--attempt", "2"), "has no attempt 2"),
        ((BAD, "-c", "test"), "has no output of test yet"),
        (("fit",), "names 4 runs"),
        (("fit/nothing",), "no run named"),
        ((GOOD, "-f", "--attempt", "1"), "--follow goes with"),
        ((GOOD, "-f", "-c", "tran"), "did you mean 'train'?"),
    ],
)
def test_what_is_refused(cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli("logs", *arguments)
    assert result.code == 2
    assert said in result.err


def test_following_what_is_over_prints_it(cli) -> None:
    assert cli("logs", "-f", f"fit/{GOOD}").out == "acc=0.7\n"
    assert cli("logs", "-f", "fit").err == "nothing is running in fit\n"


def test_bytes_pass_unchanged(own_bench: Bench) -> None:
    own_bench.run("study: raw\ncommand: \"printf '\\\\377\\\\000x\\\\r\\\\n'\"\nresources: {gpus: 0}\n")
    (name,) = [entry.name for entry in (own_bench.root / "raw").iterdir() if not entry.name.startswith(".")]
    result = subprocess.run(
        [sys.executable, "-m", "assay", "logs", f"raw/{name}"],
        cwd=own_bench.folder,
        env=os.environ | own_bench.extra,
        capture_output=True,
        check=True,
    )
    assert result.stdout == b"\xff\x00x\r\n"


def test_a_reader_that_leaves_is_no_error(own_bench: Bench) -> None:
    own_bench.run("study: much\ncommand: seq 200000\nresources: {gpus: 0}\n")
    (name,) = [entry.name for entry in (own_bench.root / "much").iterdir() if not entry.name.startswith(".")]
    command = f"{sys.executable} -m assay logs much/{name} | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=own_bench.folder,
        env=os.environ | own_bench.extra,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "1\n0\n"
    assert result.stderr == ""


def test_following_a_run_and_a_study_until_they_are_over(own_bench: Bench) -> None:
    go = own_bench.folder / "GO"
    runs = own_bench.start("run", own_bench.write("talk.yml", TALK.replace("GO", str(go))), "-j", "2", "--quiet")
    logs = own_bench.root / "talk"
    until(lambda: logs.is_dir() and len(list(logs.glob("x=*/train.log"))) == 2, "both runs write")
    one = own_bench.start("logs", "-f", "talk/x=1")
    both = own_bench.start("logs", "-f", "talk")
    assert one.stdout is not None
    assert both.stdout is not None
    assert one.stdout.readline() == "train 1 1\n"
    assert both.stdout.readline().endswith("1\n")
    go.touch()
    assert one.stdout.read() == "train 1 2\ntrain 1 end\ntest 1\nno newline"
    lines = both.stdout.read().splitlines()
    assert {line for line in lines if line.startswith("x=2")} >= {
        "x=2 | train 2 end",
        "x=2 | test 2",
        "x=2 | no newline",
    }
    assert "x=1 | no newline" in lines
    for process in (runs, one, both):
        process.communicate(timeout=60)
    assert (runs.returncode, one.returncode, both.returncode) == (0, 0, 0)


def test_following_a_study_waits_for_retries_that_are_still_queued(own_bench: Bench) -> None:
    """Both runs have failed; they are repeated one after the other, and neither has begun again when we begin to look."""
    go = own_bench.folder / "GO"
    text = "study: talk\ncommand: 'echo {x}; until [ -e GO ]; do sleep 0.05; done; [ -e GO2 ] && echo again {x}'\n"
    text += "params: {x: [1, 2]}\nresources: {gpus: 0}\ncode: live\n"
    go.touch()
    assert own_bench.run(text, file="talk.yml").returncode == 1
    go.unlink()
    (own_bench.folder / "GO2").touch()
    held = own_bench.start("run", "talk.yml", "-j", "1", "--retry", "failed", "--quiet")
    until(lambda: list((own_bench.root / "talk").glob("x=*/lease.2")), "the first is repeated")
    logs = own_bench.start("logs", "-f", "talk")
    assert logs.stdout is not None
    assert logs.stdout.readline() == "x=1 | 1\n"
    go.touch()
    lines = logs.stdout.read().splitlines()
    assert lines == ["x=1 | again 1", "x=2 | 2", "x=2 | again 2"]
    for process in (held, logs):
        process.communicate(timeout=60)

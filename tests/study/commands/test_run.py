"""`assay run`, `assay runx` and `assay mlrunner` as somebody meets them who leaves, waits, mistypes or comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.golden.lab import NATIVE
from tests.study.workbench import Bench, until

SWEEP = f"CMD: {sys.executable} train.py\nHPARAMS: {{logdir: LOGDIR, lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}}\n"
TRAIN = """
import sys
from assay.logx import logx
logx.initialize(logdir=sys.argv[sys.argv.index("--logdir") + 1])
logx.metric("val", {"accuracy": 0.5}, 0)
print("trained " + "x" * 300)
"""
TASKS = """
template:
  first: 'echo first >> calls; touch {_output}/begun; while [ ! -e go ]; do sleep 0.02; done'
  second: 'echo second >> calls'
resource: [cpu]
---
x: [1]
"""


def call_deaf(bench: Bench, *arguments: str, deaf: str = "stdout") -> int:
    """The program, with a reader that has left before the first word."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {deaf: writer}
    command = [sys.executable, "-m", "assay", *arguments]
    code = subprocess.run(command, cwd=bench.folder, env=os.environ | bench.extra, check=False, timeout=120, **streams)  # type: ignore[call-overload]
    os.close(writer)
    return int(code.returncode)


@pytest.mark.parametrize("failing", [False, True])
def test_runx_goes_on_when_its_reader_has_left(own_bench: Bench, failing: bool) -> None:
    own_bench.write("train.py", TRAIN + ("sys.exit(3)" if failing else ""))
    assert call_deaf(own_bench, "runx", own_bench.write("sweep.yml", SWEEP), "-i") == int(failing)
    rows = json.loads(own_bench.assay("sum", "sweep", "--json").stdout)
    assert len(rows) == 6
    assert [row for row in rows if 0.5 not in [row.get(name) for name in row if "accuracy" in name]] == []


@pytest.mark.parametrize(("command", "code"), [("echo {x}", 0), ("exit {x}", 1)])
@pytest.mark.parametrize("deaf", ["stdout", "stderr"])
def test_run_has_its_exit_code_without_a_reader(own_bench: Bench, command: str, code: int, deaf: str) -> None:
    file = own_bench.write("s.yml", f"study: s\ncommand: {command}\nparams: {{x: [1, 2]}}\n")
    assert call_deaf(own_bench, "run", file, "-j", "2", "--json", deaf=deaf) == code
    assert call_deaf(own_bench, "run", file, "-j", "2", "--retry", "failed", deaf=deaf) == code


def test_mlrunner_has_its_exit_code_without_a_reader(own_bench: Bench) -> None:
    own_bench.write("params.yaml", "template: {train: exit 3}\nresource: [cpu]\n---\nx: [1, 2]\n")
    assert call_deaf(own_bench, "mlrunner") == 1


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("command: pyhton x", (), "the program 'pyhton' was not found"),
        ("command: 'true'", ("--root", "/proc/x"), "/proc"),
    ],
)
def test_what_is_refused_is_not_announced(cli, own_bench: Bench, text: str, flags: tuple[str, ...], said: str) -> None:
    result = cli("run", own_bench.write("s.yml", text), "-j", "1", *flags)
    assert result.code == 2
    assert said in result.err
    assert "runs go to" not in result.err
    assert not own_bench.root.exists()


def test_quiet_says_nothing_of_the_root(cli, own_bench: Bench) -> None:
    file = own_bench.write("s.yml", "command: 'true'\n")
    assert "runs go to runs/s" in cli("run", file, "-j", "1").err
    assert "runs go to" not in cli("run", file, "-j", "1", "--quiet").err


def test_a_mistyped_slot_is_no_gpu(cli, own_bench: Bench) -> None:
    result = cli("run", own_bench.write("s.yml", "command: 'true'\n"), "--slots", "cpu4")
    assert (result.code, result.err) == (2, "assay: bad slot 'cpu4'\n  did you mean cpu:4?\n")


def test_a_hint_is_printed_once(cli, own_bench: Bench) -> None:
    own_bench.run("study: known\ncommand: 'true'\n")
    assert cli("ls", "knwon").err == "assay: no study named 'knwon'\n  did you mean 'known'?\n"


def kill_supervisor(bench: Bench, mark: str, *arguments: str) -> None:
    """Start something, and kill the program when the run has begun."""
    first = bench.start(*arguments)
    until(lambda: list(bench.folder.glob(mark)), "the run has begun")
    first.send_signal(signal.SIGKILL)
    first.communicate()


def test_a_run_that_was_found_is_not_announced_as_started(own_bench: Bench) -> None:
    file = own_bench.write("s.yml", "command: 'touch begun; while [ ! -e go ]; do sleep 0.02; done'\ncode: live\n")
    kill_supervisor(own_bench, "begun", "run", file, "-j", "1")
    second = own_bench.start("run", file, "-j", "1", "--plain")
    assert second.stderr is not None
    lines = [second.stderr.readline() for _ in range(2)]
    (own_bench.folder / "go").touch()
    rest = second.communicate(timeout=60)[1]
    said = "".join([*lines, rest])
    assert "found run still running (attempt 1)" in said
    assert "finished run" in said
    assert "started" not in said


def test_mlrunner_announces_only_what_it_starts(own_bench: Bench) -> None:
    own_bench.write("params.yaml", TASKS)
    kill_supervisor(own_bench, "output/*/begun", "mlrunner")
    second = own_bench.start("mlrunner")
    assert second.stdout is not None
    lines = []
    while "RUNNING" not in "".join(lines):
        line = second.stdout.readline()
        assert line, lines
        lines.append(line)
    (own_bench.folder / "go").touch()
    out, _ = second.communicate(timeout=60)
    words = [
        line.split()[0] + " " + line.split(",")[1].split(":")[0].strip()
        for line in (*lines, *out.splitlines())
        if "gpu:" in line
    ]
    assert words == ["RUNNING first", "START second"]
    assert (own_bench.folder / "calls").read_text() == "first\nsecond\n"


def test_waiting_for_a_slot_is_said(own_bench: Bench) -> None:
    long = own_bench.write("long.yml", "command: 'touch begun; while [ ! -e go ]; do sleep 0.02; done'\ncode: live\n")
    first = own_bench.start("run", long, "--slots", "0", "--quiet")
    until((own_bench.folder / "begun").exists, "the slot is taken")
    second = own_bench.start(
        "run", own_bench.write("s.yml", "command: 'true'\n"), "--slots", "0", "--plain", "--root", "r"
    )
    assert second.stderr is not None
    said = second.stderr.readline()
    (own_bench.folder / "go").touch()
    said += second.communicate(timeout=60)[1]
    assert said.startswith("waiting for a slot: the only one is taken by other runs\n")
    assert said.count("waiting") == 1
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)


BAD_STUDY_NAMES = (
    "../../x",
    "..",
    ".",
    "",
    "a/b",
    "/abs",
    ".hidden",
    "-x",
    " x",
    "a\nb",
    "a\x7fb",
    "a\u202eb",
    "é" * 101,
)


@pytest.mark.parametrize("name", BAD_STUDY_NAMES)
def test_a_study_name_that_leads_elsewhere_is_refused_wherever_it_is_given(cli, own_bench: Bench, name: str) -> None:
    file = own_bench.write("s.yml", "command: 'true'\n")
    sweep = own_bench.write("sweep.yml", "CMD: 'true'\nHPARAMS: {lr: 1}\n")
    before = sorted(path for path in own_bench.folder.parent.rglob("*"))
    for flags in (["run", file, f"--study={name}"], ["runx", sweep, "-i", f"--exp_name={name}"]):
        result = cli(*flags)
        assert result.code == 2
        assert f"{name!r} cannot name a study\n  the name becomes a folder: no slash" in result.err
    assert sorted(path for path in own_bench.folder.parent.rglob("*")) == before


@pytest.mark.parametrize("stem", [".hidden", "n" * 120, "a\tb"])
def test_a_file_whose_name_cannot_name_a_study_runs_under_another(cli, own_bench: Bench, stem: str) -> None:
    file = own_bench.write(f"{stem}.yml", "command: 'true'\n")
    refused = cli("run", file)
    assert refused.code == 2
    assert "choose another with --study NAME" in refused.err
    assert cli("run", file, "--study", "shown", "-j", "1", "--quiet").code == 0
    assert "shown" in cli("ls").out


def test_a_long_name_of_few_letters_and_many_bytes_is_refused_before_anything_is_made(cli, own_bench: Bench) -> None:
    result = cli("run", own_bench.write("s.yml", "command: 'true'\n"), "--study", "数" * 90)
    assert result.code == 2
    assert not own_bench.root.exists()


def test_a_golden_is_not_recorded_outside_of_its_store(cli, own_bench: Bench) -> None:
    file = own_bench.write("g.yml", NATIVE)
    result = cli("golden", "gather", file, "-s", "store", "--manifest-name", "../../m.json")
    assert result.code == 2
    assert "'../../m.json' cannot be the end of a manifest's name" in result.out
    assert not (own_bench.folder / "store").exists()


# ---------------------------------------------------------------- what a snapshot holds


def test_further_roots_and_studies_do_not_grow_the_snapshot(cli, own_bench: Bench) -> None:
    own_bench.write("train.sh", "echo 1\n")
    file = own_bench.write("s.yml", "command: bash train.sh\n")
    for root in ("runs", "runs2", "runs3", "deep/er/runs4"):
        assert cli("run", file, "-j", "1", "--quiet", "--root", root).code == 0
    assert cli("run", file, "-j", "1", "--quiet", "--study", "other").code == 0
    for code in own_bench.folder.rglob("code/"):
        if code.parent.name == "run":
            assert sorted(path.name for path in code.rglob("*")) == ["train.sh"]


def test_a_neighbouring_study_notebook_or_result_is_no_changed_code(cli, own_bench: Bench) -> None:
    for name in ("train.sh", "other.yml", "config.yml", "results.json"):
        own_bench.write(name, "command: a\n" if name == "other.yml" else "x: 1\n" if name != "train.sh" else "echo\n")
    file = own_bench.write("s.yml", "command: bash train.sh\n")
    assert cli("run", file, "-j", "1").code == 0
    own_bench.write("other.yml", "command: b\n")
    own_bench.write("results.json", "{}")
    for name in ("new.yml", "look.ipynb", "scores.csv", "out.json", "log.txt"):
        own_bench.write(name, "study: n\n")
    assert "changed since" not in cli("run", file, "-j", "1").err
    own_bench.write("config.yml", "x: 2\n")
    assert "config.yml has changed since" in cli("run", file, "-j", "1").err


@pytest.mark.parametrize("runx", [False, True])
def test_a_large_snapshot_is_reported_with_the_setting_that_makes_it_smaller(cli, own_bench: Bench, runx: bool) -> None:
    (own_bench.folder / "weights").mkdir()
    for number in range(6):
        with open(own_bench.folder / "weights" / f"{number}.bin", "wb") as file:
            file.truncate(9_000_000)
    if runx:
        result = cli("runx", own_bench.write("s.yml", "CMD: 'true'\nHPARAMS: {lr: 1}\n"), "-i")
        setting = "CODE_IGNORE_PATTERNS: 'weights' in .runx leaves them out"
    else:
        result = cli("run", own_bench.write("s.yml", "command: 'true'\n"), "-j", "1")
        setting = "`code: {ignore: [weights]}` links them instead"
    assert result.code == 0
    assert f"warning: the code snapshot has 54 MB (weights/ 54 MB), copied for each run; {setting}" in result.err


def test_every_run_has_a_line_for_its_start_before_that_of_its_end(cli, own_bench: Bench) -> None:
    file = own_bench.write("quick.yml", "command: 'true'\nparams: {x: {range: 8}}\n")
    lines = [line.split()[:2] for line in cli("run", file, "-j", "2", "--plain").err.splitlines()]
    for number in range(8):
        assert lines.index(["started", f"x={number}"]) < lines.index(["finished", f"x={number}"])

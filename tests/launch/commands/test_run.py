"""`assay run`, `assay rerun`, `assay stop`, `assay runx` and `assay mlrunner` where a reader leaves, waits, mistypes or comes back."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.finished_study import BAD, GOOD, LONG, Bench, fork_assay, until
from tests.golden_training import NATIVE

from assay.launch import run_dir_builder
from assay.record import run_directory

SWEEP = f"CMD: {sys.executable} train.py\nHPARAMS: {{logdir: LOGDIR, lr: [0.1, 0.2, 0.3]}}\n"
TRAIN = """
import sys
from assay.logx import logx
logx.initialize(logdir=sys.argv[sys.argv.index("--logdir") + 1])
logx.metric("val", {"accuracy": 0.5}, 0)
print("trained " + "x" * 300)
"""
TASKS = """
template:
  first: 'echo first >> calls; touch {_output}/begun; while [ ! -e go ]; do sleep 0.05; done'
  second: 'echo second >> calls'
resource: [cpu]
---
x: [1]
"""


def call_deaf(bench: Bench, *arguments: str, deaf: str = "stdout") -> int:
    """Call the program with a pipe whose reader has left before the first line."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(os.devnull, "w") as null, open(writer, "w") as broken:
        fds = (broken.fileno(), null.fileno()) if deaf == "stdout" else (null.fileno(), broken.fileno())
        return fork_assay(arguments, bench.folder, os.environ | bench.extra, *fds).wait(120)


def test_runx_goes_on_when_its_reader_has_left(own_bench: Bench) -> None:
    own_bench.write("train.py", TRAIN + "sys.exit(3)")
    assert call_deaf(own_bench, "runx", own_bench.write("sweep.yml", SWEEP), "-i") == 1
    rows = json.loads(own_bench.assay("sum", "sweep", "--json").stdout)
    assert len(rows) == 3
    assert [row for row in rows if 0.5 not in [row.get(name) for name in row if "accuracy" in name]] == []


@pytest.mark.parametrize("deaf", ["stdout", "stderr"])
def test_run_has_its_exit_code_without_a_reader(own_bench: Bench, deaf: str) -> None:
    file = own_bench.write("s.yml", "study: s\ncommand: exit {x}\nparams: {x: [0, 2]}\n")
    assert call_deaf(own_bench, "run", file, "-j", "2", "--json", deaf=deaf) == 1
    assert call_deaf(own_bench, "run", file, "-j", "2", "--retry", "failed", deaf=deaf) == 1
    assert call_deaf(own_bench, "run", file, "-j", "2", "--where", "x == 0", deaf=deaf) == 0


def test_mlrunner_has_its_exit_code_without_a_reader(own_bench: Bench) -> None:
    own_bench.write("params.yaml", "template: {train: exit 3}\nresource: [cpu]\n---\nx: [1, 2]\n")
    assert call_deaf(own_bench, "mlrunner") == 1


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("command: pyhton x", (), "the program 'pyhton' was not found"),
        ("command: 'true'", ("--root", "/proc/x"), "/proc"),
        ("commands: {train: 'true'}", ("-c", "trian"), "did you mean 'train'?"),
    ],
)
def test_what_is_refused_is_not_announced(cli, own_bench: Bench, text: str, flags: tuple[str, ...], said: str) -> None:
    result = cli("run", own_bench.write("s.yml", text), "-j", "1", *flags).ended(2, said)
    assert "runs go to" not in result.err
    assert not own_bench.root.exists()


def test_quiet_does_not_print_the_root(cli, own_bench: Bench) -> None:
    file = own_bench.write("s.yml", "command: 'true'\n")
    assert "runs go to runs/s" in cli("run", file, "-j", "1").err
    assert "runs go to" not in cli("run", file, "-j", "1", "--quiet").err


def test_a_mistyped_slot_is_no_gpu(cli, own_bench: Bench) -> None:
    result = cli("run", own_bench.write("s.yml", "command: 'true'\n"), "--slots", "cpu4")
    assert (result.code, result.err) == (2, "assay: bad slot 'cpu4'\n  did you mean cpu:4?\n")


def test_a_hint_is_printed_once(cli, own_bench: Bench) -> None:
    own_bench.run("study: known\ncommand: 'true'\n")
    assert cli("ls", "knwon").err == "assay: no study or run named 'knwon'\n  did you mean 'known'?\n"


def kill_supervisor(bench: Bench, mark: str, *arguments: str) -> None:
    """Start a program, and kill it when the run has begun."""
    first = bench.start(*arguments)
    until(lambda: list(bench.folder.glob(mark)), "the run has begun")
    first.send_signal(signal.SIGKILL)
    first.communicate()


def test_a_run_that_was_found_is_not_announced_as_started(own_bench: Bench) -> None:
    file = own_bench.write("s.yml", "command: 'touch begun; while [ ! -e go ]; do sleep 0.05; done'\ncode: live\n")
    kill_supervisor(own_bench, "begun", "run", file, "-j", "1")
    second = own_bench.start("run", file, "-j", "1", "--plain")
    assert second.stderr is not None
    lines = [second.stderr.readline() for _ in range(2)]
    (own_bench.folder / "go").touch()
    said = "".join([*lines, second.communicate(timeout=60)[1]])
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


BAD_STUDY_NAMES = ["../../x", "..", ".", "", "a/b", "/abs", ".hidden", "-x", " x"]
BAD_STUDY_NAMES += ["a\nb", "a\x7fb", "a\u202eb", "é" * 101]


def test_a_study_name_that_leads_elsewhere_is_refused_wherever_it_is_given(cli, own_bench: Bench) -> None:
    file = own_bench.write("s.yml", "command: 'true'\n")
    sweep = own_bench.write("sweep.yml", "CMD: 'true'\nHPARAMS: {lr: 1}\n")
    before = sorted(path for path in own_bench.folder.parent.rglob("*"))
    for name in BAD_STUDY_NAMES:
        for flags in (["run", file, f"--study={name}"], ["runx", sweep, "-i", f"--exp_name={name}"]):
            cli(*flags).ended(2, f"{name!r} cannot name a study\n  the name becomes a folder: no slash")
    assert cli("run", file, "--study", "数" * 90).code == 2  # the name has few letters and many bytes
    assert sorted(path for path in own_bench.folder.parent.rglob("*")) == before


@pytest.mark.parametrize("stem", [".hidden", "n" * 120, "a\tb"])
def test_a_file_whose_name_cannot_name_a_study_runs_under_another(cli, own_bench: Bench, stem: str) -> None:
    file = own_bench.write(f"{stem}.yml", "command: 'true'\n")
    cli("run", file).ended(2, "choose another with --study NAME")
    assert cli("run", file, "--study", "shown", "-j", "1", "--quiet").code == 0
    assert "shown" in cli("ls").out


def test_a_golden_is_not_recorded_outside_of_its_store(cli, own_bench: Bench) -> None:
    file = own_bench.write("g.yml", NATIVE)
    result = cli("golden", "gather", file, "-s", "store", "--manifest-name", "../../m.json").ended(2)
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


def test_a_large_snapshot_is_reported_with_the_setting_that_makes_it_smaller(
    cli, own_bench: Bench, monkeypatch
) -> None:
    monkeypatch.setattr(run_dir_builder, "_LARGE_BYTES", 1_000_000)
    (own_bench.folder / "weights").mkdir()
    own_bench.write("weights/0.bin", "x" * 2_000_000)
    runx = own_bench.write("sweep.yml", "CMD: 'true'\nHPARAMS: {lr: 1}\n")
    for words, setting in (
        (("run", own_bench.write("s.yml", "command: 'true'\n"), "-j", "1"), "`code: {ignore: [weights]}` links them"),
        (("runx", runx, "-i"), "CODE_IGNORE_PATTERNS: 'weights' in .runx leaves them out"),
    ):
        cli(*words).ended(0, f"the code snapshot has 2 MB (weights/ 2 MB), copied for each run; {setting}")


def test_every_run_has_a_line_for_its_start_before_that_of_its_end(cli, own_bench: Bench) -> None:
    file = own_bench.write("quick.yml", "command: 'true'\nparams: {x: {range: 8}}\n")
    lines = [line.split()[:2] for line in cli("run", file, "-j", "2", "--plain").err.splitlines()]
    for number in range(8):
        assert lines.index(["started", f"x={number}"]) < lines.index(["finished", f"x={number}"])


# ---------------------------------------------------------------- rerun


def starts(bench: Bench, run: str) -> list[str]:
    lines = (bench.root / "fit" / run / "job.log").read_text().splitlines()
    return [line.split()[1] for line in lines if line.endswith("start")]


def test_a_finished_run_is_run_again_from_its_first_command(cli, own_fit: Bench) -> None:
    cli("rerun", f"fit/{GOOD}", "--plain").ended(0, "attempt 2")
    assert starts(own_fit, GOOD) == ["train", "test", "train", "test"]
    assert json.loads((own_fit.root / "fit" / GOOD / "outcome.2").read_text())["state"] == "done"
    assert (own_fit.root / "fit" / GOOD / "train.log").exists()  # the log of the first attempt
    assert not (own_fit.folder / "study.yml").exists(), "the study's file is not needed"


def test_some_commands_only(cli, own_fit: Bench) -> None:
    assert cli("rerun", f"fit/{GOOD}", "-c", "test", "--quiet").code == 0
    assert starts(own_fit, GOOD) == ["train", "test", "test"]
    refused = cli("rerun", f"fit/{BAD}", "-c", "test")
    assert (refused.code, "train has not finished well" in refused.err, "-c train" in refused.err) == (2, True, True)
    assert not (own_fit.root / "fit" / BAD / "lease.2").exists()
    shown = json.loads(cli("show", GOOD, "--json").out)
    assert shown["metrics"]["loss"]["count"] == 3  # the values of the attempt that trained
    assert shown["metrics"]["test.acc"]["count"] == 1


def test_as_json(cli, own_fit: Bench) -> None:
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
    cli("rerun", *arguments).ended(2, said)
    assert not (bench.root / "fit" / GOOD / "lease.2").exists()


def test_a_run_of_a_script_cannot_be_repeated(cli, own_bench: Bench) -> None:
    run_dir = own_bench.root / "adhoc" / "mine"
    run_dir.mkdir(parents=True)
    fields = {"format": 1, "study": "adhoc", "name": "mine", "params": {}}
    (run_dir / "run.json").write_text(json.dumps(fields))
    cli("rerun", "adhoc/mine").ended(2, "opened by a script itself")


def test_a_running_run_is_refused(cli, own_bench: Bench) -> None:
    supervisor = own_bench.start("run", own_bench.write("long.yml", LONG), "-j", "3", "--quiet")
    until(lambda: len(list(own_bench.root.glob("long/*/run.log"))) == 3, "they run")
    cli("rerun", "long").ended(2, "still running: long/x=1, long/x=2, long/x=3")
    supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=60)


def test_a_repeat_that_is_killed_is_not_taken_for_done(cli, own_bench: Bench) -> None:
    """The first attempt finished the command; that does not mean that the second one did."""
    gate = own_bench.folder / "gate"
    text = f"study: k\ncommand: touch {{run.dir}}/began; while [ -e {gate} ]; do sleep 0.05; done\nresources: {{gpus: 0}}\n"
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


# ---------------------------------------------------------------- stop


@pytest.fixture
def busy(own_bench: Bench) -> Iterator[Bench]:
    """A bench whose supervisor has two runs running and one waiting."""
    supervisor = own_bench.start("run", own_bench.write("long.yml", LONG), "-j", "2", "--quiet")
    runs = own_bench.root / "long"
    until(lambda: runs.is_dir() and len(list(runs.glob("x=*/*.log"))) == 4, "two runs have begun")
    own_bench.supervisor = supervisor
    yield own_bench
    if supervisor.poll() is None:
        supervisor.send_signal(signal.SIGINT)
    supervisor.communicate(timeout=60)


def states(cli) -> dict[str, str]:
    return {row["name"]: row["state"] for row in json.loads(cli("ls", "long", "--json").out)}


def test_runs_are_stopped_by_name_and_pattern_with_everything_they_started(cli, busy: Bench) -> None:
    runs = busy.root / "long"
    lease = runs / "x=1" / "lease.1"
    original = lease.read_text()
    lease.write_text(json.dumps(json.loads(original) | {"host": "elsewhere"}))
    result = cli("stop", "long/x=1")
    assert (result.code, "runs on elsewhere" in result.out, (runs / "x=1" / "stop.1").exists()) == (1, True, False)
    lease.write_text(original)
    result = cli("stop", "long/x=1", "--reason", "too slow").ended(0)
    assert result.out.startswith("long/x=1: stopped after 0:0")
    assert "processes ended" in result.out
    outcome = json.loads((runs / "x=1" / "outcome.1").read_text())
    assert (outcome["state"], outcome["reason"]) == ("stopped", "too slow")
    assert json.loads((runs / "x=1" / "stop.1").read_text())["kind"] == "user"
    until(lambda: states(cli).get("x=3") == "running", "the waiting run has its slot")
    record = (runs / "x=2" / "run.json").read_text()
    (runs / "x=2" / "run.json").write_text("{")  # a damaged run is stopped like the others
    facts = json.loads(cli("stop", "long/x=[23]", "--json").out)
    assert [(fact["run"], fact["state"], fact["was_running"]) for fact in facts] == [
        ("long/x=2", "stopped", True),
        ("long/x=3", "stopped", True),
    ]
    (runs / "x=2" / "run.json").write_text(record)


def test_a_study_is_stopped_with_all_its_supervisors(cli, busy: Bench) -> None:
    """Two more supervisors have started nothing: both slots are taken. A script's background job ignores Ctrl-C."""
    words = [sys.executable, "-m", "assay", "run", "long.yml", "-j", "2", "--quiet"]
    more = [
        subprocess.Popen(
            ["bash", "-c", f'{trap} exec "$@"', "-", *words],
            cwd=busy.folder,
            env=os.environ | busy.extra,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        for trap in ("", "trap '' INT;")
    ]
    meta = busy.root / "long" / ".assay"
    try:
        until(lambda: len(list(meta.glob("supervisor.*.*.*"))) == 3, "all are there")
        result = cli("stop", "long").ended(0).printed("long/x=1: stopped after")
        assert busy.supervisor is not None
        for pid in (busy.supervisor.pid, *(each.pid for each in more)):
            assert f"its supervisor (pid {pid}) has left" in result.out
        assert [each.wait(timeout=60) for each in more] == [130, 130]
        assert not list(meta.glob("supervisor.*.*.*"))
    finally:
        for each in more:
            each.kill()
            each.wait()
    assert states(cli) == {"x=1": "stopped", "x=2": "stopped", "x=3": "not started"}
    shown = cli("ls", "long").out
    assert "3 runs: 1 not started, 2 stopped" in shown  # there is no supervisor left that would start the run
    assert "queued" not in shown
    assert not list((busy.root / "long").glob("x=3/lease.*"))
    shutil.rmtree(busy.root / "long/x=3", ignore_errors=True)  # the run may not have a folder yet
    cli("stop", "long/x=3").ended(2, "'long/x=3' was not started yet")


def test_how_stopped_runs_are_continued_is_printed(cli, own_bench: Bench) -> None:
    own_bench.write("s.yml", "study: s\ncommand: sleep 100\ncode: live\nresources: {gpus: 0}\n")
    supervisor = own_bench.start("run", "s.yml", "-j", "1", "--quiet")
    until(lambda: any((own_bench.root / "s").glob("*/run.log")), "it has begun")
    cli("stop", "s")
    supervisor.communicate(timeout=60)
    assert "assay run s.yml --retry stopped" in cli("run", "s.yml").err
    assert "sleep 100" in cli("run", "s.yml", "--retry", "stopped,failed", "--dry-run").out
    cli("run", "s.yml", "--retry", "stopped,faild").ended(2, "--retry: 'faild' is not one of failed, lost, stopped")


def test_a_metric_that_is_not_finite_at_the_end_is_reported(cli, own_bench: Bench) -> None:
    text = "study: n\ncommand: 'echo loss {x}'\nparams: {x: [1, nan, inf, '3']}\ncode: live\nresources: {gpus: 0}\n"
    own_bench.write("n.yml", text + "metrics: {loss: 'loss ({number})'}\n")
    cli("run", "n.yml").ended(0, "2 runs are done, and loss is not finite at the end: x=nan, x=inf")


def test_what_ignores_TERM_is_killed_after_the_grace(cli, own_bench: Bench) -> None:
    text = "study: deaf\ncommand: \"trap '' TERM; touch {run.dir}/ready; while :; do sleep 0.1; done\"\nresources: {gpus: 0}\n"
    supervisor = own_bench.start("run", own_bench.write("deaf.yml", text), "--quiet")
    until(lambda: list(own_bench.root.glob("deaf/*/ready")), "it is deaf")
    assert "stopped after" in cli("stop", "deaf", "--grace", "0.1").out
    supervisor.communicate(timeout=60)


@pytest.mark.parametrize("words", [("run", "s.yml", "-m", "loss"), ("ls", "--metric", "loss")])
def test_an_option_of_the_commands_that_read_metrics(cli, bench: Bench, words: tuple[str, ...]) -> None:
    cli(*words).ended(2, "choose metrics with `assay sum STUDY -m NAME`")


def test_what_is_not_running(cli, bench: Bench) -> None:
    result = cli("stop", f"fit/{GOOD}", f"fit/{BAD}").ended(0)
    assert result.out.splitlines() == [f"fit/{GOOD}: was not running (done)", f"fit/{BAD}: was not running (failed)"]
    unknown = cli("stop", "fitt")
    assert (unknown.code, "did you mean 'fit'?" in unknown.err, cli("stop").code) == (2, True, 2)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_supervisor_that_was_killed_leaves_runs_that_can_be_stopped(
    cli, busy: Bench, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no reason can be written; the empty stop file is enough."""

    def refuse(target: str, text: str) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    assert busy.supervisor is not None
    busy.supervisor.kill()
    busy.supervisor.wait(30)
    if is_full:
        monkeypatch.setattr(run_directory, "publish", refuse)
    result = cli("stop", "long", "--reason", "x").ended(0)
    assert result.out.count("stopped after") == 2
    assert ("supervisor" in result.out, "the disk is full: the reason was not kept" in result.out) == (False, is_full)
    assert [name for name, state in states(cli).items() if state == "stopped"] == ["x=1", "x=2"]


def test_a_run_started_by_hand(cli, bench: Bench, own_bench: Bench) -> None:
    supervisor = own_bench.start("run", own_bench.write("long.yml", LONG.replace("[1, 2, 3]", "1")), "--quiet")
    until(lambda: list(own_bench.root.glob("long/*/run.log")), "it has begun")
    (run_dir,) = (path.parent for path in own_bench.root.glob("long/*/run.log"))
    assert cli("stop", "long").code == 0
    supervisor.communicate(timeout=60)
    by_hand = subprocess.Popen(["bash", "job.sh"], cwd=run_dir, stdout=subprocess.DEVNULL, start_new_session=False)
    until((run_dir / "run.2.log").exists, "it has begun by hand")
    result = cli("stop", f"long/{run_dir.name}")
    assert by_hand.wait(30) != 0
    assert result.code == 0, result.out
    assert "stopped after" in result.out
    assert json.loads((run_dir / "outcome.2").read_text())["state"] == "stopped"


SUBMIT = """#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" != -c ] || text=$2; shift; done
{start}
echo "job 4711"
"""


@pytest.mark.needs(farms=True)
@pytest.mark.parametrize(
    ("start", "said"),
    [
        ('setsid bash -c "$text" > /dev/null 2>&1 < /dev/null &', "stopped after 0:0"),
        ("", "taken back before its farm had started it"),  # the job waits in the farm's queue for ever
    ],
)
def test_a_farms_jobs(cli, own_bench: Bench, start: str, said: str) -> None:
    own_bench.write("submit", SUBMIT.format(start=start))
    (own_bench.folder / "submit").chmod(0o755)
    submit = own_bench.folder / "submit"
    own_bench.write(
        ".runx", f"LOGROOT: {own_bench.folder}/logs\nFARM: f\nf: {{SUBMIT_CMD: {submit}, RESOURCES: {{x: 1}}}}\n"
    )
    own_bench.write("sleep.sh", "sleep 300")
    own_bench.write("sweep.yml", "CMD: 'bash sleep.sh'\nHPARAMS: {lr: [0.1]}\n")
    assert own_bench.assay("runx", "sweep.yml").returncode == 0
    logs = own_bench.folder / "logs"
    until(lambda: list(logs.glob("sweep/*/job.log" if start else "sweep/*/submit.exit.1.0")), "the farm has it")
    result = cli("stop", "sweep")
    assert result.code == 0, result.out
    assert said in result.out
    assert json.loads(cli("ls", "sweep", "--json").out)[0]["state"] == "stopped"

"""`assay stop`: on processes that are really there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.study.workbench import BAD, GOOD, LONG, Bench, until


@pytest.fixture
def busy(own_bench: Bench) -> Iterator[Bench]:
    """A supervisor with two runs running and one waiting."""
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


def test_a_run_is_stopped_with_everything_it_started(cli, busy: Bench) -> None:
    result = cli("stop", "long/x=1", "--reason", "too slow")
    assert result.code == 0
    assert result.out.startswith("long/x=1: stopped after 0:0")
    assert "processes ended" in result.out
    outcome = json.loads((busy.root / "long" / "x=1" / "outcome.1").read_text())
    assert (outcome["state"], outcome["reason"]) == ("stopped", "too slow")
    assert json.loads((busy.root / "long" / "x=1" / "stop.1").read_text())["kind"] == "user"
    until(lambda: states(cli).get("x=3") == "running", "the waiting run has its slot")


def test_a_study_is_stopped_with_its_supervisor(cli, busy: Bench) -> None:
    result = cli("stop", "long")
    assert result.code == 0
    assert "long/x=1: stopped after" in result.out
    assert busy.supervisor is not None
    assert f"its supervisor (pid {busy.supervisor.pid}) has left" in result.out
    now = states(cli)
    assert (now["x=1"], now["x=2"]) == ("stopped", "stopped")
    assert now.get("x=3", "queued") == "queued"
    assert not list((busy.root / "long").glob("x=3/lease.*"))


@pytest.mark.parametrize("start", ["", "trap '' INT;"])
def test_every_supervisor_of_a_study_leaves(cli, busy: Bench, start: str) -> None:
    """The second has started nothing: both slots are taken. A script's background job does not hear Ctrl-C."""
    second = subprocess.Popen(
        [
            "bash",
            "-c",
            f'{start} exec "$@"',
            "-",
            sys.executable,
            "-m",
            "assay",
            "run",
            "long.yml",
            "-j",
            "2",
            "--quiet",
        ],
        cwd=busy.folder,
        env=os.environ | busy.extra,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list((busy.root / "long" / ".assay").glob("supervisor.*.*.*"))) == 2, "both are there")
        result = cli("stop", "long")
        assert busy.supervisor is not None
        for pid in (second.pid, busy.supervisor.pid):
            assert f"its supervisor (pid {pid}) has left" in result.out
        assert second.wait(timeout=60) == 130
        assert not list((busy.root / "long").glob("x=3/lease.*"))
        assert not list((busy.root / "long" / ".assay").glob("supervisor.*.*.*"))
    finally:
        second.kill()
        second.wait()


def test_a_pattern_and_json(cli, busy: Bench) -> None:
    facts = json.loads(cli("stop", "long/x=[12]", "--json").out)
    assert [(fact["run"], fact["state"], fact["was_running"]) for fact in facts] == [
        ("long/x=1", "stopped", True),
        ("long/x=2", "stopped", True),
    ]


def test_what_ignores_TERM_is_killed_after_the_grace(cli, own_bench: Bench) -> None:
    text = "study: deaf\ncommand: \"trap '' TERM; touch {run.dir}/ready; while :; do sleep 0.1; done\"\nresources: {gpus: 0}\n"
    supervisor = own_bench.start("run", own_bench.write("deaf.yml", text), "--quiet")
    until(lambda: list(own_bench.root.glob("deaf/*/ready")), "it is deaf")
    assert "stopped after" in cli("stop", "deaf", "--grace", "0.1").out
    supervisor.communicate(timeout=60)


def test_what_is_not_running(cli, bench: Bench) -> None:
    result = cli("stop", f"fit/{GOOD}", f"fit/{BAD}")
    assert result.code == 0
    assert result.out.splitlines() == [f"fit/{GOOD}: was not running (done)", f"fit/{BAD}: was not running (failed)"]


def test_a_supervisor_that_was_killed_leaves_runs_that_can_be_stopped(cli, busy: Bench) -> None:
    assert busy.supervisor is not None
    busy.supervisor.kill()
    busy.supervisor.wait(30)
    result = cli("stop", "long")
    assert result.code == 0
    assert result.out.count("stopped after") == 2
    assert "supervisor" not in result.out


def test_a_run_on_another_host(cli, busy: Bench) -> None:
    lease = busy.root / "long" / "x=1" / "lease.1"
    original = lease.read_text()
    lease.write_text(json.dumps(json.loads(original) | {"host": "elsewhere"}))
    result = cli("stop", "long/x=1")
    assert result.code == 1
    assert "runs on elsewhere" in result.out
    assert not (busy.root / "long" / "x=1" / "stop.1").exists()
    lease.write_text(original)


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


def test_an_unknown_name(cli, bench: Bench) -> None:
    result = cli("stop", "fitt")
    assert result.code == 2
    assert "did you mean 'fit'?" in result.err
    assert cli("stop").code == 2


def test_a_damaged_run_is_stopped_like_the_others(cli, busy: Bench) -> None:
    path: Path = busy.root / "long" / "x=1" / "run.json"
    original = path.read_text()
    path.write_text("{")
    result = cli("stop", "long/x=*")
    assert result.code == 0
    assert "long/x=1: stopped after" in result.out
    assert "long/x=2: stopped after" in result.out
    path.write_text(original)


SUBMIT = """#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" != -c ] || text=$2; shift; done
{start}
echo "job 4711"
"""


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ('setsid bash -c "$text" > /dev/null 2>&1 < /dev/null &', "stopped after 0:0"),
        ("", "taken back before its farm had started it"),  # it waits in the farm's queue for ever
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

"""Runs that wait in the queue of a farm: this is reported, and does not count as time that they take."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.finished_study import Bench, until

from assay.record import run_directory

STUDY = """
study: far
command: 'echo "loss 0.5"; touch UP; until [ -e END ]; do sleep 0.02; done'
params: {x: [1]}
metrics: {loss: 'loss ({number})'}
farms: {slow: {submit: '(until [ -e BEGIN ]; do sleep 0.02; done; exec bash {script}) > /dev/null 2>&1 &'}}
on: slow
resources: {gpus: 0}
"""


def write_study(bench: Bench, folder: Path) -> None:
    """Its job begins and ends when the files `begin` and `end` are in the folder; `up`: it runs."""
    text = STUDY
    for name in ("BEGIN", "END", "UP"):
        text = text.replace(name, str(folder / name.lower()))
    bench.write("study.yml", text)


def test_the_queue_is_not_part_of_a_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.root / "far" / "x=1"
    write_study(bench, tmp_path)
    program = bench.start("run", "study.yml")
    until((run / "submit.exit.1.0").exists, "it is submitted")
    (row,) = json.loads(bench.assay("ls", "far", "--json").stdout)
    assert (row["state"], row.get("seconds")) == ("queued", None)
    assert "waits for" in bench.assay("show", "far/x=1").stdout
    opened_at = time.time()
    (tmp_path / "begin").touch()
    until((tmp_path / "up").exists, "it runs")
    assert "waited" in bench.assay("show", "far/x=1").stdout
    words = [line.split()[:2] for line in iter(program.stderr.readline, "started  x=1\n")]
    assert ["submitted", "x=1"] in words
    (tmp_path / "end").touch()
    _, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    assert "finished x=1" in err
    outcome = run_directory.load_outcome(str(run), 1)
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    began, ended = run_directory.load_times(str(run))["run"]
    assert ended is not None
    assert outcome.ended_at - outcome.started_at == pytest.approx(ended - began)
    assert outcome.started_at > opened_at - 0.1  # a file's date is up to a clock tick old
    assert "waited" in bench.assay("show", "far/x=1").stdout


def test_a_job_of_a_farm_is_not_started_again_by_a_call_for_this_machine(tmp_path: Path) -> None:
    """`--on local` while the farm has the run: it is followed as the farm's job, to its end, whether its own supervisor
    lives or not."""
    benches = {}
    for is_supervised in (True, False):
        (folder := tmp_path / str(is_supervised)).mkdir()
        benches[is_supervised] = Bench(folder)
    first, second = {}, {}
    for is_supervised, bench in benches.items():
        write_study(bench, bench.folder.parent)
        first[is_supervised] = bench.start("run", "study.yml")
        (bench.folder.parent / "begin").touch()
    for bench in benches.values():
        until((bench.folder.parent / "up").exists, "it runs")
    first[False].kill()
    first[False].communicate(timeout=60)
    for is_supervised, bench in benches.items():
        second[is_supervised] = bench.start("run", "study.yml", "--on", "local")
    heads = {key: program.stderr.readline() for key, program in second.items() if program.stderr is not None}
    time.sleep(3.0)  # longer than the interval in which runs of others are looked at
    for is_supervised, bench in benches.items():
        run = bench.root / "far" / "x=1"
        assert not (run / "lease.2").exists(), heads[is_supervised]
        (bench.folder.parent / "end").touch()
        _, err = second[is_supervised].communicate(timeout=60)
        assert second[is_supervised].returncode == 0, heads[is_supervised] + err
        assert run_directory.load_outcome(str(run), 1).state.value == "done"
        assert not (run / "lease.2").exists()
    first[True].communicate(timeout=60)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_runs_that_wait_leave_the_file_system_alone(tmp_path: Path) -> None:
    """Twenty runs cost 1,400 system calls a second before their queue was looked at by turns."""
    bench, trace = Bench(tmp_path), tmp_path / "trace"
    bench.write(
        "study.yml",
        "study: far\ncommand: 'true'\nparams: {x: {range: 20}}\nfarms: {busy: {submit: ': {script}'}}\non: busy\n",
    )
    program = bench.start("run", "study.yml")
    until(lambda: len(list(bench.root.glob("far/*/submit.exit.1.0"))) == 20, "all are submitted")
    time.sleep(1.0)  # the looks that were saved up
    tracer = subprocess.Popen(["strace", "-f", "-y", "-qq", "-o", str(trace), "-p", str(program.pid)])
    until(lambda: (trace.exists() and trace.stat().st_size) or tracer.poll() is not None, "it is followed")
    if tracer.poll() is not None:
        program.kill()
        program.communicate(timeout=60)
        pytest.skip("strace may not follow processes here")
    began = time.monotonic()
    time.sleep(2.5)
    tracer.send_signal(signal.SIGINT)
    tracer.wait(timeout=60)
    took_s = time.monotonic() - began
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=60)
    lines = [line for line in trace.read_text(errors="replace").splitlines() if str(bench.root) in line]
    assert any("token.1" in line for line in lines)
    assert len(lines) / took_s <= 60, lines[-100:]  # 40 are usual; a machine that was stopped makes up for some

"""Readings where a farm runs a job: taken by a child of job.sh's watcher, which ends with it; or the reason for none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.executor import Run, Runs, until

from assay.observe.readings import parse_absence, parse_reading
from assay.reading.run_description import load_readings
from assay.system import processes

SIZE = 60_000_000
BUSY = (
    f"{sys.executable} -c 'import time; x = bytearray({SIZE}); [sum(range(9999)) for _ in range(99)]; time.sleep(300)'"
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Runs(tmp_path).make(BUSY)


def start(run: Run, **env: str) -> subprocess.Popen[bytes]:
    """As a farm does: no gate, no tag but the run's own."""
    return subprocess.Popen(
        ["bash", run.path("job.sh")], env={**os.environ, "ASSAY_FAKE_NVML": "", **env}, start_new_session=True
    )


def load_lines(run: Run) -> list[str]:
    path = run.path("readings.jsonl")
    return path.read_text().splitlines() if path.exists() else []


def find_reader(job: subprocess.Popen[bytes]) -> int:
    """The process that measures."""
    for pid in processes.find_descendants(job.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if Path(f"/proc/{pid}").exists() else []
        if b"readings" in words and len(words) > 7:
            return pid
    return 0


def end_command(job: subprocess.Popen[bytes]) -> None:
    for pid in processes.find_descendants(job.pid):
        if Path(f"/proc/{pid}").exists() and b"bytearray" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)


def stop(run: Run, _job: subprocess.Popen[bytes]) -> None:
    run.path("stop.1").touch()


ENDS: dict[str, Callable[[Run, subprocess.Popen[bytes]], None]] = {
    "the command ends": lambda _run, job: end_command(job),
    "job.sh is killed": lambda _run, job: os.killpg(job.pid, signal.SIGKILL),
    "the farm takes the job back": lambda _run, job: os.killpg(job.pid, signal.SIGTERM),
    "it is stopped": stop,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_readings_while_the_job_runs_and_nobody_afterwards(
    run: Run, end: Callable[[Run, subprocess.Popen[bytes]], None]
) -> None:
    with start(run, ASSAY_PYTHON=sys.executable) as job:
        until(lambda: load_lines(run), "the first reading")
        reader = find_reader(job)
        assert reader
        end(run, job)
        job.wait(60)
        until(lambda: processes.process_start(reader) is None, "the reader has ended")
    readings = [parse_reading(line) for line in load_lines(run)]
    assert all(reading is not None for reading in readings)
    first = readings[0]
    assert first is not None
    assert first.rss_bytes > SIZE
    assert first.cpu_s > 0
    summary, _ = load_readings(str(run.path("readings.jsonl")))
    assert summary is not None
    assert summary.count == len(readings)


def test_where_assay_is_not_installed_the_reason_is_recorded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/python3").chmod(0o755)
    with start(run, ASSAY_PYTHON="/nowhere/python", PATH=f"{tmp_path}/bin:{os.environ['PATH']}") as job:
        until(lambda: load_lines(run), "the reason")
        end_command(job)
    [line] = load_lines(run)
    assert "not installed" in str(parse_absence(line))
    assert load_readings(str(run.path("readings.jsonl"))) == (None, json.loads(line)["absent"])
    assert run.markers() == {"train.exit.143"}, "the run itself is as it would be"


def test_without_arguments_it_only_says_that_it_is_there() -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "assay", "child", "readings"], check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

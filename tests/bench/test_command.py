"""A command line with its true figures, measured by real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.bench import command

SCRIPT = command.__file__
MIB = 1 << 20


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str], report: Path) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in report.read_text().splitlines()]

    @property
    def end(self) -> dict[str, Any]:
        return self.lines[-1]


def run(text: str, tmp_path: Path, *profiler: str, **env: str) -> Ran:
    report = tmp_path / "report.jsonl"
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, text, *profiler],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ASSAY_BENCH_REPORT": str(report), **env},
    )
    return Ran(done, report)


def test_a_small_command_is_small(tmp_path: Path) -> None:
    """Not the size of the Python that started it."""
    ran = run("true", tmp_path)
    assert ran.code == 0
    assert [line["kind"] for line in ran.lines] == ["begin", "command", "end"]
    assert ran.lines[1]["pid"] != ran.lines[0]["pid"]  # the command's own: the wrapper is no part of it
    assert ran.end["peaks"]["max_vms"] > ran.end["peaks"]["max_rss"]
    assert 0 < ran.end["peaks"]["max_rss"] < 8 * MIB
    assert ran.lines[0]["wrapper_rss"] > ran.end["peaks"]["max_rss"]
    assert ran.end["wall_s"] > 0


def test_a_large_command_is_large_however_short(tmp_path: Path) -> None:
    code = "b = bytearray(40_000_000); b[::4096] = b'x' * len(b[::4096])"
    ran = run(f'{sys.executable} -S -c "{code}"', tmp_path)
    assert 40_000_000 < ran.end["peaks"]["max_rss"] < 80 * MIB


def test_cpu_time_is_of_the_whole_command(tmp_path: Path) -> None:
    spin = f"{sys.executable} -S -c 'import time\nwhile time.process_time() < 0.05: pass'"
    ran = run(f"({spin}); ({spin}) | cat", tmp_path)
    assert ran.end["cpu_s"] >= 0.1
    assert ran.end["peaks"]["cpu_s"] == ran.end["cpu_s"]


def test_it_ends_as_the_command_did(tmp_path: Path) -> None:
    for text, code in {"exit 7": 7, "nosuchprogram_at_all": 127, "kill -9 $$": -9, "kill -TERM $$": -15}.items():
        ran = run(text, tmp_path)
        assert ran.code == code
        assert ran.end["ok"] is False


def test_output_input_and_arguments_are_the_command_s_own(tmp_path: Path) -> None:
    text = "cat; echo \"out $# $0 $MARK 'quoted'\"; echo err >&2\nfor n in 1 2\ndo\n  echo $n\ndone # the end"
    ran = run(text, tmp_path, MARK="it's")
    assert ran.out == "out 0 bash it's 'quoted'\n1\n2\n"
    assert ran.err == "err\n"


def test_signals_and_descriptors_are_as_a_shell_would_have_them(tmp_path: Path) -> None:
    """Interrupts and broken pipes end a command; Python's own habits and a shell's for background jobs are not its."""
    look = "ls /proc/self/fd; grep SigIgn /proc/self/status"
    *descriptors, _, ignored = run(look, tmp_path).out.split()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        assert not int(ignored, 16) >> (number - 1) & 1, number
    plain = subprocess.run(["bash", "-c", look], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert descriptors == plain.stdout.split()[:-2], "none of ours reaches the command"


def test_without_a_report_file_it_still_runs() -> None:
    env = {name: value for name, value in os.environ.items() if name != "ASSAY_BENCH_REPORT"}
    done = subprocess.run([sys.executable, "-I", "-S", SCRIPT, "exit 5"], env=env, check=False)
    assert done.returncode == 5


def test_where_nothing_can_be_adopted_it_is_started_directly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command.processes, "adopt_orphans", lambda: False)
    report = tmp_path / "report.jsonl"
    monkeypatch.setenv("ASSAY_BENCH_REPORT", str(report))
    assert command.main("exit 4") == 4
    assert json.loads(report.read_text().splitlines()[-1])["peaks"]["max_rss"] > 0


def test_it_loads_next_to_nothing() -> None:
    """It lies between the supervisor and what is measured."""
    code = f"import sys, runpy; sys.argv = ['x', 'true']\ntry: runpy.run_path({SCRIPT!r}, run_name='__main__')\nexcept SystemExit: pass\nprint(*(m for m in sys.modules if m.startswith('assay')))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["assay", "assay.system", "assay.system.processes"]


# ---------------------------------------------------------------- a profiler beside it


def test_a_profiler_is_given_the_pid_and_ends_with_the_command(tmp_path: Path) -> None:
    profiler = (
        "import json, sys, time; sys.stdin.read(); "
        "print(json.dumps({'profiles': sys.argv[1:], 'profile_notes': [str(time.monotonic())]}))"
    )
    ran = run("echo $$; exit 3", tmp_path, sys.executable, "-S", "-c", profiler)
    pid, began = ran.end["profiles"]
    assert ran.code == 3
    assert pid == f"--pid={ran.out.strip()}"
    assert 0 < float(began.removeprefix("--began=")) < float(ran.end["profile_notes"][0])


def test_a_profiler_that_breaks_is_reported_and_fails_nothing(tmp_path: Path) -> None:
    ran = run("true", tmp_path, sys.executable, "-S", "-c", "raise SystemExit(7)")
    assert ran.code == 0
    assert ran.end["ok"] is True
    assert ran.end["profile_notes"] == ["there is no profile: the profiler ended with exit code 7"]

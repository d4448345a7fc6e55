"""Windows of a command, taken from beside it: real processes, and a stand-in for py-spy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from assay.bench.profiling import has_python

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def spy(tmp_path: Path) -> Path:
    """Writes down how it was called, and leaves when it is interrupted, as py-spy does."""
    path = tmp_path / "py-spy"
    path.write_text(
        f"#!{sys.executable} -S\n"
        "import json, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "with open(sys.argv[0] + '.calls', 'a') as file: file.write('called\\n')\n"
        "signal.sigwait([signal.SIGINT])\n"
        "with open(sys.argv[sys.argv.index('--output') + 1], 'w') as file: json.dump(sys.argv[1:], file)\n"
    )
    path.chmod(0o755)
    return path


@contextmanager
def command(text: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs until its input is closed; it has printed `up`."""
    process = subprocess.Popen(
        ["bash", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        with process.stdin, process.stdout:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Watcher:
    def __init__(self, folder: Path, spy: Path, pid: int, windows: str) -> None:
        words = [f"--profile={windows}", f"--profile-dir={folder}", f"--py-spy={spy}", f"--pid={pid}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay.bench.profiling", *words, f"--began={time.monotonic()}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> dict[str, Any]:
        """The command is over."""
        out, self.errors = self.process.communicate(timeout=60)
        found: dict[str, Any] = json.loads(out)
        return found


def count_calls(spy: Path) -> int:
    calls = spy.with_name("py-spy.calls")
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f'exec {sys.executable} -S -c "{WAITS}"', True),
        (f'{sys.executable} -S -c "{WAITS}"; true', True),
        (f'( {sys.executable} -S -c "{WAITS}"; true ) | cat', True),
        ("echo up; read -r", False),
    ],
)
def test_a_python_is_found_wherever_in_the_tree(text: str, answer: bool) -> None:
    with command(text) as process:
        assert has_python(process.pid) is answer


def test_a_process_that_has_gone_is_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert not has_python(process.pid)


def test_windows_of_a_command(tmp_path: Path, spy: Path) -> None:
    folder = tmp_path / "p"
    with command(f'{sys.executable} -S -c "{WAITS}"; true') as process:
        watcher = Watcher(folder, spy, process.pid, "0:1.5,1.6:")
        wait_for(lambda: count_calls(spy) == 2)
        found = watcher.end()
    assert found == {"profiles": ["py-spy-1.json", "py-spy-2.json"], "profile_notes": []}
    words = json.loads((folder / "py-spy-1.json").read_text())
    assert words[words.index("--pid") + 1] == str(process.pid)
    assert "--subprocesses" in words, "of a shell it is the children that matter"


def test_a_window_waits_for_a_python(tmp_path: Path, spy: Path) -> None:
    gate = tmp_path / "gate"
    with command(
        f'echo up; until [ -e {gate} ]; do sleep 0.02; done; {sys.executable} -S -c "{WAITS}"; true'
    ) as process:
        watcher = Watcher(tmp_path / "p", spy, process.pid, "0:")
        assert not has_python(process.pid)
        gate.touch()
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        wait_for(lambda: count_calls(spy) == 1)
        found = watcher.end()
    assert found == {"profiles": ["py-spy-1.json"], "profile_notes": []}


@pytest.mark.parametrize("content", ["[]\n", "", "[\n]"])
def test_a_profile_with_nothing_in_it_is_none(tmp_path: Path, spy: Path, content: str) -> None:
    spy.write_text(spy.read_text().replace("json.dump(sys.argv[1:], file)", f"file.write({content!r})"))
    with command(f'{sys.executable} -S -c "{WAITS}"; true') as process:
        watcher = Watcher(tmp_path / "p", spy, process.pid, "0:")
        wait_for(lambda: count_calls(spy) == 1)
        found = watcher.end()
    (note,) = found["profile_notes"]
    assert note.startswith("window 1 has no profile: py-spy found nothing running on a CPU: only idle threads")
    assert note in watcher.errors
    assert found["profiles"] == list((tmp_path / "p").iterdir()) == []


def test_a_command_without_any_python_is_reported(tmp_path: Path, spy: Path) -> None:
    with command("echo up; read -r") as process:
        watcher = Watcher(tmp_path / "p", spy, process.pid, "0:0.05,1000:")
        assert watcher.process.stderr is not None
        line = watcher.process.stderr.readline()
        found = watcher.end()
    first, second = found["profile_notes"]
    assert first == "window 1 has no profile: no Python ran in it, and py-spy supports nothing else"
    assert line == f"assay: warning: {first}\n"
    assert second.endswith("the window 1000: never began")
    assert found["profiles"] == []

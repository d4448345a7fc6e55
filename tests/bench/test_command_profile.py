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
from types import SimpleNamespace

import pytest
from tests.bench_samples import write_spy
from tests.study_processes import until

from assay.bench.profiling import CommandProfile, has_python, main
from assay.bench.values.execution import parse_windows

WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def spy(tmp_path: Path) -> Path:
    return write_spy(tmp_path, "with open(sys.argv[0] + '.calls', 'a') as file: file.write('called\\n')")


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
    """Follows a command in this process, as `assay child command-profile` does in its own."""

    def __init__(self, folder: Path, spy: Path, pid: int, windows: str) -> None:
        self.profile = CommandProfile(parse_windows(windows), str(folder), str(spy), pid)
        self.profile.follow(time.monotonic())

    def end(self) -> tuple[list[str], list[str]]:
        """Files and notes, when the command is over."""
        return self.profile.finish(), self.profile.notes


def count_calls(spy: Path) -> int:
    calls = spy.with_name("py-spy.calls")
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def test_a_python_is_found_wherever_in_the_tree() -> None:
    for text, answer in (
        (f'exec {sys.executable} -S -c "{WAITS}"', True),
        (f'( {sys.executable} -S -c "{WAITS}"; true ) | cat', True),
        ("echo up; read -r", False),
    ):
        with command(text) as process:
            assert has_python(process.pid) is answer
    assert not has_python(process.pid), "it has gone"


def test_windows_of_a_command(
    tmp_path: Path, spy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its input is closed when the command is over, and its answer is a line of JSON."""
    folder = tmp_path / "p"
    running = SimpleNamespace(read=lambda: until(lambda: count_calls(spy) == 2, "the second window"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=running))
    with command(f'{sys.executable} -S -c "{WAITS}"; true') as process:
        words = ["--profile=0:0.6,0.7:", f"--profile-dir={folder}", f"--py-spy={spy}", f"--pid={process.pid}"]
        assert main([*words, f"--began={time.monotonic()}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"profiles": ["py-spy-1.json", "py-spy-2.json"], "profile_notes": []}
    words = json.loads((folder / "py-spy-1.json").read_text())
    assert words[words.index("--pid") + 1] == str(process.pid)
    assert "--subprocesses" in words, "of a shell it is the children that matter"


def test_a_window_waits_for_a_python(tmp_path: Path, spy: Path) -> None:
    gate = tmp_path / "gate"
    text = f'echo up; until [ -e {gate} ]; do sleep 0.02; done; {sys.executable} -S -c "{WAITS}"; true'
    with command(text) as process:
        watcher = Watcher(tmp_path / "p", spy, process.pid, "0:")
        assert not has_python(process.pid)
        gate.touch()
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        until(lambda: count_calls(spy) == 1, "the window")
        assert watcher.end() == (["py-spy-1.json"], [])


def test_a_profile_with_nothing_in_it_is_none(tmp_path: Path, spy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = spy.read_text()
    with command(f'{sys.executable} -S -c "{WAITS}"; true') as process:
        for number, content in enumerate(("[]\n", "", "[\n]"), 1):
            spy.write_text(program.replace("json.dump(sys.argv[1:], file)", f"file.write({content!r})"))
            watcher = Watcher(tmp_path / "p", spy, process.pid, "0:")
            until(lambda number=number: count_calls(spy) == number, "its window")
            files, (note,) = watcher.end()
            assert note.startswith("window 1 has no profile: py-spy found nothing running on a CPU: only idle threads")
            assert note in capfd.readouterr().err
            assert files == list((tmp_path / "p").iterdir()) == []


def test_a_command_without_any_python_is_reported(tmp_path: Path, spy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with command("echo up; read -r") as process:
        watcher = Watcher(tmp_path / "p", spy, process.pid, "0:0.05,1000:")
        until(lambda: watcher.profile.notes, "a note")
        files, (first, second) = watcher.end()
    assert first == "window 1 has no profile: no Python ran in it, and py-spy supports nothing else"
    assert capfd.readouterr().err.startswith(f"assay: warning: {first}\n")
    assert second.endswith("the window 1000: never began")
    assert files == []

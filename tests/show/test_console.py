"""What a command prints, and where."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from assay.cli.main import run
from assay.show.console import SILENT, CollectingConsole, Console

LONG = "a sentence with quite a few words in it " * 4


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.show.console.terminal_width", lambda *_: 40)


def test_a_pipe_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Console().warning(LONG)
    assert capsys.readouterr().err == f"warning: {LONG}\n"


@pytest.mark.usefixtures("narrow")
def test_a_terminal_gets_whole_words(capsys: pytest.CaptureFixture[str]) -> None:
    Console().warning(LONG)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).split() == ["warning:", *LONG.split()]


@pytest.mark.usefixtures("narrow")
def test_errors_and_their_hints_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sum", "--csv", "--json", "some-study-with-a-rather-long-name"]) == 2
    assert capsys.readouterr().err == "assay: choose one of --csv, --json and\n  --md\n"


def test_quiet_leaves_out_messages_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console().quieted()
    console.message("message")
    console.warning("warning")
    console.error("error")
    console.print("result")
    assert capsys.readouterr() == ("result\n", "warning: warning\nerror\n")


def test_results_go_to_stderr_while_stdout_belongs_to_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console().on_stderr()
    console.write("result\n")
    assert capsys.readouterr() == ("", "result\n")


def test_messages_go_above_a_live_view_in_whole_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.show.console.terminal_width", lambda _stream: 20)
    shown: list[str] = []
    console = Console().around(shown.append)
    console.message("message")
    console.warning("careful with long lines")
    assert shown == ["message", "warning: careful\n  with long lines"]
    assert capsys.readouterr() == ("", "")


def test_a_name_with_control_characters_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Console().print("a\nb\x1b[2J")
    assert capsys.readouterr().out == "a\\nb\\x1b[2J\n"


def test_a_silent_one_prints_nothing_and_a_collecting_one_keeps_what_was_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for console in (SILENT, collecting := CollectingConsole()):
        console.message("message")
        console.warning("careful")
        console.print("result")
    assert capsys.readouterr() == ("", "")
    assert collecting.lines == ["message", "careful"]


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_reader_that_has_gone_changes_no_exit_code(stream: str) -> None:
    program = (
        "import os, sys\nfrom assay.show.console import Console\nread, write = os.pipe()\nos.close(read)\n"
        f"os.dup2(write, {stream})\nconsole = Console()\n"
        "for _ in range(3):\n    console.write('result\\n' * 10_000)\n    console.error('message')\n"
        "sys.exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=os.environ, timeout=60)
    assert done.returncode == 7, done.stderr

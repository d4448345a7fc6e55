"""Remarks beside the answer."""

from __future__ import annotations

import pytest

from assay.cli.main import run
from assay.show.console_warnings import warn
from assay.system import terminal

LONG = "a sentence with quite a few words in it " * 4


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "terminal_width", lambda *_: 40)


def test_a_pipe_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    warn(LONG)
    assert capsys.readouterr().err == f"warning: {LONG}\n"


@pytest.mark.usefixtures("narrow")
def test_a_terminal_gets_whole_words(capsys: pytest.CaptureFixture[str]) -> None:
    warn(LONG)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).split() == ["warning:", *LONG.split()]


@pytest.mark.usefixtures("narrow")
def test_errors_and_their_hints_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sum", "--csv", "--json", "some-study-with-a-rather-long-name"]) == 2
    assert capsys.readouterr().err == "assay: choose one of --csv, --json and\n  --md\n"

from __future__ import annotations

import io
import os
import pty

import pytest

from assay.system import terminal


@pytest.fixture
def tty():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        yield stream
    os.close(leader)


def test_when_there_are_colours(tty):
    assert terminal.use_color(tty, {"TERM": "xterm"})
    assert not terminal.use_color(io.StringIO(), {"TERM": "xterm"})
    assert not terminal.use_color(tty, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not terminal.use_color(tty, {"TERM": "dumb"})
    assert terminal.use_color(tty, {"TERM": "xterm", "NO_COLOR": ""})  # empty counts as unset
    assert terminal.use_color(io.StringIO(), {"FORCE_COLOR": "1"})
    assert not terminal.use_color(tty, {"FORCE_COLOR": "1", "NO_COLOR": "1"})


def test_width_only_where_there_is_a_terminal(tty):
    stream = io.StringIO()
    assert terminal.terminal_width(stream) is None
    assert terminal.terminal_width(stream, 100) == 100
    assert terminal.terminal_width(tty)
    stream.close()
    assert not terminal.is_terminal(stream)


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", True), ("ascii", False)])
def test_can_encode(encoding, expected):
    assert terminal.can_encode(io.TextIOWrapper(io.BytesIO(), encoding=encoding), "⠿") is expected


def test_paint_wraps_and_resets():
    assert terminal.paint("x", "bold red") == "\x1b[1m\x1b[31mx\x1b[0m"
    assert terminal.paint("x", "") == "x"

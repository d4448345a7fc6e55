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


def test_colours_only_on_a_terminal(tty):
    assert terminal.use_color(tty, {"TERM": "xterm"})
    assert not terminal.use_color(io.StringIO(), {"TERM": "xterm"})


def test_no_color_and_dumb_terminals_are_respected(tty):
    assert not terminal.use_color(tty, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not terminal.use_color(tty, {"TERM": "dumb"})
    assert terminal.use_color(tty, {"TERM": "xterm", "NO_COLOR": ""})  # empty counts as unset
    assert terminal.use_color(io.StringIO(), {"FORCE_COLOR": "1"})
    assert not terminal.use_color(tty, {"FORCE_COLOR": "1", "NO_COLOR": "1"})


def test_a_closed_stream_is_no_terminal():
    stream = io.StringIO()
    stream.close()
    assert not terminal.is_terminal(stream)


def test_width_only_where_there_is_a_terminal(tty):
    assert terminal.terminal_width(io.StringIO()) is None
    assert terminal.terminal_width(io.StringIO(), 100) == 100
    assert terminal.terminal_width(tty)


def test_can_encode():
    ascii_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    utf8_stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert terminal.can_encode(utf8_stream, "⠿")
    assert not terminal.can_encode(ascii_stream, "⠿")


def test_paint_wraps_and_resets():
    assert terminal.paint("x", "bold red") == "\x1b[1m\x1b[31mx\x1b[0m"
    assert terminal.paint("x", "") == "x"

"""Patterns that take for ever are ended, and not tried again."""

from __future__ import annotations

import pytest

from assay.errors import UsageError
from assay.follow import collect
from assay.follow.limited_process import LimitedProcess
from assay.values.study import Pattern
from assay.web.limited_patterns import LimitedLogParser

ENDLESS = Pattern("loss", r"(([a-z]+)+)+([0-9])$")
GOOD = Pattern("loss", r"loss ([\d.]+)")


def test_the_points_are_the_same_and_patterns_that_take_for_ever_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser, data = LimitedLogParser(), b"step 1 loss 0.5\nstep 2 loss 0.25\nloss"
    patterns = [GOOD, Pattern("step", r"step (\d+)")]
    for final in (False, True):
        expected = collect.parse_log(patterns, "train", data, {}, final)
        assert repr(parser(patterns, "train", data, {}, final)) == repr(expected)  # NaN is in it
    with pytest.raises(UsageError, match="not a regular expression"):
        parser([Pattern("loss", "(")], "train", b"loss 1\n", {}, True)
    monkeypatch.setattr(LimitedLogParser, "FIRST_S", 0.1)
    data = b"a" * 60 + b"!\n"
    with pytest.raises(UsageError, match="of CPU time"):
        parser([ENDLESS], "train", data, {}, True)
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: pytest.fail("tried again"))
    with pytest.raises(UsageError, match="too long before"):
        parser([ENDLESS], "train", data, {}, True)


def test_patterns_that_are_only_slow_run_out_of_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call stays below the limit."""
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 4.0))
    parser = LimitedLogParser()
    for _ in range(3):
        parser([ENDLESS], "train", b"a\n", {}, False)
    with pytest.raises(UsageError, match="too long before"):
        parser([ENDLESS], "train", b"a\n", {}, False)


def test_a_log_that_is_followed_for_days_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 0.02))
    parser = LimitedLogParser()
    for _ in range(10_000):
        parser([GOOD], "train", b"loss 1\n", {}, False)

"""Patterns and searches that take for ever are ended, and hold up no other thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.finished_study import until

from assay.errors import InfrastructureError, UsageError
from assay.follow import collect
from assay.follow.limited_process import LimitedLogParser, LimitedProcess, TookTooLongError
from assay.system.processes import exists, process_start
from assay.values.study import Pattern

HERE = "assay.follow.limited_process"
ENDLESS = Pattern("loss", r"(([a-z]+)+)+([0-9])$")
GOOD = Pattern("loss", r"loss ([\d.]+)")


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    process = LimitedProcess()
    yield process
    process.close()


def test_one_child_answers_many_calls(process: LimitedProcess) -> None:
    first = process.call("os:getpid", limit_s=60.0)
    assert first != os.getpid()
    assert process.call("os:getpid", limit_s=60.0) == first


def test_what_takes_for_ever_is_ended_and_the_next_call_finds_another_child(process: LimitedProcess) -> None:
    first = process.call("os:getpid", limit_s=60.0)
    with pytest.raises(TookTooLongError, match=r"longer than 0\.3 s"):
        process.call("re:search", r"(a+)+$", "a" * 60 + "!", limit_s=0.3)
    assert not exists(first)
    assert process.call("os:getpid", limit_s=60.0) != first


def test_an_error_of_the_function_is_reported_and_the_child_stays(process: LimitedProcess) -> None:
    first = process.call("os:getpid", limit_s=60.0)
    with pytest.raises(UsageError, match="search for what"):
        process.call("assay.web.pages.run_files:search_log", "x", " ", limit_s=60.0)
    with pytest.raises(UsageError, match="FileNotFoundError"):
        process.call("os:stat", "/nowhere", limit_s=60.0)
    assert process.call("os:getpid", limit_s=60.0) == first


def test_a_child_that_was_killed_is_an_error_and_not_a_wait(process: LimitedProcess) -> None:
    with pytest.raises(InfrastructureError):
        process.call("os:abort", limit_s=60.0)
    assert process.call("os:getpid", limit_s=60.0) > 0


def test_the_child_of_a_server_that_was_killed_ends(process: LimitedProcess) -> None:
    code = (
        f"import os; from {HERE} import LimitedProcess; p = LimitedProcess(); "
        "print(p.call('os:getpid', limit_s=60.0), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    until(lambda: process_start(int(done.stdout)) is None, "the child has ended")  # its zombie may stay a while


class TestPatterns:
    def test_the_points_are_the_same(self) -> None:
        data = b"step 1 loss 0.5\nstep 2 loss 0.25\nloss"
        patterns = [GOOD, Pattern("step", r"step (\d+)")]
        for final in (False, True):
            expected = collect.parse_log(patterns, "train", data, {}, final)
            assert repr(LimitedLogParser()(patterns, "train", data, {}, final)) == repr(expected)  # NaN is in it

    def test_patterns_that_take_for_ever_are_not_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LimitedLogParser, "FIRST_S", 0.5)
        parser, data = LimitedLogParser(), b"a" * 60 + b"!\n"
        with pytest.raises(UsageError, match="of CPU time"):
            parser([ENDLESS], "train", data, {}, True)
        monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: pytest.fail("tried again"))
        with pytest.raises(UsageError, match="too long before"):
            parser([ENDLESS], "train", data, {}, True)

    def test_patterns_that_are_only_slow_run_out_of_time_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each call stays below the limit."""
        monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 4.0))
        parser = LimitedLogParser()
        for _ in range(3):
            parser([ENDLESS], "train", b"a\n", {}, False)
        with pytest.raises(UsageError, match="too long before"):
            parser([ENDLESS], "train", b"a\n", {}, False)

    def test_a_log_that_is_followed_for_days_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LimitedProcess, "call", lambda *_, **__: (({}, 0, {}), 0.02))
        parser = LimitedLogParser()
        for _ in range(10_000):
            parser([GOOD], "train", b"loss 1\n", {}, False)

    def test_a_pattern_that_is_not_one_is_reported(self) -> None:
        with pytest.raises(UsageError, match="not a regular expression"):
            LimitedLogParser()([Pattern("loss", "(")], "train", b"loss 1\n", {}, True)

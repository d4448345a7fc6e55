"""Patterns and searches that take for ever are ended, and hold up no other thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.finished_study import until

from assay.errors import InfrastructureError, UsageError
from assay.follow.limited_process import LimitedProcess, TookTooLongError
from assay.system.processes import exists, process_start

HERE = "assay.follow.limited_process"


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

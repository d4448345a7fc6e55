"""Other people's tools: found or explained, seen at once, their failures in their own words, or only shown."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stand_ins import StandIns, use_stand_ins

from assay.compat.perfzero.tool import KnownFailure, ToolResult, Tools, build_failure, find_tool, run_tool
from assay.errors import ExitCode, UsageError


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return use_stand_ins(tmp_path, monkeypatch, "docker", "gcloud")


# ---------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("docker", "docs.docker.com"),
        ("gcloud", "cloud.google.com/sdk"),
        ("mdadm", "apt install mdadm"),
        ("other", "PATH"),
    ],
)
def test_a_missing_tool_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=f"{name} was not found on PATH") as caught:
        find_tool(name)
    assert how in (caught.value.hint or "")
    assert caught.value.exit_code == ExitCode.USAGE


# ---------------------------------------------------------------- running


def test_running_shows_both_streams_and_keeps_the_errors(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    tools.answer("gcloud", out="NAME ZONE\n", err="größe\nERROR: no\n", code=1)
    assert run_tool(["gcloud", "x"]) == ToolResult(1, "", "größe\nERROR: no")
    assert capfd.readouterr() == ("NAME ZONE\n", "größe\nERROR: no\n")


def test_a_tool_that_draws_keeps_the_terminal(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    tools.answer("docker", err="#1 building\n", code=2)
    assert run_tool(["docker", "build"], keep_errors=False) == ToolResult(2)
    assert capfd.readouterr().err == "#1 building\n"


def test_what_we_printed_before_comes_first(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    tools.answer("docker", out="second\n")
    sys.stdout.write("first\n")
    run_tool(["docker"])
    assert capfd.readouterr().out == "first\nsecond\n"


def test_arguments_arrive_as_they_are(tools: StandIns) -> None:
    odd = ["docker", "a b", "$HOME", "it's", "", "\n", "größe", "*"]
    run_tool(odd)
    assert tools.calls == [odd]


def test_words_are_seen_while_the_tool_still_runs(tmp_path: Path) -> None:
    """The tool says a word and then waits for us to have read it."""
    gate, script = tmp_path / "gate", tmp_path / "slow"
    script.write_text(f"#!/bin/sh\necho now >&2\nwhile [ ! -e {shlex.quote(str(gate))} ]; do sleep 0.01; done\n")
    script.chmod(0o755)
    code = f"from assay.compat.perfzero.tool import run_tool; raise SystemExit(run_tool([{str(script)!r}]).code)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "now\n"
        gate.touch()
        assert process.wait(60) == 0


def test_a_reader_that_has_left_does_not_end_the_tool(tmp_path: Path) -> None:
    done, script = tmp_path / "done", tmp_path / "talker"
    script.write_text(f"#!/bin/sh\nfor i in 1 2 3; do echo $i >&2; done\ntouch {shlex.quote(str(done))}\n")
    script.chmod(0o755)
    code = f"import os, sys; os.dup2(int(sys.argv[1]), 2); from assay.compat.perfzero.tool import run_tool; run_tool([{str(script)!r}])"
    read, write = os.pipe()
    os.close(read)
    try:
        subprocess.run([sys.executable, "-c", code, str(write)], pass_fds=[write], check=False, timeout=60)
    finally:
        os.close(write)
    assert done.exists()


def test_ctrl_c_lets_the_tool_clean_up(tmp_path: Path) -> None:
    cleaned, script = tmp_path / "cleaned", tmp_path / "builder"
    script.write_text(
        f"#!/bin/sh\ntrap 'touch {shlex.quote(str(cleaned))}; exit 130' INT\necho ready >&2\nwhile :; do sleep 0.01; done\n"
    )
    script.chmod(0o755)
    code = f"from assay.compat.perfzero.tool import run_tool; run_tool([{str(script)!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert "KeyboardInterrupt" in process.stderr.read()
        process.wait(60)
    deadline = time.monotonic() + 10
    while not cleaned.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cleaned.exists()


# ---------------------------------------------------------------- failures


CAUSES = (KnownFailure("log in", "gcloud auth login", is_users=True), KnownFailure("quota", "take fewer"))
CREATE = ["gcloud", "compute", "instances", "create", "name", "--zone=z"]


def test_a_tool_that_was_killed() -> None:
    error = build_failure(["mkfs.ext4", "-F", "/dev/x"], ToolResult(-9, "", ""))
    assert error.message == "mkfs.ext4 was ended by SIGKILL"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["docker", "build", "-t", "x"], "docker build"),
        (["sudo", "mdadm", "--create"], "sudo mdadm"),
        (["lsblk", "--json"], "lsblk"),
        (["gcloud", "compute", "ssh", "--zone=x"], "gcloud compute ssh"),
        (["docker", "--help"], "docker"),
    ],
)
def test_a_command_s_name_ends_before_its_options(argv: list[str], name: str) -> None:
    assert build_failure(argv, ToolResult(1)).message == f"{name} failed with exit code 1"


# ---------------------------------------------------------------- doing or showing


class Heard:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.remarks: list[str] = []

    def tools(self, dry_run: bool, debug: bool = False) -> Tools:
        return Tools(dry_run, self.shown.append, self.remarks.append, debug, CAUSES)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_what_is_shown_can_be_typed(argv: list[str]) -> None:
    notes = Heard()
    notes.tools(dry_run=True).do(argv)
    assert shlex.split(notes.shown[0]) == argv


def test_a_real_run_says_what_it_does(tools: StandIns) -> None:
    notes = Heard()
    real = notes.tools(dry_run=False)
    real.do(["docker", "build", "a b"])
    assert real.announce("fetch x")
    tools.answer("gcloud", out="[]")
    assert real.ask(["gcloud", "list"]) == "[]"
    assert (notes.shown, notes.remarks) == ([], ["$ docker build 'a b'", "fetch x"])
    assert notes.tools(dry_run=False, debug=True).ask(["gcloud", "list"]) == "[]"
    assert notes.remarks[-1] == "$ gcloud list"


def test_a_failure_raises_with_its_advice(tools: StandIns) -> None:
    tools.answer("gcloud", err="ERROR: log in\n", code=1)
    with pytest.raises(UsageError) as caught:
        Heard().tools(dry_run=False).ask(["gcloud", "compute", "instances", "list"])
    assert (
        caught.value.render()
        == "gcloud compute instances list failed with exit code 1: ERROR: log in\n  gcloud auth login"
    )
    with pytest.raises(UsageError) as caught:
        Heard().tools(dry_run=False).do(["gcloud", "compute", "instances", "stop"])
    assert caught.value.render() == "gcloud compute instances stop failed with exit code 1\n  gcloud auth login"

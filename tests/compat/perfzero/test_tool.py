"""Programs of others: found or explained, seen at once, their failures in their own words, or only shown."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stand_ins import StandIns, use_stand_ins

from assay.compat.perfzero.tool import Tools, ask_tool, build_failure, run_tool
from assay.errors import InfrastructureError, UsageError


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return use_stand_ins(tmp_path, monkeypatch, "docker", "gcloud")


def test_a_missing_program_is_reported_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, how in {"gcloud": "cloud.google.com/sdk", "mdadm": "apt install mdadm", "other": "PATH"}.items():
        for use in (ask_tool, run_tool):
            with pytest.raises(UsageError, match=f"{name} was not found on PATH") as caught:
                use([name])
            assert how in (caught.value.hint or "")


# ---------------------------------------------------------------- running


def test_running_shows_both_streams_and_keeps_the_errors(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    tools.answer("gcloud", out="NAME ZONE\n", err="größe\nERROR: gcloud auth login\n", code=1)
    sys.stdout.write("first\n")
    with pytest.raises(UsageError) as caught:
        run_tool(["gcloud", "compute", "instances", "stop", "x"])
    assert caught.value.render() == (
        "gcloud compute instances stop failed with exit code 1\n  log in: gcloud auth login"
    ), "the message itself has just been read"
    assert capfd.readouterr() == ("first\nNAME ZONE\n", "größe\nERROR: gcloud auth login\n")


def test_a_program_that_draws_keeps_the_terminal(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    tools.answer("docker", err="#1 permission denied\n", code=2)
    with pytest.raises(InfrastructureError, match="docker build failed with exit code 2") as caught:
        run_tool(["docker", "build"], keep_errors=False)
    assert caught.value.hint is None, "what it printed was not read"
    assert capfd.readouterr().err == "#1 permission denied\n"


def write_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return f"from assay.compat.perfzero.tool import run_tool; run_tool([{str(path)!r}])"


def test_output_is_seen_while_the_program_runs_and_ctrl_c_lets_it_clean_up(tmp_path: Path) -> None:
    """It prints a word and goes on until it is interrupted, as a terminal interrupts it with us."""
    cleaned = tmp_path / "cleaned"
    trap = f"trap 'touch {shlex.quote(str(cleaned))}; exit 130' INT\necho ready >&2\nwhile :; do sleep 0.01; done\n"
    code = write_script(tmp_path / "builder", trap)
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()
        process.wait(60)
    deadline = time.monotonic() + 10
    while not cleaned.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cleaned.exists()


def test_a_reader_that_has_left_does_not_end_the_program(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = write_script(tmp_path / "talker", f"echo 1 >&2; echo 2 >&2\ntouch {shlex.quote(str(done))}\n")
    read, write = os.pipe()
    os.close(read)
    code = f"import os; os.dup2({write}, 2); {code}"
    try:
        subprocess.run([sys.executable, "-c", code], pass_fds=[write], check=False, timeout=60)
    finally:
        os.close(write)
    assert done.exists()


# ---------------------------------------------------------------- failures

# gcloud's own words, SDK 528
FETCH = "ERROR: (gcloud.compute.instances.create) Could not fetch resource:\n - "
NO_ACCOUNT = "ERROR: (gcloud.compute.instances.list) You do not currently have an active account selected.\nPlease run:"
NO_PROJECT = "ERROR: (gcloud.compute.instances.list) The required property [project] is not currently set."
NO_IMAGE = f"{FETCH}The resource 'projects/deeplearning-platform-release/global/images/family/x' was not found"
NO_ROOM = f"{FETCH}The zone 'projects/p/zones/us-west1-b' does not have enough resources available"
NOT_THERE = f"{FETCH}The resource 'projects/p/zones/us-west1-b/instances/perfzero-dev-me' was not found"
THERE_ALREADY = f"{FETCH}The resource 'projects/p/zones/us-west1-b/instances/perfzero-dev-me' already exists"
QUOTA = f"{FETCH}Quota 'NVIDIA_V100_GPUS' exceeded.  Limit: 1.0 in region us-west1."
BROKEN = "ERROR: gcloud crashed (ConnectionError): HTTPSConnectionPool(host='compute.googleapis.com', port=443)"


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (NO_ACCOUNT, 2, "gcloud auth login"),
        (NO_PROJECT, 2, "gcloud config set project"),
        (NO_IMAGE, 4, "--image="),
        (NO_ROOM, 4, "another --zone"),
        (NOT_THERE, 4, "list_all"),
        (THERE_ALREADY, 4, "cloud delete"),
        (QUOTA, 4, "fewer accelerators"),
        (BROKEN, 4, None),
    ],
)
def test_each_known_failure_has_its_hint(words: str, code: int, hint: str | None) -> None:
    error = build_failure(["gcloud", "compute", "instances", "x"], 1, words)
    assert (error.exit_code, error.message) == (code, f"gcloud compute instances x failed with exit code 1: {words}")
    assert (hint is None) == (error.hint is None)
    assert hint is None or hint in (error.hint or "")


def test_a_command_s_name_ends_before_its_options() -> None:
    names = {"docker build -t x": "docker build", "sudo mdadm --create": "sudo mdadm", "docker --help": "docker"}
    for call, name in (names | {"lsblk --json": "lsblk"}).items():
        assert build_failure(call.split(), 1, "").message == f"{name} failed with exit code 1"
    assert build_failure(["mkfs.ext4", "-F", "/dev/x"], -9, "").message == "mkfs.ext4 was ended by SIGKILL"


# ---------------------------------------------------------------- doing or showing


def test_a_dry_run_prints_what_can_be_typed(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    odd = ["docker", "a b", "$HOME", "it's", ""]
    dry = Tools(dry_run=True, debug=True)
    dry.do(odd)
    assert dry.ask(["gcloud", "list"]) == ""
    assert not dry.announce("fetch x")
    first, *others = capfd.readouterr().out.splitlines()
    assert shlex.split(first) == odd
    assert others == ["gcloud list", "# fetch x"]
    assert tools.calls == []


def test_a_real_run_says_what_it_does(tools: StandIns, capfd: pytest.CaptureFixture[str]) -> None:
    real = Tools(dry_run=False)
    real.do(["docker", "build", "a b"])
    assert real.announce("fetch x")
    tools.answer("gcloud", out="[]")
    assert real.ask(["gcloud", "list"]) == "[]"
    assert Tools(dry_run=False, debug=True).ask(["gcloud", "list", "all"]) == "[]"
    assert capfd.readouterr() == ("", "$ docker build 'a b'\nfetch x\n$ gcloud list all\n")

"""`assay perfzero cloud` with a stand-in for gcloud: what it is called with, what fails, what is printed."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command_line import Cli
from tests.stand_ins import StandIns, build_call, use_stand_ins, walk

from assay.cli.main import run
from assay.compat.perfzero import cloud
from assay.compat.perfzero.cloud import (
    GCLOUD_FAILURES,
    IMAGE_FAMILY,
    CloudTarget,
    MachineOptions,
    build_create_command,
    build_instance_name,
    build_preparation,
    build_way,
    parse_instances,
)
from assay.compat.perfzero.tool import ToolResult, build_failure
from assay.compat.perfzero.wheel import build_wheel_name
from assay.errors import InfrastructureError, UsageError

TARGET = CloudTarget("perfzero-dev-me")
THERE = CloudTarget("perfzero-dev-me", "europe-west4-a", "my-project", internal_ip=True, key_file="/keys/my key")

ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b"
LOCAL_DISK = {"boot": False, "deviceName": "local-ssd-0", "interface": "NVME", "type": "SCRATCH"}
NO_ACCOUNT = """ERROR: (gcloud.compute.instances.list) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials.
"""
NO_SSH = "ssh: connect to host 203.0.113.7 port 22: Connection refused\nERROR: (gcloud.compute.ssh) [/usr/bin/ssh] exited with return code [255].\n"
WAY = "gcloud compute ssh --zone=us-west1-b perfzero-dev-me -- -L 6006:127.0.0.1:6006"


def machine(name: str = "perfzero-dev-me", state: str = "RUNNING", disks: int = 0) -> dict[str, Any]:
    access = {"type": "ONE_TO_ONE_NAT"} | ({"natIP": "203.0.113.7"} if state == "RUNNING" else {})
    return {
        "name": name,
        "status": state,
        "zone": ZONE,
        "machineType": f"{ZONE}/machineTypes/n1-standard-8",
        "guestAccelerators": [{"acceleratorCount": 1, "acceleratorType": f"{ZONE}/acceleratorTypes/nvidia-tesla-v100"}],
        "disks": [{"boot": True, "type": "PERSISTENT"}, *[LOCAL_DISK] * disks],
        "networkInterfaces": [{"networkIP": "10.138.0.2", "accessConfigs": [access]}],
    }


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(getpass, "getuser", lambda: "me")
    monkeypatch.setattr(cloud, "SSH_PAUSE_S", 0.0)
    return use_stand_ins(tmp_path, monkeypatch, "gcloud")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Cli:
    return build_call(capfd, "perfzero", "cloud")


def verbs(tools: StandIns) -> list[str]:
    return [" ".join(argv[2:4]) if argv[2] == "instances" else argv[2] for argv in tools.calls]


# ---------------------------------------------------------------- flags


def test_every_flag_has_the_original_s_name_and_default() -> None:
    parse = cloud.build_parser().parse_args
    common = {"project": None, "debug": False, "dry_run": False}
    place = {"username": None, "zone": "us-west1-b", "ssh_internal_ip": False, "ssh_key_file": None}
    assert vars(parse(["list_all"])) == common | {"cloud_command": "list_all", "json": False}
    assert vars(parse(["status"])) == common | place | {"cloud_command": "status", "json": False}
    for command in ("start", "stop", "delete"):
        assert vars(parse([command])) == common | place | {"cloud_command": command}
    assert vars(parse(["create"])) == common | place | {
        "cloud_command": "create",
        "accelerator_count": 1,
        "accelerator_type": "nvidia-tesla-v100",
        "cpu_min_platform": None,
        "machine_type": None,
        "image": None,
        "nvme_count": 0,
        "boot_ssd_size": None,
    }


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["perfzero", "cloud", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("crate", "did you mean 'create'?"),
        ("list", "did you mean 'list_all'?"),
        ("run_command", "known: create, delete"),
    ],
)
def test_an_unknown_command(wrong: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The original did nothing, in silence, for the name of any of its own functions."""
    said = refused(capsys, wrong)
    assert f"assay perfzero cloud: error: there is no command {wrong!r}: {hint}" in said


def test_no_command_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the following arguments are required: COMMAND" in refused(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--nvme_count=-1"], "--nvme_count: must be 0 or more"),
        (["create", "--accelerator_count=x"], "--accelerator_count: invalid"),
        (["stop", "--nvme_count=1"], "unrecognized arguments: --nvme_count=1"),
        (["list_all", "--zone=x"], "unrecognized arguments: --zone=x"),
    ],
)
def test_wrong_flags(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize("command", list(cloud.COMMANDS))
def test_every_command_has_its_own_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["perfzero", "cloud", command, "-h"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: assay perfzero cloud {command} ")


# ---------------------------------------------------------------- dry run


@pytest.mark.parametrize("command", list(cloud.COMMANDS))
def test_a_dry_run_does_nothing(command: str, tmp_path: Path, tools: StandIns, call: Cli) -> None:
    before = walk(tmp_path)
    result = call(command, "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("gcloud compute instances ")
    assert tools.calls == []
    assert walk(tmp_path) == before


def test_a_dry_run_needs_no_gcloud(tmp_path: Path, tools: StandIns, monkeypatch: pytest.MonkeyPatch, call: Cli) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("create", "-n").code == 0
    missing = call("create")
    assert missing.code == 2
    assert "gcloud was not found on PATH\n  install the Google Cloud CLI" in missing.err


def test_every_flag_of_create_reaches_gcloud(tools: StandIns, call: Cli) -> None:
    place = "--username=you --project=p --zone=z --ssh-internal-ip --ssh-key-file=/k"
    machine = "--accelerator_count=2 --accelerator_type=t --machine_type=m --image=i --nvme_count=4 --boot_ssd_size=9"
    flags = [*place.split(), *machine.split(), "--cpu_min_platform=Intel Skylake"]
    *lines, last = call("create", *flags, "-n").out.splitlines()
    create, first, copy, *steps = [shlex.split(line.partition("  # ")[0]) for line in lines]
    assert create[4:] == [
        *("perfzero-dev-you", "--image=i", "--project=p", "--zone=z", "--machine-type=m"),
        *("--maintenance-policy=TERMINATE", "--boot-disk-size=9GB", "--boot-disk-type=pd-ssd"),
        *("--accelerator=count=2,type=t", "--min-cpu-platform=Intel Skylake", *["--local-ssd=interface=NVME"] * 4),
    ]
    access = {"--internal-ip", "--ssh-key-file=/k", "--project=p", "--zone=z"}
    assert all({*access, "--quiet"} <= set(argv) for argv in (first, copy, *steps))
    assert [("--strict-host-key-checking=no" in argv) for argv in (first, *steps)] == [True, False, False, False]
    assert "--command=exit perfzero-dev-you  # until it listens: 12 times at most" in lines[1]
    assert os.path.basename(copy[-2]) == copy[-1].partition(":")[2] == build_wheel_name()
    assert access <= set(shlex.split(last.removeprefix("# then, to enter it: ")))


@pytest.mark.parametrize(("count", "near"), [(3, 4), (5, 8), (16, 8)])
def test_a_number_of_accelerators_that_no_machine_has_is_refused(
    count: int, near: int, tools: StandIns, call: Cli
) -> None:
    flag = f"--accelerator_count={count}"
    result = call("create", flag, "-n")
    assert (result.code, result.out) == (2, "")
    assert f"not {count}\n  use --accelerator_count={near}, or" in result.err
    assert f"count={count}," in call("create", flag, "--machine_type=a2-highgpu-3g", "-n").out


# ---------------------------------------------------------------- create


def test_create_makes_waits_and_prepares(tools: StandIns, call: Cli) -> None:
    created = "Created [https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b/instances/perfzero-dev-me].\n"
    tools.answer("gcloud", "instances create", err=created, out="NAME             ZONE        STATUS\n")
    tools.answer("gcloud", "--command=exit", code=255, err=NO_SSH, times=3)
    result = call("create")
    assert result.code == 0
    assert verbs(tools) == ["instances create", *["ssh"] * 4, "scp", "ssh", "ssh", "ssh"]
    assert created in result.err, "gcloud's own words are seen"
    assert "(try 3 of 12)" in result.err
    assert "try 4" not in result.err
    assert "Connection refused" not in result.err, "a machine that starts is no error"
    assert "created perfzero-dev-me: n1-standard-8, 1 x nvidia-tesla-v100" in result.out
    assert result.out.endswith(f"{WAY}\n")


def test_the_wheel_is_there_when_it_is_copied(tools: StandIns, call: Cli, tmp_path: Path) -> None:
    """A stand-in that keeps what it is given."""
    (tools.folder / "gcloud").write_text(
        f'#!/bin/sh\n[ "$2" = scp ] && for word; do [ -f "$word" ] && /bin/cp "$word" {tmp_path}/sent.whl; done\nexit 0\n'
    )
    assert call("create").code == 0
    assert (tmp_path / "sent.whl").read_bytes()[:2] == b"PK"
    assert os.listdir(tmp_path / "tmp") == [], "and is gone afterwards"


def test_a_hint_names_the_same_project_zone_and_machine(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "--command=exit", code=255, err=NO_SSH)
    result = call("create", "--project=p 1", "--zone=europe-west4-a", "--username=other")
    assert "assay perfzero cloud delete '--project=p 1' --zone=europe-west4-a --username=other" in result.err
    assert "pip install --quiet 'assay[all]'" in result.err, "TensorBoard and its tab for profiles among it"


def test_a_machine_that_never_listens(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "--command=exit", code=255, err=NO_SSH)
    result = call("create", "--debug")
    assert result.code == 4
    assert result.err.count("Connection refused") == 13, "with --debug after each try"
    assert verbs(tools) == ["instances create", *["ssh"] * 12]
    assert "perfzero-dev-me was created and costs money, but cannot be reached by ssh" in result.err
    assert "assay perfzero cloud delete" in result.err
    assert 'sudo usermod -a -G docker "$USER"' in result.err
    assert WAY in result.out


@pytest.mark.parametrize("words", ["sudo: a password is required\n", NO_ACCOUNT])
def test_a_machine_that_cannot_be_set_up(words: str, tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "usermod", code=1, err=words)
    result = call("create")
    assert result.code == 4
    assert words in result.err
    assert "was created and costs money, but could not be set up" in result.err
    assert WAY in result.out
    assert "created perfzero-dev-me:" not in result.out


def test_a_creation_that_fails_goes_no_further(tools: StandIns, call: Cli) -> None:
    words = "ERROR: Quota 'NVIDIA_V100_GPUS' exceeded.\n"
    tools.answer("gcloud", "create", code=1, err=words)
    result = call("create")
    assert result.code == 4
    assert words in result.err
    assert "gcloud compute instances create failed with exit code 1" in result.err
    assert "fewer accelerators" in result.err
    assert verbs(tools) == ["instances create"]
    assert result.out == ""


def test_an_interrupted_creation_says_what_may_be_left(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    tools.answer("gcloud", "--command=exit", code=255)
    monkeypatch.setattr(cloud.time, "sleep", interrupt)
    assert run(["perfzero", "cloud", "create"]) == 130
    assert "perfzero-dev-me may exist: assay perfzero cloud status shows it" in capfd.readouterr().err


# ---------------------------------------------------------------- start, stop, delete


def test_start_prints_the_way(tools: StandIns, call: Cli) -> None:
    result = call("start")
    assert result.code == 0
    assert tools.calls == [["gcloud", "compute", "instances", "start", "perfzero-dev-me", "--zone=us-west1-b"]]
    assert result.out.endswith(f"{WAY}\n")


def test_stop_looks_first(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "describe", out=json.dumps(machine()))
    result = call("stop")
    assert (result.code, result.out) == (0, "stopped perfzero-dev-me\n")
    assert verbs(tools) == ["instances describe", "instances stop"]
    assert tools.calls[0][-1] == "--format=json"


@pytest.mark.parametrize(("disks", "words"), [(1, "1 local NVMe disk:"), (4, "4 local NVMe disks:")])
def test_a_machine_with_local_disks_is_not_stopped(disks: int, words: str, tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "describe", out=json.dumps(machine(disks=disks)))
    result = call("stop", "--project=p 1", "--zone=europe-west4-a")
    assert result.code == 1
    assert words in result.err
    assert "it can only be deleted" in result.err
    assert "\n  assay perfzero cloud delete '--project=p 1' --zone=europe-west4-a\n" in result.err
    assert verbs(tools) == ["instances describe"]


def test_stop_with_an_answer_that_is_no_machine(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "describe", out="<html>")
    result = call("stop")
    assert result.code == 4
    assert "not JSON" in result.err
    assert verbs(tools) == ["instances describe"], "what is not known is not stopped"


def test_delete_does_not_ask(tools: StandIns, call: Cli) -> None:
    result = call("delete", "--project=p")
    assert (result.code, result.out) == (0, "deleted perfzero-dev-me\n")
    (argv,) = tools.calls
    assert argv[3:5] == ["delete", "perfzero-dev-me"]
    assert {"--quiet", "--project=p", "--zone=us-west1-b"} <= set(argv)


# ---------------------------------------------------------------- status and list_all


def test_status_tells_state_and_addresses(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out=json.dumps([machine(disks=2)]))
    result = call("status")
    assert result.code == 0
    assert result.out.splitlines() == [
        "perfzero-dev-me  RUNNING  us-west1-b",
        "  n1-standard-8, 1 x nvidia-tesla-v100, 2 local disks",
        "  address: 203.0.113.7 (external), 10.138.0.2 (internal)",
        "to enter it, with port 6006 forwarded for TensorBoard:",
        f"  {WAY}",
    ]
    assert tools.calls[0][4] == "--filter=name=perfzero-dev-me AND zone:us-west1-b"


def test_a_stopped_machine_has_no_way_in(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out=json.dumps([machine(state="TERMINATED")]))
    result = call("status")
    assert result.out.splitlines()[0] == "perfzero-dev-me  TERMINATED (stopped)  us-west1-b"
    assert "10.138.0.2 (internal)" in result.out
    assert "ssh" not in result.out


def test_status_as_json(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out=json.dumps([machine()]))
    found = json.loads(call("status", "--json").out)
    assert (found["state"], found["external"], found["local_disks"]) == ("RUNNING", ["203.0.113.7"], 0)


@pytest.mark.parametrize("others", [[], ["perfzero-dev-me-too"]])
def test_status_of_a_machine_that_is_not_there(others: list[str], tools: StandIns, call: Cli) -> None:
    """gcloud's filter also finds names that begin alike."""
    tools.answer("gcloud", "list", out=json.dumps([machine(name) for name in others]))
    result = call("status")
    assert (result.code, result.out) == (2, "")
    assert "there is no machine perfzero-dev-me in us-west1-b\n  assay perfzero cloud create makes it" in result.err


@pytest.mark.parametrize("command", ["status", "list_all", "stop", "start"])
def test_a_user_without_an_account_is_asked_to_log_in(command: str, tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", code=1, err=NO_ACCOUNT)
    result = call(command)
    assert (result.code, result.out) == (2, "")
    assert NO_ACCOUNT.strip() in result.err
    assert "log in: gcloud auth login" in result.err.splitlines()[-1]
    assert len(tools.calls) == 1


def test_list_all(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out=json.dumps([machine("perfzero-dev-you", "TERMINATED"), machine()]))
    result = call("list_all")
    lines = result.out.splitlines()
    assert [line for line in lines if line.startswith("perfzero")] == [
        "perfzero-dev-me  RUNNING  us-west1-b",
        "perfzero-dev-you  TERMINATED (stopped)  us-west1-b",
    ]
    assert lines[-1] == "2 machines"
    assert tools.calls == [
        ["gcloud", "compute", "instances", "list", "--filter=name ~ ^perfzero-dev-", "--format=json"]
    ]
    assert [one["name"] for one in json.loads(call("list_all", "--json").out)] == [
        "perfzero-dev-me",
        "perfzero-dev-you",
    ]


def test_list_all_of_nothing(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out="[]\n", err="Listed 0 items.\n")
    assert call("list_all", "--project=p") == (0, "0 machines\n", "")
    assert "--project=p" in tools.calls[0]


# ---------------------------------------------------------------- names


def test_without_a_name_it_is_the_user_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "a-1")
    assert build_instance_name(None) == build_instance_name("") == "perfzero-dev-a-1"


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    with pytest.raises(UsageError, match="user name is unknown") as caught:
        build_instance_name(None)
    assert caught.value.hint == "give --username=NAME"


@pytest.mark.parametrize(
    ("user", "near"),
    [("jane.doe", "jane-doe"), ("Jane", "jane"), ("a_b", "a-b"), ("x-", "x"), ("x" * 60, "x" * 50), ("ß", "NAME")],
)
def test_a_name_that_google_does_not_allow(user: str, near: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a machine") as caught:
        build_instance_name(user)
    assert caught.value.hint == f"try --username={near}"


@given(st.text(min_size=1))
def test_every_name_is_allowed_or_refused_with_one_that_is(user: str) -> None:
    try:
        name = build_instance_name(user)
    except UsageError as error:
        name = build_instance_name(str(error.hint).removeprefix("try --username=").lower())
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)


# ---------------------------------------------------------------- create


def test_a_plain_machine() -> None:
    assert build_create_command(TARGET, MachineOptions()) == [
        *("gcloud", "compute", "instances", "create", "perfzero-dev-me"),
        f"--image-family={IMAGE_FAMILY}",
        "--image-project=deeplearning-platform-release",
        "--zone=us-west1-b",
        "--machine-type=n1-standard-8",
        "--maintenance-policy=TERMINATE",
        "--accelerator=count=1,type=nvidia-tesla-v100",
    ]


# ---------------------------------------------------------------- ssh


def test_the_way_forwards_tensorboard() -> None:
    assert (
        shlex.join(build_way(TARGET))
        == "gcloud compute ssh --zone=us-west1-b perfzero-dev-me -- -L 6006:127.0.0.1:6006"
    )
    assert shlex.join(build_way(THERE)) == (
        "gcloud compute ssh --internal-ip '--ssh-key-file=/keys/my key' --project=my-project --zone=europe-west4-a "
        "perfzero-dev-me -- -L 6006:127.0.0.1:6006"
    )


def test_the_commands_for_the_machine_s_shell_are_scripts() -> None:
    for argv in build_preparation(TARGET, MachineOptions(), "/x/assay-1-py3-none-any.whl")[1:]:
        (script,) = [word.removeprefix("--command=") for word in argv if word.startswith("--command=")]
        done = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_assay_is_brought_along() -> None:
    copy, install, docker, gpu = build_preparation(TARGET, MachineOptions(), "/x/assay-1-py3-none-any.whl")
    assert copy[-2:] == ["/x/assay-1-py3-none-any.whl", "perfzero-dev-me:assay-1-py3-none-any.whl"]
    assert "pip install --quiet './assay-1-py3-none-any.whl[all]'" in install[-2]
    assert 'sudo usermod -a -G docker "$USER"' in docker[-2]
    assert "nvidia-ctk runtime configure" in gpu[-2]
    assert len(build_preparation(TARGET, MachineOptions(accelerator_count=0), "/x/assay.whl")) == 3


# ---------------------------------------------------------------- answers


def test_a_machine_without_extras() -> None:
    bare = {key: machine()[key] for key in ("name", "status", "zone", "machineType")}
    (instance,) = parse_instances(json.dumps([bare]))
    assert (instance.accelerators, instance.local_disks, instance.internal) == ((), 0, ())


@pytest.mark.parametrize("text", ["", "no", "{}", "3", "[1]", '[{"name": "x"}]', "[null]"])
def test_an_answer_that_is_not_understood(text: str) -> None:
    with pytest.raises(InfrastructureError, match="gcloud"):
        parse_instances(text)


# ---------------------------------------------------------------- causes

# gcloud's own words, SDK 528
NO_PROJECT = """ERROR: (gcloud.compute.instances.list) The required property [project] is not currently set.
It can be set on a per-command basis by re-running your command with the [--project] flag."""
NO_IMAGE = """ERROR: (gcloud.compute.instances.create) Could not fetch resource:
 - The resource 'projects/deeplearning-platform-release/global/images/family/x' was not found"""
NO_ROOM = """ERROR: (gcloud.compute.instances.create) Could not fetch resource:
 - The zone 'projects/p/zones/us-west1-b' does not have enough resources available to fulfill the request."""
NOT_THERE = """ERROR: (gcloud.compute.instances.start) Could not fetch resource:
 - The resource 'projects/p/zones/us-west1-b/instances/perfzero-dev-me' was not found"""
THERE_ALREADY = """ERROR: (gcloud.compute.instances.create) Could not fetch resource:
 - The resource 'projects/p/zones/us-west1-b/instances/perfzero-dev-me' already exists"""
QUOTA = """ERROR: (gcloud.compute.instances.create) Could not fetch resource:
 - Quota 'NVIDIA_V100_GPUS' exceeded.  Limit: 1.0 in region us-west1."""
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
    error = build_failure(["gcloud", "compute", "instances", "x"], ToolResult(1, "", words.strip()), GCLOUD_FAILURES)
    assert error.exit_code == code
    assert words.strip() in error.message
    assert (hint is None) == (error.hint is None)
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(("count", "machine"), [(0, 8), (1, 8), (2, 16), (4, 32), (8, 64)])
def test_machines_are_of_a_size_that_there_is(count: int, machine: int) -> None:
    assert MachineOptions(accelerator_count=count).machine == f"n1-standard-{machine}"
    assert MachineOptions(accelerator_count=16).machine == "n1-standard-96"

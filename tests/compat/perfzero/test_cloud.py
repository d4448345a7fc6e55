"""`assay perfzero cloud` with a stand-in for gcloud: what it is called with, what fails, what is printed."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.command_line import Cli
from tests.stand_ins import StandIns, build_call, use_stand_ins, walk

from assay.compat.perfzero import cloud
from assay.compat.perfzero.cloud import IMAGE_FAMILY, build_instance_name, parse_instances
from assay.compat.perfzero.wheel import build_wheel_name
from assay.errors import InfrastructureError, UsageError

ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b"
LOCAL_DISK = {"boot": False, "deviceName": "local-ssd-0", "interface": "NVME", "type": "SCRATCH"}
NO_ACCOUNT = "ERROR: (gcloud.compute.instances.list) You do not currently have an active account selected.\n"
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
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_wheel: Callable[[str], str]) -> StandIns:
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(getpass, "getuser", lambda: "me")
    monkeypatch.setattr(cloud, "SSH_PAUSE_S", 0.0)
    monkeypatch.setattr(cloud, "write_wheel", copy_wheel)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # the original did nothing, in silence, for the name of any of its own functions
        (["crate"], "there is no command 'crate': did you mean 'create'?"),
        (["run_command"], "there is no command 'run_command': known: create, delete"),
        ([], "the following arguments are required: COMMAND"),
        (["create", "--nvme_count=-1"], "--nvme_count: must be 0 or more"),
        (["create", "--accelerator_count=x"], "--accelerator_count: invalid"),
        (["list_all", "--zone=x"], "unrecognized arguments: --zone=x"),
    ],
)
def test_wrong_words(arguments: list[str], words: str, call: Cli) -> None:
    assert words in call(*arguments, code=2).err


# ---------------------------------------------------------------- dry run


@pytest.mark.parametrize("command", list(cloud.COMMANDS))
def test_a_dry_run_does_nothing_and_needs_no_gcloud(
    command: str, tmp_path: Path, tools: StandIns, call: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = walk(tmp_path)
    with monkeypatch.context() as watched:
        watched.setattr(cloud.tempfile, "mkdtemp", lambda *_, **__: pytest.fail("a folder"))
        result = call(command, "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("gcloud compute instances ")
    assert tools.calls == []
    assert walk(tmp_path) == before
    assert call(command, "-h").out.startswith(f"usage: assay perfzero cloud {command} ")
    assert "gcloud was not found on PATH\n  install the Google Cloud CLI" in call(command, code=2).err


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
    install, docker, gpu = [next(word for word in argv if word.startswith("--command=")) for argv in steps]
    assert f"pip install --quiet './{build_wheel_name()}[all]'" in install
    assert 'sudo usermod -a -G docker "$USER"' in docker
    assert "nvidia-ctk runtime configure" in gpu
    for script in (install, docker, gpu):
        subprocess.run(["/bin/sh", "-n", "-c", script.removeprefix("--command=")], check=True)


@pytest.mark.parametrize(("count", "size"), [(0, 8), (1, 8), (2, 16), (8, 64)])
def test_a_plain_machine(count: int, size: int, tools: StandIns, call: Cli) -> None:
    create, *others = map(shlex.split, call("create", f"--accelerator_count={count}", "-n").out.splitlines())
    assert create == [
        *("gcloud", "compute", "instances", "create", "perfzero-dev-me"),
        f"--image-family={IMAGE_FAMILY}",
        "--image-project=deeplearning-platform-release",
        "--zone=us-west1-b",
        f"--machine-type=n1-standard-{size}",
        "--maintenance-policy=TERMINATE",
        *([f"--accelerator=count={count},type=nvidia-tesla-v100"] if count else []),
    ]
    assert any("nvidia-ctk" in word for argv in others for word in argv) == (count > 0)


def test_a_number_of_accelerators_that_no_machine_has_is_refused(tools: StandIns, call: Cli) -> None:
    for count, near in ((3, 4), (16, 8)):
        flag = f"--accelerator_count={count}"
        assert f"not {count}\n  use --accelerator_count={near}, or" in call("create", flag, "-n", code=2).err
        assert f"count={count}," in call("create", flag, "--machine_type=a2-highgpu-3g", "-n").out


# ---------------------------------------------------------------- create


def test_create_makes_waits_and_prepares(tmp_path: Path, tools: StandIns, call: Cli) -> None:
    created = "Created [https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b/instances/perfzero-dev-me].\n"
    tools.answer("gcloud", "instances create", err=created, out="NAME             ZONE        STATUS\n")
    tools.answer("gcloud", "--command=exit", code=255, err=NO_SSH, times=3)
    with (tools.folder / "gcloud").open("a") as script:
        script.write(f'[ "$2" = scp ] && for word; do [ -f "$word" ] && /bin/cp "$word" {tmp_path}/sent.whl; done\n:\n')
    result = call("create", code=0)
    assert verbs(tools) == ["instances create", *["ssh"] * 4, "scp", "ssh", "ssh", "ssh"]
    assert created in result.err, "gcloud's own words are seen"
    assert "(try 3 of 12)" in result.err
    assert "try 4" not in result.err
    assert "Connection refused" not in result.err, "a machine that starts is no error"
    assert "created perfzero-dev-me: n1-standard-8, 1 x nvidia-tesla-v100" in result.out
    assert result.out.endswith(f"{WAY}\n")
    assert (tmp_path / "sent.whl").read_bytes()[:2] == b"PK"
    assert os.listdir(tmp_path / "tmp") == [], "the wheel is gone afterwards"


def test_a_machine_that_never_listens(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "--command=exit", code=255, err=NO_SSH)
    result = call("create", "--debug", "--project=p 1", "--zone=europe-west4-a", "--username=other", code=4)
    assert result.err.count("Connection refused") == 13, "with --debug after each try"
    assert verbs(tools) == ["instances create", *["ssh"] * 12]
    assert "perfzero-dev-other was created and costs money, but cannot be reached by ssh" in result.err
    assert "assay perfzero cloud delete '--project=p 1' --zone=europe-west4-a --username=other" in result.err
    assert 'sudo usermod -a -G docker "$USER"' in result.err
    assert "pip install --quiet 'assay[all]'" in result.err, "TensorBoard and its tab for profiles among it"
    assert "gcloud compute ssh '--project=p 1' --zone=europe-west4-a perfzero-dev-other --" in result.out


def test_a_machine_that_cannot_be_set_up(tools: StandIns, call: Cli) -> None:
    """Exit code 4 also for a mistake of the user's: the machine is there, and costs money."""
    tools.answer("gcloud", "usermod", code=1, err=NO_ACCOUNT)
    result = call("create", code=4)
    assert NO_ACCOUNT in result.err
    assert "was created and costs money, but could not be set up" in result.err
    assert WAY in result.out
    assert "created perfzero-dev-me:" not in result.out


def test_a_creation_that_fails_goes_no_further(tools: StandIns, call: Cli) -> None:
    words = "ERROR: Quota 'NVIDIA_V100_GPUS' exceeded.\n"
    tools.answer("gcloud", "create", code=1, err=words)
    result = call("create")
    assert (result.code, result.out) == (4, "")
    assert words in result.err
    assert "gcloud compute instances create failed with exit code 1" in result.err
    assert "fewer accelerators" in result.err
    assert verbs(tools) == ["instances create"]


def test_an_interrupted_creation_says_what_may_be_left(
    tools: StandIns, monkeypatch: pytest.MonkeyPatch, call: Cli
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    tools.answer("gcloud", "--command=exit", code=255)
    monkeypatch.setattr(cloud.time, "sleep", interrupt)
    assert "perfzero-dev-me may exist: assay perfzero cloud status shows it" in call("create", code=130).err


# ---------------------------------------------------------------- start, stop, delete


def test_start_and_delete(tools: StandIns, call: Cli) -> None:
    started, deleted = call("start"), call("delete", "--project=p")
    assert (started.code, started.out.splitlines()[-1]) == (0, f"  {WAY}")
    assert (deleted.code, deleted.out) == (0, "deleted perfzero-dev-me\n")
    start, delete = tools.calls
    assert start == ["gcloud", "compute", "instances", "start", "perfzero-dev-me", "--zone=us-west1-b"]
    assert delete[3:5] == ["delete", "perfzero-dev-me"]
    assert {"--quiet", "--project=p", "--zone=us-west1-b"} <= set(delete)


def test_stop_looks_first(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "describe", out=json.dumps(machine()), times=1)
    tools.answer("gcloud", "describe", out="<html>")
    assert call("stop") == (
        0,
        "stopped perfzero-dev-me\n",
        "$ gcloud compute instances stop perfzero-dev-me --zone=us-west1-b\n",
    )
    assert verbs(tools) == ["instances describe", "instances stop"]
    assert tools.calls[0][-1] == "--format=json"
    assert "not JSON" in call("stop", code=4).err
    assert verbs(tools)[2:] == ["instances describe"], "what is not known is not stopped"


def test_a_machine_with_local_disks_is_not_stopped(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "describe", out=json.dumps(machine(disks=4)))
    result = call("stop", "--project=p 1", "--zone=europe-west4-a", code=1)
    assert "has 4 local NVMe disks: it cannot be stopped, it can only be deleted" in result.err
    assert "\n  assay perfzero cloud delete '--project=p 1' --zone=europe-west4-a\n" in result.err
    assert verbs(tools) == ["instances describe"]


# ---------------------------------------------------------------- status and list_all


def test_status_tells_state_and_addresses(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "list", out=json.dumps([machine(disks=2)]))
    assert call("status", code=0).out.splitlines() == [
        "perfzero-dev-me  RUNNING  us-west1-b",
        "  n1-standard-8, 1 x nvidia-tesla-v100, 2 local disks",
        "  address: 203.0.113.7 (external), 10.138.0.2 (internal)",
        "to enter it, with port 6006 forwarded for TensorBoard:",
        f"  {WAY}",
    ]
    assert tools.calls[0][4] == "--filter=name=perfzero-dev-me AND zone:us-west1-b"
    found = json.loads(call("status", "--json").out)
    assert (found["state"], found["external"], found["local_disks"]) == ("RUNNING", ["203.0.113.7"], 2)


def test_status_of_a_machine_that_is_stopped_or_not_there(tools: StandIns, call: Cli) -> None:
    """gcloud's filter also finds names that begin alike."""
    tools.answer("gcloud", "list", out=json.dumps([machine(state="TERMINATED")]), times=1)
    tools.answer("gcloud", "list", out=json.dumps([machine("perfzero-dev-me-too")]))
    result = call("status")
    assert result.out.splitlines()[0] == "perfzero-dev-me  TERMINATED (stopped)  us-west1-b"
    assert "10.138.0.2 (internal)" in result.out
    assert "ssh" not in result.out
    result = call("status")
    assert (result.code, result.out) == (2, "")
    assert "there is no machine perfzero-dev-me in us-west1-b\n  assay perfzero cloud create makes it" in result.err


@pytest.mark.parametrize("command", ["list_all", "stop", "start"])
def test_a_user_without_an_account_is_asked_to_log_in(command: str, tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", code=1, err=NO_ACCOUNT)
    result = call(command, code=2)
    assert NO_ACCOUNT.strip() in result.err
    assert "log in: gcloud auth login" in result.err.splitlines()[-1]
    assert len(tools.calls) == 1


def test_list_all(tools: StandIns, call: Cli) -> None:
    tools.answer("gcloud", "--project=p", out="[]\n", err="Listed 0 items.\n")
    tools.answer("gcloud", "list", out=json.dumps([machine("perfzero-dev-you", "TERMINATED"), machine()]))
    lines = call("list_all").out.splitlines()
    assert [line for line in lines if line.startswith("perfzero")] == [
        "perfzero-dev-me  RUNNING  us-west1-b",
        "perfzero-dev-you  TERMINATED (stopped)  us-west1-b",
    ]
    assert lines[-1] == "2 machines"
    assert [argv[3:] for argv in tools.calls] == [["list", "--filter=name ~ ^perfzero-dev-", "--format=json"]]
    assert [one["name"][-3:] for one in json.loads(call("list_all", "--json").out)] == ["-me", "you"]
    assert call("list_all", "--project=p") == (0, "0 machines\n", "")


# ---------------------------------------------------------------- names and answers


def test_a_machine_has_the_name_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "a-1")
    assert build_instance_name(None) == build_instance_name("") == "perfzero-dev-a-1"

    def find_none() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", find_none)
    with pytest.raises(UsageError, match="user name is unknown") as caught:
        build_instance_name(None)
    assert caught.value.hint == "give --username=NAME"
    for user, near in {"Jane.Doe": "jane-doe", "x-": "x", "x" * 60: "x" * 50, "ß": "NAME"}.items():
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


def test_answers_of_gcloud() -> None:
    bare = {key: machine()[key] for key in ("name", "status", "zone", "machineType")}
    (instance,) = parse_instances(json.dumps([bare]))
    assert (instance.accelerators, instance.local_disks, instance.internal) == ((), 0, ())
    for text in ("", "no", "{}", "[1]", '[{"name": "x"}]'):
        with pytest.raises(InfrastructureError, match="gcloud"):
            parse_instances(text)

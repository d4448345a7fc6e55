"""The command lines for gcloud, and what its answers mean."""

from __future__ import annotations

import getpass
import json
import re
import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.compat.perfzero.cloud import (
    GCLOUD_FAILURES,
    IMAGE_FAMILY,
    CloudTarget,
    Instance,
    MachineOptions,
    build_create_command,
    build_instance_name,
    build_preparation,
    build_way,
    parse_instances,
)
from assay.compat.perfzero.tool import ToolResult, build_failure
from assay.errors import InfrastructureError, UsageError

TARGET = CloudTarget("perfzero-dev-me")
THERE = CloudTarget("perfzero-dev-me", "europe-west4-a", "my-project", internal_ip=True, key_file="/keys/my key")

# As `gcloud compute instances list --format=json` prints it (shortened)
FOUND: dict[str, Any] = {
    "name": "perfzero-dev-me",
    "status": "RUNNING",
    "zone": "https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b",
    "machineType": "https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b/machineTypes/n1-standard-8",
    "guestAccelerators": [
        {
            "acceleratorCount": 1,
            "acceleratorType": "https://www.googleapis.com/compute/v1/projects/p/zones/us-west1-b/acceleratorTypes/nvidia-tesla-v100",
        }
    ],
    "disks": [
        {
            "boot": True,
            "deviceName": "persistent-disk-0",
            "diskSizeGb": "100",
            "interface": "SCSI",
            "type": "PERSISTENT",
        },
        {"boot": False, "deviceName": "local-ssd-0", "diskSizeGb": "375", "interface": "NVME", "type": "SCRATCH"},
        {"boot": False, "deviceName": "local-ssd-1", "diskSizeGb": "375", "interface": "NVME", "type": "SCRATCH"},
    ],
    "networkInterfaces": [
        {
            "name": "nic0",
            "networkIP": "10.138.0.2",
            "accessConfigs": [{"name": "external-nat", "natIP": "203.0.113.7", "type": "ONE_TO_ONE_NAT"}],
        }
    ],
}


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


def test_a_machine_is_read() -> None:
    assert parse_instances(json.dumps([FOUND])) == (
        Instance(
            "perfzero-dev-me",
            "us-west1-b",
            "RUNNING",
            "n1-standard-8",
            external=("203.0.113.7",),
            internal=("10.138.0.2",),
            accelerators=(("nvidia-tesla-v100", 1),),
            local_disks=2,
        ),
    )


def test_a_machine_without_extras() -> None:
    bare = {key: FOUND[key] for key in ("name", "status", "zone", "machineType")}
    (instance,) = parse_instances(json.dumps([bare]))
    assert (instance.accelerators, instance.local_disks, instance.internal) == ((), 0, ())


@pytest.mark.parametrize("text", ["", "no", "{}", "3", "[1]", '[{"name": "x"}]', "[null]"])
def test_an_answer_that_is_not_understood(text: str) -> None:
    with pytest.raises(InfrastructureError, match="gcloud"):
        parse_instances(text)


# ---------------------------------------------------------------- causes

# gcloud's own words, SDK 528
NO_ACCOUNT = """ERROR: (gcloud.compute.instances.list) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials."""
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
    error = build_failure(["gcloud", "compute", "instances", "x"], ToolResult(1, "", words), GCLOUD_FAILURES)
    assert error.exit_code == code
    assert words in error.message
    assert (hint is None) == (error.hint is None)
    assert hint is None or hint in (error.hint or "")


@pytest.mark.parametrize(("count", "machine"), [(0, 8), (1, 8), (2, 16), (4, 32), (8, 64)])
def test_machines_are_of_a_size_that_there_is(count: int, machine: int) -> None:
    assert MachineOptions(accelerator_count=count).machine == f"n1-standard-{machine}"
    assert MachineOptions(accelerator_count=16).machine == "n1-standard-96"

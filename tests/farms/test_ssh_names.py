"""Names of hosts on their way to the system's ssh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.errors import InfrastructureError, UsageError
from assay.execute.places import load_entry
from assay.farms.choice import build_engine_farm
from assay.farms.ssh_jobs import HostAddress, HostSlot, parse_slot
from assay.farms.ssh_session import SshSession
from assay.system import processes
from assay.values.run import JobHandle


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "-l", "root@-oProxyCommand=x", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        build_engine_farm(f"ssh:{name}")
    assert parse_slot(HostSlot(HostAddress(name, "/tmp")).render()) is None  # of a handle that was written elsewhere


@pytest.mark.parametrize("name", ["gpu1", "me@gpu-1", "::1", "ssh://me@gpu1:22", "größe"])
def test_names_of_hosts(name: str) -> None:
    assert parse_slot(HostSlot(HostAddress(name, "/tmp")).render()) is not None


def test_a_session_ends_its_options_before_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {calls}\nexit 1\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError):
        SshSession(HostAddress("root@b", "/tmp")).connect()
    words = calls.read_text().splitlines()
    assert words[words.index("root@b") - 1] == "--"


@pytest.mark.parametrize(
    ("executor", "host", "line"),
    [
        ("ssh", "ssh:far", "ssh -F 'my config' me@far"),
        ("submit", "n2", "ssh n2"),
        ("ray", "n2", "ssh n2"),
        ("submit", processes.host_name(), ""),
        ("submit", "-oProxyCommand=x", ""),
        ("submit", "-", ""),
        ("slurm", "n2", ""),  # its number is not known
    ],
)
def test_the_line_that_leads_to_a_running_job(tmp_path: Path, executor: str, host: str, line: str) -> None:
    slot = HostSlot(HostAddress("me@far", "/tmp", ("-F", "my config"))).render()
    handle = JobHandle(executor, slot, "here", 0, 0, "", None, 1, 0.0)
    assert load_entry(str(tmp_path), handle) == ""
    (tmp_path / "token.1").write_text(f"{host} 1 2 boot 3\n")
    assert load_entry(str(tmp_path), handle) == line

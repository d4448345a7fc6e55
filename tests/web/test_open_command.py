"""`assay open`: one server for a folder, found or started, and the browser at the right page."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import urllib.request
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import Cli, Result
from tests.finished_study import GOOD, Bench, until

from assay.system.processes import exists
from assay.web import open_command

pytestmark = pytest.mark.services("web")


@pytest.fixture
def browsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a browser was asked to open."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "ASSAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    script, seen = tmp_path / "browser", tmp_path / "browsed"
    script.write_text(f'#!/bin/sh\necho "$1" >> {seen}\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    monkeypatch.setattr(webbrowser, "_tryorder", None)  # it reads BROWSER once
    return seen


@pytest.fixture
def own_bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path).add_finished()
    for path in (tmp_path / ".cache").glob("serve-*.json"):
        pid = int(re.findall(r'"pid": (\d+)', path.read_text())[0])
        os.kill(pid, signal.SIGTERM)
        until(lambda: not exists(pid) or os.waitpid(pid, os.WNOHANG)[0] == pid, "the server has ended")  # noqa: B023


def find_address(result: Result) -> str:
    assert result.code == 0, result.err
    return re.findall(r"^open  (\S+)$", result.out, re.MULTILINE)[0]


def test_a_server_is_started_once_and_then_found(
    own_bench: Bench, cli: Cli, browsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another folder is not taken. A token reaches the browser by a private file that ends with the server."""
    first = cli("open")
    assert "started the server" in first.out
    second = cli("open", f"fit/{GOOD}")
    assert "started" not in second.out
    address = find_address(second)
    assert address == f"{find_address(first)}studies/fit/runs/lr%3D0.1%2Cn%3D7"
    with urllib.request.urlopen(address) as answer:
        assert answer.status == 200
        assert GOOD in answer.read().decode()
    assert find_address(cli("open", "fit")).endswith("/studies/fit")
    until(lambda: browsed.exists() and len(browsed.read_text().split()) == 3, "the browser was called")
    assert "token" not in first.out + second.out  # which may be a log that others read
    (page,) = {Path(each.removeprefix("file://")) for each in browsed.read_text().split()}
    assert f"{find_address(first)}studies/fit#token=" in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    with monkeypatch.context() as elsewhere:
        (tmp_path / "elsewhere" / "runs").mkdir(parents=True)
        elsewhere.chdir(tmp_path / "elsewhere")
        other = cli("open")
        assert "started the server" in other.out
        assert find_address(other) != find_address(first)
    pid = int(re.findall(r"to end it: kill (\d+)", first.out)[0])
    os.kill(pid, signal.SIGTERM)
    until(lambda: not list(page.parent.glob(f"{page.stem}.*")), "its files are gone")
    assert os.waitpid(pid, 0)[0] == pid
    assert "started the server" in cli("open", "fit").out  # a new one


def test_a_port_that_is_taken_at_the_same_moment_is_replaced(
    own_bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_command, "listen", lambda *_: socket.socket())  # it was free before
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = open_command._start_server([str(own_bench.root)], port)
    assert server.port != str(port)


def test_without_a_display_the_address_is_printed(
    own_bench: Bench, cli: Cli, browsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROWSER")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5 10.0.0.2 22")
    result = cli("open", "fit")
    port = re.findall(r":(\d+)/", find_address(result))[0]
    assert f"ssh -L {port}:127.0.0.1:{port} " in result.out
    assert not browsed.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fits", "no study or run named 'fits'"),
        ("fit/nothing", "no run named 'nothing'"),
        ("fit/lr=0.1*", "'lr=0.1*' names 2 runs"),
    ],
)
def test_a_name_that_does_not_fit_starts_nothing(
    own_bench: Bench, cli: Cli, browsed: Path, name: str, message: str
) -> None:
    cli("open", name).ended(2, message)
    assert not list((own_bench.folder.parent / ".cache").glob("serve*"))


def test_a_server_that_ends_at_once_is_explained(
    own_bench: Bench, cli: Cli, browsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_TOKEN", "short")
    cli("open").ended(4, "ASSAY_TOKEN: a token has at least 16 plain characters")

"""A board that is this machine: a real sshd on loopback with keys of its own. Nothing in ~/.ssh is read or written."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.services import find_program

NEEDS_SSHD = pytest.mark.services("sshd")
PATIENCE_S = 30.0


@dataclass
class Loopback:
    folder: Path
    port: int
    process: subprocess.Popen | None = None
    wrapper: tuple[str, ...] = ()  # words before sshd
    settings: dict[str, str] = field(default_factory=dict)  # more of sshd's own

    @property
    def options(self):
        """What a target needs to reach it."""
        return {
            "address": f"{getpass.getuser()}@127.0.0.1",
            "port": self.port,
            "key": str(self.folder / "user_key"),
            "ssh_options": self.ssh_options,
            "lock": str(self.folder / "board.lock"),
            "remote_root": str(self.folder / "tmp"),
        }

    @property
    def ssh_options(self):
        known = f"UserKnownHostsFile={self.folder / 'known_hosts'}"
        settings = (known, "StrictHostKeyChecking=accept-new", "GlobalKnownHostsFile=/dev/null")
        return ["-F", "/dev/null", *(word for each in settings for word in ("-o", each))]

    @property
    def root(self):
        return self.folder / "tmp"

    @property
    def lock(self):
        return self.folder / "board.lock"

    def start(self):
        argv = [*self.wrapper, find_program("sshd"), "-D", "-e", "-f", "/dev/null", "-p", str(self.port)]
        settings = {
            "ListenAddress": "127.0.0.1",
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": self.folder / "user_key.pub",
            "PidFile": "none",
            **dict.fromkeys(("UsePAM", "StrictModes", "PasswordAuthentication"), "no"),
            "PermitRootLogin": "yes",
            **dict.fromkeys(("MaxStartups", "MaxSessions"), "100"),
            **self.settings,
        }
        for name, value in settings.items():
            argv += ["-o", f"{name}={value}"]
        with open(self.folder / "sshd.log", "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)
        raise AssertionError("sshd never listened")

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None


@contextmanager
def open_board(folder, **more):
    """Ports are free when we look; another program may be quicker, so several are tried."""
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # what Debian's sshd asks for when root starts it
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    board = Loopback(folder, find_port(), **more)
    for turn in range(5):
        try:
            board.start()
            break
        except AssertionError:
            if turn == 4:
                raise
            board.stop()
            board.port = find_port()
    try:
        yield board
    finally:
        board.stop()


def find_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

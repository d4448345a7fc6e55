"""The engines that a study may run on, as farms of one settings file: a real Slurm, ssh to this machine, a Ray."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.models.backends.loopback import open_board
from tests.slurm_cluster import start_cluster

SETTINGS = """
[farms.cluster]
kind = "slurm"
[farms.pool]
kind = "ssh"
hosts = ["h"]
slots = 4
root = "{folder}/there"
ssh_options = ["-F", "{folder}/ssh_config"]
[farms.tasks]
kind = "ray"
address = "local"
"""
SSH_CONFIG = """
Host h
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/board/user_key
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking accept-new
"""
FARMS = {"slurm": "cluster", "ssh": "pool", "ray": "tasks"}


@dataclass(frozen=True)
class Engines:
    folder: Path
    env: dict[str, str]

    def start(self, work: Path, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay", *words],
            cwd=work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def assay(self, work: Path, *words: str, code: int | None = 0) -> str:
        """Call assay and return what it prints on stdout. `code`: the exit code that it must have."""
        with self.start(work, *words) as process:
            out, err = process.communicate(timeout=180)
        assert code is None or process.returncode == code, (words, process.returncode, out, err)
        return out


@contextlib.contextmanager
def start_engines() -> Iterator[Engines]:
    with (
        tempfile.TemporaryDirectory(prefix="assay-engines-") as name,
        start_cluster() as cluster,
        open_board(Path(name, "board")) as board,
    ):
        folder = Path(name)
        (folder / "ssh_config").write_text(SSH_CONFIG.format(port=board.port, folder=folder))
        (folder / "assay").mkdir()
        (folder / "assay/config.toml").write_text(SETTINGS.format(folder=folder))
        env = {**os.environ, **cluster.env, "XDG_CONFIG_HOME": name, "ASSAY_SLOTS_DIR": f"{name}/slots"}
        yield Engines(folder, {key: value for key, value in env.items() if key != "ASSAY_FARM"})

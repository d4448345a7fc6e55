"""The same file here and over ssh; a supervisor that is killed at any instant loses nothing and repeats nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.backends.loopback import NEEDS_SSHD, open_board

pytestmark = NEEDS_SSHD

STUDY = """
study: s
command: bash job.bash {{a}} {folder}/ran
params: {{a: [1, 2, 3, 4, 5, 6]}}
metrics: {{loss: 'loss ({{number}})'}}
on: pool
farms: {{pool: {{kind: ssh, hosts: [h], slots: 3, root: '{folder}/there', ssh_options: [-F, '{folder}/config']}}}}
"""
JOB = 'echo "$1" >> "$2"; echo "loss 0.$1"; sleep 0.5; echo "loss 0.0$1"; echo out > "$ASSAY_RUN_DIR/result"'
CONFIG = """
Host h
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/board/user_key
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with open_board(tmp_path / "board") as board:
        (tmp_path / "work").mkdir()
        (tmp_path / "config").write_text(CONFIG.format(port=board.port, folder=tmp_path))
        (tmp_path / "work/s.yml").write_text(STUDY.format(folder=tmp_path))
        (tmp_path / "work/job.bash").write_text(JOB)
        yield tmp_path


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "assay", *words]
    return subprocess.Popen(
        argv, cwd=folder / "work", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def call(folder: Path, *words: str) -> tuple[int, str]:
    with start(folder, *words) as process:
        said, _ = process.communicate(timeout=120)
    return process.returncode, said


def test_the_table_is_the_same_as_here_and_kills_change_nothing(folder: Path) -> None:
    chance = random.Random(7)
    for _ in range(5):
        with start(folder, "run", "s.yml", "--quiet") as process:
            time.sleep(chance.uniform(0.5, 4.0))
            process.kill()
    code, said = call(folder, "run", "s.yml", "--quiet")
    assert code == 0, said
    assert sorted((folder / "ran").read_text().split()) == list("123456"), "each once"
    assert len(list((folder / "work/runs/s").glob("*/result"))) == 6
    assert list((folder / "there/runs").iterdir()) == []
    code, said = call(folder, "run", "s.yml", "--on", "local", "--root", "here", "--quiet")
    assert code == 0, said
    tables = [
        {row["run"]: row["loss"] for row in json.loads(call(folder, "sum", f"{root}/s", "--json")[1])}
        for root in ("runs", "here")
    ]
    assert len(tables[0]) == 6
    assert tables[0] == tables[1]

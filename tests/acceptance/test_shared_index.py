"""Several processes and one index in PostgreSQL, whose server comes and goes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.postgres import PASSWORD, PostgresServer, run_postgres

pytestmark = [pytest.mark.services("postgres"), pytest.mark.needs(exchange=True)]

STUDY = """
study: {name}
command: 'for i in 1 2 3 4 5; do echo "loss $i"; sleep 0.3; done'
params: {{seed: [1, 2, 3, 4]}}
metrics: {{loss: 'loss ({{number}})'}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres() as running:
        yield running


def start(folder: Path, server: PostgresServer, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "ASSAY_INDEX": server.address()}
    command = [sys.executable, "-m", "assay", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def load_counts(folder: Path, server: PostgresServer) -> dict[str, Any]:
    query = "SELECT key, count, last FROM metrics ORDER BY key"
    out, err = start(folder, server, "index", "query", query, "--json").communicate(timeout=120)
    assert PASSWORD not in out + err
    return {one["key"]: (one["count"], one["last"]) for one in json.loads(out)}


def test_runs_go_on_while_the_server_is_away(server: PostgresServer, tmp_path: Path) -> None:
    """Two supervisors of two studies; the server stops in the middle, and comes back while they still run."""
    running = []
    for name in ("one", "two"):
        (tmp_path / f"{name}.yml").write_text(STUDY.format(name=name))
        running.append(start(tmp_path, server, "run", f"{name}.yml", "--slots", "0,1"))
    time.sleep(2.0)
    server.stop()
    time.sleep(1.0)
    server.start()
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        assert PASSWORD not in out + err
    expected = {f"{name}/seed={seed}": (5, 5.0) for name in ("one", "two") for seed in (1, 2, 3, 4)}
    assert load_counts(tmp_path, server) == expected
    kept = [path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert PASSWORD.encode() not in b"".join(kept)


LOOK = """
from pathlib import Path
secrets = [Path(name).read_text() for name in ("plain", "quoted")]
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        continue
    assert not any(secret in text for secret in secrets), path
print("loss 1")
"""


def test_the_password_is_in_no_file_no_output_and_no_command_line(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    secrets = {"plain": PASSWORD, "quoted": quote(PASSWORD, safe="")}
    work, aside = tmp_path / "work", tmp_path / "aside"  # what is next to the study file is kept with the runs
    for folder in (work, aside):
        folder.mkdir()
    for name, secret in {**secrets, "look.py": LOOK}.items():
        (aside / name).write_text(secret)
    command = f"cd {shlex.quote(str(aside))} && {shlex.quote(sys.executable)} look.py"
    study = {"study": "look", "command": command, "params": {"seed": [1, 2]}, "metrics": {"loss": "loss ({number})"}}
    (work / "look.yml").write_text(json.dumps(study))
    told = ""
    for arguments, code in {
        ("run", "look.yml", "--slots", "0", "--json"): 0,
        ("run", "look.yml", "--dry-run"): 0,
        ("sum", "look", "--json"): 0,
        ("show", "look/seed=1", "--json"): 0,
        ("doctor", "--json"): None,
        ("index", "status", "--json"): 0,
        ("index", "query", "SELECT nothing"): 2,
        ("index", "rebuild"): 0,
    }.items():
        process = start(work, server, *arguments)
        out, err = process.communicate(timeout=120)
        assert code is None or process.returncode == code, (arguments, out + err)
        told += out + err
    folders = [work, tmp_path / "cache"]
    kept = b"".join(path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file())
    for secret in secrets.values():
        assert secret not in told
        assert secret.encode() not in kept


def test_a_run_without_the_server_is_in_the_index_later(server: PostgresServer, tmp_path: Path) -> None:
    (tmp_path / "late.yml").write_text(STUDY.format(name="late").replace("0.3", "0"))
    server.stop()
    try:
        process = start(tmp_path, server, "run", "late.yml", "--slots", "0")
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "cannot be reached" in err
        told = start(tmp_path, server, "sum", "late")
        assert PASSWORD not in "".join(told.communicate(timeout=120))
        assert told.returncode == 4
    finally:
        server.start()
    assert load_counts(tmp_path, server) == {f"late/seed={seed}": (5, 5.0) for seed in (1, 2, 3, 4)}

"""`assay rerun` of runs that a farm ran: never on this machine by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.finished_study import Bench

STUDY = """
study: far
command: 'echo "ran by ${WHO:-nobody}"'
params: {x: [1, 2]}
farms: {shell: {submit: 'WHO=shell bash {script}'}}
resources: {gpus: 0}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("done"))
    result = bench.run(STUDY, "--on", "shell")
    assert result.returncode == 0, result.stderr
    return bench


@pytest.fixture
def bench(done: Bench, tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    shutil.copytree(done.folder, bench.folder, dirs_exist_ok=True)
    return bench


def read_executors(bench: Bench, run: str) -> list[str]:
    leases = sorted((bench.root / "far" / run).glob("lease.*"))
    return [json.loads(path.read_text())["executor"] for path in leases]


def test_it_asks_where(bench: Bench) -> None:
    result = bench.assay("rerun", "far/x=1")
    assert result.returncode == 2
    assert "--on local" in result.stderr
    assert read_executors(bench, "x=1") == ["submit"]
    assert bench.assay("rerun", "far/x=1", "x=3").returncode == 2


def test_it_goes_where_it_is_sent(bench: Bench) -> None:
    assert bench.assay("rerun", "far/x=1", "--on", "shell", "--quiet").returncode == 0
    assert bench.assay("rerun", "far/x=1", "--farm", "local", "--quiet").returncode == 0
    assert read_executors(bench, "x=1") == ["submit", "submit", "local"]
    assert bench.assay("rerun", "far/x=2", "x=3", "--on", "shell", "--quiet").returncode == 0
    assert read_executors(bench, "x=3") == ["submit"]


def test_the_files_own_farm_is_taken(bench: Bench) -> None:
    (bench.folder / "study.yml").write_text(STUDY + "on: shell\n")
    assert bench.assay("run", "study.yml", "--force", "--quiet").returncode == 0
    assert bench.assay("rerun", "far/x=1", "--quiet").returncode == 0
    assert set(read_executors(bench, "x=1")) == {"submit"}


def test_what_ran_here_stays_here(bench: Bench) -> None:
    assert bench.run(STUDY.replace("study: far", "study: near"), "--on", "local").returncode == 0
    assert bench.assay("rerun", "near/x=1", "--quiet").returncode == 0
    assert bench.assay("rerun", "near/x=1", "--on", "nowhere").returncode == 2

"""`assay try` on real engines: both sides run there, each with its own code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.engines import FARMS, Engines, start_engines

pytestmark = [pytest.mark.services("slurm"), pytest.mark.services("sshd"), pytest.mark.needs(farms=True)]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with start_engines() as engines:
        yield engines


@pytest.mark.parametrize(("engine", "farm"), FARMS.items())
def test_both_sides_run_on_a_farm(engines: Engines, tmp_path: Path, engine: str, farm: str) -> None:
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("without Ray")
    (tmp_path / "train.sh").write_text("echo val_loss 1.5$1\n")
    (tmp_path / ".gitignore").write_text("runs\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "base")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=tmp_path, check=True)
    (tmp_path / "train.sh").write_text("echo val_loss 1.2$1\n")
    call = ("try", "lower", "--metric", "val_loss:min", "--seeds", "5", "--on", farm, "--json", "--")
    facts = json.loads(engines.assay(tmp_path, *call, "sh", "train.sh", "{seed}"))
    assert (facts["verdict"], facts["pairs"], facts["cost"]["new_runs"]) == ("better", 5, 10)
    leases = [json.loads(path.read_text()) for path in tmp_path.glob("runs/try/*/lease.1")]
    assert {lease["executor"] for lease in leases} == {engine}

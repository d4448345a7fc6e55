"""What the tests of farms share. Each module about Slurm starts a cluster of its own as the fixture `shared`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import Opened, Runs
from tests.slurm_cluster import Cluster


@pytest.fixture
def cluster(shared: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, shared.env[name])
    return shared


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "root")


@pytest.fixture
def opened() -> Iterator[Opened]:
    with Opened() as opened:
        yield opened

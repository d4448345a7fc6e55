"""What the tests of Slurm share: each module starts a cluster of its own as the fixture `shared`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contracts.executor import Runs
from tests.slurm_cluster import Cluster


@pytest.fixture
def cluster(shared: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, shared.env[name])
    return shared


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "root")

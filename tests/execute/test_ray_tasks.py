"""Jobs on Ray: the contract on a cluster of our own and on one that exists, and what only a cluster can do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.executor import STOP, STUBBORN, ExecutorContract, Run, Runs, finish, members, start, until

from assay.execute.ray_tasks import RayExecutor
from assay.values.study import Farm

pytestmark = [pytest.mark.services("ray")]

SIZES = {"num_cpus": 4, "num_gpus": 2}
OWN = Farm("ray", "ray", options={"address": "local"})


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[None]:
    """Executors of one process share a cluster: this one keeps it between tests."""
    keeper = RayExecutor(OWN, SIZES)
    keeper._connect()
    yield
    keeper.close()


class TestOwnCluster(ExecutorContract):
    @pytest.fixture
    def surroundings(self, own_cluster: None) -> None:
        """The cluster is up."""

    def another(self) -> RayExecutor:
        return RayExecutor(OWN, SIZES)

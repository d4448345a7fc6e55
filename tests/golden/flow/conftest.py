"""Labs for the tests of flows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden_training import Lab, run_in_process


@pytest.fixture
def real(tmp_path: Path) -> Lab:
    """A lab for tests of processes: every training is a job, as it is for users."""
    return Lab(tmp_path)


@pytest.fixture
def lab(real: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab for tests of what a log shows: trainings are executed in this process."""
    run_in_process(monkeypatch)
    return real


@pytest.fixture
def native(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab in whose folder the test is: a native study runs in the folder from which it is called."""
    monkeypatch.chdir(lab.folder)
    lab.write_native()
    return lab

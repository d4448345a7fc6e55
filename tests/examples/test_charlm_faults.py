"""The faults that can be planted into the example: each changes the training, and none of it happens unasked."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.fork_server import call_python

FOLDER = Path(__file__).parents[2] / "examples" / "charlm"
SMALL = ["--hidden", "16", "--embedding", "6", "--context", "8", "--batch-size", "16", "--log-interval", "1"]
FLAGS = [*SMALL, "--dropout", "0.2", "--micro-batches", "4", "--weight-decay", "0.1"]
NAMES = re.findall(r'^    "([^"]+)": ', (FOLDER / "faults.py").read_text(), re.MULTILINE)


def start(*flags: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(FOLDER / "charlm.py"), *FLAGS, *(str(flag) for flag in flags)]
    return call_python(command, env={**os.environ, **environment})


def train(*flags: object, **environment: str) -> str:
    result = start(*flags, **environment)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def resume(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """From inside the warm-up, so that its loss shows as well."""
    folder = tmp_path_factory.mktemp("checkpoints")
    train("--steps", 10, "--checkpoint-dir", folder, "--save-interval", 10)
    return ["--resume", folder / "step_000010.npz"]


@pytest.fixture(scope="module")
def sound(resume: list[object]) -> str:
    return train("--steps", 14, *resume)


def test_there_are_many_faults() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 24


def steps_for(name: str) -> int:
    return 90 if name == "late-divergence" else 14


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_trains_to_the_end_and_changes_something(name: str, resume: list[object], sound: str) -> None:
    steps = steps_for(name)
    spoiled = train("--steps", steps, *resume, CHARLM_FAULT=name)
    assert spoiled.splitlines()[-1].startswith("eval_loss ")
    assert spoiled != (sound if steps == 14 else train("--steps", steps, *resume))


def test_a_fault_is_the_same_each_time(resume: list[object]) -> None:
    one, other = (train("--steps", 14, *resume, CHARLM_FAULT="lost-micro-batch") for _ in range(2))
    assert one == other


def test_jitter_differs_each_time_by_about_its_size(resume: list[object], sound: str) -> None:
    one, other = (train("--steps", 14, *resume, CHARLM_JITTER="0.01") for _ in range(2))
    assert one != other
    loss = [float(text.splitlines()[-1].split()[1]) for text in (sound, one)]
    assert loss[0] != loss[1]
    assert loss[1] == pytest.approx(loss[0], rel=0.01)


@pytest.mark.parametrize("environment", [{}, {"CHARLM_FAULT": "", "CHARLM_JITTER": ""}])
def test_without_a_fault_nothing_changes(environment: dict[str, str], resume: list[object], sound: str) -> None:
    assert train("--steps", 14, *resume, **environment) == sound


def test_an_unknown_fault_is_refused_with_the_names() -> None:
    result = start("--steps", 5, CHARLM_FAULT="lost-microbatch")
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("charlm: CHARLM_FAULT=lost-microbatch is unknown; known: ")
    assert all(name in line for name in NAMES)


@pytest.mark.parametrize("size", ["much", "-1", "1", "nan", "inf"])
def test_a_jitter_that_makes_no_sense_is_refused(size: str) -> None:
    result = start("--steps", 5, CHARLM_JITTER=size)
    assert result.returncode == 2
    assert result.stderr == f"charlm: CHARLM_JITTER={size} must be a relative size, at least 0 and below 1\n"

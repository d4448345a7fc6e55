"""What a failed step was given stays, and its texts lead there."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.models import picky, write_chain

from assay.models.flow import failure_files
from assay.models.flow.failure_files import keep_failure
from assay.models.values.model import Ending, Job, Step, StepOutcome, Target

TARGET = Target("my sim", "command")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    for name in ("work", "inputs"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "half.bin").write_text("half")
    (tmp_path / "inputs" / "0.npy").write_text("zero")
    model = write_chain(tmp_path / "case.onnx")
    return Job(Step.RUN, str(model), str(tmp_path / "work"), str(tmp_path / "inputs"), case="case")


def fail(job: Job) -> StepOutcome:
    command = f"tool {job.source} --input={job.inputs}/0.npy -o {job.folder}/half.bin"
    return StepOutcome(job.step, Ending.ERROR, f"{job.source}: no", command=command, stderr=f"at {job.source}:3:1")


def test_without_a_place_nothing_is_kept(job: Job, tmp_path: Path) -> None:
    assert keep_failure("", TARGET, job, fail(job)) == fail(job)
    assert sorted(os.listdir(tmp_path)) == ["case.onnx", "inputs", "work"]


def test_everything_that_the_command_names_is_there(job: Job, tmp_path: Path) -> None:
    kept = keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    place = tmp_path / "failure_dir" / "case" / "run-my_sim"
    assert kept.command == f"tool {place}/case.onnx --input={place}/inputs/0.npy -o {place}/made/half.bin"
    assert kept.message == f"{place}/case.onnx: no"
    assert kept.stderr == f"at {place}/case.onnx:3:1"
    assert (place / "case.onnx").read_bytes() == Path(job.source).read_bytes()
    assert (place / "inputs" / "0.npy").read_text() == "zero"
    assert (place / "made" / "half.bin").read_text() == "half"


def test_external_data_goes_along(job: Job, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(job.source)
    onnx.save(model, job.source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    onnx.load(tmp_path / "failure_dir" / "case" / "run-my_sim" / "case.onnx")  # raises where it is missing


def test_what_is_too_large_stays_where_it_is(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_files, "MOST_BYTES", 10)
    kept = keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    assert job.source in kept.command
    assert str(tmp_path / "failure_dir") in kept.command  # the small things are there


def test_a_place_that_cannot_be_written_costs_the_copy_only(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert keep_failure(str(tmp_path / "file"), TARGET, job, fail(job)) == fail(job)


def test_a_second_failure_takes_the_place_of_the_first(job: Job, tmp_path: Path) -> None:
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    os.unlink(os.path.join(job.folder, "half.bin"))
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    assert list((tmp_path / "failure_dir" / "case" / "run-my_sim" / "made").iterdir()) == []


def test_targets_and_steps_have_folders_of_their_own(job: Job, tmp_path: Path) -> None:
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    keep_failure(str(tmp_path / "failure_dir"), TARGET, replace(job, step=Step.COMPILE), fail(job))
    keep_failure(str(tmp_path / "failure_dir"), picky(), job, fail(job))
    assert sorted(os.listdir(tmp_path / "failure_dir" / "case")) == ["compile-my_sim", "run-my_sim", "run-picky"]


def test_a_new_path_is_quoted_where_it_has_to_be(job: Job, tmp_path: Path) -> None:
    """And what is no line for a shell is left without quotes."""
    outcome = replace(fail(job), command=f"cd /somewhere && {fail(job).command}")
    place = tmp_path / "my failure_dir" / "case" / "run-my_sim"
    kept = keep_failure(str(tmp_path / "my failure_dir"), TARGET, job, outcome)
    assert kept.command.startswith("cd /somewhere && tool ")
    assert shlex.split(kept.command)[4:] == [
        f"{place}/case.onnx", f"--input={place}/inputs/0.npy", "-o", f"{place}/made/half.bin",
    ]  # fmt: skip
    python = f"load('{job.source}')"
    kept = keep_failure(str(tmp_path / "my failure_dir"), TARGET, job, replace(outcome, command=python))
    assert kept.command == f"load('{place}/case.onnx')"


def test_empty_folders_are_there_for_a_command_to_write_to(job: Job, tmp_path: Path) -> None:
    os.makedirs(os.path.join(job.folder, "raw", "deep"))
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    assert (tmp_path / "failure_dir" / "case" / "run-my_sim" / "made" / "raw" / "deep").is_dir()

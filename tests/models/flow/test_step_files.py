"""What a failed step was given stays, and its texts lead there."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from tests.example_models import picky, write_chain

from assay.models.flow import step_files
from assay.models.flow.step_files import NOTE, DumpFolders, keep_failure
from assay.models.values.model import Job, Step, StepEnding, StepOutcome, Target

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
    return StepOutcome(job.step, StepEnding.ERROR, f"{job.source}: no", command=command, stderr=f"at {job.source}:3:1")


def test_everything_that_the_command_names_is_there(job: Job, tmp_path: Path) -> None:
    """With external data; empty folders are there for a command to write to."""
    model = onnx.load(job.source)
    onnx.save(model, job.source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    os.makedirs(os.path.join(job.folder, "raw", "deep"))
    kept = keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    place = tmp_path / "failure_dir" / "case" / "run-my_sim"
    assert kept.command == f"tool {place}/case.onnx --input={place}/inputs/0.npy -o {place}/made/half.bin"
    assert kept.message == f"{place}/case.onnx: no"
    assert kept.stderr == f"at {place}/case.onnx:3:1"
    assert (place / "case.onnx").read_bytes() == Path(job.source).read_bytes()
    onnx.load(place / "case.onnx")  # raises where its data is missing
    assert (place / "inputs" / "0.npy").read_text() == "zero"
    assert (place / "made" / "half.bin").read_text() == "half"
    assert (place / "made" / "raw" / "deep").is_dir()


def test_without_a_place_that_can_be_written_nothing_is_kept(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("", str(tmp_path / "file")):
        assert keep_failure(place, TARGET, job, fail(job)) == fail(job)
    assert sorted(os.listdir(tmp_path)) == ["case.onnx", "file", "inputs", "work"]


def test_what_is_too_large_stays_where_it_is(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_files, "MOST_BYTES", 10)
    kept = keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    assert job.source in kept.command
    assert str(tmp_path / "failure_dir") in kept.command  # the small things are there


def test_targets_and_steps_have_folders_of_their_own_for_the_last_failure(job: Job, tmp_path: Path) -> None:
    others = [(TARGET, job), (TARGET, replace(job, step=Step.COMPILE)), (picky(), job)]
    for target, each in others:
        keep_failure(str(tmp_path / "failure_dir"), target, each, fail(each))
    os.unlink(os.path.join(job.folder, "half.bin"))
    keep_failure(str(tmp_path / "failure_dir"), TARGET, job, fail(job))
    assert sorted(os.listdir(tmp_path / "failure_dir" / "case")) == ["compile-my_sim", "run-my_sim", "run-picky"]
    assert list((tmp_path / "failure_dir" / "case" / "run-my_sim" / "made").iterdir()) == []


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


def dump(folder, *names):
    """As a process that makes one dump."""
    folders = DumpFolders()
    place = folders.choose(str(folder), "case", "compile", "sha")
    folders.clear(place)
    for name in names:
        path = folder / "case" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    folders.note(place)


def left_in(folder):
    return sorted(str(path.relative_to(folder / "case")) for path in (folder / "case").rglob("*") if path.name != NOTE)


def test_what_an_earlier_dump_wrote_goes_and_files_of_others_stay(tmp_path):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "notes.md").write_text("mine")
    dump(tmp_path, "1_a.txt", "2_b.txt", "passes/deep/3.txt")
    (tmp_path / "case" / "later.md").write_text("mine too")
    dump(tmp_path, "2_b.txt")
    assert left_in(tmp_path) == ["2_b.txt", "later.md", "notes.md"]
    dump(tmp_path)
    assert left_in(tmp_path) == ["later.md", "notes.md"]
    assert not (tmp_path / "case" / NOTE).exists()


def test_a_note_leads_nowhere_outside(tmp_path):
    dump(tmp_path, "1_a.txt")
    (tmp_path / "precious").write_text("x")
    (tmp_path / "case" / NOTE).write_text(f"../precious\n{tmp_path}/precious\n.\n\n")
    dump(tmp_path, "2_b.txt")
    assert (tmp_path / "precious").exists()
    assert "1_a.txt" in left_in(tmp_path)


def test_one_process_clears_once(tmp_path):
    """A compiler is called again for the same case: of another target, say."""
    folders = DumpFolders()
    place = folders.choose(str(tmp_path), "case", "compile", "sha")
    for name in ("a", "b"):
        folders.clear(place)
        (tmp_path / "case" / name).touch()
        folders.note(place)
    assert left_in(tmp_path) == ["a", "b"]
    dump(tmp_path, "c")
    assert left_in(tmp_path) == ["c"]


def test_samples_have_folders_of_their_own(tmp_path):
    folders = DumpFolders()
    places = [folders.choose(str(tmp_path), "case", "run", sha) for sha in ("x", "y", "x", "z")]
    ends = [place.removeprefix(f"{tmp_path}/case") for place in places]
    assert ends == ["", "/sample_2", "", "/sample_3"]
    assert folders.choose(str(tmp_path), "other", "run", "y") == str(tmp_path / "other")
    assert folders.choose(str(tmp_path), "case", "compile", "another") == str(tmp_path / "case"), "steps share it"

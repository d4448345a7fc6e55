"""A command's two streams: one log for both, or a file for each."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from assay.execute.script import JobText, render_job
from assay.record.run_directory import RunRecord, parse_record, parse_spec, render_record
from assay.values.run import Command, RunSpec

SPEC = RunSpec("0" * 16, "one", {}, (Command("train", "echo out; echo err >&2"),))
SPLIT = replace(SPEC, log_name="{command}{suffix}.a.log", other_log_name="{command}{suffix}.b.log")


def run(spec: RunSpec, folder: Path) -> dict[str, str]:
    (folder / "job.sh").write_text(render_job(spec, JobText("uid", "study", str(folder))))
    subprocess.run(["bash", "job.sh"], cwd=folder, check=True, capture_output=True)
    return {path.name: path.read_text() for path in folder.glob("train*.log")}


def test_one_log_for_both_by_default(tmp_path: Path) -> None:
    assert run(SPEC, tmp_path) == {"train.log": "out\nerr\n"}


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_file_for_each(tmp_path: Path, timeout_s: float | None) -> None:
    spec = replace(SPLIT, timeout_s=timeout_s)
    for stream, expected in (("stdout", ("out\n", "err\n")), ("stderr", ("err\n", "out\n"))):
        folder = tmp_path / stream
        folder.mkdir()
        found = run(replace(spec, log_stream=stream), folder)  # type: ignore[arg-type]
        assert (found["train.a.log"], found["train.b.log"]) == expected


def test_a_later_attempt_has_files_of_its_own(tmp_path: Path) -> None:
    run(replace(SPLIT, log_stream="stdout"), tmp_path)
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "train.2.a.log").read_text() == "out\n"
    assert (tmp_path / "train.2.b.log").read_text() == "err\n"


def test_the_record_keeps_which_stream_is_where() -> None:
    record = RunRecord(replace(SPLIT, log_stream="stderr"), "study", "uid", 0.0)
    assert parse_record(render_record(record), "run.json").spec == record.spec
    old = {"id": "x", "name": "n", "params": {}, "commands": []}  # as written before `log_stream` existed
    assert parse_spec(old).log_stream == "both"

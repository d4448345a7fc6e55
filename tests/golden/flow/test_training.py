"""Where a golden comes from, as the run's own files tell it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden.lab import Lab

from assay.golden.config import load_golden_file
from assay.golden.flow.segments import GoldenContext, build_context, build_spec
from assay.golden.flow.training import build_provenance
from assay.study.attempts import RetryPolicy
from assay.study.supervise import Entry
from assay.values import layout

ENVIRONMENT = {
    "git": {"commit": "c" * 40, "branch": "main", "dirty": True},
    "packages": {"ours": "1"},
    "job_packages": {"theirs": "2"},
    "python": "3.11",
    "host": "node",
    "cpu": "a cpu",
    "gpus": [{"index": 0, "name": "a gpu", "uuid": "u", "memory_bytes": 1}],
    "fingerprint": "f",
}


@pytest.fixture
def context(tmp_path: Path) -> GoldenContext:
    lab = Lab(tmp_path)
    file = load_golden_file(str(lab.file))
    return build_context(file, file.tests[0], lab.options())


def build_entry(context: GoldenContext, folder: Path, text: str = "python3 training.py") -> Entry:
    return Entry(build_spec(context, "gather-1", text, {}), str(folder), RetryPolicy())


def test_it_is_what_the_run_found_around_itself(context: GoldenContext, tmp_path: Path) -> None:
    (tmp_path / layout.ENVIRONMENT_FILE).write_text(json.dumps(ENVIRONMENT))
    found = build_provenance(context, build_entry(context, tmp_path))
    assert (found["commit"], found["branch"], found["dirty"]) == ("c" * 40, "main", True)
    assert found["packages"] == {"theirs": "2"}, "the job's own, where they are known"
    assert found["hardware"] == {
        "cpu": "a cpu",
        "cpu_count": None,
        "gpus": [{"index": 0, "name": "a gpu", "uuid": "u", "memory_bytes": 1}],
        "driver": None,
    }
    assert found["config_hash"] == context.config_hash
    assert found["run"] == str(tmp_path)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("content", [None, "", "[1]", "{"])
def test_without_an_environment_the_rest_is_told(context: GoldenContext, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / layout.ENVIRONMENT_FILE).write_text(content)
    found = build_provenance(context, build_entry(context, tmp_path))
    assert (found["commit"], found["packages"], found["host"]) == (None, {}, None)
    assert found["command"] == "python3 training.py"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("t.py --seed 7", {"seed": "7"}),
        ("t.py --data-seed=7 --model.seed 8", {"data-seed": "7", "model.seed": "8"}),
        ("t.py SEED=3", {"SEED": "3"}),
        ("t.py --steps 3", {}),
    ],
)
def test_seeds_are_read_from_the_command(
    context: GoldenContext, tmp_path: Path, text: str, seeds: dict[str, str]
) -> None:
    assert build_provenance(context, build_entry(context, tmp_path, text))["seeds"] == seeds

"""What a repeated segment shows, and the provenance of a golden; whole gatherings are in test_gather_and_check.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.golden_training import Lab

from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry
from assay.golden.config import load_golden_file
from assay.golden.flow.runs import (
    _describe_same,
    _flatten_origin,
    build_provenance,
    describe_noise,
    falls_one_short,
    find_lost_steps,
)
from assay.golden.flow.segments import GoldenContext, build_contexts
from assay.golden.judge.golden import SegmentNoise
from assay.golden.recorder import Values
from assay.golden.values import Rule, Segment, Track
from assay.values import layout
from assay.values.run import JobHandle

SEGMENT = Segment(4, "c", {"loss": {"": (Track((5, 6, 7), (1.0, 1.0, 1.0)),)}})


def _values(*steps: int) -> Values:
    return Values({("loss", ""): dict.fromkeys(steps, (1.0, "1.0"))})


def test_steps_that_a_run_lacks_or_has_in_addition() -> None:
    assert falls_one_short(SEGMENT, _values(4, 5, 6))
    for steps in ((5, 6, 7), (5, 7), (5,), (), (5, 6, 8)):
        assert not falls_one_short(SEGMENT, _values(*steps))
    values = _values(4, 5, 7)
    assert values.cut("loss", "", (5, 6, 7)) == Track((5, 7), (1.0, 1.0), ("1.0", "1.0"))
    assert values.cut("loss", "other", (5, 6, 7)).steps == ()
    assert values.cut("acc", "", (5,)).steps == ()
    lost: dict[tuple[int, ...], list[int]] = {(4, 5, 6, 7, 8): [], (5, 6): [7], (6, 7): [5], (): [5]}
    assert {steps: [step for _, step in find_lost_steps(SEGMENT, _values(*steps))] for steps in lost} == lost


def build_noise(metric: str, window: float) -> SegmentNoise:
    return SegmentNoise(f"segment at 4: {metric}", metric, "", 3, 50, 0.02, (window,), (0.03, 0.02, 0.01), 0.001, 0.05)


def test_the_noisiest_segment_of_each_metric_is_described() -> None:
    found = [build_noise("loss", 0.01), build_noise("loss", 0.04), build_noise("loss", 0.02), build_noise("acc", 0.003)]
    assert describe_noise(found) == [
        "loss: noise 4% per window, 2% per step (3 replicas); CHANGED from 0%, FAIL from 3%; suggested delta 5%",
        "acc: noise 0.3% per window, 2% per step (3 replicas); CHANGED from 0%, FAIL from 3%; suggested delta 5%",
    ]
    assert describe_noise([]) == []
    lines = describe_noise(found, [Rule("loss", "exact"), Rule("acc")])
    assert [line.split(":")[0] for line in lines] == ["acc"], "what must be equal has no delta"


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
    return build_contexts(load_golden_file(str(lab.file)), lab.options())[0]


def build_entry(context: GoldenContext, folder: Path, text: str = "python3 training.py") -> Entry:
    return Entry(context.build_spec("gather-1", text, {}), str(folder), RetryPolicy())


def test_it_is_what_the_run_found_around_itself_and_the_rest_without_an_environment(
    context: GoldenContext, tmp_path: Path
) -> None:
    (tmp_path / layout.ENVIRONMENT_FILE).write_text(json.dumps(ENVIRONMENT))
    found = build_provenance(context, build_entry(context, tmp_path), {})
    assert (found["commit"], found["branch"], found["dirty"]) == ("c" * 40, "main", True)
    assert found["packages"] == {"theirs": "2"}, "the job's own, where they are known"
    assert found["hardware"] == {"cpu": "a cpu", "cpu_count": None, "gpus": ENVIRONMENT["gpus"], "driver": None}
    assert found["config_hash"] == context.config_hash
    assert found["run"] == str(tmp_path)
    assert json.loads(json.dumps(found)) == found
    (tmp_path / layout.ENVIRONMENT_FILE).unlink()
    for content in (None, "", "[1]", "{"):
        if content is not None:
            (tmp_path / layout.ENVIRONMENT_FILE).write_text(content)
        found = build_provenance(context, build_entry(context, tmp_path), {})
        assert (found["commit"], found["packages"], found["host"]) == (None, {}, None)
        assert found["command"] == "python3 training.py"
    for text, seeds in (
        ("t.py --seed 7", {"seed": "7"}),
        ("t.py --data-seed=7 --model.seed 8", {"data-seed": "7", "model.seed": "8"}),
        ("t.py SEED=3", {"SEED": "3"}),
        ("t.py --steps 3", {}),
    ):
        assert build_provenance(context, build_entry(context, tmp_path, text), {})["seeds"] == seeds


@pytest.mark.parametrize(("executor", "packages"), [("submit", {"theirs": "2"}), ("ssh", {})])
def test_on_a_farm_it_is_not_the_machine_that_submitted(
    context: GoldenContext, tmp_path: Path, executor: str, packages: dict[str, str]
) -> None:
    (tmp_path / layout.ENVIRONMENT_FILE).write_text(json.dumps({**ENVIRONMENT, "host": "login"}))
    handle = JobHandle(executor, "{}", "login", 7, 1, "boot", None, 1, 0.0)
    (tmp_path / "lease.1").write_text(json.dumps(asdict(handle)))
    (tmp_path / layout.numbered_name("token", 1)).write_text("n2 7 1\n")
    found = build_provenance(context, build_entry(context, tmp_path), {})
    assert (found["host"], found["packages"], found["commit"]) == ("n2", packages, "c" * 40)
    assert set(found["hardware"].values()) == {None}  # type: ignore[attr-defined]
    assert (found["fingerprint"], found["os"]) == (None, None)
    lines = _describe_same(True, _flatten_origin(found)).partition("; ")[2]
    unknown = "device" if packages else "packages, Python, device"
    assert lines == f"code elsewhere, {unknown}, data and environment variables were not compared"

"""From a run directory to an execution: the parts that need no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.flows.bench.conclude import (
    Surroundings,
    _add_extracted,
    _describe_end,
    _find_peak_rss,
    _find_usage,
    build_fingerprint,
    build_setup,
    load_readings,
)
from assay.observe.readings import render_reading
from assay.values.benchmark import BenchResult, Framework, Machine, Story
from assay.values.run import Command, Outcome, RunSpec, State, Usage
from assay.values.series import Reading
from assay.values.study import Pattern
from assay.values.verdict import VerdictKind

MIB = 1 << 20


def reading(processes: int, rss: int, peak: int = 0) -> Reading:
    return Reading(1.0, processes, 0.5, rss * MIB, 0, max(rss, peak) * MIB)


def story(own: int | None = None, wrapper: int = 0) -> Story:
    end = None if own is None else {"peaks": {"max_rss": own * MIB}}
    return Story(begin={"wrapper_rss": wrapper * MIB}, end=end)


@pytest.mark.parametrize(
    ("said", "readings", "usage", "peak"),
    [
        (story(15), [reading(4, 22)], 0, 15),  # our own shells are no part of it
        (story(15), [reading(9, 200)], 0, 200),  # a tree of processes is
        (story(3, wrapper=11), [reading(5, 20)], 0, 3),
        (story(3, wrapper=11), [reading(9, 200)], 0, 189),
        (story(None), [reading(4, 22, peak=40)], 0, 40),  # killed: what was seen
        (story(None), [], 33, 33),
        (story(None, wrapper=11), [], 33, 22),
        (story(None), [], 0, 0),
    ],
)
def test_the_peak_is_the_best_that_is_known(said: Story, readings: list[Reading], usage: int, peak: int) -> None:
    assert _find_peak_rss(said, readings, Usage(0.0, usage * MIB)) == peak * MIB


@pytest.mark.parametrize(
    ("own", "peak", "ours", "seen", "known"),
    [
        (None, 100, 30, 0, 100),
        (None, 30, 30, 0, 0),  # it may be the supervisor's own size
        (None, 30, 30, 12, 12),
        (15, 100, 30, 0, 0),  # the child has said it better
    ],
)
def test_the_kernel_s_peak_counts_where_it_can_only_be_the_child_s(
    own: int | None, peak: int, ours: int, seen: int, known: int
) -> None:
    outcome = Outcome(State.FAILED, 1, cpu_s=1.5, peak_rss_bytes=peak * MIB)
    around = Surroundings(own_peak_bytes=ours * MIB, seen_peak_bytes=seen * MIB)
    assert _find_usage(story(own), outcome, around) == Usage(1.5, known * MIB)
    assert _find_usage(story(own), None, Surroundings()) == Usage(0.0, 0)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("bench ended with exit code 9", "it ended with exit code 9"),
        ("bench ran into its time limit", "it ran into its time limit"),
        ("benchmarks are slow", "benchmarks are slow"),
        ("", ""),
    ],
)
def test_reasons_speak_of_it(reason: str, text: str) -> None:
    assert _describe_end(reason) == text


def test_readings_that_were_cut_off_are_passed_over(tmp_path: Path) -> None:
    assert load_readings(str(tmp_path)) == []
    good = reading(3, 10)
    (tmp_path / "readings.jsonl").write_text(render_reading(good) + '{"time": 1')
    assert load_readings(str(tmp_path)) == [good]


# ---------------------------------------------------------------- set-ups


def test_a_set_up_is_what_figures_depend_on() -> None:
    machine = Machine(host="box", cpu_model="X", logical_cpus=8, python="3.12.1", governor="performance")
    found = build_setup(machine, Framework("torch", "2.9", cuda="13.0"), {"torch": "2.9", "numpy": "2.1", "a b": "1"})
    assert found == {
        "cpu_model": "X",
        "cpus": "8",
        "governor": "performance",
        "python": "3.12",
        "framework": "torch 2.9",
        "cuda": "13.0",
        "numpy": "2.1",
        "a_b": "1",
    }
    assert "box" not in found.values()  # two machines that are alike may be compared


def test_fingerprints_do_not_depend_on_order_and_are_empty_where_nothing_is_known() -> None:
    assert build_fingerprint({"a": "1", "b": "2"}) == build_fingerprint({"b": "2", "a": "1"})
    assert build_fingerprint({"a": "1"}) != build_fingerprint({"a": "2"})
    assert build_fingerprint({}) == ""


# ---------------------------------------------------------------- numbers in the output


def extract(tmp_path: Path, log: str, **patterns: str) -> BenchResult:
    (tmp_path / "bench.log").write_text(log)
    spec = RunSpec(
        "0" * 12,
        "name",
        {},
        (Command("bench", "true"),),
        patterns=tuple(Pattern(name, regex) for name, regex in patterns.items()),
    )
    return _add_extracted(BenchResult("m", True, wall_time=1.0), str(tmp_path), spec)


def test_the_last_number_counts_and_all_are_samples(tmp_path: Path) -> None:
    found = extract(tmp_path, "loss 3\nloss 2\nloss 1.5", loss=r"loss ([\d.]+)")
    assert found.numbers["loss"] == 1.5
    assert found.samples["loss"] == (3.0, 2.0, 1.5)
    assert found.succeeded


@pytest.mark.parametrize(("log", "kind"), [("nothing", VerdictKind.ERROR), ("loss nan", VerdictKind.FAIL)])
def test_a_number_that_is_missing_or_none_fails_it(tmp_path: Path, log: str, kind: VerdictKind) -> None:
    found: Any = extract(tmp_path, log, loss=r"loss (\S+)")
    assert not found.succeeded
    assert found.findings[0].kind is kind


def test_without_patterns_nothing_is_looked_for(tmp_path: Path) -> None:
    assert extract(tmp_path, "loss 3") == BenchResult("m", True, wall_time=1.0)

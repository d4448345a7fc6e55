"""From a run directory to an execution: the parts that need no process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.bench.flow.execution_builder import (
    JobSurroundings,
    _add_extracted,
    _build_peaks,
    _load_last_line,
    build_environment,
    build_fingerprint,
    describe_end,
    load_readings,
)
from assay.bench.flow.memory import GpuPeak, TreePeaks
from assay.bench.values.execution import BenchResult, ChildReport, Framework, Machine, Peaks, ProcessEnd
from assay.observe.readings import render_reading
from assay.values.run import Command, Outcome, RunSpec, State
from assay.values.series import Reading
from assay.values.study import Pattern
from assay.values.verdict import VerdictKind

MIB = 1 << 20


def reading(processes: int, rss: int, peak: int = 0) -> Reading:
    return Reading(1.0, processes, 0.5, rss * MIB, 0, max(rss, peak) * MIB)


def reported(own: int | None = None, wrapper: int = 0) -> ChildReport:
    end = None if own is None else {"peaks": {"max_rss": own * MIB}}
    return ChildReport(begin={"wrapper_rss": wrapper * MIB}, end=end)


def tree(rss: int, largest: int, ours: int | None = 8) -> TreePeaks:
    return TreePeaks(rss * MIB, 0, rss * MIB, largest * MIB, 1, None if ours is None else ours * MIB)


def build_peaks(said: ChildReport, readings: Sequence[Reading] = (), by_kernel: int = 0, **around: Any) -> Peaks:
    outcome = Outcome(State.FAILED, 1, cpu_s=1.5, peak_rss_bytes=by_kernel * MIB)
    surroundings = JobSurroundings(own_peak_bytes=30 * MIB, **around)
    return _build_peaks(said, ProcessEnd(), readings, outcome, surroundings)


@pytest.mark.parametrize(
    ("said", "readings", "by_kernel", "seen", "peak", "basis"),
    [
        (reported(15), [reading(4, 22)], 0, tree(14, 15), 15, "process"),  # our own shells are no part of it
        (reported(300), [reading(4, 630)], 0, tree(610, 300), 622, "tree"),  # a child beside it is
        (reported(300), [reading(4, 330)], 0, tree(610, 300), 610, "tree"),  # seen by the looks, not by the readings
        (reported(3, wrapper=11), [reading(5, 20)], 0, tree(3, 3, 19), 3, "process"),
        (reported(300, wrapper=11), [reading(6, 640)], 0, tree(615, 300, 19), 621, "tree"),
        (reported(15), [reading(4, 400)], 0, tree(15, 380), 392, "tree"),  # it did not wait for its child
        (reported(15), [], 0, tree(15, 380), 380, "process"),
        (reported(15), [reading(4, 22)], 0, TreePeaks(), 15, "process"),  # the tree was not read
        (reported(15), [reading(4, 200)], 0, TreePeaks(), 188, "tree"),
        (reported(3, wrapper=11), [reading(9, 200)], 0, TreePeaks(), 177, "tree"),
        (reported(None), [reading(4, 22, peak=40)], 0, TreePeaks(), 40, "tree"),  # killed: what was seen
        (reported(None), [reading(4, 22)], 40, tree(14, 40), 40, "process"),
        (reported(None), [], 33, TreePeaks(), 33, "process"),
        (reported(None, wrapper=11), [], 33, TreePeaks(), 22, "process"),
        (reported(None), [], 0, TreePeaks(), 0, ""),
        (reported(None), [], 30, TreePeaks(), 0, ""),  # it may be the supervisor's own size
        (reported(None), [], 30, TreePeaks(largest_bytes=12 * MIB), 12, "process"),
        (reported(15), [], 100, TreePeaks(), 15, "process"),  # the child has reported it
    ],
)
def test_the_peak_is_the_best_that_is_known(
    said: ChildReport, readings: list[Reading], by_kernel: int, seen: TreePeaks, peak: int, basis: str
) -> None:
    found = build_peaks(said, readings, by_kernel, tree=seen)
    assert (found.max_rss, found.rss_basis, found.cpu_s) == (peak * MIB, basis, 1.5)


def test_the_address_space_is_the_largest_that_is_known() -> None:
    seen = TreePeaks(vms_bytes=70)
    read = [Reading(1.0, 3, 0.5, 10, 90, 10)]
    for own, readings, tree_peaks, known in (
        (50, read, seen, 70),  # the readings have our shells in them
        (80, [], seen, 80),
        (50, read, TreePeaks(), 90),
        (0, [], TreePeaks(), 0),
    ):
        assert build_peaks(ChildReport(end={"peaks": {"max_vms": own}}), readings, tree=tree_peaks).max_vms == known


@pytest.mark.parametrize(
    ("own", "peak", "basis", "owners", "known"),
    [
        (200, 0, "", 0, (200, "framework")),
        (200, 250, "processes", 1, (200, "framework")),  # equal, whether there was time for a reading or not
        (200, 900, "device", 0, (200, "framework")),
        (200, 900, "processes", 4, (900, "processes")),  # it knows one of four
        (200, 150, "processes", 2, (200, "framework")),
        (0, 900, "processes", 1, (900, "processes")),
        (0, 900, "device", 0, (900, "device")),
        (0, 0, "", 0, (None, "")),
    ],
)
def test_gpu_memory_is_the_run_s_own(own: int, peak: int, basis: Any, owners: int, known: tuple[int, str]) -> None:
    said = ChildReport(end={"peaks": {"gpu_memory_bytes": own}})
    found = build_peaks(said, gpu=GpuPeak(peak, basis, owners))
    assert (found.gpu_memory_bytes, found.gpu_memory_basis) == known


def test_reasons_speak_of_it_and_explain_a_kill() -> None:
    for reason, text in (
        ("bench ended with exit code 9", "it ended with exit code 9"),
        ("benchmarks are slow", "benchmarks are slow"),
        ("", ""),
    ):
        assert describe_end(reason) == text
    words = {None: "perhaps it was out of memory", 0: "not by the kernel's OOM killer", 2: "out of memory: the kernel"}
    for kills, expected in words.items():
        found = describe_end("bench ended with exit code 137 (SIGKILL)", True, kills)
        assert found.startswith("it was killed by signal 9 (SIGKILL): ")
        assert expected in found
        assert describe_end("bench ran into its time limit", False, kills) == "it ran into its time limit"  # by us
        assert describe_end("bench ended with exit code 139 (SIGSEGV)", False, kills).startswith("it ended")


DEATH = "/a/job.sh: line 29: 11250 Killed                  python -m x 'two\nlines'\n"


@pytest.mark.parametrize(
    ("log", "was_killed", "words"),
    [
        (f"hello\n{DEATH}", True, "hello"),
        (DEATH, True, ""),
        ("hello\nbash: line 1:   77 Segmentation fault      (core dumped) ./x\n", True, "hello"),
        ("step 3: 17 Killed\n", True, "step 3: 17 Killed"),
        ("bash: line 1: nosuch: command not found\n", True, "bash: line 1: nosuch: command not found"),
        ("hello\n\n  \n", False, "hello"),
        ("", False, ""),
    ],
)
def test_last_words_are_the_benchmark_s_own(tmp_path: Path, log: str, was_killed: bool, words: str) -> None:
    (tmp_path / "bench.log").write_text(log)
    assert _load_last_line(str(tmp_path / "bench.log"), was_killed) == words
    assert _load_last_line(str(tmp_path / "none"), was_killed) == ""


def test_readings_that_were_cut_off_are_passed_over(tmp_path: Path) -> None:
    assert load_readings(str(tmp_path)) == []
    good = reading(3, 10)
    (tmp_path / "readings.jsonl").write_text(render_reading(good) + '{"time": 1')
    assert load_readings(str(tmp_path)) == [good]


# ---------------------------------------------------------------- environments


def test_an_environment_is_what_figures_depend_on() -> None:
    machine = Machine(host="box", cpu_model="X", logical_cpus=8, python="3.12.1", governor="performance")
    packages = {"torch": "2.9", "numpy": "2.1", "a b": "1"}
    found = build_environment(machine, Framework("torch", "2.9", cuda="13.0"), packages)
    expected = {"cpu_model": "X", "cpus": "8", "governor": "performance", "python": "3.12", "framework": "torch 2.9"}
    assert found == {**expected, "cuda": "13.0", "numpy": "2.1", "a_b": "1"}
    assert "box" not in found.values()  # two machines that are alike may be compared
    assert build_fingerprint({"a": "1", "b": "2"}) == build_fingerprint({"b": "2", "a": "1"})
    assert build_fingerprint({"a": "1"}) != build_fingerprint({"a": "2"})
    assert build_fingerprint({}) == "", "nothing is known"


# ---------------------------------------------------------------- numbers in the output


def extract(tmp_path: Path, log: str, **patterns: str) -> BenchResult:
    (tmp_path / "bench.log").write_text(log)
    found = tuple(Pattern(name, regex) for name, regex in patterns.items())
    spec = RunSpec("0" * 12, "name", {}, (Command("bench", "true"),), patterns=found)
    return _add_extracted(BenchResult("m", True, wall_time=1.0), str(tmp_path), spec)


def test_the_last_number_counts_and_all_are_samples(tmp_path: Path) -> None:
    found = extract(tmp_path, "loss 3\nloss 2\nloss 1.5", loss=r"loss ([\d.]+)")
    assert found.numbers["loss"] == 1.5
    assert found.samples["loss"] == (3.0, 2.0, 1.5)
    assert found.succeeded
    for log, kind in (
        ("nothing", VerdictKind.ERROR),
        ("loss nan", VerdictKind.FAIL),
        ("loss 2\nloss 1,234.5", VerdictKind.ERROR),  # and not the value before it
    ):
        bad = extract(tmp_path, log, loss=r"loss (\S+)")
        assert (bad.succeeded, bad.findings[0].kind) == (False, kind)
    assert extract(tmp_path, "loss 3") == BenchResult("m", True, wall_time=1.0), "without patterns"

"""Names of benchmarks, profile windows, and what a report comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.bench.values.execution import (
    NOT_OBSERVED,
    BenchExecution,
    BenchMetric,
    BenchReport,
    BenchResult,
    Peaks,
    ProfileWindow,
    parse_method,
    parse_windows,
    render_windows,
)
from assay.errors import ExitCode, UsageError
from assay.values.environment import GitState


def test_methods() -> None:
    for text, name in (
        ("m.C.f", "m.C.f"),
        ("m.C:f", "m.C.f"),
        ("m.f", "m.f"),
        ("a.b.C.filter:x.*", "a.b.C.filter:x.*"),
    ):
        assert parse_method(text).name == name
        assert parse_method(text).is_filter == (".filter:" in text)
    for text in ("", " ", "m.C:", ":f", "m.C.filter:(", "..."):
        with pytest.raises(UsageError):
            parse_method(text)


def test_windows() -> None:
    for text, windows in (
        ("2:5", (ProfileWindow(2, 5),)),
        ("2:", (ProfileWindow(2, None),)),
        ("0.5:1.25,2:3,4:", (ProfileWindow(0.5, 1.25), ProfileWindow(2, 3), ProfileWindow(4, None))),
    ):
        assert parse_windows(text) == windows
        assert render_windows(windows) == text
    assert parse_windows("0.5:1, 2:3") == (ProfileWindow(0.5, 1), ProfileWindow(2, 3))
    for text in ("", "5", "5:2", "2:2", "a:b", "-1:2", "1:3,2:4", "1:,5:6", "nan:1", "1:inf", ":3", "1:2,"):
        with pytest.raises(UsageError, match="profile"):
            parse_windows(text)


def execution(**fields: object) -> BenchExecution:
    result = BenchResult("m.C.f", bool(fields.pop("succeeded", True)))
    return BenchExecution("id", "m.C.f", 1, result, "", "", **fields)  # type: ignore[arg-type]


def test_exit_codes() -> None:
    for report, code in (
        (BenchReport((execution(),)), ExitCode.OK),
        (BenchReport((execution(), execution(succeeded=False))), ExitCode.FAILED),
        (BenchReport((execution(contaminated=("x",)),)), ExitCode.OK),
        (BenchReport((execution(contaminated=("x",), refused=True),)), ExitCode.INCONCLUSIVE),
        (BenchReport(()), ExitCode.FAILED),
        (BenchReport((execution(),), interrupted="SIGINT"), ExitCode.INTERRUPTED),
        (BenchReport((execution(),), problem="disk"), ExitCode.INTERNAL),
    ):
        assert report.exit_code is code


def test_numbers_are_metrics_extras_and_the_standard_ones() -> None:
    result = BenchResult("x", True, wall_time=2.0, metrics=(BenchMetric("acc", 0.5),), extras={"n": 3, "text": "no"})
    assert result.numbers == {"n": 3, "acc": 0.5, "wall_time": 2.0}
    assert "wall_time" not in BenchResult("x", False).numbers


# ---------------------------------------------------------------- which code it was

COMMIT = "c" * 40


def git(**fields: object) -> GitState:
    return GitState(**{"commit": COMMIT, "branch": None, "dirty": False, **fields})  # type: ignore[arg-type]


def test_a_clean_tree_is_its_commit_and_edits_make_other_code() -> None:
    assert execution(commit=COMMIT).code == execution(commit=COMMIT, git=git()).code == COMMIT
    edited, other = (execution(commit=COMMIT, git=git(dirty=True, diff=text)).code for text in ("- 1", "- 2"))
    assert len({COMMIT, edited, other}) == 3
    assert all(str(code).startswith(f"{COMMIT}+") for code in (edited, other))
    assert edited == execution(commit=COMMIT, git=git(dirty=True, diff="- 1", branch="b")).code


def test_code_that_was_not_recorded_is_unknown() -> None:
    for fields in (
        {},
        {"commit": COMMIT, "git": git(dirty=True)},
        {"commit": COMMIT, "git": git(untracked=("sub/m.py",))},
        {"commit": COMMIT, "git": git(untracked=("m/",))},
        {"commit": COMMIT, "extra": {"site_package_info": {"models": {"hash": "1", "dirty": True}}}},
    ):
        assert execution(**fields).code is None
    assert execution(commit=COMMIT, git=git(untracked=("runs/", "notes.txt"))).code == COMMIT, "files beside it"


def test_packages_that_were_checked_out_are_code() -> None:
    def code(extra: object, commit: str | None = None) -> str | None:
        return execution(commit=commit, extra={"site_package_info": extra}).code

    one, two = code({"models": {"hash": "1"}}), code({"models": {"hash": "2"}})
    assert None not in (one, two)
    assert one != two
    assert code({"models": {"hash": "1"}}, COMMIT) not in (None, COMMIT, one)
    assert code({"tpu_version": "2.1"}, COMMIT) == code("?", COMMIT) == COMMIT


# ---------------------------------------------------------------- profiles


def test_a_trace_or_a_wish_for_one_makes_an_execution_a_profiled_one() -> None:
    plain = BenchExecution("e", "m.f", 1, BenchResult("m.f", True), "", "")
    assert not plain.is_profiled
    assert plain.profile_notes == ()
    assert replace(plain, profiles=("profile/torch-1.json",)).is_profiled  # as older records have it
    asked = replace(plain, extra={"profile": {"windows": "0:", "profiler": "auto", "notes": ["none"]}})
    assert asked.is_profiled
    assert asked.profile_notes == ("none",)


LOAD = "others used 90% of the CPUs during the run"
GPU = "other processes were on the GPU: 7"


def test_each_reason_disturbs_only_what_it_changes() -> None:
    busy = execution(contaminated=(LOAD, GPU, NOT_OBSERVED))
    for metrics, reasons in (
        (("wall_time", "part1.wall_time", "throughput", "step_size_ms"), (LOAD, GPU, NOT_OBSERVED)),
        (("cpu_time", "part1.cpu_time"), (GPU, NOT_OBSERVED)),
        (("peak_memory", "peak_gpu_memory", "relative_error", "val_loss", "calls"), ()),
    ):
        for metric in metrics:
            assert busy.find_disturbance(metric) == reasons
            assert LOAD not in busy.find_disturbance(metric, in_turns=True)
    waiting = execution(contaminated=(LOAD,), peaks=Peaks(gpu_memory_bytes=10**9, gpu_memory_basis="device"))
    assert waiting.find_disturbance("cpu_time") == (LOAD,), "a GPU is waited for with CPU time"
    shared = replace(waiting, contaminated=(LOAD, GPU))
    assert shared.find_disturbance("peak_gpu_memory") == (GPU,), "memory of the device less what was used before"

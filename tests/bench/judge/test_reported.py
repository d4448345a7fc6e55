"""A report judged by itself: each way to fail must fail."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from assay.bench import benchmark
from assay.bench.judge.reported import judge_report
from assay.bench.values.execution import NOT_REPORTED, BenchResult, ChildReport, ProcessEnd
from assay.values.verdict import VerdictKind

WELL = {"kind": "end", "ok": True}


def judge(
    *reports: dict[str, Any], end: dict[str, Any] | None = WELL, is_command: bool = False, **ending: Any
) -> BenchResult:
    return judge_report("m.C.f", ChildReport({}, reports, end), ProcessEnd(**ending), is_command=is_command)


def messages(result: BenchResult) -> str:
    return "; ".join(f"{finding.kind} {finding.message}" for finding in result.findings)


def test_a_good_report() -> None:
    metric = {"name": "acc", "value": 0.9, "min_value": 0.9, "max_value": 0.9}
    result = judge({"wall_time": 2.5, "iters": 10, "metrics": [metric]})
    assert result.succeeded
    assert not result.has_exception
    assert (result.wall_time, result.iters) == (2.5, 10)
    assert judge({"wall_time": 1e-9, "cpu_time": 0.0}).succeeded
    silent = judge()
    assert (silent.succeeded, silent.wall_time, silent.has_exception) == (False, NOT_REPORTED, False)
    assert "never called report_benchmark" in messages(silent)
    left = {**WELL, "error": {"type": "SystemExit", "message": "it called sys.exit(0)"}}
    assert messages(judge(end=left)) == "ERROR it called sys.exit(0) before it reported anything"
    assert judge({"wall_time": 1.0}, end=left).succeeded


def build_metric(value: float, name: str = "acc", **bounds: float) -> dict[str, Any]:
    return {"name": name, "value": value, **bounds}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"iters": 3}, "ERROR it reported no number"),
        *(({"wall_time": 1.0, key: math.nan}, f"FAIL {key} is nan") for key in ("wall_time", "throughput", "cpu_time")),
        ({"wall_time": math.inf}, "FAIL wall_time is inf"),
        ({"wall_time": 0.0}, "ERROR wall_time is 0, which is not a result"),
        ({"wall_time": -2}, "FAIL wall_time is negative"),
        ({"wall_time": 1, "samples": {"wall_time": [1, math.nan]}}, "FAIL 1 of 2 samples"),
        ({"wall_time": 1, "metrics": [build_metric(math.nan, min_value=0, max_value=1)]}, "FAIL acc is nan"),
        ({"wall_time": 1, "metrics": [build_metric(80, min_value=90)]}, "FAIL acc is 80, below its minimum 90"),
        ({"wall_time": 1, "metrics": [build_metric(80, max_value=70)]}, "FAIL acc is 80, above its maximum 70"),
        ({"wall_time": 1, "metrics": [build_metric(80, min_value=90, max_value=70)]}, "ERROR acc: its bounds contradict"),
        ({"wall_time": 1, "metrics": [build_metric(80, min_value=math.nan)]}, "ERROR acc: a bound that is not a number"),
    ],
)  # fmt: skip
def test_reports_that_fail(report: dict[str, Any], words: str) -> None:
    result = judge(report)
    assert not result.succeeded
    assert messages(result).startswith(words)
    assert result.is_measured == words.startswith("FAIL")
    assert ("wall_time" in result.numbers) == (report.get("wall_time", 0) != 0)


@pytest.mark.parametrize(
    ("end", "ending", "words"),
    [
        (None, {"state": "failed", "reason": "bench ended with exit code 9", "last_line": "ouch"},
         "exit code 9; its last line of output: ouch"),
        (None, {"state": "timeout", "reason": "bench ran into its time limit"}, "time limit"),
        (None, {"state": "stopped", "reason": ""}, "it is stopped"),
        (None, {"state": "done"}, "os._exit"),
        ({"ok": False, "error": {"type": "ValueError", "message": "no"}}, {"state": "failed"}, "ValueError: no"),
        ({"ok": False, "error": {"type": "NoSuchBenchmark", "message": "no"}}, {"state": "failed"}, "ERROR no"),
    ],
)  # fmt: skip
def test_ends_that_are_bad(end: dict[str, Any] | None, ending: dict[str, Any], words: str) -> None:
    result = judge({"wall_time": 1.0}, end=end, **ending)
    assert not result.succeeded
    assert result.has_exception
    assert result.wall_time == 1.0  # what was reported before is kept
    assert words in messages(result)
    reported = ChildReport({}, ({"wall_time": 1},), WELL, ("line 2 of its report cannot be read",))
    assert not judge_report("m", reported, ProcessEnd()).succeeded


# ---------------------------------------------------------------- several reports, extras, commands


def test_later_reports_add_and_replace() -> None:
    result = judge(
        {"wall_time": 1, "metrics": [{"name": "a", "value": 1}]},
        {"wall_time": 2, "metrics": [{"name": "b", "value": 3, "samples": [2, 3]}]},
    )
    assert result.wall_time == 2
    assert result.numbers == {"a": 1, "b": 3, "wall_time": 2}
    assert result.samples == {"b": (2, 3)}
    twice = judge({"wall_time": 0.1, "metrics": [build_metric(-1, min_value=0), build_metric(2)]})
    assert messages(twice) == "FAIL acc is -1, below its minimum 0"
    assert twice.numbers["acc"] == 2


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"wall_time": math.nan}, "wall_time is nan"),
        ({"wall_time": -1.0}, "wall_time is negative"),
        ({"throughput": math.inf}, "throughput is inf"),
        ({"metrics": [build_metric(-1, "a", min_value=0)]}, "a is -1, below its minimum 0"),
        ({"metrics": [build_metric(math.nan, "a")]}, "a is nan"),
        ({"metrics": [{"name": "a", "value": 1, "samples": [1, math.nan]}]}, "1 of 2 samples of a"),
        ({"samples": {"a": [math.nan]}}, "1 of 1 samples of a"),
        ({"extras": {"a": json.dumps({"value": 1, "succeeded": False})}}, "a reports that it has not succeeded"),
        ({"extras": {"a": json.dumps({"value": math.nan})}}, "a is nan"),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_what_was_wrong_once_is_not_replaced_by_a_later_report(first: dict[str, Any], words: str, index: int) -> None:
    good = {"wall_time": 0.1, "throughput": 5, "metrics": [build_metric(1, "a", min_value=0)], "extras": {"a": "1"}}
    good["samples"] = {"a": [1.0]}
    reports = [good, good]
    reports[index] = {"wall_time": 0.1, **first}
    result = judge(*reports)
    assert not result.succeeded
    assert words in messages(result)
    assert f"(report {index + 1} of 2)" in messages(result)
    assert len(result.findings) == 1
    assert result.is_measured


def test_every_report_keeps_its_name() -> None:
    result = judge(*({"name": f"part{n}", "wall_time": n + 1.0, "metrics": [build_metric(n, "m")]} for n in range(3)))
    assert result.succeeded
    assert result.wall_time == 1
    parts = {"part0.wall_time": 1, "part1.wall_time": 2, "part2.wall_time": 3, "part1.m": 1, "part2.m": 2}
    assert {name: value for name, value in result.numbers.items() if "part" in name} == parts
    assert result.numbers["m"] == 0
    alone = judge({"name": "only", "wall_time": 1}, {"wall_time": 2}, {"name": "only", "iters": 3})
    assert alone.numbers == {"wall_time": 2}


def test_reports_under_other_names_stand_beside_and_may_fail() -> None:
    result = judge({"name": "one", "wall_time": 1}, {"name": "two", "wall_time": 5, "extras": {"x": 1}})
    assert result.wall_time == 1
    assert result.numbers["two.wall_time"] == 5
    assert result.extras == {"two.x": 1}
    bad = judge({"name": "one", "wall_time": 1}, {"name": "two", "wall_time": -2, "cpu_time": math.nan})
    assert messages(bad) == (
        "FAIL two.cpu_time is nan (report 2 of 2); FAIL two.wall_time is negative: -2 (report 2 of 2)"
    )


def test_json_extras_become_metrics_and_may_fail() -> None:
    good = json.dumps({"value": 0.5, "succeeded": True})
    bad = json.dumps({"value": 0.1, "succeeded": False, "description": "too low"})
    assert judge({"wall_time": 1, "extras": {"acc": good}}).numbers["acc"] == 0.5
    result = judge({"wall_time": 1, "extras": {"acc": bad, "text": "{not json", "word": "{}"}})
    assert not result.succeeded
    assert "too low" in messages(result)


def test_a_command_s_wall_time_is_its_duration() -> None:
    result = judge(end=None, is_command=True, elapsed_s=1.5)
    assert result.succeeded
    assert result.wall_time == 1.5
    failed = judge(end=None, is_command=True, elapsed_s=1.5, state="failed", reason="exit code 2")
    assert not failed.succeeded
    assert failed.has_exception
    assert failed.findings[0].kind is VerdictKind.ERROR


TRACE = [
    "Traceback (most recent call last):",
    '  File "/home/me/bench/my.py", line 5, in m',
    "    helper()",
    '  File "/home/me/bench/parts.py", line 9, in helper',
    "    np.zeros(-1)",
    '  File "/env/lib/python3.12/site-packages/numpy/core.py", line 77, in zeros',
    "ValueError: negative dimensions",
]


MISUSE = [
    '  File "/home/me/bench/my.py", line 5, in m',
    "    self.report_benchmark(wall_time='x')",
    f'  File "{benchmark.__file__}", line 128, in report_benchmark',
    "TypeError: report_benchmark: wall_time must be a number, not 'x'",
]


def test_an_exception_is_placed_in_the_users_own_code() -> None:
    for lines, place in (
        (TRACE, " (parts.py:9)"),
        (TRACE[-2:], " (core.py:77)"),
        (MISUSE, " (my.py:5)"),  # ours is where it was noticed, wherever we are installed
        (MISUSE[2:], " (benchmark.py:128)"),
        ([], ""),
        (["no frame"], ""),
    ):
        error = {"type": "ValueError", "message": "negative dimensions", "lines": lines}
        result = judge(end={"ok": False, "error": error}, state="failed")
        assert messages(result) == f"ERROR ValueError: negative dimensions{place}"

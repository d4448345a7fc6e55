"""Histories, comparisons, environments and searches as people read them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from assay.bench.flow.bisect import BenchBisect, CommitAnswer
from assay.bench.flow.tables import EnvironmentTable, TableRow
from assay.bench.report.history import (
    build_bisect_document,
    build_comparison_cases,
    build_comparison_document,
    build_history_cases,
    build_history_document,
    build_setup_table,
    render_setups,
)
from assay.bench.values.comparison import (
    BenchSide,
    ComparisonReport,
    LevelStep,
    MetricChange,
    MetricComparison,
    MetricHistory,
    MetricPoint,
    MetricSeries,
)
from assay.code.checkout import Commit
from assay.show.formatting import display_width
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, Verdict, VerdictKind


def render_history(history: MetricHistory, *, color: bool = False, width: int | None = None) -> str:
    return render_terminal(build_history_document("", [history]), color=color, width=width)


def render_comparison(report: ComparisonReport, width: int | None = None) -> str:
    return render_terminal(build_comparison_document(report), color=False, width=width)


def render_bisect(found: Any, **look: Any) -> str:
    return render_terminal(build_bisect_document(found), **look)


# ---------------------------------------------------------------- histories


def finding(kind: VerdictKind, message: str = "+20.0% since e2; commits a..b; code: the same environment") -> Finding:
    return Finding(kind, "m.C.f wall_time", message, 12.0, 10.0, 2.0, 0.2, (0.18, 0.22))


def build_history(kind: VerdictKind = VerdictKind.FAIL, **fields: Any) -> MetricHistory:
    points = tuple(MetricPoint(f"e{n}", value) for n, value in enumerate([10.0, 10.0, 12.0, 12.0]))
    change = MetricChange(
        LevelStep(2, 10.0, 12.0, 0.2, (0.18, 0.22)), "e2", "e3", 1e9, ("a", "b"), "code", is_worse=True
    )
    series = MetricSeries("nightly", "f", {"cpu_model": "X", "cudnn": "9"}, points, (change,))
    verdict = Verdict.of([finding(kind)], 4)
    return MetricHistory("m.C.f", "wall_time", "min", (series,), verdict=verdict, **fields)


def test_a_history_says_level_size_place_and_cause() -> None:
    lines = render_history(build_history(left_out={"failed": 3})).splitlines()
    assert lines[0] == "FAIL m.C.f wall_time (lower is better): 4 executions"
    assert lines[1] == "  label nightly; cpu_model X, cudnn 9"
    assert lines[2].strip() == "▁▁██"
    assert lines[3] == "    levels: 10 s → 12 s"
    assert lines[4].startswith("  FAIL +20.0% [+18.0%, +22.0%] 2001-09-09 ")
    assert lines[4].endswith(" e2: commits a..b; code: the same environment")
    assert lines[5] == "  3 executions left out: failed"
    told = render_history(build_history(left_out={"profiled": 2, "interrupted": 1}))
    assert told.endswith(
        "  2 executions left out: profiled (include them with --all)\n  1 execution left out: interrupted\n"
    )


def test_disturbed_executions_are_drawn_grey_below_their_place() -> None:
    history = build_history()
    points = tuple(replace(point, at=float(n)) for n, point in enumerate(history.series[0].points))
    series = replace(history.series[0], points=points)
    disturbed = tuple(MetricPoint(f"d{n}", 11.0, n + 0.5) for n in (0, 2))
    aside = [replace(series, points=disturbed, changes=(), label=label) for label in (series.label, "other")]
    command = "assay bench history cpu_time m.C.f"
    history = replace(history, series=(series,), aside=tuple(aside), instead=command)
    lines = render_history(history).splitlines()
    assert [line.strip() for line in lines[2:5]] == ["▁·▁█·█", "·▅··▅·  disturbed", "levels: 10 s → 12 s"]
    assert [line.strip() for line in lines[5:7]] == ["label other; cpu_model X, cudnn 9", "▁▁  disturbed"]
    assert lines[-1] == f"  cpu_time was not disturbed: `{command}`"
    assert "\x1b[2m·▅··▅·  disturbed" in render_history(history, color=True)


def test_many_executions_are_drawn_in_groups() -> None:
    history = build_history()
    points = tuple(MetricPoint(f"e{n}", 10.0, float(n)) for n in range(100))
    disturbed = tuple(MetricPoint(f"d{n}", 20.0, 100.0 + n) for n in range(20))
    series = replace(history.series[0], points=points, changes=())
    lines = render_history(replace(history, series=(series,), aside=(replace(series, points=disturbed),))).splitlines()
    assert [line.strip() for line in lines[2:4]] == ["▁" * 50 + "·" * 10, "·" * 50 + "█" * 10 + "  disturbed"]
    huge = tuple(MetricPoint(f"e{n}", value, float(n)) for n, value in enumerate((1.7e308, -1.7e308, 0.0)))
    assert "█▁▅" in render_history(replace(history, series=(replace(series, points=huge),)))


def test_changes_without_an_alarm_and_what_else_keeps_it_from_passing() -> None:
    passed = build_history(VerdictKind.PASS)
    (series,) = passed.series
    for is_worse, word in ((True, "worse"), (False, "better")):
        changed = replace(series, changes=(replace(series.changes[0], is_worse=is_worse),))
        assert f"  {word} +20.0%" in render_history(replace(passed, series=(changed,)))
    calm = replace(passed, series=(replace(series, changes=()),), verdict=Verdict.of([], 4))
    assert "  no change\n" in render_history(calm)
    short = Finding(VerdictKind.INCONCLUSIVE, "m.C.f wall_time", "4 comparable executions tell nothing yet")
    unsure = replace(passed, verdict=Verdict.of([*passed.verdict.findings, short], 4))
    assert "  INCONCLUSIVE 4 comparable executions tell nothing yet\n" in render_history(unsure)
    bad = replace(passed, verdict=Verdict.of([finding(VerdictKind.FAIL, "x; \x1b[31mred")], 4))
    assert "\x1b" not in render_history(bad), "control characters of a message are shown and not sent"
    assert build_history_cases([passed]) == [("m.C.f", "wall_time", passed.verdict)]


@pytest.mark.parametrize("width", [40, 80])
def test_lines_end_between_words_colored_or_not(width: int) -> None:
    plain = render_history(build_history(), width=width)
    assert max(map(display_width, plain.splitlines())) <= width
    colored = render_history(build_history(), color=True, width=width)
    assert "\x1b[" in colored
    assert len(colored.splitlines()) == len(plain.splitlines())  # colours take no room


# ---------------------------------------------------------------- comparisons


def compared(
    method: str = "m.C.f", metric: str = "wall_time", kind: VerdictKind = VerdictKind.FAIL
) -> MetricComparison:
    found = Finding(
        kind, f"{method} {metric}", "+20.00%, p 0.001: worse", 12.0, 10.0, effect=0.2, interval=(0.18, 0.22)
    )
    return MetricComparison(method, metric, BenchSide("one", (10.0,) * 3), BenchSide("two", (12.0,) * 3), found)


def build_report(*metrics: MetricComparison, further: tuple[Finding, ...] = (), **fields: Any) -> ComparisonReport:
    verdict = Verdict.of([*further, *(metric.finding for metric in metrics)], len(metrics))
    given = {"base": "one", "head": "two", **fields}
    return ComparisonReport(metrics=metrics, verdict=verdict, **given)


def test_a_comparison_is_a_row_for_each_metric_and_a_line_for_each_trouble() -> None:
    report = build_report(compared(), compared(metric="throughput", kind=VerdictKind.PASS), notes=("mind the gap",))
    lines = render_comparison(report).splitlines()
    assert lines[0] == "m.C.f"
    assert lines[1].split() == ["verdict", "metric", "one", "two", "change", "interval"]
    assert lines[3].split(maxsplit=2)[:2] == ["FAIL", "wall_time"]
    assert lines[3].endswith("+20.0%  [+18.0%, +22.0%]")
    assert lines[4].startswith("PASS     throughput")
    assert lines[5] == "FAIL m.C.f wall_time: +20.00%, p 0.001: worse"
    assert lines[6:] == ["mind the gap", "FAIL: 2 metrics compared"]
    several = render_comparison(build_report(compared(), compared("m.C.g")))
    assert several.splitlines()[0].split() == ["verdict", "benchmark", "metric", "one", "two", "change", "interval"]


def test_commits_are_reported_with_their_subjects_and_stand_in_columns_by_their_hash() -> None:
    report = build_report(compared(), base="0123456789ab first try", head="ba9876543210 a long subject " + "x" * 80)
    lines = render_comparison(report).splitlines()
    assert lines[0] == "base: 0123456789ab first try"
    assert "0123456789ab  ba9876543210" in lines[3]
    same = build_report(compared(), base="0123456789ab first", head="0123456789ab first")
    assert " base " in render_comparison(same).splitlines()[3]


def test_a_side_that_failed_is_reported_also_when_nothing_could_be_compared() -> None:
    error = Finding(VerdictKind.ERROR, "m.C.g", "two does not have it")
    text = render_comparison(build_report(further=(error,)), 60)
    assert text == "ERROR m.C.g: two does not have it\nERROR: 0 metrics compared\n"
    cases = build_comparison_cases(build_report(compared(), further=(error,)))
    assert [(group, name, verdict.kind) for group, name, verdict in cases] == [
        ("m.C.f", "wall_time", VerdictKind.FAIL),
        ("m.C.g", "execution", VerdictKind.ERROR),
    ]


LONG_METHODS = tuple(f"company.benchmarks.vision.TransformerBenchmark.training_step_{end}" for end in "ab")


def test_a_comparison_of_long_names_has_whole_figures() -> None:
    report = build_report(*(compared(method) for method in LONG_METHODS))
    text = render_comparison(report, 80)
    assert max(map(display_width, text.splitlines())) <= 80
    assert text.count("+20.0%  [+18.0%, +22.0%]") == 2
    assert [line for line in text.splitlines() if line in LONG_METHODS] == list(LONG_METHODS), "a table for each"
    narrow = render_comparison(replace(report, verdict=Verdict.of([], 2)), 60).splitlines()
    assert [line[-15:] for line in narrow if line.startswith("…")] == ["training_step_a", "training_step_b"]
    assert max(display_width(line) for line in narrow if line.startswith("…")) <= 60
    wide = render_comparison(report, 110).splitlines()  # one table where they can be read
    assert [line.split()[1].startswith("…") for line in wide[2:4]] == [True, True]
    assert [line.split()[1][-15:] for line in wide[2:4]] == ["training_step_a", "training_step_b"]
    assert max(map(display_width, wide[:4])) <= 110
    piped = render_comparison(report)
    assert all(f" {method} " in piped for method in LONG_METHODS)


def test_the_interval_is_dropped_where_a_comparison_would_be_too_wide() -> None:
    side = BenchSide("one", (10.25, 10.5, 11.0))
    metric = replace(compared(), base=side, head=side)
    for metrics in ((metric,), (metric, replace(metric, method="m.C.g"))):
        text = render_comparison(replace(build_report(*metrics), base="0123456789ab one", head="ba9876543210 two"), 70)
        assert max(map(display_width, text.splitlines())) <= 70
        assert "+20.0%" in text
        assert "[" not in text
        assert "(no room here for interval: widen the terminal, or --json)" in text
    few = replace(metric, finding=replace(metric.finding, interval=None))
    assert "+20.0%  not significant" in render_comparison(build_report(few))


def test_each_set_up_has_a_table_of_its_own_that_fits() -> None:
    report = build_report(*(replace(compared(), setup=f"accelerator_model {name}") for name in ("V100", "T4")))
    text = render_comparison(report, 80)
    assert text.count("environment: accelerator_model ") == 2
    assert text.count("+20.0%  [+18.0%, +22.0%]") == 2
    assert "…" not in text
    names = [name for _, name, _ in build_comparison_cases(report)]
    assert names == ["wall_time (accelerator_model V100)", "wall_time (accelerator_model T4)"]
    assert "environment:" not in render_comparison(build_report(compared()), 80)


# ---------------------------------------------------------------- environments

ROWS: Any = [
    (("8.9.2", "old"), 3, {"wall_time": (1.0, 1.1, 1.2), "loss": ()}, {"wall_time": (), "loss": ()}),
    (("9.1.0", "new"), 1, {"wall_time": (0.9,), "loss": (0.5,)}, {"wall_time": (), "loss": ()}),
]
BY, METRICS = ("cudnn", "label"), ("wall_time", "loss")


def table(by: tuple[str, ...], metrics: tuple[str, ...], rows: Any) -> EnvironmentTable:
    disturbed = tuple(name for name in metrics if any(aside[name] for *_, aside in rows))
    return EnvironmentTable(by, metrics, tuple(TableRow(*row) for row in rows), disturbed=disturbed)


def test_set_ups_for_people_and_machines() -> None:
    found = table(BY, METRICS, ROWS)
    lines = render_setups(found, "text").splitlines()
    assert lines[0].split() == ["cudnn", "label", "n", "wall_time", "loss"]
    assert lines[2].split() == ["8.9.2", "old", "3", "1.1", "s", "±4.5%", "-"]
    text = render_setups(found, "text", 30)
    assert "loss" not in text.splitlines()[0]
    assert "(no room here for loss: choose" in text, "named, and not cut"
    assert "±4.5%" in text
    assert "wall_time" in render_setups(found, "text", 5).splitlines()[0]  # one is always shown
    rows = json.loads(render_setups(found, "json"))
    assert rows[0]["wall_time.median"] == pytest.approx(1.1)
    assert (rows[0]["wall_time.low"], rows[0]["wall_time.high"]) == pytest.approx((1.05, 1.15))
    assert rows[0]["loss.median"] is None
    assert rows[1]["wall_time.low"] == rows[1]["wall_time.high"] == 0.9
    head, first, _ = render_setups(found, "csv").splitlines()
    assert head.startswith("cudnn,label,n,wall_time.median,")
    assert first.startswith("8.9.2,old,3,1.1,")
    assert render_setups(found, "md").startswith("| cudnn | label | n |")
    values = {"calls": (7,), "flops": (1e308,)}
    (row,) = json.loads(render_setups(table(("label",), ("calls", "flops"), [(("old",), 1, values, values)]), "json"))
    assert [str(row[f"{name}.low"]) for name in values] == ["7", "1e+308"], "a single value is as it was reported"


LONG = "company.benchmarks.vision.transformers.large_models.TransformerBenchmark.training_step"


def name_rows(*names: str) -> Any:
    values = {"wall_time": (1.0, 1.1, 1.2), "throughput": (62081446542.0,), "loss": (0.5,)}
    return [((name, "nightly"), 3, values, dict.fromkeys(values, ())) for name in names]


@pytest.mark.parametrize("width", [60, 120])
def test_long_names_are_cut_from_the_left_in_a_terminal_alone(width: int) -> None:
    by, metrics = ("benchmark", "label"), ("wall_time", "throughput", "loss")
    found = table(by, metrics, name_rows(LONG + "_a", LONG + "_b"))
    lines = render_setups(found, "text", width).splitlines()
    assert max(map(display_width, lines)) <= width
    for line, end in zip(lines[2:4], ("_a", "_b"), strict=True):
        assert line.startswith("…")
        assert line.split()[0].endswith(f"training_step{end}")
        assert "1.1 s ±4.5%" in line
    for form in ("text", "csv", "json", "md"):
        assert LONG + "_a" in render_setups(found, form).replace("\\", ""), "never in a pipe"
    assert "62081446542" in render_setups(found, "json", width), "machines get every digit"
    text = render_setups(table(by, ("wall_time",), name_rows("a." + LONG, "b." + LONG)), "text", width)
    first, second = (line.split()[0] for line in text.splitlines()[2:4])
    assert first != second, "names that differ at their beginning stay different"
    assert max(map(display_width, text.splitlines())) <= width


BUSY: Any = [
    (("some",), 5, {"wall_time": (1.0, 1.1, 1.2)}, {"wall_time": (3.0, 4.0)}),
    (("none",), 3, {"wall_time": ()}, {"wall_time": (2.0, 2.1, 2.2)}),
]


def test_what_does_not_count_is_shown_and_counted() -> None:
    lines = render_setups(table(("label",), ("wall_time",), BUSY), "text").splitlines()
    assert lines[2].split()[1:] == ["5", "1.1", "s", "±4.5%", "(3", "of", "5)"]
    assert lines[3].split()[1:] == ["3", "(2.1", "s", "±2.4%)"]
    rows = json.loads(render_setups(table(("label",), ("wall_time",), BUSY), "json"))
    assert [(row["n"], row["wall_time.left_out"]) for row in rows] == [(5, 2), (3, 3)]
    assert rows[1]["wall_time.median"] is None
    assert build_setup_table(table(("label",), ("wall_time",), BUSY)).rows[1][2].role == "soft"


def test_where_there_is_no_room_empty_columns_leave_first() -> None:
    values = {"wall_time": (1.0, 1.1), "throughput": (5.0, 6.0)}
    rows = [(("before", "-", "-"), 3, values, dict.fromkeys(values, ()))]
    text = render_setups(table(("label", "cudnn", "framework"), ("wall_time", "throughput"), rows), "text", width=44)
    assert "throughput" in text.splitlines()[0]
    assert "cudnn" not in text
    assert "no room" not in text


# ---------------------------------------------------------------- searches


SUSPECTS = tuple(Commit(sha * 40, "rewrite the loop", "somebody", "2024-05-01T10:00:00+00:00") for sha in "ab")
ANSWERS = (CommitAnswer("a" * 40, "bad", "worse"), CommitAnswer("b" * 40, "skip", "does not build"))


def search(**fields: Any) -> BenchBisect:
    return BenchBisect("m.C.f", "wall_time", *SUSPECTS, "/tmp/log.jsonl", 5, ANSWERS, **fields)


def test_the_culprit_with_its_evidence() -> None:
    text = render_bisect(search(culprit=SUSPECTS[0], suspects=SUSPECTS[:1], evidence=compared()))
    assert text.splitlines() == [
        "culprit: aaaaaaaaaaaa 'rewrite the loop'",
        "  by somebody, 2024-05-01T10:00:00+00:00",
        "  m.C.f wall_time: +20.00%, p 0.001: worse",
        "  one: 10 s ±0.0%",
        "  two: 12 s ±0.0%",
        "2 of 5 commits tried, 2 answers; log: /tmp/log.jsonl",
    ]
    assert "\x1b[" in render_bisect(search(culprit=SUSPECTS[0], suspects=SUSPECTS[:1]), color=True)


def test_suspects_with_all_answers_and_a_search_that_is_stuck() -> None:
    text = render_bisect(search(suspects=SUSPECTS))
    assert text.startswith("one of these, and the trials do not show which:\n  aaaaaaaaaaaa 'rewrite the loop'\n")
    assert "bbbbbbbbbbbb skip: does not build\n" in text
    text = render_bisect(search(stuck="both are good", resumed=2), width=100)
    assert text.startswith("not found: both are good\n")
    assert "--fresh asks again" in text
    assert "2 of them by an earlier call" in text
    assert "--fresh" not in render_bisect(search(stuck="both are good"))

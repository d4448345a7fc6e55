"""Histories, comparisons, environments and searches as people read them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

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
    ComparisonReport,
    LevelStep,
    MetricChange,
    MetricComparison,
    MetricHistory,
    MetricPoint,
    MetricSeries,
    Side,
)
from assay.show.formatting import display_width
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, Verdict, VerdictKind


def render_history(history: MetricHistory, **look: Any) -> str:
    return render_terminal(build_history_document("", [history]), **look)


def render_comparison(report: ComparisonReport, **look: Any) -> str:
    return render_terminal(build_comparison_document(report), **look)


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
    lines = render_history(build_history(left_out={"failed": 3}), color=False, width=None).splitlines()
    assert lines[0] == "FAIL m.C.f wall_time (lower is better): 4 executions"
    assert lines[1] == "  label nightly; cpu_model X, cudnn 9"
    assert lines[2].strip() == "▁▁██"
    assert lines[3] == "    levels: 10 s → 12 s"
    assert lines[4].startswith("  FAIL +20.0% [+18.0%, +22.0%] 2001-09-09 ")
    assert lines[4].endswith(" e2: commits a..b; code: the same environment")
    assert lines[5] == "  3 executions left out: failed"
    told = render_history(build_history(left_out={"profiled": 2, "interrupted": 1}), color=False, width=None)
    assert told.endswith(
        "  2 executions left out: profiled (include them with --all)\n  1 execution left out: interrupted\n"
    )
    assert "  1 execution left out: failed\n" in render_history(
        build_history(left_out={"failed": 1}), color=False, width=None
    )


def test_disturbed_executions_are_drawn_grey_below_their_place() -> None:
    history = build_history()
    points = tuple(replace(point, at=float(n)) for n, point in enumerate(history.series[0].points))
    series = replace(history.series[0], points=points)
    disturbed = tuple(MetricPoint(f"d{n}", 11.0, n + 0.5) for n in (0, 2))
    other = replace(series, label="other", points=disturbed, changes=())
    command = "assay bench history cpu_time m.C.f"
    history = replace(
        history, series=(series,), aside=(replace(series, points=disturbed, changes=()), other), instead=command
    )
    lines = render_history(history, color=False, width=None).splitlines()
    assert [line.strip() for line in lines[2:5]] == ["▁·▁█·█", "·▅··▅·  disturbed", "levels: 10 s → 12 s"]
    assert [line.strip() for line in lines[5:7]] == ["label other; cpu_model X, cudnn 9", "▁▁  disturbed"]
    assert lines[-1] == f"  cpu_time was not disturbed: `{command}`"
    assert "\x1b[2m·▅··▅·  disturbed" in render_history(history, color=True, width=None)


def test_many_executions_are_drawn_in_groups() -> None:
    history = build_history()
    points = tuple(MetricPoint(f"e{n}", 10.0, float(n)) for n in range(100))
    disturbed = tuple(MetricPoint(f"d{n}", 20.0, 100.0 + n) for n in range(20))
    series = replace(history.series[0], points=points, changes=())
    history = replace(history, series=(series,), aside=(replace(series, points=disturbed),))
    lines = render_history(history, color=False, width=None).splitlines()
    assert [line.strip() for line in lines[2:4]] == ["▁" * 50 + "·" * 10, "·" * 50 + "█" * 10 + "  disturbed"]


@pytest.mark.parametrize(("is_worse", "word"), [(True, "worse"), (False, "better")])
def test_a_change_without_an_alarm_is_called_what_it_is(is_worse: bool, word: str) -> None:
    history = build_history(VerdictKind.PASS)
    series = replace(history.series[0], changes=(replace(history.series[0].changes[0], is_worse=is_worse),))
    assert f"  {word} +20.0%" in render_history(replace(history, series=(series,)), color=False, width=None)


def test_nothing_changed_is_reported() -> None:
    calm = replace(build_history(), series=(replace(build_history().series[0], changes=()),), verdict=Verdict.of([], 4))
    assert "  no change\n" in render_history(calm, color=False, width=None)


def test_what_else_keeps_it_from_passing_is_reported() -> None:
    short = Finding(VerdictKind.INCONCLUSIVE, "m.C.f wall_time", "4 comparable executions tell nothing yet")
    history = build_history()
    history = replace(history, verdict=Verdict.of([*history.verdict.findings, short], 4))
    assert "  INCONCLUSIVE 4 comparable executions tell nothing yet\n" in render_history(
        history, color=False, width=None
    )


@pytest.mark.parametrize("width", [40, 80])
def test_lines_end_between_words_colored_or_not(width: int) -> None:
    plain = render_history(build_history(), color=False, width=width)
    assert max(map(display_width, plain.splitlines())) <= width
    colored = render_history(build_history(), color=True, width=width)
    assert "\x1b[" in colored
    assert len(colored.splitlines()) == len(plain.splitlines())  # colours take no room


def test_control_characters_of_a_message_are_shown_and_not_sent() -> None:
    history = build_history()
    bad = finding(VerdictKind.FAIL, "x; \x1b[31mred")
    assert "\x1b" not in render_history(replace(history, verdict=Verdict.of([bad], 4)), color=False, width=None)


def test_many_points_are_drawn_in_groups() -> None:
    history = build_history()
    points = tuple(MetricPoint(f"e{n}", 1.0 + n) for n in range(1000))
    long = replace(history, series=(replace(history.series[0], points=points, changes=()),), verdict=Verdict.of([], 9))
    bars = render_history(long, color=False, width=None).splitlines()[2].strip()
    assert len(bars) <= 60
    assert (bars[0], bars[-1]) == ("▁", "█")


def test_cases_of_histories() -> None:
    history = build_history()
    assert build_history_cases([history]) == [("m.C.f", "wall_time", history.verdict)]


# ---------------------------------------------------------------- comparisons


def compared(
    method: str = "m.C.f", metric: str = "wall_time", kind: VerdictKind = VerdictKind.FAIL
) -> MetricComparison:
    found = Finding(
        kind, f"{method} {metric}", "+20.00%, p 0.001: worse", 12.0, 10.0, effect=0.2, interval=(0.18, 0.22)
    )
    return MetricComparison(method, metric, Side("one", (10.0,) * 3), Side("two", (12.0,) * 3), found)


def build_report(*metrics: MetricComparison, further: tuple[Finding, ...] = (), **fields: Any) -> ComparisonReport:
    verdict = Verdict.of([*further, *(metric.finding for metric in metrics)], len(metrics))
    given = {"base": "one", "head": "two", **fields}
    return ComparisonReport(metrics=metrics, verdict=verdict, **given)


def test_a_comparison_is_a_row_for_each_metric_and_a_line_for_each_trouble() -> None:
    report = build_report(compared(), compared(metric="throughput", kind=VerdictKind.PASS), notes=("mind the gap",))
    lines = render_comparison(report, color=False, width=None).splitlines()
    assert lines[0] == "m.C.f"
    assert lines[1].split() == ["verdict", "metric", "one", "two", "change"]
    assert lines[3].split(maxsplit=2)[:2] == ["FAIL", "wall_time"]
    assert lines[3].endswith("+20.0% [+18.0%, +22.0%]")
    assert lines[4].startswith("PASS     throughput")
    assert lines[5] == "FAIL m.C.f wall_time: +20.00%, p 0.001: worse"
    assert lines[6:] == ["mind the gap", "FAIL: 2 metrics compared"]


def test_several_benchmarks_have_a_column_of_their_own() -> None:
    text = render_comparison(build_report(compared(), compared("m.C.g")), color=False, width=None)
    assert text.splitlines()[0].split() == ["verdict", "benchmark", "metric", "one", "two", "change"]


def test_commits_are_reported_with_their_subjects_and_stand_in_columns_by_their_hash() -> None:
    report = build_report(
        compared(), base="0123456789ab first try", head="ba9876543210 a very long subject " + "x" * 80
    )
    lines = render_comparison(report, color=False, width=None).splitlines()
    assert lines[0] == "base: 0123456789ab first try"
    assert "0123456789ab  ba9876543210" in lines[3]
    same = build_report(compared(), base="0123456789ab first", head="0123456789ab first")
    assert " base " in render_comparison(same, color=False, width=None).splitlines()[3]


def test_a_side_that_failed_is_reported_also_when_nothing_could_be_compared() -> None:
    error = Finding(VerdictKind.ERROR, "m.C.f", "two does not have it")
    text = render_comparison(build_report(further=(error,)), color=False, width=60)
    assert text == "ERROR m.C.f: two does not have it\nERROR: 0 metrics compared\n"


def test_cases_of_a_comparison_have_everything() -> None:
    error = Finding(VerdictKind.ERROR, "m.C.g", "two does not have it")
    cases = build_comparison_cases(build_report(compared(), further=(error,)))
    assert [(group, name, verdict.kind) for group, name, verdict in cases] == [
        ("m.C.f", "wall_time", VerdictKind.FAIL),
        ("m.C.g", "execution", VerdictKind.ERROR),
    ]


LONG_METHODS = tuple(f"company.benchmarks.vision.TransformerBenchmark.training_step_{end}" for end in "ab")


def test_a_comparison_of_long_names_has_whole_figures_in_80_columns() -> None:
    report = build_report(*(replace(compared(), method=method) for method in LONG_METHODS))
    text = render_comparison(report, color=False, width=80)
    assert max(map(display_width, text.splitlines())) <= 80
    assert text.count("+20.0% [+18.0%, +22.0%]") == 2
    assert [line for line in text.splitlines() if line in LONG_METHODS] == list(LONG_METHODS), "a table for each"
    narrow = render_comparison(replace(report, verdict=Verdict.of([], 2)), color=False, width=60).splitlines()
    assert [line[-15:] for line in narrow if line.startswith("…")] == ["training_step_a", "training_step_b"]
    assert max(display_width(line) for line in narrow if line.startswith("…")) <= 60


def test_a_comparison_of_long_names_is_one_table_where_they_can_be_read() -> None:
    report = build_report(*(replace(compared(), method=method) for method in LONG_METHODS))
    lines = render_comparison(report, color=False, width=110).splitlines()
    assert [line.split()[1].startswith("…") for line in lines[2:4]] == [True, True]
    assert [line.split()[1][-15:] for line in lines[2:4]] == ["training_step_a", "training_step_b"]
    assert max(map(display_width, lines[:4])) <= 110
    piped = render_comparison(report, color=False, width=None)
    assert all(f" {method} " in piped for method in LONG_METHODS)


def test_each_set_up_has_a_table_of_its_own_that_fits() -> None:
    metrics = [replace(compared(), setup=f"accelerator_model {name}") for name in ("V100", "T4")]
    report = build_report(*metrics)
    text = render_comparison(report, color=False, width=80)
    assert text.count("environment: accelerator_model ") == 2
    assert text.count("+20.0% [+18.0%, +22.0%]") == 2
    assert "…" not in text
    assert [name for _, name, _ in build_comparison_cases(report)] == [
        "wall_time (accelerator_model V100)",
        "wall_time (accelerator_model T4)",
    ]
    assert "environment:" not in render_comparison(build_report(compared()), color=False, width=80)


# ---------------------------------------------------------------- environments

ROWS: Any = [
    (("8.9.2", "old"), 3, {"wall_time": (1.0, 1.1, 1.2), "loss": ()}, {"wall_time": (), "loss": ()}),
    (("9.1.0", "new"), 1, {"wall_time": (0.9,), "loss": (0.5,)}, {"wall_time": (), "loss": ()}),
]
BY, METRICS = ("cudnn", "label"), ("wall_time", "loss")


def table(by: tuple[str, ...], metrics: tuple[str, ...], rows: Any) -> EnvironmentTable:
    disturbed = tuple(name for name in metrics if any(aside[name] for *_, aside in rows))
    return EnvironmentTable(by, metrics, tuple(TableRow(*row) for row in rows), disturbed=disturbed)


def test_set_ups_for_people() -> None:
    lines = render_setups(table(BY, METRICS, ROWS), "text").splitlines()
    assert lines[0].split() == ["cudnn", "label", "n", "wall_time", "loss"]
    assert lines[2].split() == ["8.9.2", "old", "3", "1.1", "s", "±4.5%", "-"]


def test_metrics_without_room_are_named_and_not_cut() -> None:
    text = render_setups(table(BY, METRICS, ROWS), "text", 30)
    assert "loss" not in text.splitlines()[0]
    assert "(no room for loss: choose" in text
    assert "±4.5%" in text
    assert "wall_time" in render_setups(table(BY, METRICS, ROWS), "text", 5).splitlines()[0]  # one is always shown


LONG = "company.benchmarks.vision.transformers.large_models.TransformerBenchmark.training_step"


def name_rows(*names: str) -> Any:
    values = {"wall_time": (1.0, 1.1, 1.2), "throughput": (62081446542.0,), "loss": (0.5,)}
    return [((name, "nightly"), 3, values, dict.fromkeys(values, ())) for name in names]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_names_are_cut_from_the_left_in_a_terminal_alone(width: int) -> None:
    by, metrics, rows = ("benchmark", "label"), ("wall_time", "throughput", "loss"), name_rows(LONG + "_a", LONG + "_b")
    lines = render_setups(table(by, metrics, rows), "text", width).splitlines()
    assert max(map(display_width, lines)) <= width
    for line, end in zip(lines[2:4], ("_a", "_b"), strict=True):
        assert line.startswith("…")
        assert line.split()[0].endswith(f"training_step{end}")
        assert "1.1 s ±4.5%" in line
    for form in ("text", "csv", "json", "md"):
        assert LONG + "_a" in render_setups(table(by, metrics, rows), form).replace("\\", ""), "never in a pipe"
    assert "62081446542" in render_setups(table(by, metrics, rows), "json", width), "machines get every digit"


def test_names_that_differ_at_their_beginning_stay_different() -> None:
    text = render_setups(table(("benchmark", "label"), ("wall_time",), name_rows("a." + LONG, "b." + LONG)), "text", 80)
    first, second = (line.split()[0] for line in text.splitlines()[2:4])
    assert first != second
    assert max(map(display_width, text.splitlines())) <= 80


def test_set_ups_for_machines() -> None:
    rows = json.loads(render_setups(table(BY, METRICS, ROWS), "json"))
    assert rows[0]["wall_time.median"] == pytest.approx(1.1)
    assert (rows[0]["wall_time.low"], rows[0]["wall_time.high"]) == pytest.approx((1.05, 1.15))
    assert rows[0]["loss.median"] is None
    assert rows[1]["wall_time.low"] == rows[1]["wall_time.high"] == 0.9
    head, first, _ = render_setups(table(BY, METRICS, ROWS), "csv").splitlines()
    assert head.startswith("cudnn,label,n,wall_time.median,")
    assert first.startswith("8.9.2,old,3,1.1,")
    assert render_setups(table(BY, METRICS, ROWS), "md").startswith("| cudnn | label | n |")


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


# ---------------------------------------------------------------- searches


@dataclass
class Commit:
    sha: str
    subject: str = "rewrite the loop"
    author: str = "somebody"
    authored_at: str = "2024-05-01T10:00:00+00:00"

    @property
    def short(self) -> str:
        return self.sha[:12]


@dataclass
class Answer:
    commit: str
    outcome: str
    message: str


@dataclass
class Bisect:
    culprit: Commit | None = None
    suspects: tuple[Commit, ...] = ()
    evidence: MetricComparison | None = None
    stuck: str | None = None
    answers: tuple[Answer, ...] = (Answer("a" * 40, "bad", "worse"), Answer("b" * 40, "skip", "does not build"))
    resumed: int = 0
    commits: int = 5
    log: str = "/tmp/log.jsonl"
    interrupted: str | None = None


def test_the_culprit_with_its_evidence() -> None:
    text = render_bisect(Bisect(Commit("a" * 40), (Commit("a" * 40),), compared()))
    assert text.splitlines() == [
        "culprit: aaaaaaaaaaaa 'rewrite the loop'",
        "  by somebody, 2024-05-01T10:00:00+00:00",
        "  m.C.f wall_time: +20.00%, p 0.001: worse",
        "  one: 10 s ±0.0%",
        "  two: 12 s ±0.0%",
        "2 of 5 commits tried, 2 answers; log: /tmp/log.jsonl",
    ]
    assert "\x1b[" in render_bisect(Bisect(Commit("a" * 40), (Commit("a" * 40),)), color=True)


def test_suspects_with_all_answers() -> None:
    text = render_bisect(Bisect(suspects=(Commit("a" * 40), Commit("b" * 40))))
    assert text.startswith("one of these, and the trials do not show which:\n  aaaaaaaaaaaa 'rewrite the loop'\n")
    assert "bbbbbbbbbbbb skip: does not build\n" in text


def test_a_search_that_is_stuck_says_why_and_what_to_do() -> None:
    text = render_bisect(Bisect(stuck="both are good", resumed=2), width=100)
    assert text.startswith("not found: both are good\n")
    assert "--fresh asks again" in text
    assert "2 of them by an earlier call" in text
    assert "--fresh" not in render_bisect(Bisect(stuck="both are good"))


def test_where_there_is_no_room_empty_columns_leave_first() -> None:
    by = ("label", "cudnn", "framework")
    values = {"wall_time": (1.0, 1.1), "throughput": (5.0, 6.0)}
    rows = [(("before", "-", "-"), 3, values, dict.fromkeys(values, ()))]
    text = render_setups(table(by, ("wall_time", "throughput"), rows), "text", width=44)
    assert "throughput" in text.splitlines()[0]
    assert "cudnn" not in text
    assert "no room" not in text

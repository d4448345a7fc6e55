from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.show import formatting
from assay.show.table import (
    build_keys,
    build_texts,
    fit_columns,
    render_csv,
    render_json,
    render_markdown,
    render_table,
)
from assay.values.table import Column, Table

SWEEP = Table(
    (
        Column("run"),
        Column("lr", "number", digits=None),
        Column("solver"),
        Column("acc", "number"),
        Column("epoch", "number"),
        Column("epoch_time", "clock"),
    ),
    [
        ("run4", 0.02, "adam", 99.1, 10, 311.0),
        ("run3", 0.02, "sgd", 99.0, 10, 305.0),
        ("run1", 0.01, "sgd", 98.2, 10, 315.0),
        ("run2", 0.01, "adam", 98.1, 10, 312.0),
    ],
)


def numbers(*values, digits=4):
    return build_texts(Column("x", "number", digits=digits), values)


def test_terminal_table_puts_numbers_on_the_right():
    assert render_table(SWEEP, plain=True) == (
        "run     lr  solver   acc  epoch  epoch_time\n"
        "----  ----  ------  ----  -----  ----------\n"
        "run4  0.02  adam    99.1     10        5:11\n"
        "run3  0.02  sgd     99.0     10        5:05\n"
        "run1  0.01  sgd     98.2     10        5:15\n"
        "run2  0.01  adam    98.1     10        5:12\n"
    )


def test_a_metric_column_has_even_decimals():
    assert numbers(0.9, 0.87654321, 0.5) == ["0.9000", "0.8765", "0.5000"]


def test_a_wide_range_aligns_points_without_false_precision():
    assert numbers(123.456, 0.0012345) == ["123.5" + " " * 5, "0.001234"]
    texts = numbers(1234.5, 0.001234, 12.0)
    assert [text.strip() for text in texts] == ["1234", "0.001234", "12.00"]
    widest = max(map(len, texts))
    places = {text.rjust(widest).find(".") for text in texts if "." in text}
    assert len(places) == 1


def test_parameters_are_shown_as_they_are():
    assert numbers(0.1234567, 0.1, digits=None) == ["0.1234567", "0.1      "]
    assert numbers(1e-05, 0.1, digits=None) == ["1e-5", "0.1"]
    assert numbers(1, 0.5, digits=None) == ["1  ", "0.5"]


def test_gaps_and_words_among_numbers():
    assert numbers(0.5, None, "auto", True, 0.25) == ["0.50", "-", "auto", "true", "0.25"]
    assert numbers(3, None, 12) == ["3", "-", "12"]
    assert numbers(None, None) == ["-", "-"]
    assert numbers() == []


def test_nan_and_infinity_are_shown():
    texts = [text.strip() for text in numbers(0.5, math.nan, math.inf, -math.inf)]
    assert texts == ["0.5", "nan", "inf", "-inf"]
    assert numbers(math.nan) == ["nan"]


def test_large_and_tiny_numbers():
    assert [text.strip() for text in numbers(1234567.0, 0.5)] == ["1234567", "0.5"]
    assert numbers(1.5e-9, 0.1) == ["1.5e-9", "0.1"]


@given(st.lists(st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1))
def test_no_number_is_cut_or_misrepresented(values):
    for value, text in zip(values, numbers(*values), strict=True):
        shown = float(text)
        if math.isnan(value):
            assert math.isnan(shown)
        else:
            assert shown == value or math.isclose(shown, value, rel_tol=6e-4)


@given(st.lists(st.floats(1e-3, 1e6), min_size=2))
def test_points_are_aligned(values):
    texts = numbers(*values)
    widest = max(map(len, texts))
    assert len({text.rjust(widest).find(".") for text in texts if "." in text}) <= 1


def test_other_kinds():
    assert build_texts(Column("t", "duration"), [7380, None]) == ["2h 3m", "-"]
    assert build_texts(Column("m", "size"), [1536]) == ["1.5 KiB"]
    assert build_texts(Column("a", "age"), [150]) == ["2 min ago"]
    assert build_texts(Column("p"), [[1, "a"], {"k": 1}, False, 0.10, "x"]) == [
        '[1, "a"]',
        '{"k": 1}',
        "false",
        "0.1",
        "x",
    ]


def test_hostile_text_stays_on_its_line():
    table = Table((Column("run"), Column("n", "number")), [("a\nb\x1b[2J", 1), ("\udcff", 2)])
    lines = render_table(table).splitlines()
    assert len(lines) == 4
    assert r"a\nb\x1b[2J" in lines[2]
    render_table(table).encode("utf-8")


def test_wide_characters_keep_the_columns_straight():
    table = Table((Column("run"), Column("n", "number")), [("数据", 1), ("abcdef", 22)])
    lines = render_table(table).splitlines()
    assert {formatting.display_width(line) for line in lines} == {formatting.display_width(lines[0])}


def test_narrow_terminals_shorten_text_and_never_numbers():
    rows = [(f"norm_batch-lr_0.{i}-early-stop_T-seed_{i}", "adam", 0.123456 + i, i) for i in range(5)]
    table = Table(
        (Column("run"), Column("solver"), Column("validation_accuracy", "number"), Column("e", "number")), rows
    )
    lines = render_table(table, width=40).splitlines()
    assert max(map(formatting.display_width, lines)) <= 40
    assert "…" in lines[2]
    assert [line.split()[-2] for line in lines[2:]] == [f"{0.123456 + i:.4f}" for i in range(5)]


def test_a_table_that_fits_is_not_touched():
    assert render_table(SWEEP, width=200) == render_table(SWEEP)


def test_numbers_overflow_rather_than_being_cut():
    table = Table(tuple(Column(f"c{i}", "number") for i in range(6)), [tuple(123456 + i for i in range(6))])
    assert "123456  123457" in render_table(table, width=10)


def test_an_empty_table_has_a_head():
    assert render_table(Table((Column("run"), Column("n", "number")), []), plain=True) == "run  n\n---  -\n"


def test_rows_of_a_wrong_length_are_refused():
    with pytest.raises(ValueError, match="zip"):
        render_table(Table((Column("a"), Column("b")), [(1, 2), (3,)]))


def test_csv_keeps_values_exactly():
    table = Table(
        (Column("run"), Column("loss", "number"), Column("time", "clock"), Column("p")),
        [('a,"b"\nc', 0.1234567890123, 311.5, None), ("d", math.nan, None, [1, 2])],
    )
    rows = list(csv.reader(io.StringIO(render_csv(table))))
    assert rows == [
        ["run", "loss", "time", "p"],
        ['a,"b"\nc', "0.1234567890123", "311.5", ""],
        ["d", "nan", "", "[1, 2]"],
    ]


def test_markdown_escapes_what_would_break_it():
    table = Table((Column("run_name"), Column("n", "number")), [("a|b*c", 1.5), ("d", None)])
    assert render_markdown(table) == "| run\\_name | n |\n| --- | ---: |\n| a\\|b\\*c | 1.5 |\n| d | - |\n"


def test_json_is_strict_and_says_nan():
    table = Table(
        (Column("run"), Column("x", "number"), Column("p")), [("a", math.nan, {"k": math.inf}), ("b", -math.inf, (1,))]
    )
    rows = json.loads(render_json(table), parse_constant=pytest.fail)
    assert rows == [{"run": "a", "x": "NaN", "p": {"k": "Infinity"}}, {"run": "b", "x": "-Infinity", "p": [1]}]


def test_json_keys_never_collide():
    columns = (Column("loss"), Column("loss"), Column("best", key="loss"), Column("x", key="y"))
    assert build_keys(columns) == ["loss", "loss_2", "loss_3", "y"]


def shown_names(names, width, **more):
    table = Table((Column("run"), Column("loss", "number")), [(name, 0.1234) for name in names])
    return [line.split("  ")[0].strip() for line in render_table(table, width=width, **more).splitlines()[2:]]


def test_parts_that_all_names_share_go_first():
    names = [f"learning_rate={lr},normalization=batchnorm,seed={s}" for lr in (0.0001, 0.0002) for s in (1, 2)]
    assert shown_names(names, 45) == [
        "learning_rate=0.0001,…,seed=1", "learning_rate=0.0001,…,seed=2",
        "learning_rate=0.0002,…,seed=1", "learning_rate=0.0002,…,seed=2",
    ]  # fmt: skip
    assert shown_names(names, 45, plain=True)[0] == "learning_rate=0.0001,~,seed=1"
    assert shown_names(names, 100) == names


def test_the_date_of_runx_names_goes_and_the_words_stay():
    names = [
        f"{tag}{formatting}_2026.11.15_09.05" for tag, formatting in (("a_b_", "brave-otter"), ("", "calm-jaguarundi"))
    ]
    assert shown_names(names, 30) == ["a_b_brave-otter…", "calm-jaguarundi…"]
    assert shown_names(names, 60) == names


@given(st.lists(st.text(alphabet="ab,_-=…", min_size=1, max_size=40), min_size=1, unique=True), st.integers(5, 50))
def test_different_names_stay_different(names, width):
    table = Table((Column("run"), Column("loss", "number")), [(name, 0.1234) for name in names])
    assert len(set(render_table(table, width=width).splitlines()[2:])) == len(names)


def test_columns_leave_by_rank_before_the_others_are_cut():
    columns = (
        Column("run"), Column("acc", "number"), Column("validation_loss", "number", rank=2),
        Column("± sd", "number", rank=2), Column("time_per_step", "number", rank=4),
    )  # fmt: skip
    table = Table(columns, [("a" * 30, 0.5, 0.25, 0.1, 3.0), ("b" * 30, 0.5, 0.25, 0.1, 3.0)])
    assert fit_columns(table, 100) == (table, ())
    for width, left in ((71, 4), (56, 2), (10, 2)):
        fitted, dropped = fit_columns(table, width)
        assert (fitted.columns, dropped) == (columns[:left], columns[left:])
        assert {len(row) for row in fitted.rows} == {left}


def cut_table(*names: str) -> Table:
    columns = (Column("benchmark", cut="left"), Column("n", "number"), Column("time", "text", "right", cut="never"))
    return Table(columns, [[name, 3, "1.234 ms ±5.6% of forty-two trials"] for name in names])


def test_dotted_names_are_cut_from_the_left_and_figures_never():
    text = render_table(cut_table("suite.vision.Transformer.step_a", "suite.vision.Transformer.step_b"), width=60)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 60
    assert [line.split()[0] for line in lines[2:]] == ["…n.Transformer.step_a", "…n.Transformer.step_b"]
    assert text.count("1.234 ms ±5.6% of forty-two trials") == 2


def test_figures_stay_whole_where_they_are_the_widest():
    text = render_table(cut_table("suite.step_a", "suite.step_b"), width=50)
    assert text.count("1.234 ms ±5.6% of forty-two trials") == 2
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["…ite.step_a", "…ite.step_b"]


def test_names_that_a_cut_from_the_left_would_make_the_same_are_cut_elsewhere():
    text = render_table(cut_table("a.vision.Transformer.step", "b.vision.Transformer.step"), width=56)
    first, second = (line.split()[0] for line in text.splitlines()[2:])
    assert (first[0], second[0]) == ("a", "b")
    assert "…" in first


def test_nothing_is_cut_where_there_is_room():
    name = "suite.vision.Transformer.step_a"
    assert name in render_table(cut_table(name, "b"), width=90)
    assert name in render_table(cut_table(name, "b"))


def test_states_and_the_best_value_among_done_runs_are_coloured_when_asked() -> None:
    columns = (
        Column("run", role="run"),
        Column("state", "state"),
        Column("loss", "number", role="last", metric="loss"),
        Column("best acc", "number", role="best", metric="acc"),
        Column("lr", "number", role="parameter"),
        Column("thing", "number", role="last", metric="thing"),
    )
    rows = [["a", "done", 0.5, 0.7, 1, 1], ["b", "done", 0.3, 0.8, 2, 2], ["c", "failed", 0.1, 0.9, 3, 3]]
    colored, plain = render_table(Table(columns, rows), color=True), render_table(Table(columns, rows))
    a, b, c = colored.splitlines()[2:]
    green = "\x1b[1m\x1b[32m"
    assert (a.count(green), b.count(green), c.count(green)) == (0, 2, 0)
    assert f"{green} 0.3\x1b[0m" in b
    assert "\x1b[31mfailed\x1b[0m" in c
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain
    assert green not in render_table(Table(columns, rows[:1]), color=True)  # one run is not the best of any

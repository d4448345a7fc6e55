from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import UsageError
from assay.show import chart as charts
from assay.show import formatting
from assay.show.plot import render_plot

NAN = math.nan
RISING = charts.Line("rising", [0, 50, 100], [0.0, 5.0, 10.0])
FALLING = charts.Line("falling", [0, 50, 100], [10.0, 5.0, 0.0])


def columns_with_dots(text):
    """The places that hold a braille character, over all rows."""
    return {index for line in text.splitlines() for index, char in enumerate(line) if 0x2800 < ord(char) <= 0x28FF}


def test_a_rising_line_goes_from_bottom_left_to_top_right():
    rows = [
        line
        for line in render_plot(charts.LineChart((RISING,)), width=50, height=12, plain=True).splitlines()
        if "|" in line or "+" in line
    ]
    first = next(row for row in rows if "a" in row)
    body = [row.rindex("a") for row in rows if "a" in row]
    assert first.rstrip().endswith("a")
    assert body == sorted(body, reverse=True)


def test_ascii_fallback_is_ascii():
    chart = charts.LineChart((*charts.build_bands([("g", [RISING, FALLING])]), RISING), title="loss")
    render_plot(chart, plain=True).encode("ascii")


def test_size_is_respected():
    for width, height in ((40, 10), (80, 20), (140, 40)):
        lines = render_plot(charts.LineChart((RISING, FALLING), title="t"), width=width, height=height).splitlines()
        assert max(map(formatting.display_width, lines)) <= width
        assert len(lines) <= height + 2  # the legend comes on top


def test_axes_title_and_legend():
    text = render_plot(charts.LineChart((RISING, FALLING), title="study · loss", x_name="epoch"))
    assert text.startswith("study · loss\n")
    assert "epoch" in text
    assert "a rising  10" in text
    assert "b falling  0" in text
    assert "10 ┤" in text
    assert " 0 ┤" in text


def test_lines_are_labelled_where_they_end():
    rows = render_plot(charts.LineChart((RISING, FALLING)), width=60, height=14).splitlines()
    ends = [row[-1] for row in rows if row.endswith((" a", " b"))]
    assert ends == ["a", "b"]


def ends(text):
    """Row of the drawing → the marks behind its right edge."""
    lines = text.splitlines()
    axis = next(index for index, line in enumerate(lines) if "└" in line)
    edge = len(lines[axis])
    return {index: line[edge:].strip() for index, line in enumerate(lines[:axis]) if line[edge:].strip()}


def test_lines_that_end_together_are_named_in_their_own_row():
    equal = [charts.Line(f"equal {i}", [0, 100], [0.0, 10.0]) for i in range(4)]
    assert ends(render_plot(charts.LineChart((RISING, *equal, FALLING)), height=14)) == {0: "abcde", 10: "f"}


@given(st.lists(st.floats(0, 10), min_size=2, max_size=12))
def test_the_mark_at_the_end_is_in_the_row_of_its_line(values):
    chart = charts.LineChart(
        (*(charts.Line("x", [0, 1], [5.0, value]) for value in values), charts.Line("y", [0, 1], [0.0, 10.0]))
    )
    named = {mark: row for row, marks in ends(render_plot(chart, height=24)).items() for mark in marks}
    rows = 21
    wanted = [round((1 - value / 10) * (rows * 4 - 1)) // 4 for value in (*values, 10.0)]
    assert [named[mark] for mark in "abcdefghijklmnop"[: len(wanted)]] == wanted


def test_a_line_that_ends_early_is_named_where_it_ends():
    short = charts.Line("short", [0, 50], [9.0, 9.0])
    rows = render_plot(charts.LineChart((short, FALLING)), width=60, height=14, color=False).splitlines()
    assert re.search("[⠀-⣿]a$", rows[1])
    assert ends("\n".join(rows)) == {10: "b"}


def test_nan_is_a_gap():
    whole = charts.Line("x", list(range(9)), [1.0] * 9)
    broken = charts.Line("x", list(range(9)), [1.0, 1.0, 1.0, NAN, NAN, NAN, 1.0, 1.0, 1.0])
    full, gap = (columns_with_dots(render_plot(charts.LineChart((line,)), width=60)) for line in (whole, broken))
    assert len(full) - len(gap) > 15
    assert max(full) == max(gap)


def test_infinite_values_do_not_spoil_the_scale():
    assert "10 ┤" in render_plot(charts.LineChart((charts.Line("x", [0, 1, 2], [0.0, math.inf, 10.0]),)))


def test_log_scale_has_decades_and_leaves_out_what_has_no_logarithm():
    line = charts.Line("loss", [0, 1, 2, 3], [100.0, 1.0, 0.01, -1.0])
    text = render_plot(charts.LineChart((line,), scale="log"), height=20)
    ticks = [row.split("┤")[0].strip() for row in text.splitlines() if "┤" in row]
    assert [float(tick) for tick in ticks] == sorted((float(tick) for tick in ticks), reverse=True)
    assert {"100.00", "1.00", "0.01"} <= set(ticks)
    assert "loss  0.01" in text


def test_nothing_to_plot_is_said():
    for chart in (
        charts.LineChart(()),
        charts.LineChart((charts.Line("x", [], []),)),
        charts.LineChart((charts.Line("x", [0], [NAN]),)),
    ):
        with pytest.raises(UsageError, match="nothing to plot"):
            render_plot(chart)
    with pytest.raises(UsageError) as caught:
        render_plot(charts.LineChart((charts.Line("x", [0], [-1.0]),), scale="log"))
    assert "logarithmic" in caught.value.render()


def test_a_line_without_values_has_only_a_name():
    empty = charts.Line("empty", [0, 100], [NAN, NAN])
    text = render_plot(charts.LineChart((RISING, empty)), height=14)
    assert ends(text) == {0: "a"}
    assert re.search("b empty  +nan", text)


def test_one_point_and_constants_are_drawn():
    assert columns_with_dots(render_plot(charts.LineChart((charts.Line("x", [5], [3.0]),))))
    assert columns_with_dots(render_plot(charts.LineChart((charts.Line("x", [1, 2], [0.0, 0.0]),))))


def test_colour_changes_nothing_but_colour():
    chart = charts.LineChart((RISING, FALLING))
    assert "\x1b" not in render_plot(chart)
    assert re.sub(r"\x1b\[\d+m", "", render_plot(chart, color=True)) == render_plot(chart)


def test_long_and_hostile_labels():
    text = render_plot(
        charts.LineChart((charts.Line("x" * 300, [0, 1], [0, 1]), charts.Line("a\nb", [0, 1], [1, 0]))), width=60
    )
    assert max(map(formatting.display_width, text.splitlines())) <= 60
    assert r"a\nb" in text


def test_every_line_has_its_own_mark_in_the_legend():
    text = render_plot(charts.LineChart(tuple(charts.Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(62))))
    marks = re.findall(r"(\S) r\d+  ", text)
    assert len(marks) == len(set(marks)) == 62
    many = render_plot(charts.LineChart(tuple(charts.Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(70))))
    assert "and 8 more lines, not drawn" in many


def test_no_two_curves_share_colour_and_mark():
    text = render_plot(charts.LineChart(tuple(charts.Line(f"r{i}", [0, 1], [i, i + 1]) for i in range(40))), color=True)
    pairs = re.findall(r"(\x1b\[\d+m)(\S)\x1b\[0m r\d+  ", text)
    assert len(pairs) == len(set(pairs)) == 40


@given(
    st.lists(
        st.lists(
            st.tuples(st.floats(-1e9, 1e9), st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=8
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["linear", "log"]),
    st.booleans(),
)
def test_any_values_give_a_plot_or_a_usage_error(series, scale, plain):
    lines = tuple(charts.Line("s", [x for x, _ in points], [y for _, y in points]) for points in series)
    try:
        text = render_plot(charts.LineChart(lines, scale=scale), width=50, height=10, plain=plain)
    except UsageError:
        assert not any(1e-300 <= y <= 1e300 for line in lines for y in line.ys)
    else:
        assert max(map(formatting.display_width, text.splitlines())) <= 50 + 24  # ticks may be long numbers


@pytest.mark.parametrize(
    ("low", "high", "wanted", "ticks"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0.08, 2.71, 6, [0.5, 1.0, 1.5, 2.0, 2.5]),
        (0, 1000, 4, [0, 250, 500, 750, 1000]),
        (-1, 1, 4, [-1, -0.5, 0, 0.5, 1]),
        (3, 3, 5, [3]),
    ],
)
def test_ticks_are_round(low, high, wanted, ticks):
    assert charts.build_ticks(low, high, wanted) == ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_lie_inside_and_are_not_too_many(low, span, wanted):
    ticks = charts.build_ticks(low, low + span, wanted)
    slack = span * 1e-3
    assert len(ticks) <= wanted + 1
    assert all(low - slack <= tick <= low + span + slack for tick in ticks)


def test_log_ticks():
    assert charts.build_log_ticks(0.001, 1000, 8) == pytest.approx([0.001, 0.01, 0.1, 1, 10, 100, 1000])
    assert charts.build_log_ticks(1, 20, 5) == pytest.approx([1, 2, 5, 10, 20])
    assert len(charts.build_log_ticks(1e-30, 1e30, 5)) <= 7
    assert charts.build_log_ticks(3.1, 4.9, 5) == [3.1, 4.9]


def test_both_ends_of_a_log_axis_have_a_label():
    assert charts.build_log_ticks(0.0213, 4.57, 5) == pytest.approx([0.022, 0.1, 1, 4.5])
    assert charts.build_log_ticks(0.0998, 1.02, 5) == pytest.approx([0.1, 1])  # the ends are next to labels
    assert charts.build_log_ticks(2e-7, 3e6, 4)[0] == pytest.approx(2e-7)


def test_ticks_share_their_decimals():
    assert charts.render_ticks([0.5, 1.0, 1.5]) == ["0.5", "1.0", "1.5"]
    assert charts.render_ticks([0, 200, 400]) == ["0", "200", "400"]
    assert charts.render_ticks([1e-7, 2e-7]) == ["1e-7", "2e-7"]


def test_bands_are_mean_and_sample_deviation_over_what_is_there():
    members = [charts.Line("", [0, 1], [1.0, 2.0]), charts.Line("", [0, 1, 2], [3.0, NAN, 7.0])]
    (band,) = charts.build_bands([("g", members)])
    assert (list(band.xs), list(band.ys), band.members) == ([0, 1, 2], [2.0, 2.0, 7.0], 2)
    assert band.spread == pytest.approx([math.sqrt(2), 0.0, 0.0])
    assert "g  7 ± 0 (n=2 runs)" in render_plot(charts.LineChart((band,)))


def test_a_run_with_several_values_at_a_step_counts_once():
    members = [charts.Line("", [0, 0, 0], [9.0, 8.0, 1.0]), charts.Line("", [0], [3.0])]
    (band,) = charts.build_bands([("g", members)])
    assert (list(band.ys), band.spread) == ([2.0], pytest.approx([math.sqrt(2)]))


def test_runs_whose_steps_differ_are_compared_at_the_same_step():
    members = [charts.Line("", [0, 10, 20], [0.0, 10.0, 20.0]), charts.Line("", [5, 15], [5.0, 15.0])]
    (band,) = charts.build_bands([("g", members)])
    assert (list(band.xs), list(band.ys)) == ([0, 5, 10, 15, 20], [0.0, 5.0, 10.0, 15.0, 20.0])
    assert band.spread == pytest.approx([0.0] * 5)


def test_the_band_on_a_logarithmic_scale_stays_above_zero():
    line = charts.Line("g", [0, 1, 2], [1.0, 0.1, NAN], [2.0, 0.05, 1.0], 3)
    lower, upper = charts.build_band_edges(line, "log")
    assert lower[:2] == pytest.approx([0.01, 0.05])
    assert upper[:2] == pytest.approx([3.0, 0.15])
    assert charts.build_band_edges(line, "linear")[0][0] == -1.0


def test_smoothing_is_a_moving_average_that_begins_with_the_first_value():
    assert charts.smooth([1.0, 1.0, 1.0], 0.9) == pytest.approx([1.0, 1.0, 1.0])
    assert charts.smooth([0.0, 1.0], 0.5) == pytest.approx([0.0, 2 / 3])  # (0.5 * 0 * 0.5 + 0.5 * 1) / 0.75
    assert charts.smooth([3.0, 1.0, 2.0], 0.0) == [3.0, 1.0, 2.0]


def test_what_is_not_finite_stays_and_does_not_count():
    found = charts.smooth([2.0, NAN, math.inf, 2.0], 0.9)
    assert (found[0], found[2], found[3]) == (2.0, math.inf, pytest.approx(2.0))
    assert math.isnan(found[1])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 0.9999))
def test_a_smoothed_value_is_between_those_before_it(values, weight):
    for index, value in enumerate(charts.smooth(values, weight)):
        past = values[: index + 1]
        assert min(past) - 1e-6 <= value <= max(past) + 1e-6


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(4, 50))
def test_thinning_keeps_the_extremes_and_the_order(values, most):
    points = list(enumerate(values))
    kept = charts.thin(points, most)
    assert len(kept) <= most + 2
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (min(y for _, y in kept), max(y for _, y in kept)) == (min(values), max(values))
    assert kept == sorted(kept, key=lambda point: point[0])


def test_a_million_points_look_like_themselves_on_a_terminal():
    ys = [math.sin(i / 100_000) for i in range(1_000_000)]
    ys[123_456] = 9.0
    long = render_plot(charts.LineChart((charts.Line("a", range(1_000_000), ys),)), width=60)
    assert long.splitlines()[0].count("\u2800") == 0
    assert len(columns_with_dots(long.splitlines()[0])) == 1, "the only high value is there"


def test_stretches_between_gaps():
    points = [(0, 1.0), (1, NAN), (2, 2.0), (3, 3.0), (4, math.inf)]
    assert list(charts.split_gaps(points)) == [[(0, 1.0)], [(2, 2.0), (3, 3.0)]]
    assert list(charts.split_gaps([])) == []


def test_the_end_value_is_not_smoothed():
    line = charts.Line("a", [0, 1], charts.smooth([1.0, 3.0], 0.9), raw=[1.0, 3.0])
    assert "a  3   " in render_plot(charts.LineChart((line, RISING)))


def find_signs(text, sign):
    rows = [line for line in text.splitlines() if "│" in line or "┤" in line]
    return [(row, column) for row, line in enumerate(rows) for column, char in enumerate(line) if char == sign]


def test_points_are_not_connected_and_have_the_sign_of_their_kind():
    points = charts.Line("done", [1, 2, 3], [1.0, 3.0, 2.0], look="dots")
    crosses = charts.Line("failed", [2], [1.0], look="crosses")
    text = render_plot(charts.LineChart((points, crosses)), width=60)
    assert len(find_signs(text, "•")) == 3
    assert len(find_signs(text, "×")) == 1  # noqa: RUF001
    assert not columns_with_dots(text)
    assert text.splitlines()[-1].split() == ["•", "done", "3", "runs", "×", "failed", "1", "run"]  # noqa: RUF001


def test_points_of_several_lines_have_letters():
    lines = tuple(charts.Line(name, [i], [float(i)], look="dots") for i, name in enumerate(("x", "y")))
    text = render_plot(charts.LineChart(lines), width=60)
    assert len(find_signs(text, "a")) == len(find_signs(text, "b")) == 1
    render_plot(charts.LineChart(lines), plain=True).encode("ascii")


def test_decades_have_the_same_width_on_a_logarithmic_x_axis():
    text = render_plot(
        charts.LineChart((charts.Line("a", [0.001, 0.01, 0.1], [1.0, 2.0, 3.0], look="dots"),), x_scale="log"), width=60
    )
    left, middle, right = sorted(column for _, column in find_signs(text, "•"))
    assert abs((middle - left) - (right - middle)) <= 1
    assert [tick for tick in text.splitlines()[-3].split() if tick in ("0.001", "0.01", "0.1")] == [
        "0.001",
        "0.01",
        "0.1",
    ]
    with pytest.raises(UsageError, match="nothing to plot") as caught:
        render_plot(charts.LineChart((charts.Line("a", [0, -1], [1.0, 2.0]),), x_scale="log"))
    assert "logarithmic" in (caught.value.hint or "")


def test_categories_are_columns_under_their_names():
    chart = charts.LineChart(
        (charts.Line("a", [0, 1, 1], [1.0, 2.0, 3.0], look="dots"),), x_ticks=[(0, "adam"), (1, "sgd\x1b[31m")]
    )
    text = render_plot(chart, width=60)
    columns = {column for _, column in find_signs(text, "•")}
    axis = text.splitlines()[-3]
    assert len(columns) == 2
    assert abs(axis.index("adam") + 2 - min(columns)) <= 1
    assert "\x1b" not in text


def test_two_thousand_categories_fit():
    ticks = [(i, f"name-{i}") for i in range(2000)]
    chart = charts.LineChart(
        (charts.Line("a", range(2000), [float(i) for i in range(2000)], look="dots"),), x_ticks=ticks
    )
    assert max(map(len, render_plot(chart, width=80).splitlines())) <= 80

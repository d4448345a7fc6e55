"""The parameters of a benchmark, for the page of its history: `time_x(10, 'f4')` of asv, `test_x[10-f4]` of pytest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from assay.bench.page.overview import JudgedBenchmark, sort_naturally, split_name
from assay.bench.report.executions import build_value_ticks, render_values
from assay.system.fast_dataclasses import dataclass
from assay.values.document import Block, Chart, Curve, Legend, Panel, Span


@dataclass(frozen=True, slots=True)
class ParameterAxis:
    """A parameter of a benchmark: its values, each with the benchmark that differs in this parameter alone."""

    name: str
    choices: tuple[tuple[str, str, bool], ...]  # value, method, whether it is the chosen one


def build_axes(
    methods: Sequence[str], method: str, judged: Mapping[str, JudgedBenchmark]
) -> tuple[tuple[ParameterAxis, ...], Sequence[Block]]:
    """Build the parameters of one of these benchmarks, and charts of its first metric by each one that is a number."""
    suite, name, text = split_name(method)
    values = split_parameters(text)
    prefix = method[: len(method) - len(text)]
    others = {
        split_parameters(each[len(prefix) :]): each
        for each in methods
        if values and each.startswith(prefix) and split_name(each)[:2] == (suite, name)
    }
    others = {each: known for each, known in others.items() if len(each) == len(values)}
    if len(others) < 2:
        return (), ()
    mine = judged.get(method)
    known = list(mine.parameters) if mine else []
    axes: list[ParameterAxis] = []
    charts: list[Block] = []
    for place in range(len(values)):
        called = known[place] if len(known) == len(values) else f"parameter {place + 1}"
        rest = [
            (each[place], known) for each, known in others.items() if _without(each, place) == _without(values, place)
        ]
        rest.sort(key=lambda pair: sort_naturally(pair[0]))
        if len(rest) < 2:
            continue
        axes.append(ParameterAxis(called, tuple((value, other, other == method) for value, other in rest)))
        charts += _build_axis_chart(called, mine.first if mine else "", rest, judged)
    return tuple(axes), charts


def split_parameters(text: str) -> tuple[str, ...]:
    """Split the parameters of a name: `(10, 'float32')` of asv, `[10-float32]` of pytest."""
    if not text:
        return ()
    return tuple(part.strip() for part in text[1:-1].split("," if text[0] == "(" else "-"))


def _without(values: Sequence[str], place: int) -> tuple[str, ...]:
    return (*values[:place], *values[place + 1 :])


def _build_axis_chart(
    name: str, metric: str, methods: Sequence[tuple[str, str]], judged: Mapping[str, JudgedBenchmark]
) -> Iterator[Block]:
    """Build a chart of the current level in each environment by the value of a parameter, if that is a number."""
    by_environment: dict[str, list[tuple[float, float]]] = {}
    try:
        numbers = [(float(value), judged[method]) for value, method in methods if method in judged]
    except ValueError:
        return
    for value, each in numbers:
        for level in each.levels if each.first == metric else ():
            by_environment.setdefault(level.environment, []).append((value, level.value))
    places = sorted({value for value, _ in numbers})
    if len(places) < 2 or not by_environment or places[0] <= 0:
        return
    levels = [level for found in by_environment.values() for _, level in found]
    is_wide = places[-1] / places[0] >= 20
    is_log = min(levels) > 0 and max(levels) / min(levels) >= 20
    ends = [math.log10(x) if is_wide else x for x in (places[0], places[-1])]
    room = 0.05 * (ends[1] - ends[0])
    curves, keys = [], []
    for number, (environment, found) in enumerate(by_environment.items()):
        color = f"c{number % 8}"
        points = [(math.log10(x) if is_wide else x, math.log10(y) if is_log else y) for x, y in sorted(found)]
        texts = [f"{name} {x:g}: {render_values(metric, [y])}\n{environment}" for x, y in sorted(found)]
        curves += [
            Curve(points, f"{color} curve"),
            Curve(points, f"{color} point", line=False, marker="dot", texts=texts),
        ]
        keys.append((f"own {color}", "dot", environment))
    yield Chart(
        (Span(f"by {name}", "strong"), Span("current level of each environment", "soft")),
        (
            Panel(
                curves,
                ticks=build_value_ticks(metric, levels, is_log=is_log),
                label=f"{metric}{', log scale' * is_log}",
            ),
        ),
        f"{metric} by {name}",
        x_range=(ends[0] - room, ends[1] + room),
        x_ticks=[(math.log10(x) if is_wide else x, f"{x:g}") for x in places],
        x_label=f"{name}{', log scale' * is_wide}",
    )
    yield Legend(keys)

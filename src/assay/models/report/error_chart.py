"""Errors by layer as a chart: the error of each layer alone, and the error that has accumulated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from assay.models.report.summary import build_case_metrics, label_of, render_error
from assay.models.values.model import CaseReport, ModelReport
from assay.values.document import Chart, Curve, Panel
from assay.values.verdict import VerdictKind

_LEAST, _MOST = -20, 20  # powers of ten that are drawn
_MOST_TICKS = 9
_MOST_LABELS = 60


def build_chart(report: ModelReport) -> Chart:
    """On a logarithmic axis; bit-equal layers are at the bottom, infinite and incomparable errors at the top."""
    cases, metrics = report.cases, [build_case_metrics(case) for case in report.cases]
    allowed = [min((each.tolerance.rel for each in case.local if each.tolerance.rel), default=None) for case in cases]
    scale = _Scale([value for each in metrics for value in (each.local, each.accumulated)] + allowed)
    local = [(x, scale.y(each.local)) for x, each in enumerate(metrics) if each.local is not None]
    failed = [
        (float(x), scale.top)
        for x, (case, each) in enumerate(zip(cases, metrics, strict=True))
        if each.local is None and case.layer is not None and case.verdict.kind is not VerdictKind.PASS
    ]
    inside = [
        scale.y(each.accumulated) if each.accumulated is not None and case.layer is not None else None
        for case, each in zip(cases, metrics, strict=True)
    ]
    whole = [
        (float(x), scale.y(each.accumulated))
        for x, (case, each) in enumerate(zip(cases, metrics, strict=True))
        if each.accumulated is not None and case.layer is None
    ]
    strokes = [
        Curve([(x - 0.5, scale.y(value)), (x + 0.5, scale.y(value))], "allowed")
        for x, value in enumerate(allowed)
        if value
    ]
    curves = [
        *strokes,
        *(Curve(part, "accumulated", marker="dot") for part in _split_at_gaps(inside)),
        Curve(whole, "accumulated", line=False, marker="dot"),
        Curve(local, "local", line=False, marker="dot"),
        Curve(failed, "cross", line=False, marker="cross"),
    ]
    return Chart(
        title="",
        panels=[Panel(curves, y_range=(scale.bottom, scale.top), ticks=scale.ticks(), height=240)],
        label="error by layer",
        spans=[("fail", x - 0.5, x + 0.5) for x, case in enumerate(cases) if case.verdict.kind is not VerdictKind.PASS],
        lines=[x for x, case in enumerate(cases) if case.name == report.first_wrong],
        hovers=[(x, _describe_point(case, allowed[x])) for x, case in enumerate(cases)],
        x_range=(-0.5, len(cases) - 0.5),
        x_ticks=_list_x_ticks(report),
        is_wide=True,
    )


class _Scale:
    def __init__(self, values: Sequence[float | None]) -> None:
        powers = [math.log10(value) for value in values if value is not None and 0 < value < math.inf]
        powers = [power for power in powers if _LEAST <= power <= _MOST] or [-7.0, -5.0]
        self.low = math.floor(min(powers))
        self.high = max(math.ceil(max(powers)), self.low + 2)
        room = (self.high - self.low) / 12
        self.bottom, self.top = self.low - room, self.high + room

    def y(self, value: float) -> float:
        if not value > 0:
            return self.bottom if value == 0 else self.top  # NaN compares with nothing
        power = math.log10(value)
        return self.bottom if power < self.low else self.top if power > self.high else power

    def ticks(self) -> list[tuple[float, str]]:
        stride = math.ceil((self.high - self.low + 1) / _MOST_TICKS)
        names = {0: "1", 1: "10"}
        powers = [(float(power), names.get(power, f"1e{power}")) for power in range(self.low, self.high + 1, stride)]
        return [(self.bottom, "0"), *powers, (self.top, "∞")]


def _split_at_gaps(values: Sequence[float | None]) -> Iterator[list[tuple[float, float]]]:
    part: list[tuple[float, float]] = []
    for x, value in enumerate([*values, None]):
        if value is not None:
            part.append((float(x), value))
        elif part:
            yield part
            part = []


def _list_x_ticks(report: ModelReport) -> list[tuple[float, str]]:
    """Names; of many layers some numbers, and the name of the first wrong one."""
    names = [label_of(case, report) for case in report.cases]
    if len(names) <= _MOST_LABELS:
        return [(float(x), name) for x, name in enumerate(names)]
    stride = max(1, math.ceil(len(names) / 20 / 5) * 5)
    first = [x for x, case in enumerate(report.cases) if case.name == report.first_wrong]
    numbers = [(float(x), str(x)) for x in range(0, len(names), stride) if all(abs(x - at) > stride for at in first)]
    return sorted([*numbers, *((float(at), names[at]) for at in first)])


def _describe_point(case: CaseReport, allowed: float | None) -> str:
    metrics = build_case_metrics(case)
    named = (("local error", metrics.local), ("accumulated error", metrics.accumulated), ("allowed", allowed))
    lines = [f"{name} {render_error(value)}" for name, value in named if value is not None]
    return "\n".join([f"{case.name}: {case.outcome}", *lines])

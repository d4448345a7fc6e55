"""The curves of a golden recording and of a check, as charts of a document.

The upper part of a chart shows the band of the recordings, their mean, the check, and the windows that failed. The
lower part shows the difference in percent, also of a shift that is too small to see in the curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from assay.golden.report.rows import render_share
from assay.golden.values import Golden, GoldenTestReport, MetricReport, SegmentReport, Track
from assay.show import formatting
from assay.show.chart import build_ticks
from assay.values.document import Area, Block, Chart, Curve, Heading, Legend, Panel, Point, Span
from assay.values.verdict import SEVERITY, VerdictKind

_MARKED = {VerdictKind.FAIL: "fail", VerdictKind.CHANGED: "changed", VerdictKind.INCONCLUSIVE: "open"}
_STRIP_HEIGHT = 70  # the height of the lower part
_TICK_ROOM = 12  # the height of a tick's number in the lower part
_LEAST_STRIP = 0.001  # the lower part shows at least this range: much smaller differences need no scale
_LARGEST = 1e300  # differences of larger values overflow
_MOST_HOVERS = 150

Band = Mapping[int, tuple[float, float, float]]  # step → lowest, mean, highest

LEGEND = Legend(
    (
        ("reference", "wide", "golden, mean of its recordings"),
        ("band", "area", "band of the recordings"),
        ("replica", "line", "one recording"),
        ("measured", "line", "this check"),
        ("tolerance", "area", "difference that does not matter (lower part, in percent)"),
        ("fail", "area", "window that failed"),
        ("changed", "area", "changed"),
        ("open", "area", "undecided"),
    )
)
_WORDS = {"fail": "FAIL", "changed": "CHANGED", "open": "open"}  # the text in a window of this colour
_MOST_REPLICAS = 12  # more recordings are drawn only as a band


def build_check_charts(test: GoldenTestReport) -> Iterator[Block]:
    """Yield the charts, the metric with the worst verdict first."""
    for name in order_metrics(test):
        yield Heading(name, level=3)
        for segment in test.segments:
            for metric in segment.metrics:
                if metric.metric == name:
                    yield from _build_metric_charts(segment, metric)


def order_metrics(test: GoldenTestReport) -> list[str]:
    worst: dict[str, int] = {}
    for metric in (metric for segment in test.segments for metric in segment.metrics):
        rank = SEVERITY.index(metric.verdict.kind)
        worst[metric.metric] = min(rank, worst.get(metric.metric, rank))
    return sorted(worst, key=worst.__getitem__)


def _build_metric_charts(segment: SegmentReport, metric: MetricReport) -> Iterator[Chart]:
    for label in dict.fromkeys([*metric.golden, *metric.check]):
        name = f"{metric.metric} {label}".strip()
        is_only = len(metric.golden) < 2 or not label
        marked = [each for each in metric.verdict.findings if each.kind in _MARKED]
        found = [each for each in marked if is_only or each.label == label]
        noise = f"noise {render_share(metric.noise)}" if metric.noise is not None else ""
        kind = metric.verdict.kind
        title = (Span(name, "strong"), Span(f"after step {segment.start_step}", "soft"), Span(kind, kind))
        yield build_chart(
            name,
            (*title, Span(noise, "soft right")),
            metric.golden.get(label, ()),
            metric.check.get(label, ()),
            delta=metric.delta,
            marks=[(_MARKED[each.kind], low, high) for each in found for low, high in each.stretches],
            lines=[each.step for each in found if each.step is not None and not each.stretches],
            effect=max((each.effect for each in found if each.effect is not None), key=abs, default=None),
        )


def build_recording_charts(golden: Golden) -> Iterator[Block]:
    for name in golden.metrics:
        noise = golden.noise.get(name)
        yield Heading(name, level=3, note="" if noise is None else f"noise {render_share(noise)}")
        for segment in golden.segments:
            for label, tracks in segment.tracks.get(name, {}).items():
                title = f"{name} {label}".strip()
                after = Span(f"after step {segment.start_step}", "soft")
                yield build_chart(title, (Span(title, "strong"), after), tracks, ())


def build_chart(
    name: str,
    title: tuple[str | Span, ...],
    golden: Sequence[Track],
    check: Sequence[Track],
    *,
    delta: float | None = None,
    marks: Sequence[tuple[str, float, float]] = (),
    lines: Sequence[float] = (),
    effect: float | None = None,
) -> Chart:
    """Draw a metric. `marks`: style, from step, to step; `lines`: single steps; `effect`: the verdict's effect."""
    band, measured = build_band(golden), build_band(check)
    curves = [
        Curve([(step, mean) for step, (_, mean, _) in band.items()], "reference"),
        *_build_curves([list(zip(track.steps, track.values, strict=True)) for track in check]),
    ]
    areas = []
    if len(golden) > 1:
        areas = [Area([(x, each[2]) for x, each in band.items()], [(x, each[0]) for x, each in band.items()], "band")]
    if 1 < len(golden) <= _MOST_REPLICAS:
        curves[1:1] = [Curve(list(zip(track.steps, track.values, strict=True)), "replica") for track in golden]
    high = max((each[2] for found in (band, measured) for each in found.values()), default=0.0)
    words = [(end + 0.5, high, _WORDS[style]) for style, _, end in _join_marks(marks)]
    panels = [Panel(curves, areas, labels=words)]
    if band or measured:
        shown = effect if effect is not None and abs(effect) <= _LARGEST else 0.0
        panels.append(_build_strip(golden, check, band, delta or 0.0, shown))
    steps = sorted({*band, *measured})
    hovers = steps[:: max(1, math.ceil(len(steps) / _MOST_HOVERS))]
    return Chart(
        title,
        panels,
        f"{name}: golden and check over steps",
        [(style, start - 0.5, end + 0.5) for style, start, end in marks],
        lines,
        [(step, describe_step(name, step, band.get(step), measured.get(step))) for step in hovers],
    )


def _join_marks(marks: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Join neighbouring windows with the same verdict, so that they get one label."""
    joined: list[tuple[str, float, float]] = []
    for style, start, end in sorted(marks, key=lambda mark: mark[1:]):
        if joined and joined[-1][0] == style and start <= joined[-1][2] + 1:
            joined[-1] = (style, joined[-1][1], max(end, joined[-1][2]))
        else:
            joined.append((style, start, end))
    return joined


def _build_curves(runs: Sequence[Sequence[Point]]) -> list[Curve]:
    return [Curve(points, "measured again" if number else "measured") for number, points in enumerate(runs)]


def build_band(tracks: Sequence[Track]) -> dict[int, tuple[float, float, float]]:
    """Return the lowest, mean and highest value of the runs at each step that has a finite value."""
    found: dict[int, list[float]] = {}
    for track in tracks:
        for step, value in zip(track.steps, track.values, strict=True):
            if abs(value) <= _LARGEST:
                found.setdefault(step, []).append(value)
    return {step: (min(each), math.fsum(each) / len(each), max(each)) for step, each in sorted(found.items())}


def _build_strip(golden: Sequence[Track], check: Sequence[Track], band: Band, delta: float, effect: float) -> Panel:
    runs, spread = build_relative(check, band), build_relative(golden, band)
    reach = max((abs(value) for run in (*runs, *spread) for _, value in run), default=0.0)
    wide = max(reach, abs(effect), 1.5 * delta, _LEAST_STRIP / 1.1) * 1.1
    ends: dict[float, list[float]] = {}
    for step, value in (point for run in spread for point in run):
        ends.setdefault(step, []).append(value)
    areas = []
    if len(golden) > 1:
        steps = sorted(ends)
        areas = [Area([(x, max(ends[x])) for x in steps], [(x, min(ends[x])) for x in steps], "band")]
    return Panel(
        _build_curves(runs),
        areas,
        (("tolerance", -delta, delta),) if delta else (),
        (-wide, wide),
        [(value, f"{formatting.render_number(100 * value, 3)}%") for value in build_strip_ticks(wide, effect)],
        _STRIP_HEIGHT,
    )


def build_relative(tracks: Sequence[Track], band: Band) -> list[list[Point]]:
    """Return how far each run is from the golden's mean, as a fraction of its size."""
    sizes = [abs(mean) for _, mean, _ in band.values()]
    usual = math.fsum(sizes) / len(sizes) if sizes else 0.0
    if not usual > 0:
        return []
    return [
        [
            (step, part)
            for step, value in zip(track.steps, track.values, strict=True)
            if step in band
            and abs(value) <= _LARGEST
            # a fraction of a value that is nearly 0 may be infinite
            and abs(part := (value - band[step][1]) / (abs(band[step][1]) or usual)) <= _LARGEST
        ]
        for track in tracks
    ]


def build_strip_ticks(wide: float, effect: float) -> list[float]:
    """Return at least three ticks: 0, a round number on both sides, and the effect of the verdict."""
    around = [value for value in build_ticks(-wide, wide, 3) if value]
    if len(around) < 2:
        power = 10.0 ** math.floor(math.log10(wide))
        nice = max(digit * power for digit in (1.0, 2.0, 5.0) if digit * power <= wide)
        around = [-nice, nice]
    least = _TICK_ROOM * 2 * wide / _STRIP_HEIGHT
    if abs(effect) >= least:
        around = [value for value in around if abs(value - effect) >= least] + [effect]
    return sorted([value for value in around if abs(value) >= least] + [0.0])


def describe_step(
    name: str, step: int, golden: tuple[float, float, float] | None, check: tuple[float, float, float] | None
) -> str:
    lines = [f"step {step}, {name}"]
    if golden:
        low, mean, high = golden
        around = f" ({formatting.render_number(low, 6)} to {formatting.render_number(high, 6)})" if high > low else ""
        lines.append(f"golden {formatting.render_number(mean, 6)}{around}")
    lines.append(f"check {formatting.render_number(check[1], 6)}" if check else "check: nothing")
    if golden and check and golden[1]:
        lines.append(f"{100 * (check[1] - golden[1]) / abs(golden[1]):+.3g}%")
    return "\n".join(lines)

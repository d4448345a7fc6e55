"""Curves as SVG for a page of our own: the golden's band, the check over it, and what speaks against it.

Colours come from the page's style sheet by class names, so one drawing serves the light and the dark theme. Long series
are thinned to what a screen can show, extremes kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from assay.show import formatting
from assay.show.plot import build_ticks, render_ticks

Points = list[tuple[float, float]]

WIDTH, HEIGHT = 560, 276
_LEFT, _RIGHT, _TOP = 58, 12, 10
_CURVE_HEIGHT, _STRIP_TOP, _STRIP_HEIGHT = 150, 178, 70
_LEAST_STRIP = 0.001  # the lower part shows at least this much: differences far below it are not worth a scale
_TICK_ROOM = 12  # that a text takes
_MOST_POINTS = 500  # of a line
_MOST_HOVERS = 150  # stretches with a text of their own
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of one segment. `golden` and `check` hold one series per run; all by step."""

    name: str
    golden: tuple[tuple[Sequence[int], Sequence[float]], ...]
    check: tuple[tuple[Sequence[int], Sequence[float]], ...]
    delta: float | None = None
    marks: tuple[tuple[str, float, float], ...] = ()  # class name, from step, to step
    lines: tuple[float, ...] = field(default=())  # single steps of interest
    effect: float | None = None  # that the verdict speaks of


@dataclass(frozen=True, slots=True)
class Frame:
    """Where values lie in the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: float
    height: float

    def x(self, step: float) -> float:
        return _LEFT + _share(step, self.x_range) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.top + (1 - _share(value, self.y_range)) * self.height


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max((value - low) / (high - low), -0.05), 1.05) if high > low else 0.5


# ---------------------------------------------------------------- series


def build_band(runs: Sequence[tuple[Sequence[int], Sequence[float]]]) -> dict[int, tuple[float, float, float]]:
    """step → lowest, mean, highest of the runs that have a finite value there."""
    found: dict[int, list[float]] = {}
    for steps, values in runs:
        for step, value in zip(steps, values, strict=True):
            if abs(value) <= _LARGEST:
                found.setdefault(step, []).append(value)
    return {step: (min(each), math.fsum(each) / len(each), max(each)) for step, each in sorted(found.items())}


def thin(points: Points, most: int = _MOST_POINTS) -> Points:
    """At most about `most` points: of each stretch the lowest and the highest, in their order."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept: Points = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ends = {part.index(min(part, key=lambda each: each[1])), part.index(max(part, key=lambda each: each[1]))}
        kept += [part[place] for place in sorted(ends)]
    return kept


def build_relative(
    runs: Sequence[tuple[Sequence[int], Sequence[float]]], band: dict[int, tuple[float, float, float]]
) -> list[Points]:
    """How far each run is from the golden's mean, as a share of its size."""
    sizes = [abs(mean) for _, mean, _ in band.values()]
    usual = math.fsum(sizes) / len(sizes) if sizes else 0.0
    if not usual > 0:
        return []
    return [
        [
            (step, (value - band[step][1]) / (abs(band[step][1]) or usual))
            for step, value in zip(steps, values, strict=True)
            if step in band and abs(value) <= _LARGEST
        ]
        for steps, values in runs
    ]


# ---------------------------------------------------------------- the drawing


def render_panel(panel: Panel) -> str:
    """An <svg> element. Without a finite value it says so."""
    golden, check = build_band(panel.golden), build_band(panel.check)
    every = [*golden.values(), *check.values()]
    if not every:
        return _wrap(panel, ['<text class="note" x="280" y="90" text-anchor="middle">no finite values</text>'])
    steps = sorted({*golden, *check})
    x_range = _widen(steps[0], steps[-1])
    y_range = _widen(min(low for low, _, _ in every), max(high for _, _, high in every), 0.05)
    frame = Frame(x_range, y_range, _TOP, _CURVE_HEIGHT)
    parts = [
        *_render_marks(panel, frame),
        *_render_axes(frame),
        *_render_curves(panel, golden, frame),
        *_render_strip(panel, golden, x_range),
        *_render_steps(x_range),
        *_render_hovers(panel, golden, check, frame),
    ]
    return _wrap(panel, parts)


def _wrap(panel: Panel, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    label = formatting.escape_html(f"{panel.name}: golden and check over steps")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">\n{body}\n</svg>'


def _widen(low: float, high: float, share: float = 0.0) -> tuple[float, float]:
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low - share * (high - low), high + share * (high - low)
    room = abs(low) * 0.01 or 1.0
    return low - room, high + room


def _render_marks(panel: Panel, frame: Frame) -> Iterator[str]:
    """Windows that failed, over both parts of the drawing; single steps as a line."""
    bottom = _STRIP_TOP + _STRIP_HEIGHT
    for kind, start, end in panel.marks:
        left, right = max(frame.x(start - 0.5), _LEFT), min(frame.x(end + 0.5), WIDTH - _RIGHT)
        yield _rect(kind, left, _TOP, max(right - left, 2.0), bottom - _TOP)
    for step in panel.lines:
        yield f'<line class="first" x1="{frame.x(step):.1f}" x2="{frame.x(step):.1f}" y1="{_TOP}" y2="{bottom}"/>'


def _rect(kind: str, x: float, y: float, width: float, height: float, *, inner: str = "") -> str:
    shape = f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"{shape}>{inner}</rect>" if inner else f"{shape}/>"


def _render_axes(frame: Frame) -> Iterator[str]:
    values = build_ticks(*frame.y_range, 4)
    for value, text in zip(values, render_ticks(values), strict=True):
        yield from _render_tick(frame, value, text)


def _render_tick(frame: Frame, value: float, text: str) -> Iterator[str]:
    y = frame.y(value)
    yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    label = formatting.escape_html(text)
    yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>'


def _render_steps(x_range: tuple[float, float]) -> Iterator[str]:
    frame = Frame(x_range, (0, 1), 0, 0)
    values = [value for value in build_ticks(*x_range, 6) if value == int(value)]
    for value, text in zip(values, render_ticks(values) if values else [], strict=True):
        yield f'<text class="tick" x="{frame.x(value):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{text}</text>'


def _render_curves(panel: Panel, band: dict[int, tuple[float, float, float]], frame: Frame) -> Iterator[str]:
    if len(panel.golden) > 1:
        low = thin([(step, each[0]) for step, each in band.items()])
        high = thin([(step, each[2]) for step, each in band.items()])
        yield f'<path class="band" d="{_path(high, frame)}{_path(low[::-1], frame, "L")}Z"/>'
    yield _line("golden", [(float(step), each[1]) for step, each in band.items()], frame)
    for number, (steps, values) in enumerate(panel.check):
        points = [(float(step), value) for step, value in zip(steps, values, strict=True) if abs(value) <= _LARGEST]
        yield _line("check" if number == 0 else "check again", points, frame)


def _line(kind: str, points: Points, frame: Frame) -> str:
    return f'<path class="{kind}" d="{_path(thin(points), frame)}"/>' if points else ""


def _path(points: Points, frame: Frame, first: str = "M") -> str:
    return "".join(
        f"{first if place == 0 else 'L'}{frame.x(step):.1f} {frame.y(value):.1f}"
        for place, (step, value) in enumerate(points)
    )


def _render_strip(
    panel: Panel, band: dict[int, tuple[float, float, float]], x_range: tuple[float, float]
) -> Iterator[str]:
    """Under the curves: the difference in percent, where a shift that no eye sees in the curves is plain."""
    runs = build_relative(panel.check, band)
    spread = [point for run in build_relative(panel.golden, band) for point in run]
    reach = max([abs(value) for run in runs for _, value in run] + [abs(value) for _, value in spread], default=0.0)
    wide = max(reach, abs(_finite(panel.effect)), 1.5 * (panel.delta or 0.0), _LEAST_STRIP / 1.1) * 1.1
    frame = Frame(x_range, (-wide, wide), _STRIP_TOP, _STRIP_HEIGHT)
    if panel.delta:
        top, bottom = frame.y(min(panel.delta, wide)), frame.y(-min(panel.delta, wide))
        yield _rect("delta", _LEFT, top, WIDTH - _LEFT - _RIGHT, bottom - top)
    for value in build_strip_ticks(frame, _finite(panel.effect)):
        yield from _render_tick(frame, value, f"{formatting.render_number(100 * value, 3)}%")
    if len(panel.golden) > 1:
        yield from _render_spread(spread, frame)
    for number, points in enumerate(runs):
        yield _line("check" if number == 0 else "check again", points, frame)


def _finite(value: float | None) -> float:
    return value if value is not None and abs(value) <= _LARGEST else 0.0


def build_strip_ticks(frame: Frame, effect: float) -> list[float]:
    """Three at least: nothing, a round number on both sides, and the effect that the verdict speaks of."""
    wide = frame.y_range[1]
    around = [value for value in build_ticks(-wide, wide, 3) if value]
    if len(around) < 2:
        power = 10.0 ** math.floor(math.log10(wide))
        nice = max(digit * power for digit in (1.0, 2.0, 5.0) if digit * power <= wide)
        around = [-nice, nice]
    if _is_clear(frame, effect, 0.0):
        around = [value for value in around if _is_clear(frame, value, effect)] + [effect]
    return sorted([value for value in around if _is_clear(frame, value, 0.0)] + [0.0])


def _is_clear(frame: Frame, one: float, other: float) -> bool:
    return abs(frame.y(one) - frame.y(other)) >= _TICK_ROOM


def _render_spread(spread: Points, frame: Frame) -> Iterator[str]:
    ends: dict[float, tuple[float, float]] = {}
    for step, value in spread:
        low, high = ends.get(step, (value, value))
        ends[step] = min(low, value), max(high, value)
    steps = sorted(ends)
    above = _path(thin([(step, ends[step][1]) for step in steps]), frame)
    below = _path(thin([(step, ends[step][0]) for step in reversed(steps)]), frame, "L")
    yield f'<path class="band" d="{above}{below}Z"/>'


def _render_hovers(
    panel: Panel,
    golden: dict[int, tuple[float, float, float]],
    check: dict[int, tuple[float, float, float]],
    frame: Frame,
) -> Iterator[str]:
    """Invisible bars that answer the mouse: what was logged here, and what was expected."""
    steps = sorted({*golden, *check})
    stride = max(1, math.ceil(len(steps) / _MOST_HOVERS))
    chosen = steps[::stride]
    bottom = _STRIP_TOP + _STRIP_HEIGHT
    for place, step in enumerate(chosen):
        left = frame.x((chosen[place - 1] + step) / 2) if place else frame.x(frame.x_range[0])
        right = frame.x((chosen[place + 1] + step) / 2) if place + 1 < len(chosen) else frame.x(frame.x_range[1])
        said = describe_step(formatting.clean(panel.name), step, golden.get(step), check.get(step))
        text = "\n".join(map(formatting.escape_html, said.split("\n")))
        yield _rect("hover", left, _TOP, max(right - left, 0.5), bottom - _TOP, inner=f"<title>{text}</title>")


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

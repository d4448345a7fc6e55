"""Errors by layer as SVG, on a logarithmic axis: what a layer does wrong by itself, and what has come together.

Colours come from the page's style sheet by class names. Bit-equal layers lie on the floor, marked 0; what is infinite
or cannot be compared lies at the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.models.report.text import render_error
from assay.show import formatting

WIDTH = 1120
_LEFT, _RIGHT, _TOP, _PLOT = 62, 16, 14, 240
_ROOM = 18  # between the last power of ten and the floor, or the ceiling
_LABEL_ROOM = 96  # under the axis, for slanted names
_TICK_ROOM = 28
_MOST_LABELS = 60
_LEAST, _MOST = -20, 20  # powers of ten that are worth a place; beyond them lies the floor, or the ceiling
_MOST_TICKS = 9


@dataclass(frozen=True, slots=True)
class Point:
    """One layer. None: there is no such number, for instance because a step failed."""

    label: str
    local: float | None
    accumulated: float | None
    allowed: float | None = None
    outcome: str = "ok"
    is_wrong: bool = False
    is_first: bool = False
    is_whole: bool = False  # the full model, which is no layer


@dataclass(frozen=True, slots=True)
class Frame:
    count: int
    low: int  # powers of ten
    high: int

    @property
    def step(self) -> float:
        return (WIDTH - _LEFT - _RIGHT) / max(self.count, 1)

    def x(self, place: float) -> float:
        return _LEFT + (place + 0.5) * self.step

    def y(self, value: float) -> float:
        """Floor for what is zero or below the scale, ceiling for what is infinite or beyond."""
        if not value > 0:
            return self.floor if value == 0 else self.ceiling  # NaN compares with nothing
        power = math.log10(value) if math.isfinite(value) else math.inf
        if power < self.low:
            return self.floor
        if power > self.high:
            return self.ceiling
        return self.power_y(power)

    def power_y(self, power: float) -> float:
        share = (power - self.low) / (self.high - self.low)
        return self.floor - _ROOM - share * (self.floor - self.ceiling - 2 * _ROOM)

    @property
    def floor(self) -> float:
        return _TOP + _PLOT

    @property
    def ceiling(self) -> float:
        return _TOP


def build_frame(points: Sequence[Point]) -> Frame:
    every = [value for point in points for value in (point.local, point.accumulated, point.allowed) if value]
    powers = [math.log10(value) for value in every if value > 0 and math.isfinite(value)]
    powers = [power for power in powers if _LEAST <= power <= _MOST] or [-7.0, -5.0]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    return Frame(len(points), low, max(high, low + 2))


def render_errors(points: Sequence[Point]) -> str:
    """An <svg> element; without a single number it says so."""
    if not any(value is not None for point in points for value in (point.local, point.accumulated)):
        return _wrap(60, [f'<text class="note" x="{WIDTH / 2:.0f}" y="34" text-anchor="middle">nothing to draw</text>'])
    frame = build_frame(points)
    named = len(points) <= _MOST_LABELS
    parts = [
        *_render_bands(points, frame),
        *_render_axis(frame),
        *_render_allowed(points, frame),
        *_render_line(points, frame),
        *_render_dots(points, frame),
        *(_render_names(points, frame) if named else _render_numbers(points, frame)),
        *_render_hovers(points, frame),
    ]
    return _wrap(_TOP + _PLOT + (_LABEL_ROOM if named else _TICK_ROOM), parts)


def _wrap(height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="error by layer">\n{body}\n</svg>'


def _render_bands(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """Where something is wrong; a dashed line for the first layer that is."""
    for place, point in enumerate(points):
        if point.is_wrong:
            left = frame.x(place) - frame.step / 2
            yield _rect("fail", left, frame.ceiling, max(frame.step, 2.0), _PLOT)
    for place, point in enumerate(points):
        if point.is_first:
            x = frame.x(place)
            yield f'<line class="first" x1="{x:.1f}" x2="{x:.1f}" y1="{frame.ceiling}" y2="{frame.floor}"/>'


def _rect(kind: str, x: float, y: float, width: float, height: float, inner: str = "") -> str:
    shape = f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"{shape}>{inner}</rect>" if inner else f"{shape}/>"


def _render_axis(frame: Frame) -> Iterator[str]:
    stride = math.ceil((frame.high - frame.low + 1) / _MOST_TICKS)
    ticks = [(frame.power_y(power), _power(power)) for power in range(frame.low, frame.high + 1, stride)]
    for y, text in ((frame.floor, "0"), (frame.ceiling, "∞"), *ticks):
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'


def _power(power: int) -> str:
    return {0: "1", 1: "10"}.get(power, f"1e{power}")


def _render_allowed(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """A short stroke over each layer: up to here it counts as right."""
    half = frame.step / 2
    strokes = [
        f"M{frame.x(place) - half:.1f} {frame.y(point.allowed):.1f}h{frame.step:.1f}"
        for place, point in enumerate(points)
        if point.allowed
    ]
    if strokes:
        yield f'<path class="allowed" d="{"".join(strokes)}"/>'


def _render_line(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """Accumulated errors, joined over neighbours; the full model stands apart."""
    path, is_down = [], True
    for place, point in enumerate(points):
        if point.accumulated is None or point.is_whole:
            is_down = True
            continue
        path.append(f"{'M' if is_down else 'L'}{frame.x(place):.1f} {frame.y(point.accumulated):.1f}")
        is_down = False
    if path:
        yield f'<path class="accumulated" d="{"".join(path)}"/>'


def _render_dots(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    radius = min(max(frame.step / 5, 1.6), 4.5)
    for place, point in enumerate(points):
        x = frame.x(place)
        if point.accumulated is not None:
            size = radius if point.is_whole else radius * 0.6
            yield f'<circle class="accumulated" cx="{x:.1f}" cy="{frame.y(point.accumulated):.1f}" r="{size:.1f}"/>'
        if point.local is not None:
            y = frame.y(point.local)
            yield f'<circle class="local" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
        elif not point.is_whole and point.is_wrong:
            y, arm = frame.ceiling, radius + 0.5
            yield (
                f'<path class="cross" d="M{x - arm:.1f} {y - arm:.1f}l{2 * arm:.1f} {2 * arm:.1f}'
                f'm0 {-2 * arm:.1f}l{-2 * arm:.1f} {2 * arm:.1f}"/>'
            )


def _render_names(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    for place, point in enumerate(points):
        x, y = frame.x(place) + 3, frame.floor + 16
        text = formatting.escape_html(formatting.shorten(formatting.clean(point.label), 18))
        kind = "tick wrong" if point.is_wrong else "tick"
        yield (
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="end" '
            f'transform="rotate(-42 {x:.1f} {y:.1f})">{text}</text>'
        )


def _render_numbers(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """Of many layers every so-manieth place, and the first wrong one by name."""
    stride = max(1, math.ceil(len(points) / 20 / 5) * 5)
    for place in range(0, len(points), stride):
        yield f'<text class="tick" x="{frame.x(place):.1f}" y="{frame.floor + 18}" text-anchor="middle">{place}</text>'
    for place, point in enumerate(points):
        if point.is_first:
            side = "end" if frame.x(place) > WIDTH / 2 else "start"
            x = frame.x(place) + (-6 if side == "end" else 6)
            label = formatting.escape_html(point.label)
            yield f'<text class="tick wrong" x="{x:.1f}" y="{frame.ceiling + 12}" text-anchor="{side}">{label}</text>'


def _render_hovers(points: Sequence[Point], frame: Frame) -> Iterator[str]:
    """Invisible bars that answer the mouse."""
    for place, point in enumerate(points):
        text = "\n".join(map(formatting.escape_html, describe_point(point).split("\n")))
        inner = f"<title>{text}</title>"
        yield _rect("hover", frame.x(place) - frame.step / 2, frame.ceiling, frame.step, _PLOT, inner)


def describe_point(point: Point) -> str:
    lines = [f"{formatting.clean(point.label)}: {point.outcome}"]
    named = (("local error", point.local), ("accumulated error", point.accumulated), ("allowed", point.allowed))
    lines += [f"{name} {render_error(value)}" for name, value in named if value is not None]
    return "\n".join(lines)

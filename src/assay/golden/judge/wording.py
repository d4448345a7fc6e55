"""How the findings of a convergence check write their figures."""

from __future__ import annotations

SMALLEST = 1e-5  # below a thousandth of a percent nobody needs digits


def render_effect(value: float) -> str:
    """`+3.02%`, `0%`, `<0.001%`."""
    if value == 0:
        return "0%"
    return "<0.001%" if abs(value) < SMALLEST else f"{100 * value:+.3g}%"


def render_share(value: float) -> str:
    """`0.004%`, without a sign; small ones as `2e-06%`."""
    return f"{100 * value:.2g}%"


def render_bounded(value: float, low: float, high: float) -> str:
    """`+3.02% [+2.9%, +3.1%]`; the bounds only where they say more than the value does."""
    shown, *around = (render_effect(each) for each in (value, low, high))
    return shown if set(around) == {shown} else f"{shown} [{', '.join(around)}]"

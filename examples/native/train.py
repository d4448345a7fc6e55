#!/usr/bin/env python3
"""Fits a polynomial to noisy points of a sine by gradient descent. Standard library only."""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

STEPS = 400


def curve(coefficients: list[float], x: float) -> float:
    return sum(c * x**power for power, c in enumerate(coefficients))


def slopes(coefficients: list[float], points: list[tuple[float, float]]) -> tuple[float, list[float]]:
    """Mean squared error and its gradient."""
    residuals = [(x, curve(coefficients, x) - y) for x, y in points]
    loss = sum(r * r for _, r in residuals) / len(points)
    return loss, [2 * sum(r * x**power for x, r in residuals) / len(points) for power in range(len(coefficients))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--degree", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    rng = random.Random(0)
    xs = [rng.uniform(-1, 1) for _ in range(40)]
    points = [(x, math.sin(3 * x) + rng.gauss(0, args.noise)) for x in xs]
    coefficients = [0.0] * (args.degree + 1)
    velocity = [0.0] * (args.degree + 1)
    for step in range(1, STEPS + 1):
        ahead = args.momentum if args.nesterov else 0.0
        loss, gradient = slopes([c + ahead * v for c, v in zip(coefficients, velocity, strict=True)], points)
        velocity = [args.momentum * v - args.lr * g for v, g in zip(velocity, gradient, strict=True)]
        coefficients = [c + v for c, v in zip(coefficients, velocity, strict=True)]
        if step % 20 == 0:
            print(f"step {step} loss={loss!r}", flush=True)
    args.out.write_text(json.dumps(coefficients))


if __name__ == "__main__":
    main()

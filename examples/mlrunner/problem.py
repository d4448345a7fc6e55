"""The data and the model that the three commands share: a linear classifier over random points."""

from __future__ import annotations

import random

FEATURES = 12
NOISE = {"easy": 0.1, "hard": 1.5}
Example = tuple[list[float], int]


def build_examples(data: str, split: str, count: int) -> list[Example]:
    """Labels are +1 and -1; the same data and split give the same examples in every command."""
    rng = random.Random(f"{data}/{split}")
    examples = []
    for _ in range(count):
        point = [rng.uniform(-1, 1) for _ in range(FEATURES)]
        side = sum(point[::2]) - sum(point[1::2]) + rng.gauss(0, NOISE[data])
        examples.append((point, 1 if side > 0 else -1))
    return examples


def score(weights: list[float], point: list[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, point, strict=True))


def accuracy(weights: list[float], examples: list[Example]) -> float:
    return sum(score(weights, point) * label > 0 for point, label in examples) / len(examples)

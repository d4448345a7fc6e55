#!/usr/bin/env python3
"""Logistic regression in the standard library, reported through logx: what a runx user's script looks like.

The one change from runx: `from runx.logx import logx` has become `from assay.logx import logx`.
"""

from __future__ import annotations

import argparse
import math
import random

from assay.logx import logx

FEATURES = 8
Example = tuple[list[float], int]


def build_examples(count: int, rng: random.Random) -> list[Example]:
    """Points on two sides of a plane, some of them on the wrong one."""
    examples = []
    for _ in range(count):
        point = [rng.gauss(0, 1) for _ in range(FEATURES)]
        side = sum(value * (-1) ** index for index, value in enumerate(point)) + rng.gauss(0, 0.5)
        examples.append((point, int(side > 0)))
    return examples


def predict(weights: list[float], point: list[float]) -> float:
    total = sum(weight * value for weight, value in zip(weights, point, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


class Sgd:
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def step(self, weights: list[float], gradient: list[float]) -> None:
        for index, slope in enumerate(gradient):
            weights[index] -= self.lr * slope


class Adam(Sgd):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.count = 0
        self.first = [0.0] * FEATURES
        self.second = [0.0] * FEATURES

    def step(self, weights: list[float], gradient: list[float]) -> None:
        self.count += 1
        for index, slope in enumerate(gradient):
            self.first[index] += 0.1 * (slope - self.first[index])
            self.second[index] += 0.001 * (slope * slope - self.second[index])
            mean = self.first[index] / (1 - 0.9**self.count)
            scale = math.sqrt(self.second[index] / (1 - 0.999**self.count)) + 1e-8
            weights[index] -= self.lr * mean / scale


def evaluate(weights: list[float], examples: list[Example]) -> dict[str, float]:
    losses, hits = 0.0, 0
    for point, label in examples:
        probability = predict(weights, point)
        losses -= math.log(max(1e-12, probability if label else 1 - probability))
        hits += (probability > 0.5) == label
    return {"loss": losses / len(examples), "accuracy": hits / len(examples)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logdir", default="logs/by-hand")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--solver", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--init", type=float, default=0.0, help="where the weights start")
    args = parser.parse_args()

    logx.initialize(logdir=args.logdir, hparams=vars(args))
    rng = random.Random(7)
    train, validation = build_examples(500, rng), build_examples(200, rng)
    weights = [args.init] * FEATURES
    solver = {"sgd": Sgd, "adam": Adam}[args.solver](args.lr)
    for epoch in range(args.epochs):
        if args.shuffle:
            rng.shuffle(train)
        for point, label in train:
            error = predict(weights, point) - label
            solver.step(weights, [error * value for value in point])
        metrics = evaluate(weights, validation)
        logx.metric(phase="val", metrics=metrics, epoch=epoch)
        logx.msg(f"epoch {epoch}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()

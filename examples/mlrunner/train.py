#!/usr/bin/env python3
"""A perceptron; it leaves one checkpoint per epoch in --save-dir."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from problem import FEATURES, NOISE, accuracy, build_examples, score


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=sorted(NOISE), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--max-epochs", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--margin", type=float, default=0.0)
    parser.add_argument("--early-stop", action="store_true")
    args = parser.parse_args()

    train, valid = build_examples(args.data, "train", 600), build_examples(args.data, "valid", 200)
    rng = random.Random(args.seed)
    weights = [0.0] * FEATURES
    best = -1.0
    for epoch in range(1, args.max_epochs + 1):
        rng.shuffle(train)
        for point, label in train:
            if score(weights, point) * label <= args.margin:
                for index, value in enumerate(point):
                    weights[index] += args.rate * label * value
        reached = accuracy(weights, valid)
        print(f"| epoch {epoch:03d} | valid accuracy {reached:.4f}", flush=True)
        (args.save_dir / f"checkpoint{epoch:03d}.json").write_text(json.dumps(weights))
        if args.early_stop and reached <= best:
            print(f"no better than epoch {epoch - 1}: stopping early")
            break
        best = max(best, reached)


if __name__ == "__main__":
    main()

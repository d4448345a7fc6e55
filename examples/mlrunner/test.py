#!/usr/bin/env python3
"""The accuracy of a saved model on examples that training never saw."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from problem import NOISE, accuracy, build_examples


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=sorted(NOISE), required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()

    weights = json.loads(args.model.read_text())
    print(f"test accuracy = {accuracy(weights, build_examples(args.data, 'test', 500)):.4f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The mean of the last checkpoints in a folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--last", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()

    paths = sorted(args.inputs.glob("checkpoint*.json"))[-args.last :]
    if not paths:
        sys.exit(f"no checkpoint in {args.inputs}: train first")
    columns = zip(*(json.loads(path.read_text()) for path in paths), strict=True)
    args.output.write_text(json.dumps([fmean(column) for column in columns]))
    print(f"averaged {', '.join(path.name for path in paths)}")


if __name__ == "__main__":
    main()

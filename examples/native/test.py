#!/usr/bin/env python3
"""How far a fitted curve is from the sine that it was fitted to."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from train import curve


def main() -> None:
    coefficients = json.loads(Path(sys.argv[1]).read_text())
    xs = [index / 50 for index in range(-50, 51)]
    worst = max(abs(curve(coefficients, x) - math.sin(3 * x)) for x in xs)
    print(f"error={worst!r}")


if __name__ == "__main__":
    main()

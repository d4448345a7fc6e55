#!/usr/bin/env python3
"""The table of results: what an mlrunner user keeps in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from assay.examine import Examiner, latest_log


def add_accuracy(output_dir: Path, experiment: Any, caches: Any) -> None:  # noqa: ARG001 - the Examiner's signature
    log = latest_log("test", output_dir)
    found = re.search(r"test accuracy = ([\d.]+)", log.read_text()) if log else None
    if found:
        experiment.metric["test_accuracy"] = float(found[1])


if __name__ == "__main__":
    examiner = Examiner()
    examiner.add(add_accuracy)
    examiner.exam(output="output", regex=".*")
    examiner.table()

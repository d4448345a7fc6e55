"""Faults as figures: what the long suite does to us, counted.

Kills of supervisors in the middle of studies of 120 runs (afterwards every run has one outcome, nothing ran twice, and
the index equals a rebuilt one), and damaged files of every format that we read (never a crash report, a hang or a
changed table), in one process and through the real command. The tests are those of `make test-long`; each says how
many it tried.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from measuring import ROOT, render_count

TESTS = ("tests/acceptance/test_kill.py", "tests/test_fuzz.py")
CHOICE = "thousand or damaged_files_are_never_called_bugs or real_command"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2, help="of the damaged files")
    options = parser.parse_args()
    env = {**os.environ, "KILLS": str(options.kills), "ASSAY_FUZZ_SEED": str(options.seed)}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        xml = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-k", CHOICE, *xml, *TESTS]
        subprocess.run(command, cwd=ROOT, env=env, check=False)
        tried, problems = count(report)
    for what, number in sorted(tried.items()):
        print(render_count(what, problems[what], number))


def count(report: Path) -> tuple[Counter[str], Counter[str]]:
    """What was tried, by the property that each test records, and how many tests of it failed."""
    tried: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        for item in case.iter("property"):
            tried[item.attrib["name"]] += int(item.attrib["value"])
            problems[item.attrib["name"]] += case.find("failure") is not None or case.find("error") is not None
    return tried, problems


if __name__ == "__main__":
    main()

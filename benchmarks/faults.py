"""Faults as figures: what the long suite does to us, counted.

Kills of supervisors, jobs and commands in the middle of studies (afterwards every run has one outcome, nothing ran
twice, and the index equals a rebuilt one); states of files after a power cut; full and read-only disks; damaged files
of every format that we read; hostile requests to the page. Each test records how many it tried, and how many were
answered by a crash report, a hang or something wrong; one that failed before it could count is counted by itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

from measuring import ROOT, render_count

TESTS = (
    "tests/acceptance/test_disks.py",
    "tests/web/test_hostile.py",
    "tests/cli/test_damaged_runs.py::test_hundreds_of_states_after_a_power_cut",
    "tests/acceptance/test_kill.py::test_death_at_every_step_again_and_again",
    "tests/test_fuzz.py::test_twenty_thousand_damaged_files_are_never_called_bugs_of_ours",
    "tests/test_fuzz.py::test_two_thousand_damaged_files_through_the_real_command",
    "tests/search/test_search_kills.py::test_a_hundred_kills_lose_and_repeat_nothing",
    "tests/acceptance/test_kill.py::test_a_thousand_kills",
)
STOPPED = "tests that stopped before they had counted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=500, help="states after a power cut")
    parser.add_argument("--inputs", type=int, default=20_000, help="damaged files, a tenth through the real command")
    parser.add_argument("--seed", type=int, default=2, help="of the damaged files")
    parser.add_argument("tests", nargs="*", default=TESTS, help="all of them, where none is named")
    options = parser.parse_args()
    env = {"KILLS": options.kills, "CUTS": options.cuts, "INPUTS": options.inputs, "ASSAY_FUZZ_SEED": options.seed}
    os.environ.update({name: str(value) for name, value in env.items()})
    tried: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    with suppress(KeyboardInterrupt):  # what was counted by then is kept
        for test in options.tests:
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder, "report.xml")
                xml = ["-o", "junit_family=xunit1", f"--junitxml={report}"]
                subprocess.run([sys.executable, "-m", "pytest", "-q", *xml, test], cwd=ROOT, check=False)
                count(report, tried, problems)
    for what, number in sorted(tried.items()):
        print(render_count(what, problems[what], number))
    sys.exit(problems.total() > 0)


def count(report: Path, tried: Counter[str], problems: Counter[str]) -> None:
    """What was tried and what went wrong, by the properties that the tests record: `3 of 500`."""
    for case in ET.parse(report).iter("testcase"):
        found = [(item.attrib["name"], *item.attrib["value"].split(" of ")) for item in case.iter("property")]
        for name, wrong, number in found:
            tried[name] += int(number)
            problems[name] += int(wrong)
        if not found and (case.find("failure") is not None or case.find("error") is not None):
            tried[STOPPED] += 1
            problems[STOPPED] += 1


if __name__ == "__main__":
    main()

"""What a convergence check takes: judging a long curve, and checking eight segments on two slots.

Judging: ten replicas of 100,000 steps against one check, by paired windows; the claim is under a second.
Checking: `assay golden check` of the example's training, eight segments, with one slot and with two; the claim is at
most 0.6 of the time. The two take turns, and the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import ASSAY, ROOT, quick_folder, render_ratio

from assay.golden.judge.convergence import judge_segment
from assay.golden.values import Golden, Rule, Segment, Track
from assay.judge.statistics import load_numpy
from assay.values.verdict import VerdictKind

REPLICAS, STEPS = 10, 100_000
JUDGE_LIMIT_S, CHECK_LIMIT = 1.0, 0.6
SEGMENTS, SEGMENT_STEPS = 8, 200

STUDY = """
study: timing
command: {python} {program} --seed 0 --log-interval 1
metrics:
  step: '^step (\\d+)'
  loss: '\\bloss ({{number}})'
  grad_norm: 'grad_norm ({{number}})'
golden:
  segment: {steps}
  save: 'saved checkpoint (\\S+) at step (?P<step>\\d+)'
  checkpoint: --checkpoint-dir
  resume: --resume
  start: --start-step
  length: --steps
  gather: --steps {total} --save-interval {steps}
  replicas: 2
  metrics: {{loss: paired, grad_norm: paired}}
timeout: 10m
"""


# ---------------------------------------------------------------- judging


def build_tracks() -> tuple[Golden, list[Track]]:
    """A curve that falls, one percent of noise on every step, nothing wrong."""
    np = load_numpy()
    rng = np.random.default_rng(3)
    steps = tuple(range(1, STEPS + 1))
    curve = 2.0 + 8.0 * np.exp(-np.arange(STEPS) / 20_000)
    tracks = [Track(steps, tuple((curve * np.exp(rng.normal(0, 1e-3, STEPS))).tolist())) for _ in range(REPLICAS + 1)]
    return Golden("long", (Segment(0, "", {"loss": {"": tuple(tracks[:-1])}}),)), tracks[-1:]


def measure_judging() -> float:
    golden, (check,) = build_tracks()
    judge_segment(Rule("loss"), golden.segments[0], [{"loss": {"": check}}])  # loads the libraries
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        verdict = judge_segment(Rule("loss"), golden.segments[0], [{"loss": {"": check}}])
        taken.append(time.perf_counter() - began)
    if verdict.kind is not VerdictKind.PASS or verdict.comparisons != STEPS:
        sys.exit(f"wrong: {verdict.kind}, {verdict.comparisons} comparisons: {verdict.findings[0].message}")
    return statistics.median(taken)


# ---------------------------------------------------------------- checking


def assay_golden(folder: Path, *words: str) -> float:
    began = time.perf_counter()
    result = subprocess.run([*ASSAY, "golden", *words], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"assay golden {' '.join(words)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return time.perf_counter() - began


def measure_checking(turns: int) -> tuple[float, float]:
    """Seconds with one slot and with two."""
    with quick_folder() as folder:
        program = ROOT / "examples" / "charlm" / "charlm.py"
        total = (SEGMENTS + 1) * SEGMENT_STEPS - 1  # the last save still has a whole segment after it, and none follows
        text = STUDY.format(python=sys.executable, program=program, steps=SEGMENT_STEPS, total=total)
        (folder / "golden.yml").write_text(text)
        assay_golden(folder, "gather", "golden.yml", "-s", "store", "-j", "2")
        taken: dict[str, list[float]] = {"1": [], "2": []}
        for _ in range(turns):
            for slots, seconds in taken.items():
                seconds.append(assay_golden(folder, "check", "golden.yml", "-s", "store", "-j", slots))
        return statistics.median(taken["1"]), statistics.median(taken["2"])


def has_golden() -> bool:
    return subprocess.run([*ASSAY, "golden", "check", "--help"], capture_output=True, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    judged = [measure_judging() for _ in range(options.turns)]
    judging_s = statistics.median(judged)
    good = judging_s <= JUDGE_LIMIT_S
    what = f"judging {REPLICAS} x {STEPS} steps, s"
    lines = [render_ratio(what, judging_s, at_most=JUDGE_LIMIT_S, of_each=judged)]
    if has_golden():
        one_s, two_s = measure_checking(options.turns)
        good &= two_s <= CHECK_LIMIT * one_s
        print(f"{SEGMENTS} segments of {SEGMENT_STEPS} steps: {one_s:.2f} s on one slot, {two_s:.2f} s on two")
        lines.append(render_ratio("a check on two slots / on one", two_s / one_s, at_most=CHECK_LIMIT))
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""The log of a bisection and what is read from it; the whole search is in tests/golden/test_golden_tools.py."""

from __future__ import annotations

import math
from pathlib import Path

from assay.code.checkout import Commit
from assay.golden.flow.bisect import _rank, append_trial, load_trials
from assay.golden.results import BisectReport, Tried
from assay.values.verdict import Finding, VerdictKind

TRIALS = [
    Tried("a" * 40, VerdictKind.FAIL, "two\nlines, größer", "segment at 9: loss", -0.25, (-1e-300, 2.0), 17.5, 3.25),
    *(Tried(f"{at}" * 40, kind) for at, kind in enumerate(VerdictKind)),
]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "log.jsonl")
    assert load_trials(path) == []
    for trial in TRIALS:
        append_trial(path, trial)
    assert load_trials(path) == TRIALS


def test_a_line_that_a_kill_cut_short_is_no_trial_and_the_next_one_is_whole(tmp_path: Path) -> None:
    for cut in (0, 1, 30, 60):
        path = tmp_path / f"{cut}.jsonl"
        append_trial(str(path), Tried("a" * 40, VerdictKind.PASS))
        whole = path.read_bytes()
        append_trial(str(path), Tried("b" * 40, VerdictKind.FAIL))
        path.write_bytes(path.read_bytes()[: len(whole) + cut])
        append_trial(str(path), Tried("c" * 40, VerdictKind.ERROR))
        assert [trial.commit[0] for trial in load_trials(str(path))] == ["a", "c"]
    odd = '{"commit": "x"}\n[]\n17\n{"commit": "y", "verdict": "NONSENSE"}\n\n{"commit": "z", "verdict": "PASS"}\n'
    path.write_text(odd)
    assert [trial.commit for trial in load_trials(str(path))] == ["z"]


def test_what_failed_counts_before_what_crashed() -> None:
    crash = Finding(VerdictKind.ERROR, "s", "exit code 1")
    small, large = (Finding(VerdictKind.FAIL, "s", "m", effect=effect) for effect in (0.01, -0.2))
    assert min([crash, small, large], key=_rank) is large
    early = Finding(VerdictKind.FAIL, "s", "m", step=101.0, effect=0.02)
    late = Finding(VerdictKind.FAIL, "s", "m", step=301.0, effect=0.2)
    assert min([crash, late, early], key=_rank) is early, "what comes later may follow from it"
    assert min([crash, Finding(VerdictKind.PASS, "s", "m")], key=_rank) is crash
    assert _rank(Finding(VerdictKind.FAIL, "s", "m", effect=math.inf)) < _rank(large)


def test_skipped_commits_are_counted_once() -> None:
    end = Commit("a" * 40, "s", "n", "d")
    trials = (Tried("x", VerdictKind.ERROR), Tried("x", VerdictKind.ERROR), Tried("y", VerdictKind.PASS))
    assert BisectReport(end, end, "/tmp", 8, trials).skipped == 1

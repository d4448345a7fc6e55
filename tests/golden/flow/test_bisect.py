"""The log of a bisection and what is read out of it; the whole search is in tests/golden/test_golden_tools.py."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.code.checkout import Commit
from assay.golden.flow.bisect import _rank, append_trial, load_trials
from assay.golden.results import BisectReport, Tried
from assay.values.verdict import Finding, VerdictKind

NUMBERS = st.none() | st.floats(-10, 10)
TRIALS = st.builds(
    Tried,
    st.text("0123456789abcdef", min_size=40, max_size=40),
    st.sampled_from(list(VerdictKind)),
    st.text(max_size=40),
    st.text(max_size=20),
    NUMBERS,
    st.none() | st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    NUMBERS,
)


@settings(max_examples=20)
@given(st.lists(TRIALS, max_size=6))
def test_what_is_written_is_read_again(trials):
    with tempfile.TemporaryDirectory() as folder, patch("os.fsync"):
        path = f"{folder}/log.jsonl"
        for trial in trials:
            append_trial(path, trial)
        assert load_trials(path) == trials


def test_no_log_is_no_trials(tmp_path):
    assert load_trials(str(tmp_path / "log.jsonl")) == []


@pytest.mark.parametrize("cut", [0, 1, 30, 60])
def test_a_line_that_a_kill_cut_short_is_no_trial_and_the_next_one_is_whole(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    append_trial(str(path), Tried("a" * 40, VerdictKind.PASS))
    whole = path.read_bytes()
    append_trial(str(path), Tried("b" * 40, VerdictKind.FAIL))
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    append_trial(str(path), Tried("c" * 40, VerdictKind.ERROR))
    assert [trial.commit[0] for trial in load_trials(str(path))] == ["a", "c"]


def test_strange_lines_are_ignored(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"commit": "x"}\n[]\n17\n{"commit": "y", "verdict": "NONSENSE"}\n\n{"commit": "z", "verdict": "PASS"}\n'
    )
    assert [trial.commit for trial in load_trials(str(path))] == ["z"]


def test_what_failed_counts_before_what_crashed():
    crash = Finding(VerdictKind.ERROR, "s", "exit code 1")
    small, large = (Finding(VerdictKind.FAIL, "s", "m", effect=effect) for effect in (0.01, -0.2))
    assert min([crash, small, large], key=_rank) is large
    early = Finding(VerdictKind.FAIL, "s", "m", step=101.0, effect=0.02)
    late = Finding(VerdictKind.FAIL, "s", "m", step=301.0, effect=0.2)
    assert min([crash, late, early], key=_rank) is early, "what comes later may follow from it"
    assert min([crash, Finding(VerdictKind.PASS, "s", "m")], key=_rank) is crash
    assert _rank(Finding(VerdictKind.FAIL, "s", "m", effect=math.inf)) < _rank(large)


def test_skipped_commits_are_counted_once():
    end = Commit("a" * 40, "s", "n", "d")
    trials = (Tried("x", VerdictKind.ERROR), Tried("x", VerdictKind.ERROR), Tried("y", VerdictKind.PASS))
    assert BisectReport(end, end, str(Path("/tmp")), 8, trials).skipped == 1

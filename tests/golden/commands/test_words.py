"""What the subcommands of `assay golden` say, without running anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.golden.report import golden_reports as made

from assay.cli.main import build_cli
from assay.golden.flow.bisect import BisectReport, Tried
from assay.golden.flow.rebase import Rebased
from assay.golden.flow.selftest import Injected, SelftestReport
from assay.golden.report.bisection import build_document
from assay.golden.report.recording import build_rebase_document
from assay.golden.report.selftest import build_document as build_selftest_document
from assay.golden.values import Fault
from assay.show.terminal_report import render_terminal
from assay.stage.checkout import Commit
from assay.values.verdict import VerdictKind


def test_no_sentence_of_the_help_is_cut():
    text = CliRunner().invoke(build_cli(), ["golden", "--help"], terminal_width=80).output
    assert "rebase    Accept a new golden recording." in text
    assert "..." not in text.split("Commands:")[1]


def test_a_refusal_of_several_lines_has_several_lines():
    refused = Rebased("t", "m.json", made.golden(), refusals=("cannot be written\n  make room",))
    text = render_terminal(build_rebase_document([refused]))
    assert text.splitlines()[:2] == ["refused: cannot be written", "  make room"]
    assert "\\n" not in text


def build_selftest(name: str) -> SelftestReport:
    fine, bad = made.segment(made.metric((made.PASSED,))), made.segment(made.metric((made.FAILED,)))
    return SelftestReport("t", 100, fine, (Injected(Fault("env", name, "1"), bad),))


@pytest.mark.parametrize(("name", "shown"), [("BREAK_IT", "BREAK_IT=1"), ("BREAK_" * 20, "#1")])
def test_faults_with_long_names_get_a_number(name, shown):
    lines = render_terminal(build_selftest_document([build_selftest(name)]), width=80).splitlines()
    assert max(map(len, lines[:4])) <= 80
    assert lines[2].startswith("none")
    assert lines[3].split()[:3] == [shown, "caught", "FAIL"]
    assert any(name in line for line in lines), "the name is there, and whole"


def test_trials_are_counted_over_the_same_commits_that_were_announced():
    end = Commit("a" * 40, "s", "n", "d")
    report = BisectReport(end, end, "dir", 5, (Tried("x", VerdictKind.PASS), Tried("y", VerdictKind.FAIL)))
    assert render_terminal(build_document(report)).splitlines()[-1] == "2 of 6 commits tried, 2 trials; log: dir"


def test_an_interval_that_says_no_more_than_the_effect_is_left_out():
    told = Tried("x", VerdictKind.FAIL, "m", "s", 0.03, (0.03, 0.03), 101.0)
    end = Commit("a" * 40, "s", "n", "d")
    text = render_terminal(build_document(BisectReport(end, end, "dir", 5, (told,), evidence=told)))
    assert "  effect: +3%, first shows from step 101\n" in text

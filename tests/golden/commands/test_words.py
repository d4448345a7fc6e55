"""What the subcommands of `assay golden` say, without running anything."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.golden.report import golden_reports as made

from assay.cli.main import build_cli
from assay.golden.commands.check import build_table, shorten_table
from assay.golden.commands.record import render_rebased
from assay.golden.flow.bisect import BisectReport, Tried
from assay.golden.flow.rebase import Rebased
from assay.golden.flow.selftest import Injected, SelftestReport
from assay.golden.report.bisection import build_document
from assay.golden.values import Fault
from assay.show.console import Console
from assay.show.table import render_table, table_width
from assay.show.terminal_report import render_terminal
from assay.stage.checkout import Commit
from assay.values.verdict import VerdictKind


def test_no_sentence_of_the_help_is_cut():
    text = CliRunner().invoke(build_cli(), ["golden", "--help"], terminal_width=80).output
    assert "rebase    Accept a new golden recording." in text
    assert "..." not in text.split("Commands:")[1]


def test_a_refusal_of_several_lines_has_several_lines():
    text = render_rebased(
        Rebased("t", "m.json", made.golden(), refusals=("cannot be written\n  make room",)), Console()
    )
    assert text.splitlines()[:2] == ["refused: cannot be written", "  make room"]
    assert "\\n" not in text


def build_selftest(name: str) -> SelftestReport:
    fine, bad = made.segment(made.metric((made.PASSED,))), made.segment(made.metric((made.FAILED,)))
    return SelftestReport("t", 100, fine, (Injected(Fault("env", name, "1"), bad),))


@pytest.mark.parametrize(("name", "shown"), [("BREAK_IT", "BREAK_IT=1"), ("BREAK_" * 20, "#1")])
def test_faults_with_long_names_get_a_number(name, shown):
    table = shorten_table(build_table(build_selftest(name)), 80)
    assert table_width(table) <= 80
    lines = render_table(table, width=80).splitlines()
    assert lines[2].startswith("none")
    assert lines[3].split()[:3] == [shown, "caught", "FAIL"]


def test_trials_are_counted_over_the_same_commits_that_were_announced():
    end = Commit("a" * 40, "s", "n", "d")
    report = BisectReport(end, end, "dir", 5, (Tried("x", VerdictKind.PASS), Tried("y", VerdictKind.FAIL)))
    assert render_terminal(build_document(report)).splitlines()[-1] == "2 of 6 commits tried, 2 trials; log: dir"


def test_an_interval_that_says_no_more_than_the_effect_is_left_out():
    told = Tried("x", VerdictKind.FAIL, "m", "s", 0.03, (0.03, 0.03), 101.0)
    end = Commit("a" * 40, "s", "n", "d")
    text = render_terminal(build_document(BisectReport(end, end, "dir", 5, (told,), evidence=told)))
    assert "  effect: +3%, first shows from step 101\n" in text

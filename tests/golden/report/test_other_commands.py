"""What `assay golden show`, `rebase`, `selftest` and `bisect` print, without running anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.golden.report import golden_reports as made

from assay.code.checkout import Commit
from assay.errors import UsageError
from assay.golden.recordings import Recording, Sensitivity
from assay.golden.report.other_commands import (
    build_bisect_document,
    build_rebase_document,
    build_selftest_document,
    build_show_document,
)
from assay.golden.results import BisectReport, Injected, Rebased, SelftestReport, Tried
from assay.golden.values import Fault, Golden, Segment, Track
from assay.show.html import render_html
from assay.show.terminal_report import render_terminal
from assay.values.verdict import VerdictKind


def build_sensitivity(metric: str = "loss", rule: str = "paired", **changes: float | None) -> Sensitivity:
    fields = {"delta": 0.005, "one_check": 0.0061, "most_checks": 0.0055, "outside": 0.0008, **changes}
    return Sensitivity(
        metric=metric, rule=rule, per_step=0.001, per_window=0.0002, suggested_delta=None, replicas=3, **fields
    )


def render(
    golden: Golden, *sensitivity: Sensitivity, metrics: Sequence[str] = (), curves: bool = False, **look: int
) -> str:
    recording = Recording(golden, "store/m.json", (), sensitivity)
    return render_terminal(build_show_document("store", [recording], metrics, curves), **look)


def test_origin_segments_sensitivity_and_a_single_recording():
    origin = {
        **made.golden().provenance,
        "seeds": {"seed": "7"},
        "hardware": {"cpu": "a cpu", "gpus": [{"name": "H200"}]},
        "packages": {f"package{n}": "1" for n in range(12)},
    }
    text = render(
        made.golden(provenance=origin), build_sensitivity(), build_sensitivity("lr", "exact", delta=None, outside=None)
    )
    assert "segments    1 of 20 steps, at 100" in text
    assert "recordings  3 of each segment" in text
    assert "commit      abcdef0123456789 with local changes" in text
    assert "seeds       seed 7" in text
    assert "hardware    a cpu, H200" in text
    assert "and 4 more" in text
    assert "loss    paired     0.1%      0.02%    0.08%   0.5%    0.61%     0.55%" in text
    assert "Drift" not in text, "nothing was rebased"
    assert "format 1" in render(made.golden(version=1, steps_per_segment=0, provenance={}))
    assert "the training did not end" in render(made.golden(complete=False))
    golden = made.golden(provenance={"variants": {"halves": "--parts 2"}})
    segments = tuple(replace(segment, variants={"halves": {}, "other": {}}) for segment in golden.segments)
    assert "variants    halves (--parts 2), other" in render(replace(golden, segments=segments))
    gradient = build_sensitivity("grad_norm", delta=0.05, first_delta=0.01)
    text = render(made.golden(), gradient, build_sensitivity("lr", "exact", delta=None), width=80)
    assert "metric     rule    sd/step  sd/window  CHANGED        delta  1 check  3 checks" in text
    assert "1%, then 5%" in text
    golden = made.golden(replicas=1, steps_per_segment=0)
    text = render(golden)
    assert "1 of 20 values, at 100" in text
    assert "one recording of each segment, no spread" in text
    assert "n=1" not in render(golden, curves=True)


def test_the_drift_of_rebases_a_refusal_of_several_lines_and_the_trials_of_a_search():
    entry = {"at": "2026-01-01", "reason": "new data", "to": {"commit": "0123456789abcdef"}}
    history = (
        {**entry, "effects": {"loss": 0.01}, "since_first": {"loss": 0.01}},
        {**entry, "reason": "again", "effects": {"loss": 0.01}, "since_first": {"loss": 0.0201}},
    )
    lines = render(made.golden(history=history)).splitlines()
    assert [line.split()[-2:] for line in lines[-2:]] == [["+1%", "+1%"], ["+1%", "+2.01%"]]
    assert "0123456789ab" in lines[-1]
    assert "Drift" not in render(made.golden(history=({"odd": 1},))), "a strange history"
    refused = Rebased("t", "m.json", made.golden(), refusals=("cannot be written\n  make room",))
    text = render_terminal(build_rebase_document([refused]))
    assert text.splitlines()[:2] == ["refused: cannot be written", "  make room"]
    assert "\\n" not in text
    end = Commit("a" * 40, "s", "n", "d")
    tried = Tried("y", VerdictKind.FAIL, "m", "s", 0.03, (0.03, 0.03), 101.0)
    report = BisectReport(end, end, "dir", 5, (Tried("x", VerdictKind.PASS), tried), evidence=tried)
    text = render_terminal(build_bisect_document(report))
    assert text.splitlines()[-1] == "2 of 6 commits tried, 2 trials; log: dir"
    assert "  effect: +3%, first shows from step 101\n" in text, "the interval adds nothing"


def test_one_chart_for_each_metric_with_a_band_for_each_segment():
    golden = made.golden()
    two = replace(golden, segments=(*golden.segments, replace(golden.segments[0], start_step=200)))
    text = render(two, curves=True)
    drawing = text[text.index("\nloss\n") :]
    assert [line.split()[1:3] for line in drawing.splitlines()[-2:]] == [["after", "100"], ["after", "200"]]
    assert drawing.count("(n=3 runs)") == 2
    assert render(two, metrics=("loss",), curves=True) == text
    assert "\nloss\n" not in render(two)
    with pytest.raises(UsageError, match="no metric 'los'"):
        render(two, metrics=("los",))
    nan = Golden("t", (Segment(1, "c", {"loss": {"": (Track((1, 2), (float("nan"), float("nan"))),)}}),))
    assert "loss: there is nothing to plot: no finite values" in render(nan, curves=True)
    document = build_show_document("store", [Recording(made.golden(), "store/m.json", (), ())])
    page = render_html(document)
    assert page.count("<svg") == 1
    assert "after step 100" in page
    assert "sd/step" not in page, "the page is that of a gathering"
    assert document.facts[0]["segments"][0]["start_step"] == 100


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


def test_what_shows_a_recording_loads_nothing_that_makes_one():
    loaded = "[name for name in sys.modules if name.startswith(('assay.launch', 'assay.golden.flow'))]"
    code = f"import sys, assay.golden.report.other_commands; print({loaded})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"

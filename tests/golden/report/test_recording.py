from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.report import golden_reports as made

from assay.errors import UsageError
from assay.golden.flow.recordings import Recording, Sensitivity
from assay.golden.report.recording import build_charts, build_document, render_charts
from assay.golden.values import Golden, Segment, Track
from assay.show.terminal_report import render_terminal


def told(metric: str = "loss", rule: str = "paired", **changes: float | None) -> Sensitivity:
    fields = {"delta": 0.005, "one_check": 0.0061, "most_checks": 0.0055, "outside": 0.0008, **changes}
    return Sensitivity(
        metric=metric, rule=rule, per_step=0.001, per_window=0.0002, suggested_delta=None, replicas=3, **fields
    )


def render(golden: Golden, *sensitivity: Sensitivity, **look: int) -> str:
    return render_terminal(build_document(Recording(golden, "store/m.json", (), sensitivity)), **look)


def test_origin_segments_and_sensitivity():
    origin = {
        **made.golden().provenance,
        "seeds": {"seed": "7"},
        "hardware": {"cpu": "a cpu", "gpus": [{"name": "H200"}]},
        "packages": {f"package{n}": "1" for n in range(12)},
    }
    text = render(made.golden(provenance=origin), told(), told("lr", "exact", delta=None, outside=None))
    assert "segments    1 of 20 steps, at 100" in text
    assert "recordings  3 of each segment" in text
    assert "commit      abcdef0123456789 with local changes" in text
    assert "seeds       seed 7" in text
    assert "hardware    a cpu, H200" in text
    assert "and 4 more" in text
    assert "loss    paired     0.1%      0.02%    0.08%   0.5%    0.61%     0.55%" in text
    assert "Drift" not in text, "nothing was rebased"


def test_a_manifest_of_the_original_and_an_incomplete_one_say_so():
    assert "format 1" in render(made.golden(version=1, steps_per_segment=0, provenance={}))
    assert "the training did not end" in render(made.golden(complete=False))


def test_eighty_columns_hold_every_heading_and_both_limits_of_a_gradient_norm():
    sensitivity = (told("grad_norm", delta=0.05, first_delta=0.01), told("lr", "exact", delta=None))
    text = render(made.golden(), *sensitivity, width=80)
    assert "metric     rule    sd/step  sd/window  CHANGED        delta  1 check  3 checks" in text
    assert "1%, then 5%" in text


def test_one_recording_has_no_spread_and_no_question_mark():
    golden = made.golden(replicas=1, steps_per_segment=0)
    text = render(golden)
    assert "1 of 20 values, at 100" in text
    assert "one recording of each segment, no spread" in text
    assert "n=1" not in "".join(render_charts(build_charts(golden)))


def test_drift_has_a_row_for_each_rebase():
    entry = {"at": "2026-01-01", "reason": "new data", "to": {"commit": "0123456789abcdef"}}
    history = (
        {**entry, "effects": {"loss": 0.01}, "since_first": {"loss": 0.01}},
        {**entry, "reason": "again", "effects": {"loss": 0.01}, "since_first": {"loss": 0.0201}},
    )
    lines = render(made.golden(history=history)).splitlines()
    assert [line.split()[-2:] for line in lines[-2:]] == [["+1%", "+1%"], ["+1%", "+2.01%"]]
    assert "0123456789ab" in lines[-1]


def test_strange_history_breaks_nothing():
    assert "Drift" not in render(made.golden(history=({"odd": 1}, {"effects": 7})))


def test_one_chart_for_each_metric_with_a_band_for_each_segment():
    golden = made.golden()
    two = replace(golden, segments=(*golden.segments, replace(golden.segments[0], start_step=200)))
    (chart,) = build_charts(two)
    assert [line.label for line in chart.lines] == ["after 100", "after 200"]
    assert chart.lines[0].members == 3
    assert any(chart.lines[0].spread)
    (text,) = render_charts([chart])
    assert text.startswith("loss\n")
    with pytest.raises(UsageError, match="no metric 'los'"):
        build_charts(two, ("los",))


def test_a_metric_without_finite_values_is_said_not_drawn():
    nan = Golden("t", (Segment(1, "c", {"loss": {"": (Track((1, 2), (float("nan"), float("nan"))),)}}),))
    (text,) = render_charts(build_charts(nan))
    assert "no finite values" in text


def test_variants_are_shown_with_how_they_were_set():
    golden = made.golden(provenance={"variants": {"halves": "--parts 2"}})
    segments = tuple(replace(segment, variants={"halves": {}, "other": {}}) for segment in golden.segments)
    assert "variants    halves (--parts 2), other" in render(replace(golden, segments=segments))

"""Reports for tests of their output: made by hand, so that every verdict and every special case is there."""

from __future__ import annotations

import math

from assay.golden.values import (
    Golden,
    GoldenReport,
    GoldenTestReport,
    MetricReport,
    Rule,
    Segment,
    SegmentReport,
    SegmentRun,
    Track,
)
from assay.values.run import State
from assay.values.verdict import Finding, Verdict, VerdictKind

STEPS = tuple(range(101, 121))


def track(level: float = 1.0, steps: tuple[int, ...] = STEPS) -> Track:
    return Track(steps, tuple(level / step for step in steps))


def golden(replicas: int = 3, **changes: object) -> Golden:
    tracks = {"loss": {"": tuple(track(100 + 0.1 * n) for n in range(replicas))}}
    origin = {"gathered_at": "2026-01-02T03:04:05Z", "commit": "abcdef0123456789", "host": "node7", "dirty": True}
    fields = {"steps_per_segment": 20, "provenance": origin, "noise": {"loss": 0.001}, **changes}
    return Golden("charlm", (Segment(100, "ckpts/c100", tracks),), **fields)  # type: ignore[arg-type]


def finding(kind: VerdictKind, message: str = "", **numbers: object) -> Finding:
    return Finding(kind, "segment at 100: loss", message or f"{kind} it is", **numbers)  # type: ignore[arg-type]


FAILED = finding(
    VerdictKind.FAIL,
    "+2% [+1.5%, +2.5%] in steps 105 to 110",
    value=1.02,
    expected=1.0,
    step=105.0,
    effect=0.02,
    interval=(0.015, 0.025),
    stretches=((105.0, 110.0),),
)


def metric(found: tuple[Finding, ...], name: str = "loss", **changes: object) -> MetricReport:
    fields = {
        "golden": golden().segments[0].tracks["loss"],
        "check": {"": (track(102),)},
        "noise": 0.001,
        "delta": 0.005,
        **changes,
    }
    return MetricReport(Rule(name), Verdict.of(found, 20), **fields)  # type: ignore[arg-type]


def segment(
    *metrics: MetricReport, rest: tuple[Finding, ...] = (), start: int = 100, **changes: object
) -> SegmentReport:
    findings = [each for report in metrics for each in report.verdict.findings]
    compared = sum(report.verdict.comparisons for report in metrics)
    fields = {"runs": (SegmentRun("runs/golden-charlm/check-1", State.DONE, elapsed_s=2.5, last_step=120),), **changes}
    return SegmentReport(start, "ckpts/c100", Verdict.of([*findings, *rest], compared), metrics, **fields)  # type: ignore[arg-type]


def report(*segments: SegmentReport, rest: tuple[Finding, ...] = (), **changes: object) -> GoldenReport:
    findings = [each for part in segments for each in part.verdict.findings]
    verdict = Verdict.of([*findings, *rest], sum(part.verdict.comparisons for part in segments))
    fields = {"golden": golden(), "segments": segments, **changes}
    test = GoldenTestReport("charlm", "store/charlm_m.json", verdict, **fields)  # type: ignore[arg-type]
    return GoldenReport("check", "golden.yml", (test,), 3.0)


PASSED = finding(VerdictKind.PASS, "within 0.5%", effect=0.0001, interval=(-0.0001, 0.0003))


def good_report() -> GoldenReport:
    return report(segment(metric((PASSED,))))


def bad_report() -> GoldenReport:
    """Build a report with a failed metric, a crash, NaN, an inconclusive and a changed one."""
    nan = {"": (Track(STEPS, tuple(math.nan if step > 110 else 1.0 / step for step in STEPS)),)}
    return report(
        segment(
            metric((FAILED,)),
            metric((finding(VerdictKind.INCONCLUSIVE, effect=0.004),), "acc"),
            metric((finding(VerdictKind.CHANGED, "suspiciously better", effect=-0.03, step=101.0),), "eval_loss"),
            metric((finding(VerdictKind.FAIL, "the check is nan at step 111", step=111.0),), "grad_norm", check=nan),
            runs=(SegmentRun("runs/x", State.STOPPED, "stopped", 1.0, 110, "loss: +2%", 10, 0.7),),
        ),
        segment(rest=(finding(VerdictKind.ERROR, "train ended with exit code 3 <&> \x1b[31m|boom|"),), start=200),
        warnings=("the golden was recorded on another machine",),
        notes=("runs in /somewhere",),
    )


def error_report() -> GoldenReport:
    verdict = Verdict.of([Finding(VerdictKind.ERROR, "charlm", "there is no golden recording\n  gather it first")], 0)
    return GoldenReport("check", "golden.yml", (GoldenTestReport("charlm", "m.json", verdict),))

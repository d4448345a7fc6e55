"""`assay bench selftest`: compares equal code with itself, which shows the smallest effect visible on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from assay.bench.flow.archive import find_location
from assay.bench.flow.compare import CompareOptions, Run, compare_executions, sign_end
from assay.bench.flow.sides import Executions
from assay.bench.judge.samples import scale_visible
from assay.bench.records import Selftest, load_named, write_named
from assay.bench.values.comparison import ComparisonReport
from assay.bench.values.execution import COMPARED, CPU_TIME, WALL_TIME, BenchRequest, BenchVariant, parse_method
from assay.errors import UsageError
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.processes import host_name
from assay.values.plain import render_date
from assay.values.verdict import VerdictKind

WORK = parse_method("assay.bench.benchmark.sort_words")  # the benchmark that is used if no METHOD is given
_SIDES = (BenchVariant("a"), BenchVariant("b"))


@dataclass(frozen=True, slots=True)
class BenchSelftestReport:
    report: ComparisonReport  # the code is equal: a reported difference is a false alarm
    method: str
    found: Selftest
    kept: bool  # whether the result was stored: later comparisons refuse a smaller threshold


def run_selftest(request: BenchRequest, run: Run) -> BenchSelftestReport:
    """Run the same code as both sides, in turns, as in a comparison of commits."""
    own = request.methods == (WORK,)
    report = run(replace(request, variants=_SIDES, extra={**request.extra, **COMPARED}))
    a, b = (Executions(v.label, tuple(e for e in report.executions if e.label == v.label)) for v in _SIDES)
    times = {name for each in report.executions for name in each.numbers} & {CPU_TIME, WALL_TIME}
    options = CompareOptions(metrics=tuple(sorted(times)) if own else (), in_turns=True, across=True)
    is_ended = bool(report.interrupted or report.problem)
    compared = compare_executions(a, b, options)
    exact = compare_executions(a, b, replace(options, min_effect=0.0))
    visible = {each.metric: each.detectable for each in exact.metrics if each.detectable is not None}
    found = Selftest(host_name(), request.trials, visible, time.time())
    kept = bool(visible) and not is_ended and compared.verdict.kind in (VerdictKind.PASS, VerdictKind.INCONCLUSIVE)
    if kept:
        folder = find_location(request.root).dir
        write_named(folder, Selftest, {**load_named(folder, Selftest), request.methods[0].name: found})
    return BenchSelftestReport(sign_end(compared, report if is_ended else None), request.methods[0].name, found, kept)


def check_gate(
    min_effect: float, metrics: Iterable[str], methods: Iterable[str], trials: int, root: str | None
) -> None:
    """Refuse a threshold that `trials` trials cannot show on this machine, according to its last selftest."""
    known = load_named(find_location(root).dir, Selftest)
    mine = [name for name in methods if name in known] or [WORK.name]
    asked = set(metrics)
    for each in (known[name] for name in mine if name in known and known[name].host == host_name()):
        for metric, visible in each.visible.items():
            least = scale_visible(visible, each.trials, trials)
            if (not asked or metric in asked) and min_effect < least:
                seen = f"{trials} trials on each side show no {metric} effect below {least:.2%} on this machine"
                day = render_date(each.at, "%Y-%m-%d")
                more = math.ceil(trials * (least / max(min_effect, 1e-4)) ** 2)
                hint = f"use --min-effect {math.ceil(least * 1000) / 1000:g} or more"
                hint += f", or --most-trials {more}" if min_effect and more <= 1000 else ""
                raise UsageError(f"--min-effect {min_effect:g} is too small: {seen} (selftest of {day})", hint)

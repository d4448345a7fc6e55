"""`assay golden selftest`: finds whether a check would find a fault. Known faults are injected into the user's own run,
one at a time."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence

from assay.errors import UsageError
from assay.follow.api import StudyLocation
from assay.golden.config import load_golden_file
from assay.golden.flow.check import check_variants
from assay.golden.flow.segments import GoldenContext, GoldenOptions, build_contexts, choose_golden
from assay.golden.results import Injected, SelftestReport
from assay.golden.values import Fault, Golden, Segment, SegmentReport, Variant
from assay.launch.api import RunHooks
from assay.system.fast_dataclasses import replace

_SCALE = re.compile(r"[x*]\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_HOW_TO = """give the faults to inject, in the file or as options:
  golden: {selftest: {env: {BREAK_IT: [a, b]}, flags: {--lr: [x0.9, x1.1]}}}
  --env BREAK_IT=a    --flag --lr=x0.9"""


def selftest_file(
    options: GoldenOptions, faults: Sequence[Fault] = (), start_step: int | None = None, hooks: RunHooks | None = None
) -> tuple[SelftestReport, ...]:
    """Try `faults` and the file's faults in the segment that begins at `start_step`, by default the middle segment."""
    file = load_golden_file(options.file, ("run",))
    contexts = build_contexts(file, options)
    hooks = hooks or RunHooks()
    for warning in file.warnings:
        hooks.console.warning(str(warning))
    return tuple(_try_test(context, (*context.test.selftest, *faults), start_step, hooks) for context in contexts)


def _try_test(
    context: GoldenContext, faults: tuple[Fault, ...], start_step: int | None, hooks: RunHooks
) -> SelftestReport:
    if not faults:
        raise UsageError(f"{context.test.name} has no faults", _HOW_TO)
    began = time.monotonic()
    # runs with injected faults are in a study of their own: they must not be mistaken for checks
    location = StudyLocation(context.location.root, f"{context.location.name}-selftest")
    context = replace(context, location=location, study=replace(context.study, name=location.name))
    context = choose_golden(context)
    golden = context.load_golden()
    segment = choose_segment(golden, start_step)
    variants = [context, *(inject(context, fault, segment) for fault in faults)]
    (control, *reports), end = check_variants(context, variants, golden, segment, hooks)
    expected = _first_values(control)
    return SelftestReport(
        context.test.name,
        segment.start_step,
        control,
        tuple(
            Injected(fault, report, bool(expected) and _first_values(report) == expected)
            for fault, report in zip(faults, reports, strict=True)
        ),
        time.monotonic() - began,
        end.interrupted if end else None,
        end.problem if end else None,
    )


def _first_values(report: SegmentReport) -> dict[tuple[str, str], tuple[tuple[int, ...], tuple[float, ...]]]:
    return {
        (metric.metric, label): (tracks[0].steps, tracks[0].values)
        for metric in report.metrics
        for label, tracks in metric.check.items()
        if tracks
    }


def choose_segment(golden: Golden, start_step: int | None) -> Segment:
    if not golden.segments:
        raise UsageError("the golden recording has no segment", "gather it again")
    if start_step is None:
        return golden.segments[len(golden.segments) // 2]
    by_step = {segment.start_step: segment for segment in reversed(golden.segments)}
    if start_step not in by_step:
        known = ", ".join(str(segment.start_step) for segment in golden.segments)
        raise UsageError(f"no segment begins at step {start_step}", f"segments begin at: {known}")
    return by_step[start_step]


def inject(context: GoldenContext, fault: Fault, segment: Segment) -> GoldenContext:
    if fault.kind == "env":
        return context.use_variant(Variant(fault.title, env=((fault.name, fault.value),)))
    words = build_arguments(fault, context.build_check_command(segment.checkpoint, segment.start_step))
    return context.use_variant(Variant(fault.title, flags=words))


def build_arguments(fault: Fault, command: str) -> tuple[str, ...]:
    """Return the arguments that a fault appends to the command; most programs use the last of several equal flags."""
    match = _SCALE.fullmatch(fault.value)
    value = f"{_find_value(fault.name, command) * float(match[1]):.12g}" if match else fault.value
    if fault.name.endswith("="):
        return (f"{fault.name}{value}",)
    return (fault.name, value) if value else (fault.name,)


def _find_value(flag: str, command: str) -> float:
    """Return the number after a flag, `--lr 0.01` or `--lr=0.01`; the last one counts."""
    words = shlex.split(command)
    name = flag.removesuffix("=")
    found = [words[index + 1] for index, word in enumerate(words[:-1]) if word == name]
    found += [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    try:
        return float(found[-1])
    except IndexError:
        hint = "write it into the command, or give the fault its own value"
        raise UsageError(f"the command does not have {name}, so it cannot be scaled", hint) from None
    except ValueError:
        message = f"{name} is {found[-1]!r} in the command, which is not a number and cannot be scaled"
        raise UsageError(message) from None

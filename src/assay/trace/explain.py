"""`assay golden explain` and `golden check --explain`: find what began a difference from a golden.

The golden's code and the current code are executed with traces, from the checkpoint before the first bad window.
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.errors import AssayError
from assay.golden.api import GoldenContext, GoldenTestReport, SegmentReport, choose_golden, find_commit
from assay.launch.api import RunHooks
from assay.trace.bisecting import (
    BisectInterruptedError,
    Bisector,
    NothingRecordedError,
    TraceBisectRequest,
    judge_bisection,
    list_commands,
)
from assay.values.options import Request, option
from assay.values.verdict import VerdictKind

_MOST_STEPS = 10_000
_HIDDEN = "***"


class ExplainOptions(Request):
    explain: bool = option(
        "--explain",
        default=False,
        help="Unless the verdict is PASS: trace the golden's code and yours, and show where the difference began.",
    )


def explain_test(context: GoldenContext, report: GoldenTestReport, hooks: RunHooks) -> tuple[str, ...]:
    """Return lines for the report of a check: what began the first window that did not pass."""
    bad = [segment for segment in report.segments if segment.verdict.kind is not VerdictKind.PASS]
    if not bad:
        return ("nothing to explain: every segment passed",) if report.segments else ()
    segment = min(bad, key=_find_step)
    try:
        found = _open_bisector(choose_golden(context), segment, hooks).run()
    except BisectInterruptedError:
        raise
    except NothingRecordedError as error:
        return (f"not explained: {error.message}; a trace has the tensors of torch, nothing of numpy or of others",)
    except AssayError as error:
        return (f"not explained: {error.message}",)
    return tuple(_describe(found, segment))


def _find_step(segment: SegmentReport) -> float:
    """Return the step at which the first bad window of a segment begins."""
    bad = [each for each in segment.verdict.findings if each.kind is not VerdictKind.PASS]
    return min((each.step for each in bad if each.step is not None), default=float(segment.start_step))


def _open_bisector(context: GoldenContext, segment: SegmentReport, hooks: RunHooks) -> Bisector:
    golden, path = context.load_golden(), context.find_checkpoint(segment) or ""
    beyond = golden.steps_beyond or 0
    now = context.build_check_command(path, segment.start_step, beyond)
    then = str(golden.provenance.get("command") or "") if context.test.from_start else ""
    request = TraceBisectRequest(
        command=(then if then and _HIDDEN not in then else now,),
        b_command=now,
        a_rev=find_commit(golden, "record it again with everything committed"),
        steps=tuple(range(1, min(context.test.steps_to_record + beyond, _MOST_STEPS) + 1)),
        root=context.location.root,
        on=context.farm.name if context.farm else None,
    )
    return Bisector(request, hooks.console, context.folder, context.test.env, path)


def _describe(found: Bisector, segment: SegmentReport) -> Iterator[str]:
    """Describe a bisection; A is the golden's code, B the current code."""
    kind, answer = judge_bisection(found)
    where = f"after step {segment.start_step}, counted from there: " if segment.start_step else ""
    if kind is VerdictKind.PASS:
        yield f"not explained: {answer} with the golden's code and with yours: the environment may have begun it"
        return
    yield f"{where}{answer} (A: {found.codes['a'].title}; B: {found.codes['b'].title})"
    if found.repro is not None and found.repro.opinion:
        yield f"float64: {found.repro.opinion.text}"
    yield from found.notes
    yield from (f"{what}: {command}" for what, command in list_commands(found))

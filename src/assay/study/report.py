"""The report at the end of a study: how it went, what failed and why, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from assay.show import formatting
from assay.show.terminal_report import render_terminal
from assay.system.fast_dataclasses import dataclass
from assay.values.document import Block, Code, Commands, Details, Document, Notes, Section, Span, Text
from assay.values.verdict import VerdictKind

TAIL_LINES = 10
_IN_FULL = 3  # failed runs shown with the end of their log
_LISTED = 20  # failed runs named at all


@dataclass(frozen=True, slots=True)
class FailedRun:
    """`log_tail` is the end of the log as text; `state` a State's word."""

    name: str
    state: str = "failed"
    reason: str = ""
    exit_code: int | None = None
    log_path: str | None = None
    log_tail: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class StudyReport:
    """Counts of runs; `kept` of `done` were finished before. `next_steps` are commands, quoted for a shell."""

    study: str
    total: int
    done: int
    failed: tuple[FailedRun, ...] = ()
    stopped: int = 0
    running: int = 0  # left running: --detach, or another supervisor's
    queued: int = 0
    kept: int = 0
    elapsed_s: float | None = None
    folder: str | None = None
    warnings: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


def render_report(report: StudyReport, *, color: bool = False, width: int | None = None) -> str:
    return render_terminal(build_document(report), color=color, width=width)


def build_document(report: StudyReport) -> Document:
    return Document(
        report.study,
        (
            *_build_failures(report),
            Notes([f"warning: {text}" for text in report.warnings]),
            Text(Span(_describe_outcome(report), _choose_role(report))),
            Commands([("" if number else "next", step) for number, step in enumerate(report.next_steps)]),
        ),
    )


def _choose_role(report: StudyReport) -> VerdictKind:
    if report.failed:
        return VerdictKind.FAIL
    return VerdictKind.PASS if report.done == report.total else VerdictKind.INCONCLUSIVE


def _describe_outcome(report: StudyReport) -> str:
    late = sum(run.state == "timeout" for run in report.failed)
    lost = sum(run.state == "lost" for run in report.failed)
    kept = f" ({report.kept} of them earlier)" if report.kept else ""
    counts = (
        (report.done, f"done{kept}"),
        (len(report.failed) - late - lost, "failed"),
        (late, "timed out"),
        (lost, "lost"),
        (report.stopped, "stopped"),
        (report.running, "still running"),
        (report.queued, "not started"),
    )
    said = ", ".join(f"{count} {name}" for count, name in counts if count) or "nothing ran"
    took = "" if report.elapsed_s is None else f" after {formatting.render_duration(report.elapsed_s)}"
    folder = f", in {report.folder}" if report.folder else ""
    return f"{report.study}: {formatting.render_count(report.total, 'run')}: {said}{took}{folder}"


def _build_failures(report: StudyReport) -> Iterator[Block]:
    failed = report.failed
    for run in failed[:_IN_FULL]:
        yield Details(Span(_describe(run), "failed"), list(_build_tail(run)))
    listed: list[Block] = []
    for run in failed[_IN_FULL:_LISTED]:
        listed.append(Text(Span(_describe(run), "failed")))
        listed += [Text(run.log_path, indent=1)] if run.log_path else []
    if len(failed) > _LISTED:
        listed.append(Text(f"and {len(failed) - _LISTED} more that failed"))
    yield Section(listed)


def _describe(run: FailedRun) -> str:
    reason = run.reason
    code = "" if run.exit_code is None or "exit code" in reason else f"exit code {run.exit_code}"
    attempts = f"{run.attempts} attempts" if run.attempts > 1 else ""
    facts = ", ".join(fact for fact in (reason, code, attempts) if fact)
    return f"{run.state.upper()} {run.name}" + (f": {facts}" if facts else "")


def _build_tail(run: FailedRun) -> Iterator[Block]:
    if run.log_path:
        yield Text(run.log_path)
        lines = split_log(run.log_tail)[-TAIL_LINES:]
        yield Code("\n".join(lines) if lines else "(the log is empty)")


def split_log(text: str) -> list[str]:
    """Lines as a terminal would leave them: of a line rewritten by carriage returns only the last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = [formatting.clean(_strip_escapes(line).expandtabs(4)).rstrip() for line in lines]
    while cleaned and not cleaned[-1]:
        cleaned.pop()
    return cleaned


def _strip_escapes(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", line) if "\x1b" in line else line

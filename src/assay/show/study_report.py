"""What is left to say when a study is over: how it went, what failed and why, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.show import formatting
from assay.system import terminal

TAIL_LINES = 10
_IN_FULL = 3  # failed runs shown with the end of their log
_LISTED = 20  # failed runs named at all
_LINE_WIDTH = 200  # a progress bar in a log can be thousands of characters long


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
    """`width`: of the terminal; sentences are broken between words there."""
    blocks = [
        _render_failures(report, color),
        [formatting.wrap(f"warning: {formatting.clean(text)}", width, "  ") for text in report.warnings],
        [_paint(_render_outcome(report), _outcome_style(report), color)],
        _render_next(report.next_steps),
    ]
    return "\n".join(line for block in blocks for line in block) + "\n"


def _paint(text: str, style: str, color: bool) -> str:
    return terminal.paint(text, style) if color and style else text


def _outcome_style(report: StudyReport) -> str:
    if report.failed:
        return "bold red"
    return "bold green" if report.done == report.total else "bold yellow"


def _render_outcome(report: StudyReport) -> str:
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
    folder = f", in {formatting.clean(report.folder)}" if report.folder else ""
    return f"{formatting.clean(report.study)}: {formatting.render_count(report.total, 'run')}: {said}{took}{folder}"


def _render_failures(report: StudyReport, color: bool) -> Iterator[str]:
    failed = report.failed
    for run in failed[:_IN_FULL]:
        yield _paint(_describe(run), "red", color)
        yield from _render_tail(run)
        yield ""
    for run in failed[_IN_FULL:_LISTED]:
        yield _paint(_describe(run), "red", color)
        yield from [f"  {formatting.clean(run.log_path)}"] if run.log_path else []
    if len(failed) > _LISTED:
        yield f"and {len(failed) - _LISTED} more that failed"
    if len(failed) > _IN_FULL:
        yield ""


def _describe(run: FailedRun) -> str:
    reason = formatting.clean(run.reason)
    code = "" if run.exit_code is None or "exit code" in reason else f"exit code {run.exit_code}"
    attempts = f"{run.attempts} attempts" if run.attempts > 1 else ""
    facts = ", ".join(fact for fact in (reason, code, attempts) if fact)
    return f"{run.state.upper()} {formatting.clean(run.name)}" + (f": {facts}" if facts else "")


def _render_tail(run: FailedRun) -> Iterator[str]:
    if run.log_path:
        yield f"  {formatting.clean(run.log_path)}"
    lines = split_log(run.log_tail)
    if not lines and run.log_path:
        yield "  | (the log is empty)"
    yield from (f"  | {formatting.shorten(line, _LINE_WIDTH)}" for line in lines[-TAIL_LINES:])


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


def _render_next(steps: Sequence[str]) -> Iterator[str]:
    for number, step in enumerate(steps):
        yield f"{'next: ' if number == 0 else '      '}{formatting.clean(step)}"

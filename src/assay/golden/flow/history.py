"""`assay golden history`: the kept checks of a test, grouped by date into nights, and the nights that users accepted.

Only nights of one golden in one environment (the GPUs or, without GPUs, the processor) are compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from assay.errors import FormatError, NotFoundError, UsageError
from assay.follow.api import StudyLocation
from assay.golden.flow.segments import GoldenContext
from assay.golden.judge.nights import FindSteps, Move, Night, judge_nights, measure_levels
from assay.golden.records import Head, list_ids, load_report
from assay.golden.values import GoldenTestReport, Rule
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import append_line, load_lines
from assay.values import layout
from assay.values.plain import render_date
from assay.values.verdict import Finding, Verdict, VerdictKind, find_worst

TRIAGE_FILE = "triage.jsonl"
UNKNOWN = "an unknown device"

Check = tuple[Head, GoldenTestReport]


@dataclass(frozen=True, slots=True)
class NightHistory:
    """The nights of one test in one environment, oldest first, against the newest golden of that environment."""

    test: str
    environment: str
    golden: str  # the time when the golden was gathered
    nights: tuple[Night, ...]
    verdict: Verdict
    moves: tuple[Move, ...]
    notes: tuple[str, ...] = ()


def load_histories(context: GoldenContext, find_steps: FindSteps) -> list[NightHistory]:
    """Load one history for each environment. Raises UsageError if no check is kept."""
    checks, damaged = _load_checks(context.location)
    if not checks and not damaged:
        hint = f"check it first: assay golden check {context.options.build_arguments()}"
        raise UsageError(f"no check of {context.test.name} is kept in {context.location.dir}", hint)
    name = context.test.name
    if not checks:
        verdict = Verdict.of([Finding(VerdictKind.ERROR, name, text) for text in damaged], 0)
        return [NightHistory(name, UNKNOWN, "", (), verdict, ())]
    found = []
    for each in _build_histories(context.location, checks, context.test.rules, find_steps):
        # a metric may have moved in a check that cannot be read
        unread = [Finding(VerdictKind.INCONCLUSIVE, each.test, text) for text in damaged]
        verdict = Verdict.of([*each.verdict.findings, *unread], each.verdict.comparisons)
        since = [each.nights[move.at].date for move in each.moves if move.state == "open"][:1]
        how = f"assay golden history {replace(context.options, tests=(name,)).build_arguments()} --accept"
        notes = [f"if this is meant:  {how} {date} --reason 'an intended change'" for date in since]
        found.append(replace(each, verdict=verdict, notes=(*each.notes, *notes)))
    return found


def load_kept_histories(location: StudyLocation, since: str, find_steps: FindSteps) -> list[NightHistory]:
    """Load the histories for a page, with the rules of the newest check. `since`: id of the oldest check to load."""
    checks, _ = _load_checks(location, since)
    rules = [metric.rule for _, report in checks[-1:] for segment in report.segments for metric in segment.metrics]
    return _build_histories(location, checks, rules, find_steps)


def _build_histories(
    location: StudyLocation, checks: Sequence[Check], rules: Iterable[Rule], find_steps: FindSteps
) -> list[NightHistory]:
    accepted, by_metric = load_accepted(location), {rule.metric: rule for rule in rules}
    groups: dict[str, list[Check]] = {}
    for head, report in checks:
        groups.setdefault(report.origin.get("GPUs") or report.origin.get("cpu") or UNKNOWN, []).append((head, report))
    return [_build_history(name, group, accepted, by_metric, find_steps) for name, group in groups.items()]


def _load_checks(location: StudyLocation, since: str = "") -> tuple[list[Check], list[str]]:
    """Return the checks that can be read, oldest first, and the errors of damaged checks."""
    checks, damaged = list[Check](), list[str]()
    for wanted, mode in reversed(list_ids(location)):
        if mode != "check" or wanted < since:
            continue
        try:
            checks.append(load_report(location, wanted))
        except FormatError as error:
            damaged.append(error.message)
        except NotFoundError:  # the check was deleted after the folder was listed
            continue
    return checks, damaged


def _mark_golden(report: GoldenTestReport) -> str:
    return str(report.golden.provenance.get("gathered_at", "")) if report.golden else ""


def _build_history(
    environment: str, checks: Sequence[Check], accepted: dict[str, str], rules: dict[str, Rule], find_steps: FindSteps
) -> NightHistory:
    golden = next((mark for _, report in reversed(checks) if (mark := _mark_golden(report))), "")
    mine = [each for each in checks if _mark_golden(each[1]) in (golden, "")]
    days: dict[str, list[Check]] = {}
    for each in mine:
        days.setdefault(render_date(each[0].at, "%Y-%m-%d"), []).append(each)
    nights = []
    for date, group in days.items():  # the runs of all checks of a day are one sample, and the worst verdict counts
        segments = [segment for _, report in group for segment in report.segments]
        runs, kind = sum(len(segment.runs) for segment in segments), find_worst(head.kind for head, _ in group)
        why, origin = accepted.get(date, ""), group[-1][1].origin
        nights.append(Night(date, kind, runs, measure_levels(segments), why, origin))
    names = dict.fromkeys(name for night in nights for name in night.levels)
    by_label = {name: rules[metric] for name in names for metric in rules if f"{name} ".startswith(f"{metric} ")}
    verdict, moves = judge_nights(nights, by_label, find_steps)
    others = len(checks) - len(mine)
    notes = [f"{others} earlier checks are against another golden, and are not compared"] if others else []
    return NightHistory(mine[-1][1].test, environment, golden, tuple(nights), verdict, tuple(moves), tuple(notes))


def load_accepted(location: StudyLocation) -> dict[str, str]:
    """Load the reasons why nights were accepted, by date; the last entry for a night counts."""
    found: dict[str, str] = {}
    for line in load_lines(_find_triage(location)):
        if isinstance(line.get("night"), str) and isinstance(line.get("accepted"), str):
            found[line["night"]] = line["accepted"]
    return {night: why for night, why in found.items() if why}


def write_accepted(context: GoldenContext, night: str, reason: str) -> list[str]:
    """Accept a night (a date, or `last`) and all later nights; an empty reason withdraws this. Raises NotFoundError."""
    checks, _ = _load_checks(context.location)
    dates = list(dict.fromkeys(render_date(head.at, "%Y-%m-%d") for head, _ in checks))
    if (chosen := dates[-1] if night == "last" and dates else night) not in dates:
        raise NotFoundError("night", night, dates)
    nights = dates[dates.index(chosen) :]
    for each in nights:
        append_line(_find_triage(context.location), {"night": each, "accepted": reason, "at": time.time()})
    return nights


def _find_triage(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, TRIAGE_FILE)

"""`assay wait`: waits until runs are in a state that a program needs."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode, NotFoundError, UsageError
from assay.follow.locations import StudyLocation, find_patterns
from assay.follow.opening import open_index_of
from assay.reading.choosing import choose_rows, match_rows
from assay.reading.listing import NOT_STARTED, has_supervisor, load_all_rows
from assay.record.index.base import IndexTable
from assay.show.console import Console
from assay.show.formatting import escape_json
from assay.values.options import Request, argument, option, root_option
from assay.values.state import State
from assay.values.units import parse_timeout

if TYPE_CHECKING:
    from assay.values.where import Where

_PAUSE_S = 0.25  # between two checks
_SHARE = 10  # a pause is at least this many times as long as the check before it
_MOST_NAMES = 20
_WELL = {State.DONE, State.PRUNED}
Patterns = tuple[tuple[str, str], ...]


@contextmanager
def _as_until() -> Iterator[None]:
    """Report a mistake in an expression as one in the option --until."""
    from assay.values.where import WhereError

    try:
        yield
    except WhereError as error:
        raise UsageError(f"--until: {error.problem}", error.advice) from None


def _parse_until(text: str, _flag: str) -> Where:
    from assay.values.where import parse_where

    with _as_until():
        return parse_where(text)


class WaitRequest(Request):
    study: str = argument()
    until: Where | None = option(
        "--until",
        metavar="EXPR",
        parse=_parse_until,
        help="Until a run matches, as in 'failed or loss < 2'.  [default: until all have finished]",
    )
    every: bool = option("--all", default=False, help="Until all runs match.")
    timeout: float | None = option("--timeout", metavar="TIME", parse=parse_timeout, help="Time limit, as in 10m.")
    root: str | None = root_option()


def wait(request: WaitRequest, console: Console) -> int:
    """Wait for runs of STUDY, or of STUDY/PATTERN, and print one line of JSON: why the wait ended and which runs match.

    Exit code 0: the condition holds. 3: --timeout has passed. 1: nothing runs any more and the condition does not hold;
    without --until: a run did not end well.
    """
    if request.every and request.until is None:
        raise UsageError("--all belongs to --until", "without both, `assay wait` waits for all runs to finish")
    (location, *others), patterns = find_patterns([request.study], request.root)
    if others:
        raise UsageError(f"{request.study!r} names runs of several studies", "put the name of one study before it")
    facts = _follow(location, patterns, request, console)
    console.write(escape_json(json.dumps(facts, ensure_ascii=False)) + "\n")
    if facts["reason"] == "timeout":
        return int(ExitCode.INCONCLUSIVE)
    states = set(facts["counts"])
    is_well = facts["reason"] == "met" or (request.until is None and states and states <= _WELL)
    return int(ExitCode.OK if is_well else ExitCode.FAILED)


def _follow(location: StudyLocation, patterns: Patterns, request: WaitRequest, console: Console) -> dict[str, Any]:
    """Load the rows of the study repeatedly, as `assay ls` does, until the wait ends."""
    began, has_warned, is_lost = time.monotonic(), False, False
    with open_index_of([location]) as index:
        while True:
            looked = time.monotonic()
            data = load_all_rows(index, location, console)[1]
            try:
                facts, is_lost = _build_facts(data, location, patterns, request), False
            except NotFoundError:  # a run whose directory is being created may be in neither the plan nor the index
                if is_lost or not has_supervisor(data.rows, location):
                    raise
                is_lost = True
                time.sleep(_PAUSE_S)
                continue
            now = time.monotonic()
            left_s = (request.timeout or math.inf) - (now - began)
            if facts["reason"] or left_s <= 0:
                return {**facts, "reason": facts["reason"] or "timeout", "waited_s": round(now - began, 3)}
            if facts["unknown"] and data.metrics and not has_warned:
                has_warned = True
                console.warning(f"no run has {', '.join(facts['unknown'])} yet; metrics: {', '.join(data.metrics)}")
            time.sleep(min(max(_PAUSE_S, _SHARE * (now - looked)), left_s))


def _build_facts(data: IndexTable, location: StudyLocation, patterns: Patterns, request: WaitRequest) -> dict[str, Any]:
    """Return the line to print; its `reason` is empty if the study goes on and the condition does not hold yet."""
    chosen = match_rows(data, patterns) if patterns else range(len(data.rows))
    unknown: set[str] = set()
    with _as_until():
        matching = set(choose_rows(request.until, data, unknown)) if request.until else set[int]()
    rows, matched = [data.rows[i] for i in chosen], [data.rows[i].name for i in chosen if i in matching]
    is_met = bool(matched) and (not request.every or len(matched) == len(rows))
    is_over = bool(patterns) and all(row.state.is_over for row in rows)  # for a whole study, more runs may follow
    is_running = any(row.state is State.RUNNING for row in rows)
    goes_on = not is_over and (is_running or has_supervisor(data.rows, location))
    return {
        "study": location.name,
        "reason": "met" if is_met else "" if goes_on else "finished",
        "runs": len(rows),
        "counts": Counter(str(row.state) if goes_on or row.state != State.QUEUED else NOT_STARTED for row in rows),
        "matches": len(matched),
        "matched": matched[:_MOST_NAMES],
        "unknown": sorted(unknown),
    }

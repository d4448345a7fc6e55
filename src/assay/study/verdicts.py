"""Verdicts on runs: kept in `.assay/verdicts.jsonl` of their study, and read from there into the index."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from assay.errors import InfrastructureError
from assay.record.index.base import Index, VerdictRow
from assay.record.index.sqlite import open_index
from assay.study.locations import StudyLocation
from assay.system.files import append_line
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import Verdict


def record_verdicts(
    location: StudyLocation, source: str, verdicts: Mapping[Any, Verdict], index: Index | None = None
) -> list[str]:
    """Keep what was judged, by run name (None: the study as a whole); what went wrong with that, as warnings.

    A verdict that cannot be kept is still the caller's answer, so nothing is raised.
    """
    if not verdicts:
        return []
    facts = [{"run": run, **build_plain(verdict)} for run, verdict in verdicts.items()]
    try:
        os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
        append_line(_find_file(location), {"at": time.time(), "source": source, "verdicts": facts})
        if index is not None:
            read_verdicts(index, location)
        else:
            with open_index(location.root) as opened:
                read_verdicts(opened, location)
    except (InfrastructureError, OSError) as error:
        return [f"the verdict was not recorded: {error}"]
    return []


def read_verdicts(index: Index, location: StudyLocation) -> None:
    """Read what the file holds beyond what the index has seen; all of it where it is shorter than before."""
    path, known = _find_file(location), index.load_verdict_offset(location.name)
    size = os.stat(path).st_size if os.path.exists(path) else 0
    if size == known:
        return
    start = known if size > known else 0
    data = b""
    if size:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    data = data[: data.rfind(b"\n") + 1]  # a line without its end is still being written
    rows = [row for line in data.splitlines() for row in _parse_line(line, location)]
    index.add_verdicts(location.name, rows, start=start, end=start + len(data), expected_offset=known)


def _find_file(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, layout.VERDICTS_FILE)


def _parse_line(line: bytes, location: StudyLocation) -> Iterable[VerdictRow]:
    """A line that a power cut damaged is ignored."""
    try:
        content = json.loads(line)
        at, source = float(content["at"]), str(content["source"])
        return [row for each in content["verdicts"] for row in _build_rows(each, at, source, location)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _build_rows(facts: Mapping[str, Any], at: float, source: str, location: StudyLocation) -> Iterable[VerdictRow]:
    verdict, run = parse_plain(Verdict, facts), facts.get("run")
    key = f"{location.name}/{run}" if run is not None else None
    for found in verdict.findings:
        low, high = found.interval or (None, None)
        yield VerdictRow(
            key,
            at,
            source,
            verdict.kind.value,
            found.kind.value,
            found.subject,
            found.message,
            found.value,
            found.expected,
            found.step,
            found.effect,
            low,
            high,
        )

"""The verdicts on a study and its runs, read from the study's verdict file."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from assay.follow.locations import StudyLocation
from assay.follow.refresh import find_verdicts_file, read_verdict_line
from assay.record.index.base import VerdictRow
from assay.show.formatting import to_json
from assay.system.files import parse_json
from assay.values.verdict import VerdictKind

_MOST_VERDICT_BYTES = 64 << 20  # bytes that are read from the end of a study's verdict file


def load_verdicts(location: StudyLocation) -> list[Mapping[str, Any]]:
    """Load every finding of the verdicts on a study, the newest last."""
    rows = (row for line in _load_verdict_lines(location) for row in _read_verdicts(line, location, None))
    return [to_json(row._asdict()) for row in rows]


def load_run_verdicts(location: StudyLocation, run: str) -> list[VerdictRow]:
    """Load the last verdict of each judge and subject on one run, in the reverse order of the file."""
    mark, key = json.dumps(run).encode(), f"{location.name}/{run}"
    lines = (line for line in _load_verdict_lines(location) if mark in line)  # parsing every line would take long
    newest: dict[tuple[str, str], VerdictRow] = {}
    for row in (row for line in lines for row in _read_verdicts(line, location, key) if row.key == key):
        newest.pop((row.source, row.subject), None)
        newest[row.source, row.subject] = row
    return [*reversed(newest.values())]


def _read_verdicts(line: bytes, location: StudyLocation, key: str | None) -> Sequence[VerdictRow]:
    """Parse a line. A damaged line is returned as an ERROR: otherwise an older verdict would count as the last."""
    try:
        return read_verdict_line(line, location)
    except ValueError:
        text = f"a line of {os.path.basename(find_verdicts_file(location))} is damaged: what was judged is not known"
        at = re.match(rb'\{"at": (\d{1,10}(\.\d+)?),', line)
        return [VerdictRow(key, float(at[1]) if at else 0.0, "unknown", "ERROR", "ERROR", "a verdict", text)]


def count_failed_checks(location: StudyLocation) -> Mapping[str, int]:
    """Count existing runs by the verdict of their last checks, except for PASS."""
    try:
        info = os.stat(find_verdicts_file(location))
    except OSError:
        return {}
    checks = _load_last_checks(location, info.st_mtime_ns, info.st_size).items()
    failed = [(run, str(kind)) for run, kind in checks if kind != VerdictKind.PASS]
    return Counter(kind for run, kind in failed if run is None or os.path.isdir(os.path.join(location.dir, run)))


@lru_cache(maxsize=64)
def _load_last_checks(location: StudyLocation, _changed_ns: int, _size: int) -> Mapping[str | None, VerdictKind]:
    """Return the last verdict on the checks of each run; the key None means the study. Damaged lines are ignored."""
    found: dict[str | None, VerdictKind] = {}
    for line in _load_verdict_lines(location):
        try:
            content = parse_json(line.decode())
            if content["source"] == "checks":
                found |= {each.get("run"): VerdictKind(each["kind"]) for each in content["verdicts"]}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _load_verdict_lines(location: StudyLocation) -> list[bytes]:
    path = find_verdicts_file(location)
    if not os.path.isfile(path):
        return []
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _MOST_VERDICT_BYTES))
        lines = file.read().splitlines()
        return [line for line in lines[size > _MOST_VERDICT_BYTES :] if line.strip()]  # line 1 may be incomplete

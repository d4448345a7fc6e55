"""Reports of gatherings and checks in `.assay/golden` of their study, one file each, for the page.

A file is two lines of JSON, compressed: its head, which is all that a list needs, and the report with its curves.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
import zlib
from datetime import datetime
from typing import Any

from assay.errors import FormatError, NotFoundError
from assay.golden.report.rows import Row, build_test_rows
from assay.golden.values import GoldenTestReport, ReportMode
from assay.record.formats import Format, build_damage, read_versioned, render_versioned
from assay.study.api import StudyLocation
from assay.system.fast_dataclasses import dataclass
from assay.system.files import write_atomic
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import VerdictKind

FOLDER = layout.GOLDEN_DIR  # inside .assay
KIND = "golden report"
FORMATS = {KIND: Format(1, "delete the file: only the report of this one check is lost")}
_NAME = re.compile(r"(?P<id>\d{8}-\d{6}-\d{6})-(?P<mode>check|gather)\.json\.gz")
_LONGEST_HEAD = 1 << 20
_LARGEST = 1 << 28  # what a report may be when it is unpacked


@dataclass(frozen=True, slots=True)
class Judged:
    """One row of the report's table."""

    segment: int | None
    metric: str
    kind: VerdictKind
    effect: float | None = None
    interval: tuple[float, float] | None = None
    allowed: float | None = None  # the largest effect that passes; None: not known, or none passes


@dataclass(frozen=True, slots=True)
class Head:
    """`mode` gather: nothing was judged; PASS says that the recording was made."""

    id: str
    at: float
    mode: ReportMode
    source: str  # the file, as the user wrote its path
    test: str
    manifest: str
    kind: VerdictKind
    comparisons: int
    rows: tuple[Judged, ...] = ()

    @property
    def worst(self) -> list[str]:
        """Metrics that did not pass."""
        return list(dict.fromkeys(row.metric for row in self.rows if row.kind is not VerdictKind.PASS))


def write_report(location: StudyLocation, mode: ReportMode, source: str, report: GoldenTestReport) -> None:
    now = time.time()
    stamp = datetime.fromtimestamp(now).strftime("%Y%m%d-%H%M%S-%f")  # noqa: DTZ006 in local time, as names of runs
    rows = []
    for row in build_test_rows(report):
        found = row.finding
        effect, interval = (found.effect, found.interval) if found else (None, None)
        rows.append(Judged(row.segment, row.metric, row.kind, effect, interval, _find_allowed(report, row)))
    verdict = report.verdict
    head = Head(stamp, now, mode, source, report.test, report.manifest, verdict.kind, verdict.comparisons, tuple(rows))
    lines = (render_versioned(build_plain(head), KIND, FORMATS), json.dumps(_without_texts(build_plain(report))) + "\n")
    folder = _find_folder(location)
    os.makedirs(folder, exist_ok=True)
    write_atomic(os.path.join(folder, f"{stamp}-{mode}.json.gz"), gzip.compress("".join(lines).encode(), 6))


def _find_allowed(report: GoldenTestReport, row: Row) -> float | None:
    if row.rule is not None and row.rule.kind == "margin":
        return row.rule.margin
    found = [
        metric.delta
        for segment in report.segments
        for metric in segment.metrics
        if (segment.start_step, metric.metric) == (row.segment, row.metric)
    ]
    return found[0] if found else None


def _without_texts(content: Any) -> Any:
    """Values as they were logged are for manifests."""
    if isinstance(content, dict):
        return {name: _without_texts(each) for name, each in content.items() if name != "texts"}
    if isinstance(content, list) and content and isinstance(content[0], dict | list):
        return [_without_texts(each) for each in content]
    return content


def _find_folder(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, FOLDER)


def list_ids(location: StudyLocation) -> list[tuple[str, str]]:
    """Id and mode, the newest first."""
    try:
        names = os.listdir(_find_folder(location))
    except OSError:
        return []
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return sorted(((match["id"], match["mode"]) for match in found), reverse=True)


def parse_name(name: str) -> str | None:
    """The id of the report that a file of this name holds."""
    match = _NAME.fullmatch(name)
    return match["id"] if match else None


def load_head(location: StudyLocation, wanted: str) -> Head:
    with _open(location, wanted) as file:
        return _parse_head(file, _path(location, wanted))


def load_report(location: StudyLocation, wanted: str) -> tuple[Head, GoldenTestReport]:
    """Raises NotFoundError with what there is, and FormatError where the file is damaged."""
    path = _path(location, wanted)
    with _open(location, wanted) as file:
        head = _parse_head(file, path)
        try:
            return head, parse_plain(GoldenTestReport, json.loads(file.read(_LARGEST)))
        except (*_BROKEN, KeyError, TypeError, AttributeError) as error:
            raise build_damage(path, str(error), FORMATS[KIND]) from error


_BROKEN = (OSError, EOFError, zlib.error, ValueError, RecursionError, OverflowError)


def _open(location: StudyLocation, wanted: str) -> gzip.GzipFile:
    path = _path(location, wanted)
    try:
        return gzip.open(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error


def _path(location: StudyLocation, wanted: str) -> str:
    known = dict(list_ids(location))
    if wanted not in known:
        raise NotFoundError("check", wanted, list(known))
    return os.path.join(_find_folder(location), f"{wanted}-{known[wanted]}.json.gz")


def _parse_head(file: gzip.GzipFile, path: str) -> Head:
    try:
        content = read_versioned(file.readline(_LONGEST_HEAD), KIND, path, FORMATS)
        return parse_plain(Head, content)
    except (*_BROKEN, KeyError, TypeError, AttributeError) as error:
        raise build_damage(path, str(error), FORMATS[KIND]) from error

"""Reports of gatherings and checks in `.assay/golden` of their study, one file each, for the page.

A file is two lines of JSON, compressed: its head, which is enough for a list, and the report with its curves.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from assay.errors import FormatError, NotFoundError
from assay.follow.api import StudyLocation
from assay.golden.report.rows import build_test_rows, describe_outcome
from assay.golden.values import GoldenTestReport, ReportMode, SegmentReport
from assay.record.formats import Format, build_damage, read_versioned, render_versioned
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import write_atomic
from assay.values import layout
from assay.values.plain import build_plain, parse_plain
from assay.values.verdict import Finding, Verdict, VerdictKind, find_worst

FOLDER = layout.GOLDEN_DIR  # inside .assay
KIND = "golden report"
FORMATS = {KIND: Format(1, "delete the file: only the report of this one check is lost")}
_NAME = re.compile(r"(?P<id>\d{8}-\d{6}-\d{6})-(?P<mode>check|gather)\.json\.gz")
_STAMP = "%Y%m%d-%H%M%S-%f"
_LONGEST_HEAD = 1 << 20
_LARGEST = 1 << 28  # bytes of a report after unpacking


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One row of the report's table."""

    segment: int | None
    metric: str
    kind: VerdictKind
    effect: float | None = None
    interval: tuple[float, float] | None = None
    allowed: float | None = None  # the largest effect that passes; None: unknown, or no effect passes


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a report. `mode` gather: nothing was judged, and PASS means that the recording was made."""

    id: str
    at: float
    mode: ReportMode
    source: str  # the file, as the user wrote its path
    test: str
    manifest: str
    kind: VerdictKind
    comparisons: int
    rows: tuple[JudgedRow, ...] = ()
    problem: str = ""  # why the file cannot be read, or how it contradicts itself: never stored

    @property
    def is_damaged(self) -> bool:
        """Whether nothing is known of the report but its time."""
        return not self.test

    @property
    def word(self) -> str:
        """The verdict in one word."""
        return "damaged" if self.is_damaged else describe_outcome(self.mode, self.kind)

    @property
    def worst(self) -> list[str]:
        """Metrics that did not pass."""
        return list(dict.fromkeys(row.metric for row in self.rows if row.kind is not VerdictKind.PASS))


def write_report(location: StudyLocation, mode: ReportMode, source: str, report: GoldenTestReport) -> None:
    now = time.time()
    stamp = datetime.fromtimestamp(now).strftime(_STAMP)  # noqa: DTZ006 in local time, as names of runs
    rows = []
    for row in build_test_rows(report):
        found = row.finding
        effect, interval = (found.effect, found.interval) if found else (None, None)
        rows.append(JudgedRow(row.segment, row.name, row.kind, effect, interval, row.delta))
    verdict = report.verdict
    head = Head(stamp, now, mode, source, report.test, report.manifest, verdict.kind, verdict.comparisons, tuple(rows))
    lines = (render_versioned(build_plain(head), KIND, FORMATS), json.dumps(_without_texts(build_plain(report))) + "\n")
    folder = _find_folder(location)
    os.makedirs(folder, exist_ok=True)
    write_atomic(os.path.join(folder, f"{stamp}-{mode}.json.gz"), gzip.compress("".join(lines).encode(), 6))


def _without_texts(content: Any) -> Any:
    """Return the report without the logged texts of values, which only manifests need."""
    if isinstance(content, dict):
        return {name: _without_texts(each) for name, each in content.items() if name != "texts"}
    if isinstance(content, list) and content and isinstance(content[0], dict | list):
        return [_without_texts(each) for each in content]
    return content


def _find_folder(location: StudyLocation) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, FOLDER)


def list_ids(location: StudyLocation) -> list[tuple[str, ReportMode]]:
    """List the id and mode of each report, the newest first."""
    try:
        names = os.listdir(_find_folder(location))
    except OSError:
        return []
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return sorted(((match["id"], cast("ReportMode", match["mode"])) for match in found), reverse=True)


def parse_name(name: str) -> str | None:
    """Return the id of the report in a file of this name; None if it is not the name of a report."""
    match = _NAME.fullmatch(name)
    return match["id"] if match else None


def load_head(location: StudyLocation, wanted: str) -> Head:
    """Load a head, corrected by the verdict of its report. A file that cannot be read gets a head with the verdict
    ERROR, so that it is never a PASS, and never left out. Raises NotFoundError."""
    path, mode = _find(location, wanted)
    try:
        stat = os.stat(path)
        return _load_head(path, wanted, mode, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        return _build_damaged(wanted, mode, f"{path} cannot be read: {error.strerror}")
    except FormatError as error:
        return _build_damaged(wanted, mode, f"{error.message}: {error.hint}" if error.hint else error.message)


def _build_damaged(wanted: str, mode: ReportMode, problem: str) -> Head:
    return Head(wanted, _parse_time(wanted), mode, "", "", "", VerdictKind.ERROR, 0, (), problem)


@lru_cache(maxsize=4096)
def _load_head(path: str, wanted: str, mode: ReportMode, _mtime: int, _size: int) -> Head:
    head, content = _read(path, wanted, mode)
    with _naming_damage(path):  # the verdict is parsed without the curves
        same = [{**each, "segments": _strip_segments(each)} for each in content.get("same", ())]
        stripped = {**content, "golden": None, "segments": _strip_segments(content), "same": same}
        return _review(head, _review_report(parse_plain(GoldenTestReport, stripped)).verdict)


def _strip_segments(content: Any) -> list[Any]:
    return [
        {**each, "metrics": [{**metric, "golden": {}, "check": {}} for metric in each.get("metrics", ())]}
        for each in content.get("segments", ())
    ]


def load_report(location: StudyLocation, wanted: str) -> tuple[Head, GoldenTestReport]:
    """Load a report and its head. Raises NotFoundError with the known ids, FormatError if the file is damaged."""
    path, mode = _find(location, wanted)
    head, content = _read(path, wanted, mode)
    with _naming_damage(path):
        report = _review_report(parse_plain(GoldenTestReport, content))
        tracks = [runs for each in report.golden.segments for *_, runs in each.walk()] if report.golden else []
        if not all(tracks):
            raise ValueError("a metric of its golden has no recording")
        head = _review(head, report.verdict)
        return head, replace(report, verdict=report.verdict.review([Verdict(head.kind, (), 1)]))


def _review_report(report: GoldenTestReport) -> GoldenTestReport:
    segments, same = tuple(map(_review_segment, report.segments)), []
    for each in report.same:
        parts = tuple(map(_review_segment, each.segments))
        same.append(replace(each, segments=parts, verdict=each.verdict.review([part.verdict for part in parts])))
    verdict = report.verdict.review([*(each.verdict for each in segments), *(each.verdict for each in same)])
    return replace(report, segments=segments, same=tuple(same), verdict=verdict)


def _review_segment(segment: SegmentReport) -> SegmentReport:
    if not all(math.isfinite(metric.delta or 0.0) for metric in segment.metrics):
        raise ValueError("a delta is not finite")
    metrics = tuple(replace(metric, verdict=metric.verdict.review()) for metric in segment.metrics)
    return replace(segment, metrics=metrics, verdict=segment.verdict.review([each.verdict for each in metrics]))


def _review(head: Head, verdict: Verdict) -> Head:
    """Correct the head by its own rows, and by the verdict of its report."""
    rows = []
    for row in head.rows:
        found = Finding(row.kind, row.metric, "", effect=row.effect, interval=row.interval)
        rows.append(replace(row, kind=Verdict(row.kind, (found,), 1).review().kind))
    worst = find_worst(row.kind for row in rows)
    own = Verdict(head.kind, (), head.comparisons).review([verdict, Verdict(worst, (), 1)])
    agrees = (head.kind, head.comparisons) == (verdict.kind, verdict.comparisons) and own.kind is head.kind
    problem = (
        f"the report {head.id} contradicts itself: its head says {head.kind} of {head.comparisons} comparisons, "
        f"its rows {worst}, its curves {verdict.kind} of {verdict.comparisons}: it was changed after it was written"
    )
    return replace(head, kind=own.kind, rows=tuple(rows), problem="" if agrees else problem)


_BROKEN = (OSError, EOFError, zlib.error, ValueError, RecursionError, OverflowError)


@contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (*_BROKEN, LookupError, TypeError, AttributeError) as error:
        raise build_damage(path, str(error), FORMATS[KIND]) from error


def _find(location: StudyLocation, wanted: str) -> tuple[str, ReportMode]:
    known = dict(list_ids(location))
    if wanted not in known:
        raise NotFoundError("check", wanted, list(known))
    return os.path.join(_find_folder(location), f"{wanted}-{known[wanted]}.json.gz"), known[wanted]


def _read(path: str, wanted: str, mode: ReportMode) -> tuple[Head, Any]:
    """Read both lines to their end, which verifies the file's checksums. The file's name has the time and the mode."""
    with _naming_damage(path):
        if not os.path.isfile(path):  # a pipe would block
            raise ValueError("it is not a file")
    with _naming_damage(path), gzip.open(path) as file:
        head = parse_plain(Head, read_versioned(file.readline(_LONGEST_HEAD), KIND, path, FORMATS))
        content = json.loads(file.read(_LARGEST))
        if not head.test:
            raise ValueError("it does not name its test")
        return replace(head, id=wanted, at=_parse_time(wanted), mode=mode, problem=""), content


def _parse_time(wanted: str) -> float:
    try:
        return datetime.strptime(wanted, _STAMP).timestamp()  # noqa: DTZ007 in local time, as names of runs
    except (ValueError, OverflowError):
        return 0.0

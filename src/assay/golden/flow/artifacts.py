"""The runs of checks: of this study, or as CI kept them, on a machine that did not run them.

Artifacts are a root of runs, or the folder of one study in it, with the reports in `.assay/golden`: a report states
with which golden its runs were compared, and their verdict.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from assay.errors import FormatError, UsageError
from assay.follow.api import Entry, RetryPolicy, StudyLocation
from assay.golden.flow.check import CHECK_PREFIX
from assay.golden.flow.followers import SegmentFollower
from assay.golden.flow.runs import is_whole
from assay.golden.flow.segments import ENDED_WELL, STUDY_PREFIX, GoldenContext
from assay.golden.recorder import Values
from assay.golden.records import list_ids, load_report
from assay.golden.values import Golden, GoldenTestReport, Segment
from assay.record import run_directory
from assay.record.received import is_foreign
from assay.system.fast_dataclasses import dataclass
from assay.values.verdict import VerdictKind


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run of a check that logged every step."""

    entry: Entry
    values: Values


def load_whole(entries: Sequence[Entry], segment: Segment, context: GoldenContext) -> list[CheckRun]:
    """The runs that logged every step."""
    runs = []
    for entry in entries:
        follower = SegmentFollower(context.test, segment.last_step)
        follower.read(entry, final=True)
        if is_whole(segment, follower.values):
            runs.append(CheckRun(entry, follower.values))
    return runs


def load_checks(study_dir: str, foreign: bool = False) -> list[Entry]:
    """Return the runs of checks that have begun, oldest first; their names show the order only by the second.
    `foreign`: also those that were pulled from elsewhere."""
    found = []
    for path in run_directory.find_run_dirs(study_dir):
        if not os.path.basename(path).startswith(CHECK_PREFIX) or (is_foreign(path) and not foreign):
            continue
        try:
            record = run_directory.load_record(path)
        except (OSError, FormatError):
            continue
        history = run_directory.load_history(path)
        if record.spec.params.get("mode") == "check" and history.last is not None:
            entry = Entry(record.spec, path, RetryPolicy(), history.state, history.last.number)
            found.append((record.created_at, path, entry))
    return [entry for _, _, entry in sorted(found, key=lambda run: run[:2])]


def load_artifacts(
    context: GoldenContext, golden: Golden, folder: str
) -> tuple[VerdictKind, dict[int, list[CheckRun]]]:
    """Return the verdict of the last check, and by segment its runs, with those of earlier checks of the same verdict,
    code and environment. Raises if they are damaged, lack a whole run, or are of another study or golden."""
    location = _find_study(context, folder)
    reports = [load_report(location, each)[1] for each, mode in list_ids(location) if mode == "check"]
    if not reports:
        raise UsageError(f"{location.dir} has no report of a check", "keep the whole folder of runs, hidden files too")
    _check_golden(context, reports[0], golden)
    entries = {os.path.basename(entry.dir): entry for entry in load_checks(location.dir, foreign=True)}
    segments = {(each.start_step, each.checkpoint): index for index, each in enumerate(golden.segments)}
    runs: dict[int, list[CheckRun]] = {index: [] for index in range(len(golden.segments))}
    origin, ends = None, dict[int, str]()
    kind = reports[0].verdict.kind
    for report in takewhile(lambda each: _is_of(each, golden) and each.verdict.kind is kind, reports):
        for each in report.segments:
            index = segments[each.start_step, each.checkpoint]
            for run in each.runs:
                entry = entries.get(name := os.path.basename(run.dir))
                if report is not reports[0] and (entry is None or origin is None or _load_origin(entry) != origin):
                    continue  # of an earlier check with another code or environment, or an unknown one
                if entry is None:
                    raise FormatError(f"{location.dir} lacks the run {name}, or it is damaged", "keep the whole folder")
                origin = origin or _load_origin(entry)
                done = [entry] if entry.state in ENDED_WELL else []
                runs[index] += load_whole(done, golden.segments[index], context)
                ends.setdefault(index, "" if run.state in ENDED_WELL else f": {run.stopped_early or run.reason}")
    for index, found in runs.items():
        if not found:
            what = f"segment {golden.segments[index].start_step} has no complete run in the artifacts"
            raise UsageError(what + ends.get(index, ""), f"let CI run it to its end: {_build_check(context)}")
    return kind, runs


def _find_study(context: GoldenContext, folder: str) -> StudyLocation:
    """Find the study: the folder itself, in a root of runs, or in a folder around one."""
    name, top = context.location.name, os.path.abspath(folder)
    if not os.path.isdir(top):
        raise UsageError(f"there is no folder {folder}", "name what CI kept: the folder of its runs")
    if os.path.basename(top) == name:
        return StudyLocation(os.path.dirname(top), name)
    roots = [top, *(entry.path for entry in os.scandir(top) if entry.is_dir())]
    found = sorted({path for root in roots for path in glob.glob(f"{glob.escape(root)}/{STUDY_PREFIX}*")})
    if len(mine := [path for path in found if os.path.basename(path) == name]) == 1:
        return StudyLocation(os.path.dirname(mine[0]), name)
    has = f"it has {', '.join(found)}" if found else "name the folder of runs that CI kept"
    raise UsageError(f"{folder} has {'several folders' if mine else 'no runs'} of {name}", has)


def _check_golden(context: GoldenContext, report: GoldenTestReport, golden: Golden) -> None:
    if report.test != context.test.name:
        raise UsageError(f"the artifacts are of the test {report.test}, not of {context.test.name}")
    if not _is_of(report, golden):
        when = report.golden.provenance.get("gathered_at") if report.golden else None
        message = f"the check in the artifacts was of another golden, recorded {when or 'at an unknown time'}"
        raise UsageError(message, f"check with the one in the store: {_build_check(context)}")


def _is_of(report: GoldenTestReport, golden: Golden) -> bool:
    return report.golden is not None and _build_mark(report.golden) == _build_mark(golden)


def _build_check(context: GoldenContext) -> str:
    return f"assay golden check {context.options.build_arguments()} --no-early-stop"


def _build_mark(golden: Golden) -> list[Any]:
    """Build a value that is equal for equal recordings, without the logged texts, which reports do not keep."""
    walked = [found for each in golden.segments for found in each.walk()]
    tracks = [(name, label, run.steps, run.values) for name, label, runs in walked for run in runs]
    return [repr(tracks), [(each.start_step, each.checkpoint, each.checkpoint_sha) for each in golden.segments]]


def _load_origin(entry: Entry) -> tuple[Any, ...] | None:
    """Return the code and environment of a run; None if the code is unknown."""
    environment = run_directory.load_environment(entry.dir) or {}
    git = environment.get("git")
    return (git.get("commit"), git.get("diff"), environment.get("fingerprint")) if git else None

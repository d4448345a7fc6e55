"""The content of the page of goldens: tests with their last verdicts, one check or recording, and drift over checks."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from assay import plugins
from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.follow.api import StudyLocation
from assay.golden.flow.history import load_accepted, load_kept_histories
from assay.golden.flow.segments import STUDY_PREFIX
from assay.golden.judge.nights import FEWEST_NIGHTS
from assay.golden.manifests import list_manifests
from assay.golden.recordings import load_recordings
from assay.golden.records import FOLDER, Head, list_ids, load_head, load_report, parse_name
from assay.golden.report.charts import build_chart, order_metrics
from assay.golden.report.document import build_document
from assay.golden.report.other_commands import build_recording_blocks, build_show_document, describe_history
from assay.golden.report.rows import render_percent, render_share
from assay.golden.values import DEFAULT_MANIFEST, GoldenReport, MetricReport
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import cache_dir, is_inside
from assay.values import document as doc
from assay.values import layout
from assay.values.plain import render_date
from assay.values.table import Column, Table
from assay.values.verdict import SEVERITY, VerdictKind

_RECENT = 12  # checks of a test in a list
_MOST_CHECKS = 200  # checks in a history
_MOST_LISTED = 50  # reports in a list
_MOST_NIGHTS = 40  # checks whose curves are read
_MOST_FOLDERS = 2000  # folders that are searched for stores
_POINTS: Mapping[VerdictKind, tuple[str, str]] = {  # style and marker; both show the verdict
    VerdictKind.PASS: ("c2 point", "dot"),
    VerdictKind.CHANGED: ("c6 point", "square"),
    VerdictKind.INCONCLUSIVE: ("c5 point", "triangle"),
    VerdictKind.FAIL: ("c1 crossed", "cross"),
    VerdictKind.ERROR: ("c7 crossed", "cross"),
}


@dataclass(frozen=True, slots=True)
class GoldenCard:
    """A test with its reports. `checks`: the newest first. `problems`: of unreadable or inconsistent reports."""

    slug: str
    location: StudyLocation
    test: str
    checks: tuple[Head, ...]
    gathered: Head | None
    problems: tuple[str, ...]

    @property
    def at(self) -> float:
        return max((head.at for head in (*self.checks[:1], self.gathered) if head), default=0.0)


def list_goldens(locations: Mapping[str, StudyLocation]) -> list[GoldenCard]:
    """List tests that have a kept report, the most recently used first."""
    cards = []
    for slug, location in locations.items():
        if not (known := list_ids(location)):
            continue
        checks = list(islice(_load_heads(location, [i for i, mode in known if mode == "check"]), _RECENT))
        gathered = next(_load_heads(location, [i for i, mode in known if mode == "gather"]), None)
        heads = [*checks, *([gathered] if gathered else [])]
        test = next((head.test for head in heads if head.test), location.name)
        problems = tuple(head.problem for head in heads if head.problem)
        cards.append(GoldenCard(slug, location, test, tuple(checks), gathered, problems))
    return sorted(cards, key=lambda card: -card.at)


def _load_heads(location: StudyLocation, ids: Sequence[str]) -> Iterator[Head]:
    for each in ids:
        with suppress(NotFoundError):  # the report was deleted after the folder was listed
            yield load_head(location, each)


def list_unkept(locations: Mapping[str, StudyLocation]) -> list[tuple[str, StudyLocation]]:
    """List tests that were recorded or checked before reports were kept: their verdicts are unknown."""
    return [
        (slug, location)
        for slug, location in locations.items()
        if location.name.startswith(STUDY_PREFIX) and not list_ids(location)
    ]


@dataclass(frozen=True, slots=True)
class GoldenPage:
    """The page of a test. `head` None: there is no report. `blocks`: the report; `history`: the newest head first."""

    head: Head | None
    blocks: Sequence[doc.Block]
    history: tuple[Head, ...]
    drift: Sequence[doc.Block]
    recording: Sequence[doc.Block]
    problems: tuple[str, ...]
    commands: Sequence[tuple[str, str]] = ()  # what each command does, and the command itself


def build_golden_page(location: StudyLocation, wanted: str | None) -> GoldenPage:
    """Build a test's page. `wanted`: the id of a check or gathering; None: the last check, else the last gathering.
    Raises NotFoundError for an id that does not exist. A damaged report is a problem on the page."""
    known = list_ids(location)
    history = tuple(_load_heads(location, [each for each, _ in known][:_MOST_CHECKS]))
    problems = [head.problem for head in history if head.problem]
    first = next((each for each, mode in known if mode == "check"), known[0][0] if known else None)
    head, blocks = None, list[doc.Block]()
    if wanted or first:
        try:
            head, report = load_report(location, wanted or first or "")
            blocks = list(build_document(GoldenReport(head.mode, head.source, (report,))).blocks)
        except FormatError as error:
            problems.append(f"{error.message}: {error.hint}" if error.hint else error.message)
            head = load_head(location, wanted or first or "")
    checks = [each for each in reversed(history) if each.mode == "check"]
    manifest = head.manifest if head else ""
    recording = _build_recording(manifest, problems) if manifest else []
    commands = build_commands(head, location.root)
    once = tuple(dict.fromkeys(problems))
    drift = [*_build_moved(location, checks), *build_drift(checks)]
    return GoldenPage(head, blocks, history, drift, recording, once, commands)


def build_commands(head: Head | None, root: str) -> list[tuple[str, str]]:
    """Build commands for the folder in which the check was started: `source` is the path as the user wrote it."""
    folder, _, name = head.manifest.rpartition("/") if head else ("", "", "")
    if head is None or not folder or not name.startswith(f"{head.test}_"):
        return []
    if is_inside(folder, cache_dir(os.environ)):  # the copy of a store at an address, which is not known here
        return []
    words = [head.source, "-s", folder, "-t", head.test]
    kept = name.removeprefix(f"{head.test}_")
    words += ["--manifest-name", kept] if kept != DEFAULT_MANIFEST else []
    words += ["--root", root]
    return [
        ("Check again", shlex.join(["assay", "golden", "check", *words])),
        ("What moved since when", shlex.join(["assay", "golden", "history", *words[:1], *words[3:5], "--root", root])),
        ("Accept the new behaviour", shlex.join(["assay", "golden", "rebase", *words, "--reason", "WHY IT IS RIGHT"])),
    ]


def build_check_comparison(location: StudyLocation, one: str, other: str) -> Sequence[doc.Block]:
    """Compare two checks of a test: verdicts and effects of each row, and both curves over the golden's band. Raises
    NotFoundError for an id that does not exist, FormatError if a report cannot be read."""
    (first, mine), (second, theirs) = (load_report(location, each) for each in (one, other))
    names = [f"{word} {render_date(head.at, '%m-%d %H:%M')}" for word, head in (("this", first), ("other", second))]
    rows = [{(row.segment, row.metric): row for row in head.rows} for head in (first, second)]
    cells: list[list[Any]] = []
    for key in dict.fromkeys((*rows[0], *rows[1])):
        found = [each.get(key) for each in rows]
        shown = [(str(row.kind), render_percent(row.effect) or None) if row else (None, None) for row in found]
        cells.append([*key, *shown[0], *shown[1]])
    columns = [Column("segment", "number"), Column("metric")]
    for name in names:
        columns += [Column(f"{name}: verdict", "state"), Column("effect", align="right")]
    blocks: list[doc.Block] = [doc.TableBlock(Table(tuple(columns), cells))]
    made = [each.golden.provenance.get("gathered_at") if each.golden else None for each in (mine, theirs)]
    if made[0] != made[1]:
        blocks.insert(0, doc.Text("The two were checked against different recordings; the band is that of this one."))
    # the first of two segments that begin at the same step is compared
    others = {(part.start_step, each.metric): each for part in reversed(theirs.segments) for each in part.metrics}
    charts = [
        chart
        for metric in order_metrics(mine)
        for part in mine.segments
        for each in part.metrics
        if each.metric == metric
        for chart in _build_both(part.start_step, each, others.get((part.start_step, metric)))
    ]
    keys = [("reference", "wide", "golden"), ("band", "area", "band of the recordings")]
    keys += [("measured", "line", names[0]), ("own c2", "line", names[1])]
    return [*blocks, *([doc.Section([doc.Legend(keys), *charts], "Both over the golden")] if charts else [])]


def _build_both(start: int, mine: MetricReport, theirs: MetricReport | None) -> Iterator[doc.Chart]:
    for label in dict.fromkeys((*mine.golden, *mine.check)):
        name = f"{mine.metric} {label}".strip()
        tracks = theirs.check.get(label, ()) if theirs else ()
        title = (doc.Span(name, "strong"), doc.Span(f"after step {start}", "soft"))
        chart = build_chart(name, title, mine.golden.get(label, ()), mine.check.get(label, ()), delta=mine.delta)
        upper, *rest = chart.panels
        added = [doc.Curve(list(zip(track.steps, track.values, strict=True)), "c2 curve") for track in tracks]
        yield replace(chart, panels=(replace(upper, curves=[*upper.curves, *added]), *rest))


def _build_recording(manifest: str, problems: list[str]) -> list[doc.Block]:
    """Show the recording as it is in its store now; it may have been moved or deleted."""
    try:
        there = os.path.isfile(manifest) or os.path.isdir(manifest)  # a pipe would block
        found = load_recordings(manifest) if there else ()
    except (AssayError, OSError):  # the file's content is not shown: it may be any file
        problems.append(f"the golden recording {manifest} cannot be read now")
        return []
    if not there:
        problems.append(f"the golden recording {manifest} is not there now")
    return [block for each in found for block in build_recording_blocks(each)]


def _build_moved(location: StudyLocation, checks: Sequence[Head]) -> Iterator[doc.Block]:
    """Yield a sentence for each device: what moved and since when, as `assay golden history` prints it."""
    newest = checks[-_MOST_NIGHTS:]
    if len({render_date(head.at, "%Y-%m-%d") for head in newest}) < FEWEST_NIGHTS:
        return
    lines = _describe_nights(location, tuple(head.id for head in newest), repr(load_accepted(location)))
    yield doc.Section([doc.Text((doc.Span(kind, kind), text)) for kind, text in lines], "Over nights")


@lru_cache(maxsize=256)
def _describe_nights(location: StudyLocation, ids: tuple[str, ...], _accepted: str) -> list[tuple[str, str]]:
    """Return a verdict and a sentence for each device; cached, because all curves must be read."""
    find_steps = plugins.find_function("series.change_points")
    found = load_kept_histories(location, ids[0], find_steps) if find_steps else []
    return [(str(each.verdict.kind), f" {each.environment}: {describe_history(each)}") for each in found]


def build_drift(checks: Sequence[Head]) -> Iterator[doc.Block]:
    """Draw the largest effect of each metric in each check, the oldest check first."""
    by_metric: dict[str, list[tuple[int, Head, VerdictKind, float]]] = {}
    for number, head in enumerate(checks, 1):
        for metric in dict.fromkeys(row.metric for row in head.rows):
            rows = [row for row in head.rows if row.metric == metric and row.effect is not None]
            worst = max(rows, key=lambda row: abs(row.effect or 0.0), default=None)
            if worst is not None and worst.effect is not None and math.isfinite(worst.effect):
                by_metric.setdefault(metric, []).append((number, head, worst.kind, worst.effect))
    if not by_metric:
        return
    allowed: dict[str, float] = {}
    for head in checks:  # the newest check with a row of the metric decides
        for row in head.rows:
            if row.allowed:
                allowed[row.metric] = row.allowed
    order = sorted(by_metric, key=lambda metric: SEVERITY.index(by_metric[metric][-1][2]))
    charts = [_build_drift_chart(metric, by_metric[metric], len(checks), allowed.get(metric)) for metric in order]
    seen = {kind for points in by_metric.values() for _, _, kind, _ in points}
    keys = [
        (f"own {style.split()[0]}", "crossed" if marker == "cross" else marker, str(kind))
        for kind, (style, marker) in _POINTS.items()
        if kind in seen
    ]
    keys += [("tolerance", "area", "allowed, by the rules of the newest check")] if allowed else []
    yield doc.Section([*charts, doc.Legend(keys)], "Drift over checks")


def _build_drift_chart(
    metric: str, points: Sequence[tuple[int, Head, VerdictKind, float]], count: int, allowed: float | None
) -> doc.Chart:
    """Draw the effects of one metric with the limits that they may reach."""
    curves = [doc.Curve([(float(n), 100 * effect) for n, _, _, effect in points], "allowed")]
    for kind, (style, marker) in _POINTS.items():
        if mine := [(n, head, effect) for n, head, of, effect in points if of is kind]:
            positions = [(float(n), 100 * effect) for n, _, effect in mine]
            texts = [f"{render_date(head.at, '%Y-%m-%d %H:%M')}\n{kind} {render_percent(e)}" for _, head, e in mine]
            curves.append(doc.Curve(positions, style, line=False, marker=marker, texts=texts))  # type: ignore[arg-type]
    effects = [100 * effect for _, _, _, effect in points]
    edge = 100 * (allowed or 0.0)
    low, high = min([*effects, -1.4 * edge]), max([*effects, 1.4 * edge])
    margin = 0.08 * (high - low) or 1.0
    limits = [("tolerance", -edge, edge)] if edge else []
    limit = f"; allowed ±{render_share(allowed)}" if allowed else ""
    return doc.Chart(
        (doc.Span(metric, "strong"), doc.Span(f"largest effect of each check, percent{limit}", "soft")),
        (doc.Panel(curves, limits=limits, y_range=(low - margin, high + margin)),),
        f"{metric}: effect of each check in percent",
        x_range=(0.5, count + 0.5),
        x_label="check, the newest on the right",
    )


@dataclass(frozen=True, slots=True)
class StoredRecording:
    root: str
    path: str  # relative to the root
    at: float


def find_stored(roots: Sequence[str]) -> list[StoredRecording]:
    """Find recordings in the roots and in the folders directly below them, where a store is next to the runs."""
    found = []
    for root in roots:
        try:
            folders = [root, *(entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))]
        except OSError:
            continue
        for folder in folders[:_MOST_FOLDERS]:
            manifests = [path for path in list_manifests(folder) if path.endswith(".json")]
            found += [StoredRecording(root, os.path.relpath(path, root), os.stat(path).st_mtime) for path in manifests]
    return sorted(found, key=lambda each: -each.at)


def build_stored_blocks(stored: StoredRecording) -> Sequence[doc.Block]:
    recordings = load_recordings(os.path.join(stored.root, stored.path))
    page = build_show_document(stored.path, recordings, curves=False)
    more = [block for each in recordings for block in build_recording_blocks(each)]
    return [*page.blocks, doc.Only(("html",), [doc.Details("Origin and noise", more)])]


def find_kept(path: str) -> tuple[StudyLocation, str]:
    """Return the study and the id of the report at `path`. Raises UsageError if the file is not a kept report."""
    folder, name = os.path.split(os.path.abspath(path))
    study = os.path.dirname(os.path.dirname(folder))
    kept = parse_name(name)
    if kept is None or folder != os.path.join(study, layout.STUDY_META_DIR, FOLDER):
        where = os.path.join("STUDY", layout.STUDY_META_DIR, FOLDER)
        raise UsageError(f"{path} is not the report of a golden check", f"those are in {where}")
    return StudyLocation(os.path.dirname(study), os.path.basename(study)), kept


def build_report(location: StudyLocation, wanted: str | None) -> doc.Document | None:
    """Build the report of the check `wanted`, by default of the last one; None if the study has no such report."""
    known = [each for each, _ in list_ids(location)]
    if not known or (wanted is not None and wanted not in known):
        return None
    page = build_golden_page(location, wanted)
    if page.head is None or not page.blocks:
        raise FormatError("; ".join(page.problems))
    blocks: list[doc.Block] = [doc.Notes(page.problems), *page.blocks, *page.drift]
    if len(page.history) > 1:
        columns = (Column("when"), Column("id"), Column("what"), Column("verdict"), Column("file"))
        rows = []
        for each in page.history[:_MOST_LISTED]:
            verdict = doc.Span(each.word, str(each.kind))
            rows.append([render_date(each.at, "%Y-%m-%d %H:%M"), each.id, each.mode, verdict, each.source])
        blocks.append(doc.Section((doc.TableBlock(Table(columns, rows)),), "Checks and gatherings"))
    if page.recording:
        blocks.append(doc.Details("The recording now", page.recording))
    return doc.Document(f"{page.head.kind} {page.head.test}", blocks)

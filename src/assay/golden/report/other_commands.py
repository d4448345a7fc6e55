"""The results of `assay golden show`, `rebase`, `selftest`, `bisect`, `blame` and `history` as documents."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError
from assay.golden.judge.contrasts import MetricShift
from assay.golden.judge.golden import measure_levels
from assay.golden.judge.nights import FEWEST_NIGHTS, Night, describe_moves
from assay.golden.recordings import Recording, Sensitivity
from assay.golden.report.document import build_document
from assay.golden.report.rows import choose_finding, render_interval, render_percent, render_share, render_step
from assay.golden.results import NO_EFFECT, BisectReport, BlameReport, Moved, Rebased, SelftestReport
from assay.golden.values import Golden, GoldenReport, GoldenTestReport, list_gpus
from assay.judge.bisection import build_culprit, build_suspects
from assay.show.formatting import join_first, render_count, render_number
from assay.show.table import render_json
from assay.system.fast_dataclasses import asdict, replace
from assay.values import document as doc
from assay.values.table import Column, Table
from assay.values.verdict import Finding, Verdict, VerdictKind, find_worst

if TYPE_CHECKING:
    from assay.golden.flow.history import NightHistory

_PACKAGES = 8  # packages that are shown; the manifest has all packages
_MOST_FINDINGS = 5
_MOST_NIGHTS = 14  # nights that a terminal shows
_NAMED = (("gathered", "gathered_at"), ("host", "host"), ("config", "config"), ("command", "command"), ("run", "run"))
_TINY = 0.01  # fraction of an effect; a smaller interaction is not mentioned


def build_show_document(
    source: str, recordings: Sequence[Recording], metrics: Sequence[str] = (), curves: bool = True
) -> doc.Document:
    """Show recordings, on a terminal with the curves of `metrics` (empty: all), on a page as a gathering."""
    tests = []
    for each in recordings:
        golden = each.golden
        message = f"{len(golden.segments)} segments, {golden.values} values recorded"
        verdict = Verdict.of([Finding(VerdictKind.PASS, golden.test, message)], golden.values)
        tests.append(GoldenTestReport(golden.test, each.manifest, verdict, golden, warnings=each.creep))
    page = build_document(GoldenReport("gather", source, tuple(tests)))
    shown = [block for each in recordings for block in _build_recording(each, metrics, curves)]
    facts = [_build_recording_facts(each) for each in recordings]
    return doc.Document(
        page.title, (doc.Only(("html",), page.blocks), doc.Only(("terminal", "markdown"), shown)), facts=facts
    )


def _build_recording(recording: Recording, metrics: Sequence[str], curves: bool) -> Iterator[doc.Block]:
    golden = recording.golden
    for name in metrics:
        if name not in golden.metrics:
            known = ", ".join(golden.metrics) or "none"
            raise UsageError(f"the golden recording has no metric {name!r}", f"it has: {known}")
    yield from build_recording_blocks(recording)
    for metric in metrics or golden.metrics if curves else ():
        yield doc.Section((_build_curves(golden, metric),))


def build_recording_blocks(recording: Recording) -> Iterator[doc.Block]:
    """Show the origin of a recording, its noise, and how the rebases moved it."""
    golden = recording.golden
    title = "Noise; from where on CHANGED; the smallest effect that 1 and 3 checks fail"
    yield doc.Section((doc.Facts(list(_list_facts(golden, recording.manifest))),))
    for table, name in ((_build_noise(recording.sensitivity), title), (_build_drift(golden), "Drift")):
        if table.rows:
            yield doc.Section((doc.TableBlock(table),), name)


def _build_curves(golden: Golden, metric: str) -> doc.Chart:
    """Draw a curve for each recording; curves of one segment and label have the same name."""
    curves = []
    for segment in golden.segments:
        for label, runs in segment.tracks.get(metric, {}).items():
            name = f"after {segment.start_step} {label}".strip()
            points = [list(zip(run.steps, run.values, strict=True)) for run in runs if run.steps]
            curves += [doc.Curve(each, "reference", name=name) for each in points]
    return doc.Chart(metric, (doc.Panel(curves),))


def _build_recording_facts(recording: Recording) -> dict[str, Any]:
    golden = recording.golden
    return {
        "test": golden.test,
        "manifest": recording.manifest,
        "format": golden.version,
        "complete": golden.complete,
        "steps_per_segment": golden.steps_per_segment,
        "segments": [
            {
                "start_step": each.start_step,
                "checkpoint": each.checkpoint or None,
                "recordings": each.replicas,
                "variants": list(each.variants),
            }
            for each in golden.segments
        ],
        "noise": dict(golden.noise),
        "sensitivity": [asdict(each) for each in recording.sensitivity],
        "provenance": dict(golden.provenance),
        "history": [dict(entry) for entry in golden.history],
        "notes": list(golden.notes),
    }


def _list_facts(golden: Golden, manifest: str) -> Iterator[tuple[str, str]]:
    origin = golden.provenance
    starts = ", ".join(str(segment.start_step) for segment in golden.segments)
    yield "test", golden.test
    yield "manifest", manifest + ("" if golden.version > 1 else " (format 1, as the original writes it)")
    length = f" of {golden.steps_per_segment} steps" if golden.steps_per_segment else ""
    counts = {len(runs[0].steps) for segment in golden.segments for _, _, runs in segment.walk()}
    if counts and not length:  # an older manifest does not state how many steps were recorded: the values are counted
        length = f" of {min(counts)} {f'to {max(counts)} ' if len(counts) > 1 else ''}values"
    yield "segments", f"{len(golden.segments)}{length}, at {starts}"
    count = golden.recordings
    recordings = f"{count} of each segment" if count != 1 else "one recording of each segment, no spread"
    yield "recordings", recordings + ("" if golden.complete else "; the training did not end")
    if golden.variants:
        known = golden.provenance.get("variants") or {}
        yield "variants", ", ".join(f"{name} ({known[name]})" if known.get(name) else name for name in golden.variants)
    yield from ((name, str(origin[key])) for name, key in _NAMED if origin.get(key) not in (None, "", {}, []))
    if origin.get("commit"):
        yield "commit", f"{origin['commit']}{' with local changes' if origin.get('dirty') else ''}"
    yield from _build_environment(origin)
    yield from (("note", note) for note in golden.notes)


def _build_environment(origin: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    seeds, packages, hardware = origin.get("seeds"), origin.get("packages"), origin.get("hardware")
    if seeds:
        yield "seeds", ", ".join(f"{name} {value}" for name, value in seeds.items())
    if hardware is not None:
        known = [str(hardware["cpu"])] if hardware.get("cpu") else []
        yield "hardware", ", ".join([*known, *(list_gpus(origin) or ())]) or "not recorded"
    if packages:
        yield "packages", join_first([f"{name} {version}" for name, version in packages.items()], _PACKAGES)


def _build_noise(sensitivity: Sequence[Sensitivity]) -> Table:
    names = ("sd/step", "sd/window", "CHANGED", "delta", "1 check", "3 checks")
    columns = (Column("metric"), Column("rule"), *(Column(name, align="right") for name in names))
    rows = []
    for each in sensitivity:
        shares = [each.per_step, each.per_window, each.outside, each.delta, each.one_check, each.most_checks]
        cells = [None if share is None else render_share(share) for share in shares]
        if each.first_delta is not None and each.delta is not None:  # the first window has a limit of its own
            cells[3] = f"{render_share(each.first_delta)}, then {cells[3]}"
        rows.append([each.metric, each.rule, *cells])
    return Table(columns, rows)


def _build_drift(golden: Golden) -> Table:
    """Show for each rebase how much it moved each metric, and how much all rebases since the first golden did."""
    entries = [entry for entry in golden.history if "effects" in entry]
    names = list(dict.fromkeys(name for entry in entries for name in entry["effects"]))
    columns = [Column("rebased"), Column("reason"), Column("commit")]
    for name in names:
        columns += [Column(name, align="right"), Column("since first", align="right", key=f"{name} since first")]
    rows = []
    for entry in entries:
        commit = str(entry.get("to", {}).get("commit") or "")[:12] or None
        keys = ("effects", "since_first")
        moves = [render_percent(entry.get(key, {}).get(name)) or None for name in names for key in keys]
        rows.append([str(entry.get("at", "")), str(entry.get("reason", "")), commit, *moves])
    return Table(tuple(columns), rows)


def build_rebase_document(outcomes: Sequence[Rebased]) -> doc.Document:
    sections = [doc.Section(list(_build_rebase(outcome))) for outcome in outcomes]
    facts = []
    for outcome in outcomes:  # facts leave out the recordings, which are in the manifests
        kept = asdict(replace(outcome, before=Golden(outcome.test, ()), after=None))
        del kept["before"], kept["after"]
        facts.append({"accepted": outcome.is_accepted, **kept})
    return doc.Document("assay golden rebase", sections, facts=facts)


def _build_rebase(outcome: Rebased) -> Iterator[doc.Block]:
    if outcome.kept:
        yield doc.Text(f"{outcome.test}: left as it is: {outcome.kept}")
        return
    if not outcome.is_accepted:
        for text in outcome.refusals:
            first, *more = text.splitlines() or [""]
            yield doc.Text(f"refused: {first}")
            yield from (doc.Text(line.strip(), indent=1) for line in more)
        word = "interrupted" if outcome.interrupted else "not rebased"
        yield doc.Text(f"{outcome.test}: {word}; the old recording is untouched")
        return
    entry = outcome.after.history[-1] if outcome.after else {}
    origins = [str(entry.get(key, {}).get("commit") or "an unknown commit")[:12] for key in ("from", "to")]
    reason = doc.Text(f"{entry.get('reason')} ({origins[0]} to {origins[1]}, from {entry.get('source')})")
    yield doc.Only(("markdown",), (doc.Heading(f"Golden {outcome.test}: rebased", level=3), reason))
    yield doc.Section((doc.TableBlock(_build_rebase_table(outcome)),))
    yield doc.Notes([f"accepted although {text}" for text in outcome.wider])
    yield doc.Notes([f"warning: {text}" for text in outcome.creep])
    done = doc.Text(f"the old recording is kept as {outcome.archived}"), doc.Text(f"{outcome.test}: rebased")
    yield doc.Only(("terminal",), done)


def _build_rebase_table(outcome: Rebased) -> Table:
    """Show the levels of both goldens, and the effect with the noise of the recordings."""
    names = ("old", "new", "effect", "noise")
    columns = (Column("metric"), *(Column(name, align="right") for name in names), Column("result"),
               Column("since the first", align="right"))  # fmt: skip
    old, new = (measure_levels(golden) if golden else {} for golden in (outcome.before, outcome.after))
    rows: list[list[Any]] = []
    for name, effect in outcome.effects.items():
        levels = [render_number(math.fsum(each[name].values()) / len(each[name]), 8) for each in (old, new)]
        shift, first = outcome.shifts.get(name), outcome.since_first.get(name)
        noise = render_noise(shift, abs(shift.level) / 100, "%") if shift else None
        cells = [f"{render_shift(100 * effect)}%", noise, shift.kind if shift else None, render_percent(first)]
        rows.append([name, *levels, *cells])
    return Table(columns, rows)


def build_selftest_document(reports: Sequence[SelftestReport]) -> doc.Document:
    sections = [doc.Section(list(_build_selftest(report))) for report in reports]
    return doc.Document("assay golden selftest", sections, facts=[_build_selftest_facts(report) for report in reports])


def _build_selftest(report: SelftestReport) -> Iterator[doc.Block]:
    yield doc.Section((doc.TableBlock(_build_fault_table(report), numbers_names=True),))
    score = f"{report.caught} of {len(report.injected)} faults would be caught"
    yield doc.Text(f"{report.test}, segment at {report.start_step}: {score}")
    for each in report.injected:
        if each.is_idle:
            yield doc.Text(f"{NO_EFFECT}: {each.fault.title}: does the program read it?")
    control = report.control.verdict
    if control.kind is not VerdictKind.PASS:
        yield doc.Text(f"but without any fault the check is {control.kind} already, so this proves nothing")
        bad = [each for each in control.findings[:_MOST_FINDINGS] if each.kind is not VerdictKind.PASS]
        yield from (doc.Text(each.message, indent=1) for each in bad)
    for each in report.injected:
        if each.report.verdict.kind is VerdictKind.ERROR:
            found = choose_finding(each.report.verdict.findings)
            yield doc.Text(f"not tried: {each.fault.title}: {found.message.splitlines()[0] if found else ''}")
    if report.problem:
        yield doc.Text(f"assay: {report.problem}")


def _build_fault_table(report: SelftestReport) -> Table:
    numbers = [Column(name, align="right") for name in ("effect", "step")]
    columns = (Column("fault"), Column("result"), Column("verdict", "state"), Column("by"), *numbers)
    rows: list[list[Any]] = [["none", "control", str(report.control.verdict.kind), None, None, None]]
    for each in report.injected:
        verdicts = [(metric, choose_finding(metric.verdict.findings)) for metric in each.report.metrics]
        bad = [(metric.metric, found) for metric, found in verdicts if found and found.kind in ("FAIL", "CHANGED")]
        effect, step = (bad[0][1].effect, bad[0][1].step) if bad else (None, None)
        by = ", ".join(name for name, _ in bad)
        shown = render_percent(effect) or None, render_step(step) or None
        rows.append([each.fault.title, each.word, str(each.report.verdict.kind), by or None, *shown])
    return Table(columns, rows)


def _build_selftest_facts(report: SelftestReport) -> dict[str, Any]:
    return {
        "test": report.test,
        "segment": report.start_step,
        "control": str(report.control.verdict.kind),
        "caught": report.caught,
        "faults": json.loads(render_json(_build_fault_table(report)))[1:],
        "exit_code": int(report.exit_code),
        "elapsed_s": report.elapsed_s,
    }


def build_bisect_document(report: BisectReport) -> doc.Document:
    facts = {"exit_code": int(report.exit_code), **asdict(report)}
    return doc.Document("assay golden bisect", list(_build_bisect(report)), facts=facts)


def _build_bisect(report: BisectReport) -> Iterator[doc.Block]:
    if report.culprit:
        yield from build_culprit(report.culprit)
    elif report.stuck:
        yield doc.Text(f"nothing was searched: {report.stuck}")
    elif report.suspects:
        yield from build_suspects(report.suspects)
    if evidence := report.evidence:
        if effect := render_percent(evidence.effect):
            interval = render_interval(evidence.interval)
            around = f" [{interval}]" if interval not in ("", effect) else ""
            since = f", first shows from step {render_step(evidence.step)}" if evidence.step is not None else ""
            yield doc.Text(f"effect: {effect}{around}{since}", indent=1)
        yield doc.Findings([Finding(evidence.verdict, evidence.subject, evidence.message)])
    tested = len({trial.commit for trial in report.trials})
    skipped = f", {report.skipped} of them skipped" if report.skipped else ""
    trials = render_count(len(report.trials), "trial")
    yield doc.Text(f"{tested} of {report.commits + 1} commits tried{skipped}, {trials}; log: {report.dir}")


def render_shift(value: float) -> str:
    """Render a signed effect, such as `+2e-7`; no effect is `0`."""
    return f"{'+' if value > 0 else ''}{render_number(float(f'{value:.3g}'), 3)}" if value else "0"


def render_noise(shift: MetricShift, level: float = 1.0, unit: str = "") -> str | None:
    """Render `±0.002`; `0` if every run repeats itself bit for bit; None if the noise is unknown."""
    if shift.kind == "noise unknown" or not level:
        return None
    return "0" if shift.reach is None else f"±{render_number(shift.reach / level, 2)}{unit}"


def build_blame_document(reports: Sequence[BlameReport]) -> doc.Document:
    sections = [doc.Section(list(_build_blame(report))) for report in reports]
    facts = [{**asdict(report), "exit_code": int(report.exit_code)} for report in reports]
    return doc.Document("assay golden blame", sections, facts=facts)


def _build_blame(report: BlameReport) -> Iterator[doc.Block]:
    sides = {"code": report.codes, "environment": report.environments}.items()
    named = [(kind, side if len(each) > 1 else "a, b", text) for kind, each in sides for side, text in each.items()]
    yield doc.Section((doc.Facts([(f"{kind} {side}", text) for kind, side, text in named]),))
    numbers = [Column(name, align="right") for name in ("moved by", "relative", "noise", "at most", "step")]
    columns = (Column("metric"), Column("effect of"), *numbers, Column("result"))
    if report.effects:
        yield doc.Section((doc.TableBlock(Table(columns, list(map(_build_row, report.effects)))),))
    names = {cell: f"code {cell.code} in environment {cell.environment}" for cell in report.cells if cell.problem}
    yield doc.Findings([Finding(VerdictKind.ERROR, name, cell.problem) for cell, name in names.items()])
    runs = [f"{cell.code}{cell.environment} {cell.runs}" for cell in report.cells if cell not in names]
    yield doc.Notes([f"runs of each code and environment: {', '.join(runs) or 'none'}", *report.notes])
    for metric in dict.fromkeys(each.metric for each in report.effects):
        parts = {each.part: each for each in report.effects if each.metric == metric}
        yield doc.Text(f"{report.test}: {_describe_moved(metric, parts)}", role="answer")
    if report.interrupted or report.problem:
        yield doc.Text(f"{report.test}: not everything was run: {report.interrupted or report.problem}")


def _build_row(moved: Moved) -> list[Any]:
    part, shift = f"{moved.part} ({moved.where})" if moved.where else moved.part, moved.shift
    if shift is None:
        return [moved.metric, part, *[None] * 5, "unknown"]
    effect = render_shift(shift.effect), f"{render_shift(100 * shift.relative)}%", render_noise(shift)
    steps = render_shift(shift.largest), render_step(shift.step) or None
    return [moved.metric, part, *effect, *steps, shift.kind]


def _describe_moved(metric: str, parts: Mapping[str, Moved]) -> str:
    """Render the parts as in `the environment moved loss by +2e-7, the code by 0`."""
    environment = _describe_part(parts["environment"].shift)
    code = f"by {_describe_part(parts['code'].shift)}" if "code" in parts else "is the same on both sides"
    text = f"the environment moved {metric} by {environment}, the code {code}"
    more = parts["interaction"].shift if "interaction" in parts else None
    if more is None or more.kind != "moved":
        return text
    # effects that multiply have a tiny interaction, which the table shows
    least = min(abs(each.shift.effect) for each in parts.values() if each.shift and each.part != "interaction")
    return f"{text}; together by another {render_shift(more.effect)}" if abs(more.effect) > _TINY * least else text


def _describe_part(shift: MetricShift | None) -> str:
    if shift is None:
        return "an unknown amount"
    effect = render_shift(shift.effect)
    is_open = shift.reach and shift.kind != "moved"
    return f"no more than the repeats differ ({effect} {render_noise(shift)})" if is_open else effect


# ---------------------------------------------------------------- history


def build_history_document(source: str, histories: Sequence[NightHistory], every_row: bool = False) -> doc.Document:
    kind = find_worst(each.verdict.kind for each in histories)
    head = doc.Only(("html",), (doc.Heading("Nights", kind, 1), doc.Text(source, role="soft")))
    suites = []
    for each in histories:
        name = f"{each.test} on {each.environment}"
        cases = [doc.Case(name, found.subject, found.kind, found.message) for found in each.verdict.findings]
        suites.append(doc.Suite(name, cases))
    return doc.Document(
        f"{kind} {source}",
        (head, *(doc.Section(list(_build_history(each, every_row))) for each in histories)),
        suites,
        "assay golden history",
        facts=[_build_facts(each) for each in histories],
    )


def describe_history(history: NightHistory) -> str:
    """Describe in one sentence what moved, and since when."""
    if moved := [move for move in history.moves if move.state == "open"]:
        groups = [list(group) for _, group in groupby(moved, lambda move: (move.at, move.drifts))]
        return "; ".join(describe_moves(group, history.nights) for group in groups)
    if not history.nights:
        return "no check can be read"
    since = f"{render_count(len(history.nights), 'night')} since {history.nights[0].date}"
    if len(history.nights) < FEWEST_NIGHTS:
        return f"{since}: too few to show a lasting change"
    word = "no lasting change is open" if any(move.state != "open" for move in history.moves) else "no lasting change"
    return f"{word} in {since}"


def _build_history(history: NightHistory, every_row: bool) -> Iterator[doc.Block]:
    kind, sentence = history.verdict.kind, describe_history(history)
    where = f"{history.environment}, golden of {history.golden}" if history.golden else history.environment
    yield doc.Heading(history.test, kind)
    yield doc.Only(("html",), (doc.Text(f"{sentence}.", role="answer"), doc.Text(where, role="soft")))
    if history.moves:
        yield doc.Section((doc.TableBlock(_build_moves(history)),), "Lasting changes")
    if history.nights:
        nights = history.nights if every_row else history.nights[-_MOST_NIGHTS:]
        hidden = len(history.nights) - len(nights)
        breaks = {0: f"{render_count(hidden, 'earlier night')}; --all shows them"} if hidden else None
        yield doc.Only(("terminal",), (doc.Section((doc.TableBlock(_build_nights(history, nights), breaks=breaks),)),))
        yield doc.Only(("html",), (doc.Section(list(_build_charts(history)), "Levels"),))
        every = doc.TableBlock(_build_nights(history, history.nights))
        yield doc.Only(("html", "markdown"), (doc.Section((every,), "All nights"),))
    open_kinds = (VerdictKind.INCONCLUSIVE, VerdictKind.ERROR)
    yield doc.Findings([each for each in history.verdict.findings if each.kind in open_kinds])
    yield doc.Notes(history.notes)
    yield doc.Only(("terminal",), (doc.Notes([f"on {where}"]),))
    answer = doc.Text((f"{history.test}: ", doc.Span(str(kind), str(kind)), f", {sentence}"))
    yield doc.Only(("terminal", "markdown"), (answer,))


def _build_moves(history: NightHistory) -> Table:
    sizes = [Column(name, align="right") for name in ("effect", "interval")]
    columns = (Column("since"), Column("metric"), *sizes, Column("nights", "number"), Column("state"))
    rows = []
    for move in history.moves:
        night = history.nights[move.at]
        shown = render_percent(move.effect), render_interval(move.interval)
        reasons = [night.accepted for night in history.nights[move.at :] if night.accepted]
        state = f"accepted: {reasons[0]}" if move.state == "accepted" and reasons else move.state
        rows.append([night.date, move.metric, *shown, len(history.nights) - move.at, state])
    return Table(columns, rows)


def _build_nights(history: NightHistory, nights: Sequence[Night]) -> Table:
    names = list(dict.fromkeys(name for night in history.nights for name in night.levels))
    levels = [Column(name, align="right") for name in names]
    first = (Column("night"), Column("verdict", "state"), Column("runs", "number"))
    columns = (*first, *levels, Column("accepted", rank=1))
    rows: list[list[Any]] = []
    for night in nights:
        shown = [render_number(night.levels[name], 6) if name in night.levels else None for name in names]
        rows.append([night.date, str(night.kind), night.runs, *shown, night.accepted or None])
    kept = [at for at, column in enumerate(columns) if column.name != "accepted" or any(row[at] for row in rows)]
    return Table(tuple(columns[at] for at in kept), [[row[at] for at in kept] for row in rows])


def _build_charts(history: NightHistory) -> Iterator[doc.Chart]:
    for name in dict.fromkeys(name for night in history.nights for name in night.levels):
        points = [(float(at), night.levels[name]) for at, night in enumerate(history.nights, 1) if name in night.levels]
        texts = [f"{history.nights[int(at) - 1].date}\n{history.nights[int(at) - 1].kind} {y:g}" for at, y in points]
        lines = [move.at + 0.5 for move in history.moves if move.metric == name]
        curve = doc.Curve(points, "c2 curve", marker="dot", texts=texts)
        title = (doc.Span(name, "strong"), doc.Span("level of each night", "soft"))
        yield doc.Chart(
            title, (doc.Panel([curve]),), f"{name} by night", lines=lines, x_label="night, the newest on the right"
        )


def _build_facts(history: NightHistory) -> dict[str, Any]:
    return {
        "test": history.test,
        "environment": history.environment,
        "golden": history.golden,
        "verdict": str(history.verdict.kind),
        "sentence": describe_history(history),
        "changes": [{**asdict(move), "since": history.nights[move.at].date} for move in history.moves],
        "nights": [{**asdict(night), "good": night.is_good} for night in history.nights],
        "findings": [asdict(each) for each in history.verdict.findings],
        "notes": list(history.notes),
    }

"""What moved over the nights of a test, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from assay.golden.flow.history import NightHistory
from assay.golden.judge.nights import FEWEST_NIGHTS, Move, Night, describe_moves
from assay.golden.report.rows import render_interval, render_percent
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import asdict
from assay.values.document import (
    Block,
    Case,
    Chart,
    Curve,
    Document,
    Findings,
    Heading,
    Notes,
    Only,
    Panel,
    Section,
    Span,
    Suite,
    TableBlock,
    Text,
)
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind, find_worst

_MOST_NIGHTS = 14  # on a terminal


def build_history_document(source: str, histories: Sequence[NightHistory], every_row: bool = False) -> Document:
    kind = find_worst(each.verdict.kind for each in histories)
    head = Only(("html",), (Heading("Nights", kind, 1), Text(source, role="soft")))
    return Document(
        f"{kind} {source}",
        (head, *(Section(list(_build_history(each, every_row))) for each in histories)),
        [_build_suite(each) for each in histories],
        "assay golden history",
        facts=[_build_facts(each) for each in histories],
    )


def describe_history(history: NightHistory) -> str:
    """One sentence: what moved since when."""
    moved = [move for move in history.moves if move.state == "open"]
    if moved:
        groups = [list(group) for _, group in groupby(moved, lambda move: move.at)]
        return "; ".join(describe_moves(group, history.nights) for group in groups)
    if not history.nights:
        return "no check can be read"
    since = f"{render_count(len(history.nights), 'night')} since {history.nights[0].date}"
    if len(history.nights) < FEWEST_NIGHTS:
        return f"{since}: too few to show a lasting change"
    accepted = any(move.state != "open" for move in history.moves)
    word = "no lasting change is open" if accepted else "no lasting change"
    return f"{word} in {since}"


def _build_history(history: NightHistory, every_row: bool) -> Iterator[Block]:
    kind, sentence = history.verdict.kind, describe_history(history)
    golden = f", golden of {history.golden}" if history.golden else ""
    yield Heading(history.test, kind)
    yield Only(("html",), (Text(f"{sentence}.", role="answer"), Text(f"{history.environment}{golden}", role="soft")))
    if history.moves:
        yield Section((TableBlock(_build_moves(history)),), "Lasting changes")
    if history.nights:
        nights = history.nights if every_row else history.nights[-_MOST_NIGHTS:]
        hidden = len(history.nights) - len(nights)
        breaks = {0: f"{render_count(hidden, 'earlier night')}; --all shows them"} if hidden else None
        yield Only(("terminal",), (Section((TableBlock(_build_nights(history, nights), breaks=breaks),)),))
        yield Only(("html",), (Section(list(_build_charts(history)), "Levels"),))
        yield Only(
            ("html", "markdown"), (Section((TableBlock(_build_nights(history, history.nights)),), "All nights"),)
        )
    open_kinds = (VerdictKind.INCONCLUSIVE, VerdictKind.ERROR)
    yield Findings([each for each in history.verdict.findings if each.kind in open_kinds])
    yield Notes(history.notes)
    yield Only(("terminal",), (Notes([f"on {history.environment}{golden}"]),))
    yield Only(("terminal", "markdown"), (Text((f"{history.test}: ", Span(str(kind), str(kind)), f", {sentence}")),))


def _build_moves(history: NightHistory) -> Table:
    columns = (
        Column("since"),
        Column("metric"),
        Column("effect", align="right"),
        Column("interval", align="right"),
        Column("nights", "number"),
        Column("state"),
    )
    rows = []
    for move in history.moves:
        night = history.nights[move.at]
        shown = render_percent(move.effect), render_interval(move.interval)
        rows.append([night.date, move.metric, *shown, len(history.nights) - move.at, _describe_state(move, history)])
    return Table(columns, rows)


def _describe_state(move: Move, history: NightHistory) -> str:
    reasons = [night.accepted for night in history.nights[move.at :] if night.accepted]
    return f"accepted: {reasons[0]}" if move.state == "accepted" and reasons else move.state


def _build_nights(history: NightHistory, nights: Sequence[Night]) -> Table:
    names = list(dict.fromkeys(name for night in history.nights for name in night.levels))
    levels = [Column(name, align="right") for name in names]
    columns = (
        Column("night"),
        Column("verdict", "state"),
        Column("runs", "number"),
        *levels,
        Column("accepted", rank=1),
    )
    rows: list[list[Any]] = []
    for night in nights:
        shown = [render_number(night.levels[name], 6) if name in night.levels else None for name in names]
        rows.append([night.date, str(night.kind), night.runs, *shown, night.accepted or None])
    kept = [at for at, column in enumerate(columns) if column.name != "accepted" or any(row[at] for row in rows)]
    return Table(tuple(columns[at] for at in kept), [[row[at] for at in kept] for row in rows])


def _build_charts(history: NightHistory) -> Iterator[Chart]:
    for name in dict.fromkeys(name for night in history.nights for name in night.levels):
        points = [(float(at), night.levels[name]) for at, night in enumerate(history.nights, 1) if name in night.levels]
        texts = [f"{history.nights[int(at) - 1].date}\n{history.nights[int(at) - 1].kind} {y:g}" for at, y in points]
        lines = [move.at + 0.5 for move in history.moves if move.metric == name]
        curve = Curve(points, "c2 curve", marker="dot", texts=texts)
        title = (Span(name, "strong"), Span("level of each night", "soft"))
        yield Chart(title, (Panel([curve]),), f"{name} by night", lines=lines, x_label="night, the newest on the right")


def _build_suite(history: NightHistory) -> Suite:
    name = f"{history.test} on {history.environment}"
    return Suite(name, [Case(name, each.subject, each.kind, each.message) for each in history.verdict.findings])


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

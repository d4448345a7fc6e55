"""What moved over the nights of a test, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from assay.golden.flow.history import NightHistory
from assay.golden.judge.nights import FEWEST_NIGHTS, Night, describe_moves
from assay.golden.report.rows import render_interval, render_percent
from assay.show.formatting import render_count, render_number
from assay.system.fast_dataclasses import asdict
from assay.values import document as doc
from assay.values.table import Column, Table
from assay.values.verdict import VerdictKind, find_worst

_MOST_NIGHTS = 14  # nights that a terminal shows


def build_history_document(source: str, histories: Sequence[NightHistory], every_row: bool = False) -> doc.Document:
    kind = find_worst(each.verdict.kind for each in histories)
    head = doc.Only(("html",), (doc.Heading("Nights", kind, 1), doc.Text(source, role="soft")))
    return doc.Document(
        f"{kind} {source}",
        (head, *(doc.Section(list(_build_history(each, every_row))) for each in histories)),
        [_build_suite(each) for each in histories],
        "assay golden history",
        facts=[_build_facts(each) for each in histories],
    )


def describe_history(history: NightHistory) -> str:
    """One sentence: what moved since when."""
    moved = [move for move in history.moves if move.state == "open"]
    if moved:
        groups = [list(group) for _, group in groupby(moved, lambda move: (move.at, move.drifts))]
        return "; ".join(describe_moves(group, history.nights) for group in groups)
    if not history.nights:
        return "no check can be read"
    since = f"{render_count(len(history.nights), 'night')} since {history.nights[0].date}"
    if len(history.nights) < FEWEST_NIGHTS:
        return f"{since}: too few to show a lasting change"
    accepted = any(move.state != "open" for move in history.moves)
    word = "no lasting change is open" if accepted else "no lasting change"
    return f"{word} in {since}"


def _build_history(history: NightHistory, every_row: bool) -> Iterator[doc.Block]:
    kind, sentence = history.verdict.kind, describe_history(history)
    golden = f", golden of {history.golden}" if history.golden else ""
    yield doc.Heading(history.test, kind)
    where = f"{history.environment}{golden}"
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


def _build_suite(history: NightHistory) -> doc.Suite:
    name = f"{history.test} on {history.environment}"
    return doc.Suite(name, [doc.Case(name, each.subject, each.kind, each.message) for each in history.verdict.findings])


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

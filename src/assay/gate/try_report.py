"""Builds documents of a try, and of the ledger of tries."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from assay.follow.api import StudyLocation, show_command
from assay.gate.tries_ledger import Try
from assay.gate.try_runs import build_spec
from assay.gate.trying import BASE, HEAD, describe_change, render_signed
from assay.show.formatting import render_count, render_duration, render_number
from assay.values import layout
from assay.values.document import Block, Commands, Document, Facts, Notes, Section, Span, TableBlock, Text
from assay.values.plain import build_plain
from assay.values.run import build_command
from assay.values.table import Column, Table

_ROLES = {"better": "PASS", "worse": "FAIL", "same": "CHANGED", "undecided": "INCONCLUSIVE"}


def build_try_document(found: Try, location: StudyLocation) -> Document:
    head = Text((Span(found.verdict, _ROLES[found.verdict]), f": {found.idea}; {found.reason}"))
    pairs = f"{found.pairs} of at most {found.most}"
    new = f"{found.new_runs} new" if found.new_runs else "none of them new"
    cost = f"{render_count(found.runs, 'run')} ({new}), {render_duration(found.seconds)} of running"
    sides = ((BASE, found.a.title), (HEAD, found.b.title))
    changes = []
    if found.effect is not None and found.interval is not None:
        better = "lower" if found.metric.direction == "min" else "higher"
        change = describe_change(found.effect, found.relative, found.interval, "95% interval")
        changes.append((found.metric.name, f"{change}; {better} is better"))
    facts = Facts((*changes, ("pairs", pairs), ("cost", cost), *sides))
    numbers = (Column(BASE, "number", digits=6), Column(HEAD, "number", digits=6), Column("change", "number"))
    rows = [[seed, a, b, b - a if a is not None and b is not None else None] for seed, a, b in found.values]
    table = Table((Column("seed", "number", digits=None), *numbers), rows)
    blocks = [Section((head, facts)), Section((TableBlock(table),)), Section((Notes(found.notes),))]
    shown = [block for block in blocks if block.blocks]
    listed = [("what was tried", _show_tries(location))]
    if found.values:
        names = [build_spec(side, 1, found.metric).name for side in (found.a, found.b)]
        listed.append(("how the code differs", show_command(["diff"], location, *names, options=["--code"])))
    commands = Section((Commands(listed),))
    return Document(f"{found.verdict}: {found.idea}", (*shown, commands), facts=build_facts(found, location))


def build_facts(found: Try, location: StudyLocation) -> dict[str, Any]:
    return {
        "idea": found.idea,
        "verdict": found.verdict,
        "reason": found.reason,
        "metric": found.metric.name,
        "direction": found.metric.direction,
        "effect": found.effect,
        "effect_relative": found.relative,
        "interval": found.interval,
        "min_change": found.threshold,
        "pairs": found.pairs,
        "most_pairs": found.most,
        "values": [{"seed": seed, BASE: a, HEAD: b} for seed, a, b in found.values],
        "cost": {"runs": found.runs, "new_runs": found.new_runs, "seconds": round(found.seconds, 3)},
        **{
            title: {"title": side.title, "commit": side.commit, "code": side.code, "environment": side.environment}
            for title, side in ((BASE, found.a), (HEAD, found.b))
        },
        "commands": {BASE: found.a.show_command(), HEAD: found.b.show_command()},
        "study": location.dir,
        "notes": list(found.notes),
        "confirmation": build_plain(found.confirmation),
        "at": found.at,
    }


def build_tries_document(found: Sequence[Try], location: StudyLocation) -> Document:
    asked = (Column("idea"), Column("verdict", cut="never"), Column("metric", rank=1), Column("change", cut="never"))
    found_by = (Column("interval", cut="never", rank=2), Column("pairs", "number", digits=None, rank=1))
    columns = (*asked, *found_by, Column("confirmed", cut="never"), Column("base", rank=3), Column("when", rank=4))
    table = Table(columns, [_build_row(each) for each in found])
    blocks: list[Block] = [TableBlock(table, hint="widen the terminal, or --json")]
    if any(each.verdict == "better" and each.confirmation is None for each in found):
        blocks.append(Commands([("repeat what was better with fresh seeds", _show_tries(location, "--confirm"))]))
    shown = blocks if found else (Text("nothing was tried yet"),)
    return Document("assay tries", shown, facts=[build_facts(each, location) for each in found])


def _build_row(found: Try) -> list[Any]:
    change = "" if found.effect is None else render_signed(found.effect)
    change = f"{found.relative:+.2%}" if found.relative is not None else change
    interval = " to ".join(map(render_signed, found.interval)) if found.interval else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.at))
    verdict = Span(found.verdict, _ROLES[found.verdict])
    confirmed = "not yet" if found.verdict == "better" else ""
    if found.confirmation is not None:
        kept = "kept" if found.confirmation.is_kept else "not kept"
        confirmed = f"{kept} (p {render_number(found.confirmation.p, 2)})"
    cells = [found.idea, verdict, found.metric.name, change, interval, found.pairs]
    return [*cells, confirmed, found.a.commit[:12], when]


def _show_tries(location: StudyLocation, *words: str) -> str:
    root = os.path.relpath(location.root)
    where = [] if root == layout.DEFAULT_ROOT else ["--root", root]
    return build_command(("assay", "tries", *words, *where))

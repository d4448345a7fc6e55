"""What `assay trace bisect` found, as a document."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from assay.follow.locations import show_path
from assay.trace.bisecting import SIDES, Bisection
from assay.trace.judge.difference import OUTERMOST
from assay.values.document import Commands, Document, Facts, Notes, Section, Span, Text
from assay.values.plain import build_plain
from assay.values.verdict import VerdictKind


def build_bisect_document(found: Bisection) -> tuple[Document, VerdictKind]:
    verdict, answer = judge_bisection(found)
    blocks = [
        Section((Text((Span(str(verdict), str(verdict)), f": {answer}"), role="answer"),)),
        Section((Facts([*_list_facts(found)], folds=False),)),
        Section((Notes(found.notes),), "Also"),
        Section((Commands([*list_commands(found)]),)),
    ]
    return Document(f"{verdict} trace bisect", blocks, facts=_build_facts(found, verdict, answer)), verdict


def judge_bisection(found: Bisection) -> tuple[VerdictKind, str]:
    """The finest that was found: an operation, a module or what else began it, or a step."""
    stage = found.stages[min(1, len(found.stages) - 1)].found
    first, began = stage.first, found.stages[0].found.first
    if first is None and began is not None:
        return VerdictKind.INCONCLUSIVE, f"{began.text}; executed once more nothing differs there"
    kind, text = stage.kind, stage.verdict.findings[0].message if stage.verdict.findings else "nothing was compared"
    if found.parting is None or began is None:
        return kind, text
    return kind, f"{found.parting.call.get('module') or OUTERMOST} in step {began.step}: {found.parting.text}"


def _list_facts(found: Bisection) -> Iterator[tuple[str, str]]:
    for side in SIDES:
        yield side.upper(), f"{found.commands[side]} ({found.codes[side].title})"
    first = found.stages[0].found.first
    if first is not None:
        again = f", executed again from the checkpoint of step {found.skipped}" if found.skipped else ""
        yield "step", f"{first.step}{again}"
    if len(found.stages) > 1 and (first := found.stages[1].found.first):
        yield "module", first.text
    if found.parting is not None:
        yield "operation", f"{found.parting.call['op']} ({found.parting.call['phase']})"
        sources = dict.fromkeys(str(call["source"]) for call in (found.parting.a, found.parting.b) if call)
        yield "source", " in A, ".join(sources) + (" in B" if len(sources) > 1 else "")
    if found.repro is not None:
        yield "float64", found.repro.opinion.text if found.repro.opinion else found.repro.problem
    yield "executions", f"{len(found.stages)} of each side"


def list_commands(found: Bisection) -> Iterator[tuple[str, str]]:
    if found.repro is not None and found.repro.folder:
        path = show_path(os.path.join(found.repro.folder, "repro.py"))
        yield "this operation alone", f"python {shlex.quote(path)}"
    if found.stages[0].found.first is not None:
        runs = " ".join(shlex.quote(show_path(each)) for each in found.stages[min(1, len(found.stages) - 1)].runs)
        yield "everything around it", f"assay trace diff {runs}"


def _build_facts(found: Bisection, verdict: VerdictKind, answer: str) -> dict[str, object]:
    began = found.stages[0].found.first
    module = found.stages[1].found.first if len(found.stages) > 1 else None
    parting, repro = found.parting, found.repro
    return {
        "verdict": str(verdict),
        "answer": answer,
        "step": began.step if began else None,
        "first": build_plain(module or began),
        "module": (parting.call.get("module") or OUTERMOST) if parting else module.module if module else None,
        "op": parting.call["op"] if parting else None,
        "kind": parting.kind if parting else module.kind if module else None,
        "opinion": build_plain(repro.opinion) if repro else None,
        "repro": repro.folder if repro else None,
        "executions": [{"what": stage.what, "runs": list(stage.runs)} for stage in found.stages],
        "notes": found.notes,
    }

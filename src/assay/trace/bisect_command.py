"""`assay trace bisect`, and what it found as a document."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from assay.errors import UsageError
from assay.follow.locations import show_path
from assay.show.console import Console
from assay.trace.bisecting import CHECKPOINT, SIDES, Bisector, TraceBisectRequest
from assay.trace.judge.difference import OUTERMOST
from assay.trace.recording import check_target
from assay.values.document import Commands, Document, Facts, Notes, Section, Span, Text
from assay.values.plain import build_plain
from assay.values.verdict import VerdictKind


def bisect(request: TraceBisectRequest, console: Console) -> int:
    """Say which operation of which module, in which step, made two executions of a program differ.

    \b
    assay trace bisect --b-command 'python train.py --fused' -- python train.py
    assay trace bisect --a-rev HEAD~1 -- python train.py

    Each side is executed at most three times: to find the step, the module, and the operation. The operation's inputs
    are kept with a repro.py that shows the difference alone, and how far each side is from float64.

    Exit code 0: equal bit for bit. 3: not equal, or undecided.
    """
    if request.output:
        check_target(request.output, "-o")
    if not (request.a_rev or request.b_rev or request.b_command) and request.a_env == request.b_env:
        hint = "name what is not the same: --b-command 'python train.py --fused', --a-rev HEAD~1 or --b-env new-venv"
        raise UsageError("both sides are the same", hint)
    if request.resume and CHECKPOINT not in request.resume:
        raise UsageError(f"--resume {request.resume!r} has no {CHECKPOINT}", f"as in --resume '--resume {CHECKPOINT}'")
    found = Bisector(request, console.quieted(request.quiet or request.as_json)).run()
    document, verdict = build_bisect_document(found)
    console.write_document(document, as_json=request.as_json)
    return int(verdict.exit_code)


def build_bisect_document(found: Bisector) -> tuple[Document, VerdictKind]:
    verdict, answer = judge_bisection(found)
    blocks = [
        Section((Text((Span(str(verdict), str(verdict)), f": {answer}"), role="answer"),)),
        Section((Facts([*_list_facts(found)], folds=False),)),
        Section((Notes(found.notes),), "Also"),
        Section((Commands([*list_commands(found)]),)),
    ]
    return Document(f"{verdict} trace bisect", blocks, facts=_build_facts(found, verdict, answer)), verdict


def judge_bisection(found: Bisector) -> tuple[VerdictKind, str]:
    """The finest that was found: an operation, a module or what else began it, or a step."""
    stage = found.stages[min(1, len(found.stages) - 1)].found
    first, began = stage.first, found.stages[0].found.first
    if first is None and began is not None:
        return VerdictKind.INCONCLUSIVE, f"{began.text}; executed once more nothing differs there"
    kind, text = stage.kind, stage.verdict.findings[0].message if stage.verdict.findings else "nothing was compared"
    if found.parting is None or began is None:
        return kind, text
    return kind, f"{found.parting.module or OUTERMOST} in step {began.step}: {found.parting.text}"


def _list_facts(found: Bisector) -> Iterator[tuple[str, str]]:
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


def list_commands(found: Bisector) -> Iterator[tuple[str, str]]:
    if found.repro is not None and found.repro.folder:
        path = show_path(os.path.join(found.repro.folder, "repro.py"))
        yield "this operation alone", f"python {shlex.quote(path)}"
    if found.stages[0].found.first is not None:
        runs = " ".join(shlex.quote(show_path(each)) for each in found.stages[min(1, len(found.stages) - 1)].runs)
        yield "everything around it", f"assay trace diff {runs}"


def _build_facts(found: Bisector, verdict: VerdictKind, answer: str) -> dict[str, object]:
    began = found.stages[0].found.first
    module = found.stages[1].found.first if len(found.stages) > 1 else None
    parting, repro = found.parting, found.repro
    return {
        "verdict": str(verdict),
        "answer": answer,
        "step": began.step if began else None,
        "first": build_plain(module or began),
        "module": (parting.module or OUTERMOST) if parting else module.module if module else None,
        "op": parting.call["op"] if parting else None,
        "kind": parting.kind if parting else module.kind if module else None,
        "opinion": build_plain(repro.opinion) if repro else None,
        "repro": repro.folder if repro else None,
        "executions": [{"what": stage.what, "runs": list(stage.runs)} for stage in found.stages],
        "notes": found.notes,
    }

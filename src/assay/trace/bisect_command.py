"""`assay trace bisect`."""

from __future__ import annotations

from assay.errors import UsageError
from assay.show.console import Console
from assay.trace.bisect_report import build_bisect_document
from assay.trace.bisecting import CHECKPOINT, Bisector, Question, TraceBisectRequest
from assay.trace.recording import check_target


def bisect(request: TraceBisectRequest, console: Console) -> int:
    """Say which operation of which module, in which step, made two executions of a program differ.

    \b
    assay trace bisect --b-command 'python train.py --fused' -- python train.py
    assay trace bisect --a-rev HEAD~1 -- python train.py

    Each side is executed at most three times: to find the step, the module, and the operation. The operation's inputs
    are kept with a repro.py that shows the difference alone, and how far each side is from float64.

    Exit code 0: equal bit for bit. 3: not equal, or undecided.
    """
    _check(request)
    found = Bisector(_build_question(request), console.quieted(request.quiet or request.as_json)).run()
    document, verdict = build_bisect_document(found)
    console.write_document(document, as_json=request.as_json)
    return int(verdict.exit_code)


def _build_question(request: TraceBisectRequest) -> Question:
    return Question(
        (request.command, (request.b_command,) if request.b_command else request.command),
        (request.a_env, request.b_env),
        (request.a_rev, request.b_rev),
        request.steps,
        root=request.root,
        on=request.on,
        resume=request.resume,
        output=request.output,
    )


def _check(request: TraceBisectRequest) -> None:
    if request.output:
        check_target(request.output, "-o")
    if not (request.a_rev or request.b_rev or request.b_command) and request.a_env == request.b_env:
        hint = "name what is not the same: --b-command 'python train.py --fused', --a-rev HEAD~1 or --b-env new-venv"
        raise UsageError("both sides are the same", hint)
    if request.resume and CHECKPOINT not in request.resume:
        raise UsageError(f"--resume {request.resume!r} has no {CHECKPOINT}", f"as in --resume '--resume {CHECKPOINT}'")

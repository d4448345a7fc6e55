"""`assay trace run`, `assay trace show` and `assay trace diff`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode, UsageError
from assay.show.console import Console
from assay.show.formatting import render_count, render_size
from assay.trace.settings import LEVELS, TraceSettings, load_placement, parse_steps
from assay.values.options import Group, Request, argument, json_option, option, quiet_option, root_option
from assay.values.run import build_command
from assay.values.verdict import VerdictKind

if TYPE_CHECKING:
    from assay.launch.api import Report
    from assay.trace.records import Trace

GROUP = Group(
    """Record the tensors of a torch program; find where two programs begin to differ.

    The program is not edited, and its result is not changed: `assay trace run -- python train.py`.
    """,
    {
        "run": ("assay.trace.commands:run", "Run a torch program and record its tensors."),
        "show": ("assay.trace.commands:show", "Show what a run recorded."),
        "bisect": ("assay.trace.bisecting:bisect", "Find the operation that makes two programs differ."),
        "diff": ("assay.trace.commands:diff", "Find where two traces begin to differ."),
    },
)


class TraceRunRequest(Request):
    command: tuple[str, ...] = argument("-- COMMAND...", multiple=True)
    output: str | None = option("-o", "--output", metavar="DIR", help="Also copy the record to this folder.")
    steps: tuple[int, ...] = option(
        "--steps", default=(1,), metavar="N,N", parse=parse_steps, help="Steps to record, from 1.  [default: 1]"
    )
    level: str = option("--level", default="module", choices=LEVELS, help="How much of each step to record.")
    only: tuple[str, ...] = option("--in", multiple=True, metavar="PATTERN", help="Only modules of these paths.")
    keep: tuple[str, ...] = option(
        "--keep", multiple=True, metavar="PATTERN", help="Keep whole tensors of these modules."
    )
    noise: int = option(
        "--noise",
        type=int,
        minimum=0,
        maximum=20,
        default=0,
        metavar="N",
        help="Run the program N more times, with the first activation moved by one unit in the last place.",
    )
    prove: bool = option("--prove", default=False, help="Run once more, to show that the trace changes nothing.")
    inside: bool = option("--inside", default=False, help="Also record compiled regions; emulates precision casts.")
    placement: tuple[tuple[str, str], ...] = option(
        "--placement",
        default=(),
        metavar="FILE",
        parse=load_placement,
        help="File that states how ranks share tensors: lines 'PATTERN = S(0)'.",
    )
    root: str | None = root_option()
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the outcome as JSON.")


def run(request: TraceRunRequest, console: Console) -> int:
    """Run a torch program and record its tensors: hashes and sketches, not values.

    \b
    assay trace run --steps 1,2 -- python train.py --lr 0.1

    The program is started as it is, also `python -m` and torchrun. A step ends with the optimiser's step; in a program
    that only infers, a step is a call of the outermost module.
    """
    from assay.launch.api import RunHooks
    from assay.trace.recording import PROOF, TraceStep, check_target, describe_nothing, judge_proof, record_program
    from assay.trace.records import TRACE_DIR, list_traces, load_trace

    if request.output:
        check_target(request.output, "-o")
    chosen = request.only, request.keep, request.inside, request.placement
    settings = TraceSettings(request.steps, request.level, *chosen)
    quieted = console.quieted(request.quiet or request.as_json)
    echo = None if quieted.quiet else console.write_bytes
    hooks = RunHooks(console=quieted, owns_process=True, tick_s=0.1, steps=(TraceStep(),), echo=echo)
    report = record_program(request.command, settings, request.noise, request.prove, hooks, request.root)
    if report.interrupted:
        return int(ExitCode.INTERRUPTED)
    run_dir = report.entries[0].dir
    traces = [load_trace(folder) for folder in list_traces(run_dir)]
    codes, facts = [report.exit_code], _describe(report, traces, settings)
    if not traces:
        console.error(f"nothing was recorded: {describe_nothing(run_dir)}")
        codes.append(ExitCode.FAILED)
    elif request.output:
        shutil.copytree(os.path.join(run_dir, TRACE_DIR), os.path.join(request.output, TRACE_DIR))
    if traces and request.prove:
        kind, text = judge_proof(traces, [load_trace(folder) for folder in list_traces(run_dir, PROOF)])
        facts["proof"] = {"verdict": str(kind), "text": text}
        codes.append(ExitCode.OK if kind is VerdictKind.PASS else ExitCode.INCONCLUSIVE)
    if request.as_json:
        console.write_json(facts)
    elif traces:
        console.print_lines(_render(facts, request.output))
    return int(ExitCode.worst(codes))


def _describe(report: Report, traces: Sequence[Trace], settings: TraceSettings) -> dict[str, Any]:
    from assay.trace.recording import list_problems

    entry = report.entries[0]
    steps = {int(each["step"]) for trace in traces for each in trace.steps}
    return {
        "run": report.prepared.location.key(entry.dir), "dir": entry.dir, "state": str(entry.state),
        "processes": len(traces), "steps": sorted(steps),
        "missing": [step for step in settings.steps if step not in steps],
        "points": sum(len(trace.points) for trace in traces), "rows": sum(len(trace.rows) for trace in traces),
        "problems": list_problems(entry.dir),
        "bytes": sum(os.path.getsize(os.path.join(trace.folder, "rows.bin")) for trace in traces),
    }  # fmt: skip


def _render(facts: dict[str, Any], output: str | None) -> str:
    """Render the last lines of output: what was recorded, what is missing, and the next command."""
    parts = [render_count(facts["processes"], "process", "processes")] if facts["processes"] > 1 else []
    parts += [_name_steps(facts["steps"]), render_count(facts["rows"], "tensor"), render_size(facts["bytes"])]
    lines = [f"{facts['run']}: {', '.join(parts)}"]
    if facts["missing"]:
        lines.append(f"not completed: {_name_steps(facts['missing'])}")
    lines += facts["problems"]
    if "proof" in facts:
        lines.append(f"{facts['proof']['verdict']}: {facts['proof']['text']}")
    name = output or facts["run"]
    return "\n".join([*lines, f"see it: {build_command(('assay', 'trace', 'show'), [name])}"])


def _name_steps(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:20])) + (" …" if len(numbers) > 20 else "")
    return f"{'step' if len(numbers) == 1 else 'steps'} {shown or 'none completed'}"


class TraceShowRequest(Request):
    run: str = argument("RUN")
    step: int | None = option("--step", type=int, minimum=1, metavar="N", help="Only this step.")
    only: tuple[str, ...] = option("--in", multiple=True, metavar="PATTERN", help="Only modules of these paths.")
    rank: int = option("--rank", type=int, minimum=0, default=0, metavar="N", help="The record of this process.")
    root: str | None = root_option()
    as_json: bool = json_option()


def show(request: TraceShowRequest, console: Console) -> int:
    """Show what a run recorded: one line for each tensor.

    RUN is a run, or the folder of `assay trace run -o`.
    """
    from assay.trace.comparing import find_traces
    from assay.trace.records import load_trace
    from assay.trace.report import build_listing

    *_, folders = find_traces(request.run, request.root)
    if request.rank >= len(folders):
        known = render_count(len(folders), "process", "processes")
        raise UsageError(f"--rank {request.rank}: {request.run} has the record of {known}", "they count from 0")
    document = build_listing(load_trace(folders[request.rank]), request.step, request.only)
    chosen = [flag for flag, value in (("--step", request.step), ("--in", request.only)) if value]
    if chosen and not document.facts["rows"]:
        flags = " and ".join(chosen)
        raise UsageError(f"no recorded tensor matches {flags}", f"leave out {flags} to see all of them")
    console.write_document(document, as_json=request.as_json)
    return int(ExitCode.OK)


class TraceDiffRequest(Request):
    a: str = argument("A")
    b: str | None = argument("[B]", required=False)
    names: str | None = option(
        "--names", metavar="FILE", help="File of lines `NAME-IN-A = NAME-IN-B`; * stands for the same text in both."
    )
    html: str | None = option("--html", metavar="FILE", help="Write the report as one HTML page; - for stdout.")
    root: str | None = root_option()
    as_json: bool = json_option("Print verdict, first, coverage and all errors as JSON.")


def diff(request: TraceDiffRequest, console: Console) -> int:
    """Find where the traces A and B begin to differ; for A alone, where its values stop being finite.

    A and B are runs, or folders that `assay trace run -o` wrote. The result is the first module whose inputs agree and
    whose output does not, or the flag, optimiser group, weight or input that began the difference.

    Exit code 0: equal bit for bit, or within the noise that was recorded with --noise. 1: beyond the noise. 3: without
    noise not equal (CHANGED), or undecided (INCONCLUSIVE).
    """
    from assay.show.report_files import check_targets, write_text
    from assay.trace.comparing import load_recording
    from assay.trace.report import build_report

    is_on_stdout = check_targets(request.html, as_json=request.as_json)
    a = load_recording(request.a, request.root)
    if request.b is None and request.names:
        raise UsageError("--names is for two traces", f"name the second one: assay trace diff {request.a} B")
    b = load_recording(request.b, request.root) if request.b is not None else None
    document, verdict = build_report(a, b, request.names)
    if request.html:
        from assay.show.html import render_html

        write_text(request.html, render_html(document))
    if not is_on_stdout:
        console.write_document(document, as_json=request.as_json)
    return int(verdict.kind.exit_code)

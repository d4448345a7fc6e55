"""`assay model check`, `bisect` and `reduce`, and the display of their reports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode
from assay.models.values.flags import ModelFlags, RunFlags
from assay.show.console import Console
from assay.show.formatting import clean, shorten, unguard
from assay.show.report_files import STDOUT, ReportPages, check_targets, write_document
from assay.system.fast_dataclasses import replace
from assay.values.options import json_option, option, quiet_option

if TYPE_CHECKING:
    from assay.launch.api import RunHooks
    from assay.models.flow.options import Goal
    from assay.models.values.model import ModelReport

_PASTED = ("command", "model", "folder", "manner", "origin", "diffs", "hint")  # report keys with parts of command lines


class ModelReportRequest(ReportPages):
    as_json: bool = json_option("Print the report as JSON.")
    every: bool = option("--all", default=False, help="Show every layer in the table, also of a very long model.")


class ModelRunRequest(RunFlags, ModelReportRequest, ModelFlags):
    quiet: bool = quiet_option()


def keep_option() -> Any:
    return option("--keep-outputs", metavar="DIR", help="Keep the tensors of both sides here, for assay model judge.")


class CheckModelRequest(ModelRunRequest):
    output: None = None
    keep_outputs: str | None = keep_option()


def check(request: CheckModelRequest, console: Console) -> int:
    """Compute every layer of MODEL, and the full model, on a target and on the reference.

    MODEL is an ONNX file, or FILE.py:FUNCTION, which returns a torch module and example inputs.

    \b
    assay model check net.onnx --target iree
    assay model check net.onnx --target sim --only 'Conv_*' --samples 3
    assay model check net.py:build --target torch-bf16
    """
    return run_request(request, "check", console, keep_outputs=request.keep_outputs)


class BisectModelRequest(ModelRunRequest):
    only: tuple[str, ...] = ()
    output: None = None


def bisect(request: BisectModelRequest, console: Console) -> int:
    """Find the first layer of MODEL that a target gets wrong, without computing every layer."""
    return run_request(request, "bisect", console)


class ReduceRequest(ModelRunRequest):
    only: tuple[str, ...] = ()


def reduce(request: ReduceRequest, console: Console) -> int:
    """Find the smallest part of MODEL that fails on a target in the same way, with its inputs."""
    return run_request(request, "reduce", console)


def run_request(
    request: ModelRunRequest, goal: Goal, console: Console, *, keep_outputs: str | None = None, other: str = ""
) -> int:
    from assay.models.flow.options import build_request
    from assay.models.flow.output_keeper import choose_folder
    from assay.models.flow.run import run_model
    from assay.plugins import find_function

    takes_stdout = check_targets(request.md, request.junit, request.html, as_json=request.as_json)
    asked = replace(build_request(request, goal), keep_outputs=choose_folder(keep_outputs), other=other)
    if other and request.target == request.reference:
        asked = replace(asked, target=asked.reference)
    with _following(request, console) as hooks:
        finished = run_model(asked, request, hooks, find_function("timings.watch"), tuple(sys.argv))
    for note in finished.notes:
        console.warning(note)
    if finished.report is None:
        console.error(f"interrupted by {finished.interrupted}; finished steps are kept in the cache")
        return int(ExitCode.INTERRUPTED)
    show_report(finished.report, request, takes_stdout, console)
    return int(finished.report.exit_code)


def show_report(report: ModelReport, request: ModelReportRequest, takes_stdout: bool, console: Console) -> None:
    from assay.models.report.check import build_document

    document = build_document(report)
    if request.as_json:
        console.write_document(document, as_json=True)
    elif not takes_stdout:
        console.write_document(build_document(_shorten(report), every=request.every))
    write_document(document, request)
    if request.html and request.html != STDOUT and not request.as_json:
        console.error(f"page: {request.html}")


def _shorten(report: ModelReport) -> ModelReport:
    """Return the report without the working directory in its paths; command lines are not shortened, since they may be
    pasted elsewhere."""
    from assay.models.values.model import ModelReport
    from assay.values.plain import build_plain, parse_plain

    here = f"{os.getcwd()}/"
    if here == "//":
        return report
    return parse_plain(ModelReport, _replace(build_plain(report), here))


def _replace(content: Any, here: str) -> Any:
    if isinstance(content, dict):
        return {name: each if name in _PASTED else _replace(each, here) for name, each in content.items()}
    if isinstance(content, list):
        return [_replace(each, here) for each in content]
    return content.replace(here, "") if isinstance(content, str) else content


@contextmanager
def _following(request: ModelRunRequest, console: Console) -> Iterator[RunHooks]:
    """Show the output of the run on stderr, as stdout is for the report; a terminal shows only the last line."""
    from assay.launch.api import RunHooks
    from assay.system.terminal import is_terminal, terminal_width

    hooks = RunHooks(console=console, owns_process=True, counts_wait=True, tick_s=0.1)
    if request.quiet or request.as_json:
        yield replace(hooks, echo=_split_lines(_show_cache)) if request.explain else hooks
        return
    if request.explain or not is_terminal(sys.stderr):
        yield replace(hooks, echo=_echo)
        return
    try:
        yield replace(hooks, echo=_split_lines(partial(_show_last, (terminal_width(sys.stderr) or 80) - 1)))
    finally:
        _echo(b"\r\x1b[K")


def _split_lines(show: Callable[[list[bytes]], None]) -> Callable[[bytes], None]:
    """Return a function that collects pieces of an output and shows the complete lines."""
    rest = b""

    def take(content: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + content).split(b"\n")
        if lines:
            show(lines)

    return take


def _show_cache(lines: list[bytes]) -> None:
    """Show only the lines about the cache: for --debug-cache together with --quiet."""
    for line in lines:
        if re.search(rb" (?:import|compile|run): (?:hit|miss): ", line + b" "):
            _echo(line + b"\n")


def _show_last(width: int, lines: list[bytes]) -> None:
    """Show the last line of the output in one line of the terminal: the report has the rest."""
    _echo(f"\r\x1b[K{shorten(clean(lines[-1].decode('utf-8', 'replace')), width)}".encode())


def _echo(content: bytes) -> None:
    stream = unguard(sys.stderr)
    stream.write(content.decode("utf-8", "replace"))
    stream.flush()

"""What the subcommands of `assay model` share: their options, and the request made from them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from assay.errors import UsageError
from assay.show.console_warnings import warn
from assay.show.formatting import unguard

if TYPE_CHECKING:
    from assay.models.flow.options import Goal, ModelFlags
    from assay.models.values.model import ModelRequest
    from assay.study.api import RunHooks

Function = Callable[..., Any]
_EPILOG_TARGETS = "ort, ort:unoptimized, reference, openvino, iree, iree:vmvx, torq, or one of your settings"

INPUT_OPTIONS = [
    click.option("--reference", metavar="NAME", help="What is held for right.  [default: ort]"),
    click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Samples of the inputs.  [default: 1]"),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of random inputs.  [default: 1234]"),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="PATH",
        help="Inputs from .npy, .npz or a folder of them, one for each sample; NAME=PATH for one input.",
    ),
    click.option("--function", metavar="MODULE:NAME", help="Inputs from a Python function."),
    click.option("--range", "ranges", multiple=True, metavar="NAME=LOW:HIGH", help="Range of a random input."),
    click.option(
        "--dim", "dims", multiple=True, metavar="NAME=SIZE", help="An open dimension (batch=4), or a shape (x=1,3,8,8)."
    ),
    click.option("--group", "groups", multiple=True, metavar="OP,OP", help="Stay together.  [default: Conv,Clip]"),
    click.option("--recompute-cache", "recompute", is_flag=True, help="Make every artifact anew."),
]
ONLY = click.option("--only", multiple=True, metavar="CASE", help="Only these cases: names, Conv_3, or shell patterns.")
TARGET_OPTIONS = [
    click.option("--target", metavar="NAME", help=f"What is tested: {_EPILOG_TARGETS}."),
    click.option("--vote", metavar="NAME", help="A second reference, asked where the target differs; none: nobody."),
    click.option(
        "--tolerance",
        "tolerances",
        multiple=True,
        metavar="BOUNDS",
        help="rel=1e-3,abs=1e-5; Conv:rel=1e-2 for an operator; tensor=logits:top_k=5 for a tensor.",
    ),
    click.option(
        "--repeats", type=click.IntRange(min=1), default=1, metavar="N", help="Timed executions of each case."
    ),
    click.option("--compile-timeout", metavar="DURATION", help="Of one case.  [default: 300s]"),
    click.option("--run-timeout", metavar="DURATION", help="Of one case.  [default: 240s]"),
    click.option("--memory", metavar="SIZE", help="A target that takes more is stopped, as in 8GB."),
    click.option("--compiler-options", "compile_flags", metavar="TEXT", help="More flags for the target's compiler."),
    click.option("--runtime-options", "run_flags", metavar="TEXT", help="More flags for the target's runtime."),
    click.option("--debug-cache", "explain", is_flag=True, help="Say why each artifact was a hit or a miss."),
    click.option("--debug-ir", "ir_dir", metavar="DIR", help="Dump intermediate representations, a folder per case."),
    click.option("--compile-profile", "compile_profile_dir", metavar="DIR", help="Profiles of the compiler."),
    click.option("--run-profile", "run_profile_dir", metavar="DIR", help="Profiles of the runtime."),
    click.option("--label", metavar="TEXT", help="Kept with the run, and with its times in assay bench history."),
    click.option("--root", metavar="DIR", help="Where the runs go.  [default: ./runs]"),
    click.option("--timeout", metavar="DURATION", help="Time limit of the whole, as in 90s or 2h."),
    click.option(
        "--jobs", type=click.IntRange(min=1), metavar="N", help="Checks at once here.  [default: one per core]"
    ),
    click.option(
        "--max-wait",
        metavar="DURATION",
        help="Limit for waiting for a benchmark or for checks of others.  [default: 1h]",
    ),
    click.option("--quiet", is_flag=True, help="Say nothing until the end."),
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
]


def with_options(*groups: list[Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


def build_flags(given: dict[str, Any]) -> ModelFlags:
    from assay.models.flow.options import ModelFlags

    timeouts = {f"{name}_s": _seconds(given.get(name)) for name in ("compile_timeout", "run_timeout")}
    words = {name: _split(given.get(name), name) for name in ("compile_flags", "run_flags")}
    known = ModelFlags.__dataclass_fields__
    plain = {name: value for name, value in given.items() if name in known and name not in words}
    return ModelFlags(**{**plain, **timeouts, **words})


def build_request(given: dict[str, Any], goal: Goal) -> ModelRequest:
    from assay.models.flow.options import build_request as build

    return build(build_flags(given), goal)


def _seconds(text: str | None) -> float | None:
    from assay.values.units import parse_timeout

    return parse_timeout(text)


def _split(text: str | None, name: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        flag = {"compile_flags": "--compiler-options", "run_flags": "--runtime-options"}[name]
        raise UsageError(f"{flag} {text!r}: {error}", "quotes must be closed") from None


@contextmanager
def following(given: dict[str, Any]) -> Iterator[RunHooks]:
    """What comes is told on stderr: stdout is the report's. On a terminal it is one line that changes."""
    from assay.study.api import RunHooks
    from assay.system.terminal import is_terminal, terminal_width

    hooks = RunHooks(warn=warn, owns_process=True, counts_wait=True, tick_s=0.1)
    if given["quiet"] or given["as_json"]:
        yield replace(hooks, echo=CacheLines().show) if given["explain"] else hooks
        return
    if given["explain"] or not is_terminal(sys.stderr):
        yield replace(hooks, echo=_echo)
        return
    line = StatusLine(terminal_width(sys.stderr) or 80)
    try:
        yield replace(hooks, echo=line.show)
    finally:
        line.clear()


class CacheLines:
    """Of what comes only what is said about the cache: who asks for that and for silence wants just this."""

    def __init__(self) -> None:
        self._rest = b""

    def show(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if re.search(rb" (?:import|compile|run): (?:hit|miss): ", line + b" "):
                _echo(line + b"\n")


class StatusLine:
    """The last line of what comes, in one line of the terminal: the report says it all once more."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rest = b""

    def show(self, content: bytes) -> None:
        from assay.show.formatting import clean, shorten

        *lines, self._rest = (self._rest + content).split(b"\n")
        if lines:
            _echo(f"\r\x1b[K{shorten(clean(lines[-1].decode('utf-8', 'replace')), self._width - 1)}".encode())

    def clear(self) -> None:
        _echo(b"\r\x1b[K")


def _echo(content: bytes) -> None:
    stream = unguard(sys.stderr)
    stream.write(content.decode("utf-8", "replace"))
    stream.flush()

"""`assay model diff`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from assay.errors import InfrastructureError, UsageError
from assay.system.files import write_atomic

if TYPE_CHECKING:
    from assay.models.flow.diff import DiffRequest
    from assay.models.values.tensors import TensorDiff
    from assay.values.verdict import Verdict

_STDOUT = "-"


@click.command("diff")
@click.argument("expected", type=click.Path())
@click.argument("actual", type=click.Path())
@click.option("--dtype", metavar="NAME", help="Type of raw files, and what unsigned integers stand for: bfloat16.")
@click.option("--shape", metavar="DIMS", help="Shape of raw files, as in 1,3,224,224.")
@click.option("--abs", "abs_bound", type=float, metavar="X", help="Absolute error that is allowed; integers too.")
@click.option("--rel", "rel_bound", type=float, metavar="X", help="Relative error, at the tensor's scale.  [by type]")
@click.option("--ulp", type=int, metavar="N", help="At most N numbers of the type between them.")
@click.option("--allowed-wrong", type=float, default=0.0, metavar="SHARE", help="Of the elements, that may be beyond.")
@click.option("--min-cosine", type=float, metavar="X", help="Cosine of the two tensors, at least.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Signal to noise, at least.")
@click.option("--top-k", type=int, metavar="K", help="The K largest of each row must be the same ones.")
@click.option("--ignore-dtype", is_flag=True, help="Compare the values of different types.")
@click.option("--op", metavar="NAME", help="The operator that made the tensors, for its tolerance: Softmax.")
@click.option("--worst", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Elements shown.")
@click.option("--channel", type=int, metavar="I", help="Only this index of axis 1.")
@click.option("--slice", "part", metavar="TEXT", help="Only this part, as numpy writes it: '0,:,3:5'.")
@click.option("--transpose", metavar="AXES", help="Arrange the axes of ACTUAL so first: 0,3,1,2.")
@click.option("--html", metavar="FILE", help="Write one HTML page with all of it; - for stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(expected: str, actual: str, html: str | None, as_json: bool, **given: Any) -> int:
    """Compare two tensors: EXPECTED is what should be, ACTUAL what a target made.

    Each is a .npy, .npz, .pb or raw .bin file, or a folder of tensors; several are paired by name. Shows the worst
    elements, a histogram of the errors and where they are. Exit code 0: the same within the tolerance; 1: different;
    2: unreadable; 3: nothing to compare.
    """
    from assay.models.flow.diff import diff_tensors

    if html == _STDOUT and as_json:
        raise UsageError("two reports cannot both go to stdout", "give --html a file")
    _check_target(html)
    verdict, diffs = diff_tensors(build_request(expected, actual, given))
    show(verdict, diffs, html, as_json)
    return int(verdict.kind.exit_code)


def build_request(expected: str, actual: str, given: dict[str, Any]) -> DiffRequest:
    from assay.models.flow.diff import DiffRequest
    from assay.models.values.tensors import Tolerance

    if given["channel"] is not None and given["part"]:
        raise UsageError("--channel and --slice both choose a part", "give one of them")
    tolerance = Tolerance(
        abs=given["abs_bound"],
        rel=given["rel_bound"],
        ulp=given["ulp"],
        allowed_wrong=given["allowed_wrong"],
        min_cosine=given["min_cosine"],
        min_sqnr_db=given["min_sqnr"],
        top_k=given["top_k"],
        check_dtype=not given["ignore_dtype"],
    )
    chosen = {name: given[name] for name in ("dtype", "op", "worst", "channel", "part", "transpose")}
    return DiffRequest(expected, actual, shape=_parse_shape(given["shape"]), tolerance=tolerance, **chosen)


def _parse_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.strip("()[] ").split(",") if part.strip())
    except ValueError:
        raise UsageError(f"--shape {text!r} is no shape", "write it as 1,3,224,224") from None


def show(verdict: Verdict, diffs: tuple[TensorDiff, ...], html: str | None, as_json: bool) -> None:
    from assay.models.report.tensor_diff import build_diff_facts, render_diffs
    from assay.show.json_text import render_facts
    from assay.system.terminal import can_encode, terminal_width, use_color

    if as_json:
        sys.stdout.write(render_facts(build_diff_facts(diffs, verdict)))
    elif html != _STDOUT:
        plain = not can_encode(sys.stdout, "░▒▓█·…─▏")
        width, color = terminal_width(sys.stdout), use_color(sys.stdout)
        sys.stdout.write(render_diffs(diffs, verdict, width=width, color=color, plain=plain))
    if html:
        from assay.models.report.tensor_diff_html import render_diff_html

        _write(html, render_diff_html(diffs, verdict))


def _check_target(path: str | None) -> None:
    """Refuse before anything is read what could not be written after it."""
    if path is None or path == _STDOUT:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written", "name a file in a folder that is there and can be written")


def _write(path: str, text: str) -> None:
    if path == _STDOUT:
        sys.stdout.write(text)
        return
    try:
        write_atomic(path, text)
    except OSError as error:
        raise InfrastructureError(f"the report {path} cannot be written: {error.strerror}") from error

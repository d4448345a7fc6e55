"""`assay model diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.errors import UsageError
from assay.show.console import Console
from assay.show.report_files import STDOUT, check_targets, write_text
from assay.values.options import Request, argument, json_option, option

if TYPE_CHECKING:
    from assay.models.flow.diff import DiffRequest
    from assay.models.values.tensors import TensorDiff
    from assay.values.verdict import Verdict


def _parse_shape(text: str, flag: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.strip("()[] ").split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a shape", "write it as 1,3,224,224") from None


class TensorsRequest(Request):
    expected: str = argument()
    actual: str = argument()
    dtype: str | None = option(
        "--dtype", metavar="NAME", help="Type of raw files, and what unsigned integers stand for: bfloat16."
    )
    shape: tuple[int, ...] | None = option(
        "--shape", metavar="DIMS", parse=_parse_shape, help="Shape of raw files, as in 1,3,224,224."
    )
    abs_bound: float | None = option(
        "--abs", type=float, metavar="X", help="Absolute error that is allowed; integers too."
    )
    rel_bound: float | None = option(
        "--rel", type=float, metavar="X", help="Relative error, at the tensor's scale.  [default: by type]"
    )
    ulp: int | None = option("--ulp", type=int, metavar="N", help="At most N numbers of the type between them.")
    allowed_wrong: float = option(
        "--allowed-wrong",
        type=float,
        default=0.0,
        metavar="FRACTION",
        help="Fraction of the elements that may exceed the bounds.",
    )
    min_cosine: float | None = option(
        "--min-cosine", type=float, metavar="X", help="Smallest allowed cosine of the two tensors."
    )
    min_sqnr: float | None = option(
        "--min-sqnr", type=float, metavar="DB", help="Smallest allowed ratio of signal to noise."
    )
    top_k: int | None = option(
        "--top-k", type=int, metavar="K", help="The K largest of each row must be the same ones."
    )
    ignore_dtype: bool = option("--ignore-dtype", default=False, help="Compare values also where the types differ.")
    op: str | None = option(
        "--op", metavar="NAME", help="The operator that made the tensors, for its tolerance: Softmax."
    )
    worst: int = option("--worst", type=int, minimum=0, default=10, metavar="N", help="Elements shown.")
    channel: int | None = option("--channel", type=int, metavar="I", help="Only this index of axis 1.")
    part: str | None = option("--slice", metavar="TEXT", help="Only this part, as numpy writes it: '0,:,3:5'.")
    transpose: str | None = option("--transpose", metavar="AXES", help="Rearrange the axes of ACTUAL first: 0,3,1,2.")
    html: str | None = option("--html", metavar="FILE", help="Write one HTML page with all of it; - for stdout.")
    as_json: bool = json_option()


def diff(request: TensorsRequest, console: Console) -> int:
    """Compare two tensors: EXPECTED is what should be, ACTUAL what a target made.

    Each is a .npy, .npz, .pb or raw .bin file, or a folder of tensors; several are paired by name. Shows the worst
    elements, a histogram of the errors and where they are. Exit code 0: the same within the tolerance; 1: different;
    2: unreadable; 3: nothing to compare.
    """
    from assay.models.flow.diff import diff_tensors

    check_targets(request.html, as_json=request.as_json)
    verdict, diffs = diff_tensors(_build_request(request))
    _show(verdict, diffs, request, console)
    return int(verdict.kind.exit_code)


def _build_request(request: TensorsRequest) -> DiffRequest:
    from assay.models.flow.diff import DiffRequest
    from assay.models.values.tensors import Tolerance

    if request.channel is not None and request.part:
        raise UsageError("--channel and --slice both choose a part", "give one of them")
    tolerance = Tolerance(
        abs=request.abs_bound,
        rel=request.rel_bound,
        ulp=request.ulp,
        allowed_wrong=request.allowed_wrong,
        min_cosine=request.min_cosine,
        min_sqnr_db=request.min_sqnr,
        top_k=request.top_k,
        check_dtype=not request.ignore_dtype,
    )
    return DiffRequest(
        request.expected,
        request.actual,
        dtype=request.dtype,
        shape=request.shape,
        tolerance=tolerance,
        op=request.op,
        worst=request.worst,
        channel=request.channel,
        part=request.part,
        transpose=request.transpose,
    )


def _show(verdict: Verdict, diffs: tuple[TensorDiff, ...], request: TensorsRequest, console: Console) -> None:
    from assay.models.report.tensor_diff import build_document

    document = build_document(diffs, verdict)
    if request.as_json or request.html != STDOUT:
        console.write_document(document, as_json=request.as_json)
    if request.html:
        from assay.show.html import render_html

        write_text(request.html, render_html(document))

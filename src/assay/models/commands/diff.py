"""`assay model diff`: compares two tensors, or two sets of tensors, in files that a check or another tool wrote."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from assay.errors import UsageError
from assay.models.graph.tensorfile import LIST_FILE, load_array, load_arrays
from assay.models.judge.tensor_numbers import build_heat, build_histogram, can_draw
from assay.models.judge.tensors import judge_outputs
from assay.models.values.model import Tolerances
from assay.models.values.tensors import TensorDiff, Tolerance
from assay.show.console import Console
from assay.show.report_files import STDOUT, check_targets, write_text
from assay.system.fast_dataclasses import replace
from assay.values.options import Request, argument, json_option, option
from assay.values.verdict import Verdict

_HEAT_ROWS, _HEAT_COLUMNS = 48, 160  # size of a heat map: a terminal reduces it, a page does not
Array = Any
Index = tuple[Any, ...]  # integers, slices and an ellipsis


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
    abs_bound: float | None = option("--abs", type=float, metavar="X", help="Allowed absolute error, also of integers.")
    rel_bound: float | None = option(
        "--rel", type=float, metavar="X", help="Allowed relative error, at the tensor's scale.  [default: by type]"
    )
    ulp: int | None = option("--ulp", type=int, metavar="N", help="Allowed difference in units in the last place.")
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
        "--top-k", type=int, metavar="K", help="Require the same K largest elements in each row."
    )
    ignore_dtype: bool = option("--ignore-dtype", default=False, help="Compare values also where the types differ.")
    op: str | None = option(
        "--op", metavar="NAME", help="The operator that made the tensors, for its tolerance: Softmax."
    )
    worst: int = option("--worst", type=int, minimum=0, default=10, metavar="N", help="Worst elements to show.")
    channel: int | None = option("--channel", type=int, metavar="I", help="Only this index of axis 1.")
    part: str | None = option("--slice", metavar="TEXT", help="Only this part, as numpy writes it: '0,:,3:5'.")
    transpose: str | None = option("--transpose", metavar="AXES", help="Rearrange the axes of ACTUAL first: 0,3,1,2.")
    html: str | None = option("--html", metavar="FILE", help="Write the report as one HTML page; - for stdout.")
    as_json: bool = json_option()


def diff(request: TensorsRequest, console: Console) -> int:
    """Compare two tensors: EXPECTED, the correct one, and ACTUAL, the output of a target.

    EXPECTED and ACTUAL are .npy, .npz, .pb or raw .bin files, or folders of tensors; tensors of folders are paired by
    name. The report has the worst elements, a histogram of the errors and their positions. Exit code 0: equal within
    the tolerance; 1: different; 2: unreadable; 3: nothing to compare.
    """
    from assay.models.report.tensor_diff import build_document

    check_targets(request.html, as_json=request.as_json)
    if request.channel is not None and request.part:
        raise UsageError("--channel and --slice both choose a part", "give one of them")
    verdict, diffs = diff_tensors(request)
    document = build_document(diffs, verdict)
    if request.as_json or request.html != STDOUT:
        console.write_document(document, as_json=request.as_json)
    if request.html:
        from assay.show.html import render_html

        write_text(request.html, render_html(document))
    return int(verdict.kind.exit_code)


def diff_tensors(request: TensorsRequest) -> tuple[Verdict, tuple[TensorDiff, ...]]:
    """Compare the tensors of both sides. Raises UsageError for unreadable files; every other problem is a finding."""
    expected, actual = load_sides(request)
    verdict, comparisons = judge_outputs(
        expected, actual, Tolerances(build_tolerance(request)), op=request.op, worst=request.worst
    )
    parts = [f"slice {request.part}"] if request.part else []
    parts += [f"channel {request.channel}"] if request.channel is not None else []
    parts += [f"actual transposed by {request.transpose}"] if request.transpose else []
    has_names = len(expected) > 1 or len(actual) > 1  # two single tensors may have different names
    diffs = []
    for found in comparisons:
        paths = [
            f"{path} [{found.name}]" if has_names and (os.path.isdir(path) or path.endswith(".npz")) else path
            for path in (request.expected, request.actual)
        ]
        plain = TensorDiff(found, paths[0], paths[1], part=", ".join(parts))
        diffs.append(draw_diff(plain, expected[found.name], actual[found.name]))
    return verdict, tuple(diffs)


def build_tolerance(request: TensorsRequest) -> Tolerance:
    """Build the tolerance: an absolute bound applies to integers as well, and two all-zero tensors are not a fault."""
    bound = request.abs_bound
    return Tolerance(
        abs=bound,
        rel=request.rel_bound,
        ulp=request.ulp,
        int_abs=int(bound) if bound is not None and 1 <= bound < 2**63 else None,
        allowed_wrong=request.allowed_wrong,
        min_cosine=request.min_cosine,
        min_sqnr_db=request.min_sqnr,
        top_k=request.top_k,
        allow_constant=True,
        check_dtype=not request.ignore_dtype,
    )


def draw_diff(plain: TensorDiff, expected: Array, actual: Array) -> TensorDiff:
    """Return the comparison with a histogram and a map of the errors, if these tensors have numbers."""
    if not can_draw(expected, actual):
        return plain
    heat = build_heat(expected, actual, _HEAT_ROWS, _HEAT_COLUMNS, plain.comparison.tolerance)
    return replace(plain, histogram=build_histogram(expected, actual), heat=heat)


def load_sides(request: TensorsRequest) -> tuple[dict[str, Array], dict[str, Array]]:
    """Load the tensors of both sides by name; two single tensors are compared whatever the names of their files are."""
    expected = load_side(request.expected, request.dtype, request.shape)
    actual = load_side(request.actual, request.dtype, request.shape)
    order = parse_axes(request.transpose)
    index = parse_index(request.part)
    for name, array in expected.items():
        expected[name] = choose_part(array, index, request.channel, f"{request.expected} [{name}]")
    for name, array in actual.items():
        label = f"{request.actual} [{name}]"
        actual[name] = choose_part(transpose_axes(array, order, label), index, request.channel, label)
    if len(expected) == len(actual) == 1:
        actual = dict(zip(expected, actual.values(), strict=True))
    return expected, actual


def load_side(path: str, dtype: str | None, shape: Sequence[int] | None) -> dict[str, Array]:
    """Load the tensors of a file or a folder, by name; in a folder of single files a tensor has its file's name."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, LIST_FILE)):
            found = load_arrays(path)
        else:
            files = sorted(name for name in os.listdir(path) if name.endswith(".npy"))
            found = {os.path.splitext(name)[0]: load_array(os.path.join(path, name), dtype) for name in files}
    elif path.endswith(".npz"):
        found = load_arrays(path)
        if len(found) == 1:
            found = dict.fromkeys(found, load_array(path, dtype, shape))
    else:
        found = {os.path.splitext(os.path.basename(path))[0]: load_array(path, dtype, shape)}
    if not found:
        raise UsageError(f"{path} contains no tensor", "give a .npy or .npz file, or a folder of them")
    return found


def parse_index(text: str | None) -> Index | None:
    """Parse `0,:,3:5,...` as numpy would parse it between brackets."""
    if text is None:
        return None
    return tuple(_parse_index_part(part.strip(), text) for part in text.strip("[] ").split(","))


def _parse_index_part(text: str, whole: str) -> Any:
    if text == "...":
        return Ellipsis
    try:
        parts = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or (len(parts) == 1 and parts[0] is None) or parts[2:] == [0]:
        raise UsageError(f"--slice {whole!r}: {text!r} is not an index", "write it as numpy does: --slice '0,:,3:5'")
    return parts[0] if len(parts) == 1 else slice(*parts)


def parse_axes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        hint = "name them all: --transpose 0,3,1,2"
        raise UsageError(f"--transpose {text!r} is not an order of the axes", hint) from None


def transpose_axes(array: Array, order: tuple[int, ...] | None, name: str) -> Array:
    if order is None:
        return array
    if sorted(order) != list(range(array.ndim)):
        hint = f"its {array.ndim} axes are {', '.join(map(str, range(array.ndim)))}: name each once"
        raise UsageError(f"{name}: {','.join(map(str, order))} is not an order of its axes", hint)
    return array.transpose(order)


def choose_part(array: Array, index: Index | None, channel: int | None, name: str) -> Array:
    """Choose a part by index, or by channel: an index of axis 1, as in NCHW and rows of features, or the only axis."""
    if channel is not None:
        axis = min(1, array.ndim - 1)
        index = (*(slice(None),) * axis, channel)
    if index is None:
        return array
    try:
        return array[index]
    except IndexError as error:
        raise UsageError(f"{name}: there is no such part: {error}", f"its shape is {tuple(array.shape)}") from None

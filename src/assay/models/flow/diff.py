"""`assay model diff`: two tensors, or two sets of them, from files that a check or somebody else has written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import UsageError
from assay.models.graph.tensorfile import LIST_FILE, load_array, load_arrays
from assay.models.judge.tensor_errors import build_heat, build_histogram, can_draw
from assay.models.judge.tensors import WORST, judge_outputs
from assay.models.values.model import Tolerances
from assay.models.values.tensors import TensorComparison, TensorDiff, Tolerance
from assay.values.verdict import Verdict

HEAT_ROWS, HEAT_COLUMNS = 48, 160  # a terminal shrinks it, a page does not
Array = Any
Index = tuple[Any, ...]  # of integers, slices and an ellipsis


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """What to compare. `dtype` and `shape`: of raw files, and what unsigned integers stand for."""

    expected: str
    actual: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    op: str | None = None
    worst: int = WORST
    channel: int | None = None
    part: str | None = None  # as numpy writes it: `0,:,3:5`
    transpose: str | None = None  # order of the actual tensor's axes: `0,3,1,2`
    draws: bool = True


def diff_tensors(request: DiffRequest) -> tuple[Verdict, tuple[TensorDiff, ...]]:
    """Raises UsageError for what cannot be read; everything else is a finding."""
    expected, actual = load_sides(request)
    verdict, comparisons = judge_outputs(
        expected, actual, Tolerances(build_tolerance(request.tolerance)), op=request.op, worst=request.worst
    )
    return verdict, tuple(_build_diff(request, each, expected[each.name], actual[each.name]) for each in comparisons)


def build_tolerance(asked: Tolerance) -> Tolerance:
    """Who names an absolute bound means integers as well. That two files are both all zero is not a fault of theirs."""
    steps = int(asked.abs) if asked.abs is not None and asked.int_abs is None and 1 <= asked.abs < 2**63 else None
    return replace(asked, allow_constant=True, int_abs=asked.int_abs if steps is None else steps)


def _build_diff(request: DiffRequest, found: TensorComparison, expected: Array, actual: Array) -> TensorDiff:
    several = [_is_several(path) for path in (request.expected, request.actual)]
    paths = [
        f"{path} [{found.name}]" if many else path
        for path, many in zip((request.expected, request.actual), several, strict=True)
    ]
    plain = TensorDiff(found, paths[0], paths[1], part=describe_part(request))
    if not request.draws or not can_draw(expected, actual):
        return plain
    heat = build_heat(expected, actual, HEAT_ROWS, HEAT_COLUMNS, found.tolerance, op=request.op)
    return replace(plain, histogram=build_histogram(expected, actual), heat=heat)


def _is_several(path: str) -> bool:
    return os.path.isdir(path) or path.endswith(".npz")


# ---------------------------------------------------------------- reading


def load_sides(request: DiffRequest) -> tuple[dict[str, Array], dict[str, Array]]:
    """By name; two single tensors are compared whatever their files are called."""
    expected = load_side(request.expected, request.dtype, request.shape)
    actual = load_side(request.actual, request.dtype, request.shape)
    if len(expected) == len(actual) == 1:
        actual = dict(zip(expected, actual.values(), strict=True))
    order = parse_axes(request.transpose)
    index = parse_index(request.part)
    chosen = {
        name: choose_part(array, index, request.channel, f"{request.expected} [{name}]")
        for name, array in expected.items()
    }
    turned = {name: turn(array, order, f"{request.actual} [{name}]") for name, array in actual.items()}
    return chosen, {
        name: choose_part(array, index, request.channel, f"{request.actual} [{name}]") for name, array in turned.items()
    }


def load_side(path: str, dtype: str | None, shape: Sequence[int] | None) -> dict[str, Array]:
    """A file or a folder: one that a check wrote, or one of single files, which are then named by these."""
    if os.path.isdir(path):
        found = load_arrays(path) if os.path.exists(os.path.join(path, LIST_FILE)) else _load_files(path, dtype)
    elif path.endswith(".npz"):
        found = load_arrays(path)
        if len(found) == 1:
            found = dict.fromkeys(found, load_array(path, dtype, shape))
    else:
        found = {os.path.splitext(os.path.basename(path))[0]: load_array(path, dtype, shape)}
    if not found:
        raise UsageError(f"{path} holds no tensor", "give a .npy or .npz file, or a folder of them")
    return found


def _load_files(folder: str, dtype: str | None) -> dict[str, Array]:
    files = sorted(name for name in os.listdir(folder) if name.endswith(".npy"))
    return {os.path.splitext(name)[0]: load_array(os.path.join(folder, name), dtype) for name in files}


# ---------------------------------------------------------------- parts


def parse_index(text: str | None) -> Index | None:
    """`0,:,3:5,...` as numpy would read it between brackets."""
    if text is None:
        return None
    return tuple(_parse_place(part.strip(), text) for part in text.strip("[] ").split(","))


def _parse_place(text: str, whole: str) -> Any:
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


def turn(array: Array, order: tuple[int, ...] | None, name: str) -> Array:
    if order is None:
        return array
    if sorted(order) != list(range(array.ndim)):
        hint = f"its {array.ndim} axes are {', '.join(map(str, range(array.ndim)))}: name each once"
        raise UsageError(f"{name}: {','.join(map(str, order))} is not an order of its axes", hint)
    return array.transpose(order)


def choose_part(array: Array, index: Index | None, channel: int | None, name: str) -> Array:
    """A channel is one of axis 1, as in NCHW and in rows of features; of axis 0 where there is no other."""
    if channel is not None:
        axis = min(1, array.ndim - 1)
        index = (*(slice(None),) * axis, channel)
    if index is None:
        return array
    try:
        found = array[index]
    except IndexError as error:
        raise UsageError(f"{name}: there is no such part: {error}", f"its shape is {tuple(array.shape)}") from None
    return found


def describe_part(request: DiffRequest) -> str:
    parts = [f"slice {request.part}"] if request.part else []
    parts += [f"channel {request.channel}"] if request.channel is not None else []
    parts += [f"actual transposed by {request.transpose}"] if request.transpose else []
    return ", ".join(parts)

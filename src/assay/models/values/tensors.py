"""Tensors as values: their type and shape, their location, and how two tensors compare.

No value contains an array: `graph` and `judge` load arrays where they need them.
"""

from __future__ import annotations

from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import Verdict, VerdictKind

EXPECTED_CONSTANT = "expected is constant"  # up to ACTUAL_ZERO: values of TensorComparison.flags that code looks for
ACTUAL_CONSTANT = "actual is constant"
EXPECTED_ZERO = "expected is all zero"
ACTUAL_ZERO = "actual is all zero"
ALLOW_CONSTANT = "--tolerance allow_constant=true"  # as on the command line
OTHER_LARGEST = "the largest element is another one in"  # begins a flag on scores of classes; a number of rows follows

Dim = int | str | None  # a number, a symbol such as "batch", or None if unknown
Number = float | int | str  # the value of an element; a string for numbers that JSON lacks: "nan", "-inf", complex ones


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: str  # numpy's or ml_dtypes' name: "float32", "bfloat16", "float8_e4m3fn", "int4", "bool"; "string"; ""
    shape: tuple[Dim, ...] | None = None  # None: not even the rank is known

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor in a file. `path` is absolute; types that numpy's files do not have are stored as unsigned integers."""

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    sha: str  # hash of dtype, shape and bytes


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two tensors may differ. A bound that is None gets the default of the tensor's type and operator.

    An element is correct when |actual - expected| <= abs + rel * max(|expected|, scale), where scale is the magnitude
    of the elements around it (judge.tensor_errors): a small element next to large ones is no more precise than those.
    Every other bound is checked as well when it is given. No bound switches another one off, or excuses another shape
    or type, a NaN or an infinity on one side only, or a constant instead of numbers.
    """

    abs: float | None = None
    rel: float | None = None
    ulp: int | None = None
    int_abs: int | None = None  # the only bound of integers; 0 by default, unless an operator rounds into its type
    int_share: float | None = None  # fraction of integers that may use int_abs: a tie is rare, a wrong rounding is not
    allowed_wrong: float = 0.0  # fraction of elements that may exceed abs/rel/ulp
    min_cosine: float | None = None
    min_sqnr_db: float | None = None
    max_shift: float | None = None  # for a factor or an offset that all elements share, relative to the scale
    top_k: int | None = None  # the k largest along the last axis must be the same ones
    allow_constant: bool = False  # two tensors that are all zero prove nothing, and are not PASS unless this is set
    check_dtype: bool = True
    quantized: bool = False  # the model computes in steps: its outputs may be a few steps off


@dataclass(frozen=True, slots=True)
class Element:
    index: tuple[int, ...]
    expected: Number
    actual: Number
    abs_error: float
    rel_error: float


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """Counts of absolute errors between powers of ten; `zero` counts equal elements."""

    edges: tuple[float, ...]  # one more than there are counts
    counts: tuple[int, ...]
    zero: int = 0
    broken: int = 0  # NaN or infinities where the other side has another value: the error is not defined


@dataclass(frozen=True, slots=True)
class Heat:
    """The largest error in each part of a tensor, by its two longest axes. An error is in units of what the tolerance
    allows: it is correct up to 1, and infinite for a NaN or an infinity on one side only."""

    axes: tuple[int, ...]  # the tensor's axes that run down and across; a single axis runs across
    lengths: tuple[int, int]  # elements down and across
    cells: tuple[tuple[float, ...], ...]  # at most as many as there are elements


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """The comparison of two tensors, with every number of a report."""

    name: str
    verdict: Verdict
    dtype: tuple[str, str]  # expected, actual
    shape: tuple[tuple[int, ...], tuple[int, ...]]
    count: int = 0  # elements that were compared
    wrong: int = 0  # compared elements outside the tolerance
    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0  # relative to max(|expected|, scale)
    max_ulp: int | None = None
    scale: float = 0.0  # scale of the expected tensor
    cosine: float | None = None
    sqnr_db: float | None = None  # inf: the tensors are equal
    top_k: float | None = None  # fraction of rows whose k largest agree; k is 1 without a requested bound
    nan: tuple[int, int] = (0, 0)  # counts in expected, in actual
    inf: tuple[int, int] = (0, 0)
    misplaced: int = 0  # NaN or infinities where the other side has another value, or the other sign
    flags: tuple[str, ...] = ()  # "actual is all zero", "expected is constant", …
    worst: tuple[Element, ...] = ()  # largest error first
    tolerance: Tolerance = field(default_factory=Tolerance)  # all bounds that were used

    @property
    def error(self) -> float:
        """A number to rank by: the relative error at the tensor's scale; infinite if nothing can be compared."""
        return float("inf") if self.misplaced or self.shape[0] != self.shape[1] else self.max_rel

    @property
    def is_dead(self) -> bool:
        """Whether the tensor is all zero or constant although the expected one is not."""
        return ACTUAL_CONSTANT in self.flags and EXPECTED_CONSTANT not in self.flags

    @property
    def is_broken(self) -> bool:
        """Whether the tensor is wrong in a way that no rounding explains, however large the numbers are."""
        retyped = self.tolerance.check_dtype and self.dtype[0] != self.dtype[1]
        nothing = self.count == 0  # the shapes differ, or strings are compared with numbers
        return self.verdict.kind is VerdictKind.FAIL and bool(self.misplaced or retyped or nothing or self.is_dead)


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A comparison with its charts, and the location of the two tensors."""

    comparison: TensorComparison
    expected: str  # path, with the tensor's name if the file contains several; empty: shown elsewhere
    actual: str
    histogram: ErrorHistogram | None = None  # None: nothing was compared
    heat: Heat | None = None
    part: str = ""  # the part that was compared: `slice 0,:,:`; empty: the whole tensor

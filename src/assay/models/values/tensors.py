"""Tensors as values: what one is, where one is, and how two of them compare.

No array is ever in a value: `graph` and `judge` load them where they are needed.
"""

from __future__ import annotations

from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import Verdict, VerdictKind

EXPECTED_CONSTANT = "expected is constant"  # flags that are asked for; "… is all zero" comes next to them
ACTUAL_CONSTANT = "actual is constant"
EXPECTED_ZERO = "expected is all zero"
ACTUAL_ZERO = "actual is all zero"
ALLOW_CONSTANT = "--tolerance allow_constant=true"  # as the command line spells it
OTHER_LARGEST = "the largest element is another one in"  # so many rows, of what looks like scores of classes

Dim = int | str | None  # known, a symbol such as "batch", or nothing at all
Number = float | int | str  # of one element; text for what JSON has no number for: "nan", "-inf", complex numbers


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
    """A tensor in a file. `path` is absolute; types that numpy's files do not know lie there as unsigned integers."""

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    sha: str  # of dtype, shape and bytes


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two tensors may lie apart. `None` leaves a bound to the tensor's type and operator.

    An element is correct when |actual - expected| <= abs + rel * max(|expected|, scale), where scale is what the tensor
    is made of around it (judge.tensor_scale): a small element next to large ones is as precise as they are, never more.
    Every other bound is checked as well when it is given; a bound never switches another one off, and none of them
    excuses another shape or type, a NaN or an infinity out of place, or a constant where there should be numbers.
    """

    abs: float | None = None
    rel: float | None = None
    ulp: int | None = None
    int_abs: int | None = None  # integers have no other bound; exact, but where an operator rounds into its type
    int_share: float | None = None  # of the integers that may make use of int_abs: a tie is rare, a wrong rounding not
    allowed_wrong: float = 0.0  # share of elements that may break abs/rel/ulp
    min_cosine: float | None = None
    min_sqnr_db: float | None = None
    max_shift: float | None = None  # of a factor or an offset that all elements share, at the scale
    top_k: int | None = None  # the k largest along the last axis must be the same ones
    allow_constant: bool = False  # both all zero proves nothing, and is not PASS unless this allows it
    check_dtype: bool = True
    quantized: bool = False  # the model computes in steps: what it gives as a whole may be a few of them off


@dataclass(frozen=True, slots=True)
class Element:
    index: tuple[int, ...]
    expected: Number
    actual: Number
    abs_error: float
    rel_error: float


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """Counts of absolute errors between powers of ten; `zero` counts what is equal."""

    edges: tuple[float, ...]  # one more than counts
    counts: tuple[int, ...]
    zero: int = 0
    broken: int = 0  # NaN or infinities where the other has something else: no error can be named


@dataclass(frozen=True, slots=True)
class Heat:
    """The largest error in each part of a tensor, seen along its two longest axes.

    Errors are in units of what the tolerance allows: up to 1 is correct. Infinite: NaN or infinity out of place.
    """

    axes: tuple[int, ...]  # of the tensor: down, across; one alone runs across
    lengths: tuple[int, int]  # elements down and across
    cells: tuple[tuple[float, ...], ...]  # at most as many as there are elements


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Two tensors next to each other, with every number that a person could ask for."""

    name: str
    verdict: Verdict
    dtype: tuple[str, str]  # expected, actual
    shape: tuple[tuple[int, ...], tuple[int, ...]]
    count: int = 0  # elements that were compared
    wrong: int = 0  # of these, outside the tolerance
    max_abs: float = 0.0
    mean_abs: float = 0.0
    max_rel: float = 0.0  # relative to max(|expected|, scale)
    max_ulp: int | None = None
    scale: float = 0.0  # of the expected tensor
    cosine: float | None = None
    sqnr_db: float | None = None  # inf: equal
    top_k: float | None = None  # share of rows whose k largest agree; k is 1 where no bound was asked for
    nan: tuple[int, int] = (0, 0)  # in expected, in actual
    inf: tuple[int, int] = (0, 0)
    misplaced: int = 0  # NaN or infinities where the other has something else, or the other sign
    flags: tuple[str, ...] = ()  # "actual is all zero", "expected is constant", …
    worst: tuple[Element, ...] = ()  # largest error first
    tolerance: Tolerance = field(default_factory=Tolerance)  # with the bounds filled in that were used

    @property
    def error(self) -> float:
        """One number to rank by: the relative error at the tensor's scale; infinite where nothing can be compared."""
        return float("inf") if self.misplaced or self.shape[0] != self.shape[1] else self.max_rel

    @property
    def is_dead(self) -> bool:
        """All zero or constant where the expected tensor is not."""
        return ACTUAL_CONSTANT in self.flags and EXPECTED_CONSTANT not in self.flags

    @property
    def is_broken(self) -> bool:
        """Wrong in a way that no rounding explains, however large the numbers are."""
        retyped = self.tolerance.check_dtype and self.dtype[0] != self.dtype[1]
        nothing = self.count == 0  # another shape, or texts next to numbers
        return self.verdict.kind is VerdictKind.FAIL and bool(self.misplaced or retyped or nothing or self.is_dead)


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A comparison with its pictures, and where the two tensors lie."""

    comparison: TensorComparison
    expected: str  # path, with the tensor's name where the file holds several; empty: shown elsewhere
    actual: str
    histogram: ErrorHistogram | None = None  # None: there was nothing to compare
    heat: Heat | None = None
    part: str = ""  # what of the tensors was compared: `slice 0,:,:`; empty: all

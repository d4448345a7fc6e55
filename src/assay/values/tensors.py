"""Tensors as the rooms speak of them: what one is, where one lies, and how two of them compare.

No array is ever in a value: `probe` and `judge` load them where they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.values.verdict import Verdict

Dim = int | str | None  # known, a symbol such as "batch", or nothing at all
Number = float | int | str  # of one element; text for what JSON has no number for: "nan", "-inf", complex numbers


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a graph says of a tensor."""

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

    An element is right when |actual - expected| <= abs + rel * max(|expected|, scale), where scale is what the tensor
    as a whole is made of: a small element beside large ones is as precise as they are, never more. Every other bound
    is checked as well when it is given; a bound never switches another one off.
    """

    abs: float | None = None
    rel: float | None = None
    ulp: int | None = None
    int_abs: int = 0  # for integers: exact unless somebody says otherwise
    allowed_wrong: float = 0.0  # share of elements that may break abs/rel/ulp
    min_cosine: float | None = None
    min_sqnr_db: float | None = None
    top_k: int | None = None  # the k largest along the last axis must be the same ones
    allow_constant: bool = False  # both all zero or constant proves little, and is not PASS unless somebody allows it
    check_dtype: bool = True


@dataclass(frozen=True, slots=True)
class Element:
    """One element that differs."""

    index: tuple[int, ...]
    expected: Number
    actual: Number
    abs_error: float
    rel_error: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of absolute errors between powers of ten; `zero` counts what is equal."""

    edges: tuple[float, ...]  # one more than counts
    counts: tuple[int, ...]
    zero: int = 0


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Two tensors beside each other, with every number that a person could ask for."""

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
    top_k: float | None = None  # share of rows whose k largest agree
    nan: tuple[int, int] = (0, 0)  # in expected, in actual
    inf: tuple[int, int] = (0, 0)
    misplaced: int = 0  # NaN or infinities where the other has something else, or the other sign
    flags: tuple[str, ...] = ()  # "actual is all zero", "expected is constant", …
    worst: tuple[Element, ...] = ()  # largest error first
    tolerance: Tolerance = field(default_factory=Tolerance)  # with the bounds filled in that were used

    @property
    def error(self) -> float:
        """One number to rank by: the relative error at the tensor's scale; infinite where nothing can be compared."""
        broken = self.misplaced or self.shape[0] != self.shape[1]
        return float("inf") if broken else self.max_rel

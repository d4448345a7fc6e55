"""The two libraries of the statistics, loaded at their first use, and the error if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assay.errors import MissingExtraError

Array = Any  # numpy.ndarray: the library is loaded inside functions only


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Name the feature that needs a missing library in the error."""
    try:
        yield
    except MissingExtraError as error:
        raise MissingExtraError(what, "stats") from error


def load_numpy() -> Any:
    try:
        import numpy as np
    except ImportError:
        raise MissingExtraError("judging by statistics", "stats") from None
    return np


class _Numpy:
    """A stand-in for the module: each name is loaded when it is first used."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load_numpy(), name)
        setattr(self, name, value)
        return value


np: Any = _Numpy()


def _load_special() -> Any:
    try:
        import scipy.special  # importing scipy.stats would take three times as long
    except ImportError:
        raise MissingExtraError("judging by statistics", "stats") from None
    return scipy.special


def t_quantile(freedom: int, tail: float) -> float:
    """Return the value that Student's t exceeds with probability `tail`."""
    return -float(_load_special().stdtrit(freedom, tail))  # by the lower tail: 1 - tail would lose digits


def t_tail(freedom: int, value: float) -> float:
    """Return the probability with which Student's t exceeds this value."""
    return float(_load_special().stdtr(freedom, -value))


def normal_quantile(tail: float) -> float:
    """Return a quantile of the normal distribution, from the standard library."""
    from statistics import NormalDist

    return -NormalDist().inv_cdf(tail)

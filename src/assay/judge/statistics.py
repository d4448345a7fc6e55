"""Loads the two libraries of the statistics (numpy, scipy) at their first use; raises an error if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from assay.errors import MissingExtraError

Array = Any  # numpy.ndarray: numpy is imported inside functions only


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Name the feature `what` in the error about a missing library."""
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
    """A stand-in for the module numpy: each of its names is loaded when it is first used."""

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
    return -float(_load_special().stdtrit(freedom, tail))  # computed from the lower tail: 1 - tail would lose digits


def t_tail(freedom: int, value: float) -> float:
    """Return the probability with which Student's t exceeds `value`."""
    return float(_load_special().stdtr(freedom, -value))


def normal_quantile(tail: float) -> float:
    """Return the value that the standard normal distribution exceeds with probability `tail`."""
    from statistics import NormalDist

    return -NormalDist().inv_cdf(tail)

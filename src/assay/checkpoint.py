"""Checkpoints of `logx`: torch's files, read without running what they contain.

A pickle can name any function to be called. torch's own `weights_only` loading allows tensors and containers; this
module allows only the names that numpy's numbers need as well, since the metric in runx's files is a numpy number.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import struct
import zipfile
import zlib
from typing import Any, Self

from assay.errors import MissingPackageError, UsageError
from assay.script import build_number

METRIC_KEY = "__metric"

_NUMPY_NUMBER = {("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"), ("numpy", "dtype")}
# errors that pickle, zipfile and torch raise for a foreign or damaged file
_DAMAGE = (
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ImportError),
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError, RuntimeError),
)


def write_checkpoint(content: dict[str, Any], path: str) -> None:
    _import_torch("saving a model").save(content, path)


def load_checkpoint(path: str, map_location: str | None = None) -> Any:
    """Return the whole checkpoint; refuse objects other than tensors, containers and numbers."""
    torch = _import_torch("loading a model")
    allowing = getattr(torch.serialization, "safe_globals", contextlib.nullcontext)  # safe_globals: since torch 2.5
    try:
        with allowing(_find_numpy_globals()):
            return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))  # the name of the class in torch's long message
        raise UsageError(
            f"{path} was not read, for loading it might run code that it holds{f': {refused[1]}' if refused else ''}. "
            "If you trust the file, name their classes with torch.serialization.add_safe_globals([...]), or read it "
            "with torch.load(path, weights_only=False)"
        ) from error


def load_metric(path: str) -> float | None:
    """Return the metric that a checkpoint was saved with, or None if the metric cannot be read."""
    number = None
    # first read the metric without torch and without the tensors, which may have gigabytes
    with contextlib.suppress(StopIteration, *_DAMAGE), zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        number = build_number(_MetricReader(io.BytesIO(archive.read(name))).load()[METRIC_KEY])
    if number is None:  # the file has an old format, or its metric is a tensor
        with contextlib.suppress(UsageError, *_DAMAGE):
            number = build_number(load_checkpoint(path, map_location="cpu")[METRIC_KEY])
    return None if number is None else float(number)


class _Inert:
    """A stand-in for objects that are not needed: it accepts all operations of a pickle and does nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        return super().__new__(cls)

    def __call__(self, *_args: object, **_kwargs: object) -> Self:
        return self

    __setstate__ = __setitem__ = append = extend = __call__


class _MetricReader(pickle.Unpickler):
    """Unpickles containers, plain values and numpy's numbers, and replaces all other objects by stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _encoding: text.encode("latin-1")  # bytes in the old protocol that torch uses
        return super().find_class(module, name) if (module, name) in _NUMPY_NUMBER else _Inert

    def persistent_load(self, _pid: object) -> Any:
        return None  # instead of the storage of a tensor


def _find_numpy_globals() -> list[Any]:
    """Return the names that torch must allow to read numpy's numbers; none if numpy is not installed."""
    try:
        import numpy as np
    except ImportError:
        return []
    reconstruct = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(code)) for code in "?bhilqBHILQefdg"}
    return [reconstruct, (reconstruct, "numpy.core.multiarray.scalar"), np.dtype, *kinds]


def _import_torch(purpose: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(f"logx: {purpose}", "torch") from error
    return torch

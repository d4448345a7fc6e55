"""The old path of `assay.models.backends.base`; it will go away with the next version."""

from __future__ import annotations

import warnings

from assay.models.backends.base import Backend, BackendError, Made

__all__ = ["Backend", "BackendError", "Made"]

warnings.warn(
    "assay.probe.backends.base is now assay.models.backends.base; the old name will go away",
    FutureWarning,
    stacklevel=2,
)

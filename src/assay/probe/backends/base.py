"""The old path of `assay.models.backends.base`; it will go away with the next version."""

from __future__ import annotations

from assay.models.backends.base import Backend, BackendError, Made
from assay.probe import warn_of_old_path

__all__ = ["Backend", "BackendError", "Made"]

warn_of_old_path(__name__, "assay.models.backends.base")

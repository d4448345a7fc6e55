"""The old path of `assay.models.backends.iree_backend`; it will go away with the next version."""

from __future__ import annotations

from assay.models.backends.iree_backend import IreeBackend
from assay.probe import warn_of_old_path

__all__ = ["IreeBackend"]

warn_of_old_path(__name__, "assay.models.backends.iree_backend")

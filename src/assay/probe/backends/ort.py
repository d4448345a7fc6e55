"""The old path of `assay.models.backends.ort`; it will go away with the next version."""

from __future__ import annotations

from assay.models.backends.ort import OrtBackend
from assay.probe import warn_of_old_path

__all__ = ["OrtBackend"]

warn_of_old_path(__name__, "assay.models.backends.ort")

"""The old path of `assay.models.values.model`; it will go away with the next version."""

from __future__ import annotations

from assay.models.values.model import Job
from assay.probe import warn_of_old_path

__all__ = ["Job"]

warn_of_old_path(__name__, "assay.models.values.model")

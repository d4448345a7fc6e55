"""What other packages use of models. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.models.pytest_support.options import read_options
    from assay.models.pytest_support.report import PROPERTY_CASE, PROPERTY_ISSUE, PROPERTY_PROFILE
    from assay.models.store.artifacts import choose_store_folder

HOMES = {
    "assay.models.pytest_support.options": "read_options",
    "assay.models.pytest_support.report": "PROPERTY_CASE PROPERTY_ISSUE PROPERTY_PROFILE",
    "assay.models.store.artifacts": "choose_store_folder",
}
__getattr__ = build_getattr(__name__, HOMES)

"""Exports the names of this package that other packages use, each loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.models.pytest_support.options import read_options

HOMES = {"assay.models.pytest_support.options": "read_options"}
__getattr__ = build_getattr(__name__, HOMES)

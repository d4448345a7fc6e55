"""Traces of torch programs. `from assay.trace import record` records a part of a program of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.trace.inside.recorder import record as record

__getattr__ = build_getattr(__name__, {"assay.trace.inside.recorder": "record"})

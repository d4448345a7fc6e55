"""What other packages use of farms. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.farms.choice import LOCAL, choose_asked_farm, choose_farm

HOMES = {
    "assay.farms.choice": "LOCAL choose_asked_farm choose_farm",
}
__getattr__ = build_getattr(__name__, HOMES)

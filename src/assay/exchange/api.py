"""What other packages use of exchange. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.exchange.receive import RefusedUploadError, Sender, StoredRun, place_runs
    from assay.exchange.shared_folder import shared_folder

HOMES = {
    "assay.exchange.receive": "RefusedUploadError Sender StoredRun place_runs",
    "assay.exchange.shared_folder": "shared_folder",
}
__getattr__ = build_getattr(__name__, HOMES)

"""The functions and types of exchange that other packages use. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.exchange.importers.imported_run import ImportedRun, ImportedRuns, build_series, parse_number
    from assay.exchange.pytest_support import LINK, Uploads
    from assay.exchange.receive import RefusedUploadError, Sender, StoredRun, place_runs, unpack
    from assay.exchange.store.manifests import FolderManifest, build_key
    from assay.exchange.store.mirror import OutgoingFolder, Sent, fetch_files, list_folder, load_manifests, push
    from assay.exchange.store.object_store import check_installed, download
    from assay.exchange.store.remote import Remote, open_remote
    from assay.exchange.store.transfer import (
        STORES,
        DataFile,
        copy_data,
        forget,
        load_listing,
        load_notes,
        parse_local,
        parse_scheme,
        remove_part,
        render_url,
        write_notes,
    )
    from assay.exchange.upload import OutgoingRun
    from assay.exchange.web_pages import LIMITS, find_sender, take_upload

HOMES = {
    "assay.exchange.importers.imported_run": "ImportedRun ImportedRuns build_series parse_number",
    "assay.exchange.pytest_support": "LINK Uploads",
    "assay.exchange.receive": "RefusedUploadError Sender StoredRun place_runs unpack",
    "assay.exchange.store.manifests": "FolderManifest build_key",
    "assay.exchange.store.mirror": "OutgoingFolder Sent fetch_files list_folder load_manifests push",
    "assay.exchange.store.object_store": "check_installed download",
    "assay.exchange.store.remote": "Remote open_remote",
    "assay.exchange.store.transfer": (
        "STORES DataFile copy_data forget load_listing load_notes parse_local parse_scheme remove_part render_url "
        "write_notes"
    ),
    "assay.exchange.upload": "OutgoingRun",
    "assay.exchange.web_pages": "LIMITS find_sender take_upload",  # needs starlette
}
__getattr__ = build_getattr(__name__, HOMES)

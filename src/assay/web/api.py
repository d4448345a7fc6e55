"""The functions and types of web that other packages use. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.web.actions import call
    from assay.web.interface import Alarm, Navigation, Pages
    from assay.web.routes import BINARY, COUNT, FLAG, TEXT, Operation, UrlParam, get, many, post, record, ref, send
    from assay.web.security import TOKEN_KEY, Limit
    from assay.web.site import Site, build_address, get_site
    from assay.web.snapshots import Snapshots, StudySnapshot

HOMES = {
    "assay.web.actions": "call",
    "assay.web.interface": "Alarm Navigation Pages",
    "assay.web.routes": "BINARY COUNT FLAG TEXT Operation UrlParam get many post record ref send",
    "assay.web.security": "TOKEN_KEY Limit",
    "assay.web.site": "Site build_address get_site",
    "assay.web.snapshots": "StudySnapshot Snapshots",
}
__getattr__ = build_getattr(__name__, HOMES)

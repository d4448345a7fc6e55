"""What other packages use of web. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.web.contents.page_facts import build_series_facts, count_failed_checks
    from assay.web.contents.page_view import StudyView
    from assay.web.contents.study_page import build_table, find_names

HOMES = {
    "assay.web.contents.page_facts": "build_series_facts count_failed_checks",
    "assay.web.contents.page_view": "StudyView",
    "assay.web.contents.study_page": "build_table find_names",
}
__getattr__ = build_getattr(__name__, HOMES)

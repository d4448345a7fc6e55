"""What other packages use of models. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.models.flow.options import build_request
    from assay.models.flow.run import RunChoice, name_method, run_model
    from assay.models.pages import (
        LEVELS,
        Check,
        Graph,
        ModelPage,
        build_model_page,
        build_tensor_blocks,
        build_times,
        choose_layers,
        group_checks,
        is_model_study,
        list_checks,
    )
    from assay.models.pytest_support.options import read_options
    from assay.models.report.check import build_document
    from assay.models.report_page import build_report
    from assay.models.session_pages import (
        SessionPage,
        build_measured_changes,
        build_session_page,
        build_session_times,
        choose_tested,
        is_session_study,
        list_sessions,
    )
    from assay.models.store.artifacts import choose_store_folder
    from assay.models.values.flags import ModelFlags

HOMES = {
    "assay.models.report_page": "build_report",
    "assay.models.flow.options": "build_request",
    "assay.models.values.flags": "ModelFlags",
    "assay.models.flow.run": "RunChoice name_method run_model",
    "assay.models.pages": (
        "LEVELS Check Graph ModelPage build_model_page build_tensor_blocks build_times choose_layers group_checks "
        "is_model_study list_checks"
    ),
    "assay.models.session_pages": (
        "SessionPage build_measured_changes build_session_page build_session_times choose_tested is_session_study "
        "list_sessions"
    ),
    "assay.models.pytest_support.options": "read_options",
    "assay.models.report.check": "build_document",
    "assay.models.store.artifacts": "choose_store_folder",
}
__getattr__ = build_getattr(__name__, HOMES)

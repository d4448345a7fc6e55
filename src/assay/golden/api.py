"""The names that other packages use of golden recordings, loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.golden.commands import build_hooks, show_report, store_here
    from assay.golden.flow.blame import find_commit
    from assay.golden.flow.each_test import check_file, gather_file
    from assay.golden.flow.segments import GoldenContext, GoldenOptions, choose_golden
    from assay.golden.report.document import render_golden
    from assay.golden.report.rows import describe_headline
    from assay.golden.values import (
        DEFAULT_MANIFEST,
        Golden,
        GoldenReport,
        GoldenTestReport,
        MissingFlag,
        MissingOption,
        MissingSection,
        SegmentReport,
    )

HOMES = {
    "assay.golden.commands": "build_hooks show_report store_here",
    "assay.golden.flow.each_test": "check_file gather_file",
    "assay.golden.flow.blame": "find_commit",
    "assay.golden.flow.segments": "GoldenContext GoldenOptions choose_golden",
    "assay.golden.report.document": "render_golden",
    "assay.golden.report.rows": "describe_headline",
    "assay.golden.values": (
        "DEFAULT_MANIFEST Golden GoldenReport GoldenTestReport MissingFlag MissingOption MissingSection SegmentReport"
    ),
}
__getattr__ = build_getattr(__name__, HOMES)

"""Golden recordings: `assay golden`, its pages and reports."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "golden",
    commands={
        "golden": (
            "assay.golden.commands:GROUP",
            "Record a training that is good; check that it still converges.",
            "Prove",
        )
    },
    reports=("assay.golden.page:build_report",),
    pages=("assay.golden.web_pages:PAGES",),
    doctor=(Part("scipy", "stats", "assay golden check"),),
    functions={
        "check_golden": "assay.golden.flow.each_test:check_golden",
        "report.find_kept": "assay.golden.page:find_kept",
    },
)

"""The plug-in for benchmarks: `assay bench`, its pages and reports."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "bench",
    commands={
        "bench": ("assay.bench.commands:GROUP", "Measure benchmarks; find what got slower, and since when.", "Prove")
    },
    children={
        "bench": "assay.bench.child:main",
        "bench-trial": "assay.bench.trial:main",
        "command-profile": "assay.bench.profiling:main",
    },
    importers=("assay.bench.importers.formats:IMPORTERS",),
    reports=("assay.bench.page.report:build_report",),
    pages=("assay.bench.web_pages:PAGES",),
    doctor=(
        Part("ruptures", "stats", "change points: assay bench history"),
        Part("py-spy", "profile", "assay bench run --profile, where no framework is loaded"),
    ),
    functions={
        "compare_benchmarks": "assay.bench.public:compare_benchmarks",
        "benchmarks.is_archive": "assay.bench.page.contents:is_archive",
        "timings.watch": "assay.bench.flow.archive:TimingsWatch",
        "series.change_points": "assay.bench.judge.changepoint:find_change_points",
    },
)

"""The plug-in of the pages: `assay open`, `assay serve` and `assay report`."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "web",
    needs=("plots",),
    commands={
        "open": ("assay.web.open_command:open_page", "Open the page of your studies, of a study or of a run.", "Read"),
        "report": (
            "assay.web.report_command:report",
            "Write a study or a verdict as one HTML page, for mail and CI.",
            "Read",
        ),
        "serve": ("assay.web.command:serve", "Show studies, goldens, benchmarks and models in the browser.", "Read"),
    },
    reading=("report",),
    doctor=(Part("starlette", "web", "the page: assay serve"),),
    functions={
        "page.check": "assay.web.command:check_parts",
        "pages.find_problems": "assay.web.command:find_page_problems",
    },
)

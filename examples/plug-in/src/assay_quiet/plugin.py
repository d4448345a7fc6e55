"""What this distribution adds to Assay: strings only, each loaded when it is asked for."""

from assay.plugins import Plugin

PLUGIN = Plugin(
    "quiet",
    needs=("exchange", "farms"),  # imported runs; `--on`
    commands={"longest": ("assay_quiet.command:longest", "Show the runs that took the longest.")},
    reading=("longest",),
    executors={"quiet": "assay_quiet.executor:QuietExecutor"},
    importers=("assay_quiet.importer:IMPORTERS",),
    pages=("assay_quiet.web_pages:PAGES",),
)

"""`assay bench` and its commands."""

from assay.values.options import Group

GROUP = Group(
    """Is it slower, since when, and is it the code or the machine?

    METHOD is module.Class.method, module.function, or module.Class.filter:REGEX for several methods of a class.
    """,
    {
        "run": ("assay.bench.commands.run:run", "Run benchmarks: one process for each method and trial."),
        "compare": ("assay.bench.commands.run:compare", "Compare labels, commits, folders or files."),
        "bisect": ("assay.bench.commands.run:bisect", "Find the commit that made a metric worse."),
        "history": ("assay.bench.commands.history:history", "Where METRIC changed, and by how much."),
        "triage": ("assay.bench.commands.history:triage", "Record a judgement about a change of METRIC."),
        "table": ("assay.bench.commands.history:table", "Compare environments side by side: medians with spread."),
        "import": ("assay.bench.commands.history:import_files", "Import results of other tools into the history."),
    },
)

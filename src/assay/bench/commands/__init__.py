"""`assay bench` and its commands."""

from assay.values.options import Group

GROUP = Group(
    """Measure benchmarks; find what got slower, and since when.

    METHOD is module.Class.method, module.function, module.Class.filter:REGEX for several methods of a class, or the
    path of a suite of asv's or pytest's: benchmarks, tests/test_sort.py::test_large.
    """,
    {
        "run": ("assay.bench.commands.bench:run", "Run benchmarks: one process for each method and trial."),
        "compare": ("assay.bench.commands.bench:compare", "Compare labels, commits, folders or files."),
        "bisect": ("assay.bench.commands.bench:bisect", "Find the commit that made a metric worse."),
        "history": ("assay.bench.commands.bench:history", "Show where METRIC changed, and by how much."),
        "baseline": ("assay.bench.commands.bench:baseline", "Name executions as a baseline to compare with."),
        "selftest": ("assay.bench.commands.bench:selftest", "Show the smallest effect that can be seen here."),
        "triage": ("assay.bench.commands.bench:triage", "Record a judgement about a change of METRIC."),
        "table": ("assay.bench.commands.bench:table", "Compare environments side by side: medians with spread."),
        "import": ("assay.bench.commands.bench:import_files", "Import results of other tools into the history."),
    },
)

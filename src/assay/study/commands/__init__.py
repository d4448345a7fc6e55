"""The commands on studies and runs."""

COMMANDS = {
    "run": ("assay.study.commands.run:run", "Expand a study file and run it; ours, runx's or mlrunner's."),
    "ls": ("assay.study.commands.runs:ls", "List studies, or the runs of a study."),
    "show": ("assay.study.commands.runs:show", "Show everything about one run."),
    "logs": ("assay.study.commands.runs:logs", "Print a run's output, or follow it."),
    "stop": ("assay.study.commands.run:stop", "Stop runs and everything they started."),
    "rerun": ("assay.study.commands.run:rerun", "Run finished runs again; failed ones with the current code."),
    "diff": ("assay.study.commands.runs:diff", "Compare two runs: parameters, code, environment, results."),
    "plot": ("assay.study.commands.tables:plot", "Plot metrics over steps."),
    "sum": ("assay.study.commands.tables:summarise", "Print the summary table of one or more studies."),
    "tag": ("assay.study.commands.marks:tag", "Tag runs or a study, remove tags, or list them."),
    "note": ("assay.study.commands.marks:note", "Add a note to runs or a study, or print the notes."),
    "export": (
        "assay.study.commands.export:GROUP",
        "Write runs and series for other tools: CSV, JSON, Parquet, MLflow.",
    ),
    "push": ("assay.study.commands.share:push", "Send runs, studies or a folder to a shared place."),
    "pull": ("assay.study.commands.share:pull", "Fetch runs, studies or a folder from there."),
    "upload": ("assay.study.commands.upload:upload", "Send finished runs to an `assay serve`, and print the link."),
    "adopt": ("assay.study.commands.adopt:adopt", "Take runs that were uploaded as runs of your study."),
    "best": ("assay.study.commands.best:best", "Show the best run, its margin, and how to repeat it."),
    "importance": (
        "assay.study.commands.importance:importance",
        "Show how much each parameter decides about a metric.",
    ),
    "index": ("assay.study.commands.index:GROUP", "Maintain the index: rebuild, reparse, ingest."),
}

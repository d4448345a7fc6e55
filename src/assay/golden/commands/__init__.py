"""`assay golden` and its commands."""

from assay.values.options import Group

GROUP = Group(
    """Record a training that is good; check that a changed one still converges.

    FILE is the convergence harness's YAML, or a native study with a `golden:` section.
    """,
    {
        "gather": ("assay.golden.commands.record:gather", "Record a training and its noise."),
        "check": ("assay.golden.commands.check:check", "Check a training against its golden."),
        "validate": ("assay.golden.commands.record:validate", "Check FILE without running it."),
        "show": ("assay.golden.commands.record:show", "Show a golden recording."),
        "rebase": ("assay.golden.commands.record:rebase", "Accept a new golden recording."),
        "selftest": ("assay.golden.commands.check:selftest", "Inject faults: would a check catch them?"),
        "bisect": ("assay.golden.commands.check:bisect", "Find the commit that broke convergence."),
    },
)

"""The plug-in for searches by Optuna, early stopping, and the importance of parameters."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "search",
    commands={
        "importance": (
            "assay.search.commands:importance",
            "Show how much each parameter affects a metric.",
            "Read",
        )
    },
    reading=("importance",),
    options={"run": "assay.search.commands:SearchOptions"},
    study_keys={"search": "assay.search.config:read_search", "stop": "assay.search.config:read_stop"},
    run_steps={"search": "assay.search.source:SearchStep", "stop": "assay.search.early_stop:StopStep"},
    functions={
        "importance.measure": "assay.search.importance:measure_importance",
        "importance.describe_limits": "assay.search.importance:describe_limits",
    },
    doctor=(Part("optuna", "search", "studies with `search:`, assay importance"),),
)

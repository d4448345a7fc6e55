"""Searches by Optuna, early stopping, importance of parameters."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "search",
    commands={
        "importance": ("assay.search.commands:importance", "Show how much each parameter decides about a metric.")
    },
    reading=("importance",),
    doctor=(Part("optuna", "search", "studies with `search:`, assay importance"),),
)

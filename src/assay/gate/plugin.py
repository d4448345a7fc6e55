"""The plug-in that judges ideas and changes: `assay try`, `assay tries`, `assay gate`."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "gate",
    commands={
        "gate": ("assay.gate.gating:gate", "Execute all checks of a project: one exit code.", "Prove"),
        "try": ("assay.gate.try_command:try_command", "Show whether an idea is better than the base.", "Prove"),
        "tries": ("assay.gate.try_command:tries", "List tried ideas; confirm those that were better.", "Prove"),
    },
    settings={"gate": "assay.gate.gate_settings:read_gate_settings"},
    doctor=(Part("scipy", "stats", "assay try"),),
)

"""The plug-in for new users: a demonstration, a study file for a script, and completion in the shell."""

from __future__ import annotations

from assay.plugins import Plugin

PLUGIN = Plugin(
    "start",
    commands={
        "demo": ("assay.start.demo:demo", "Show the main commands in a minute, without GPU or network.", "Start"),
        "init": ("assay.start.init:init", "Write a study file for a script, from its flags and its output.", "Start"),
        "completion": ("assay.start.completion:GROUP", "Complete commands and names in bash, zsh or fish.", "Start"),
    },
    functions={"completion.list_values": "assay.start.names:list_values"},
)

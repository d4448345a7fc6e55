"""Commands for programs that run experiments: `assay wait`, `assay help` and `assay mcp`."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "mcp",
    commands={
        "wait": ("assay.mcp.wait:wait", "Wait for a condition on runs; print one line of JSON.", "Run"),
        "help": ("assay.mcp.help:show_help", "Show the help of a command, or of all as JSON.", "Start"),
        "mcp": ("assay.mcp.server:serve", "Serve studies to a coding agent (Model Context Protocol).", "Share"),
    },
    reading=("wait", "help"),
    doctor=(Part("mcp", "mcp", "a server for coding agents: assay mcp"),),
)

"""The plug-in for charts of metrics and parameters: `assay plot`, and the functions with which pages draw charts."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "plots",
    commands={"plot": ("assay.plots.command:plot", "Plot metrics over steps, time or parameters.", "Read")},
    reading=("plot",),
    doctor=(Part("matplotlib", "plot", "plots in files: assay plot -o"),),
    functions={"plot.draw": "assay.plots.command:plot"},
)

"""The plug-ins that record traces of torch programs, and find where two traces begin to differ."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = (
    Plugin(
        "trace",
        commands={
            "trace": ("assay.trace.commands:GROUP", "Record the tensors of a torch program; compare two.", "Prove")
        },
        study_keys={"trace": "assay.trace.settings:read_trace"},
        run_steps={"trace": "assay.trace.recording:TraceStep"},
        pages=("assay.trace.web_pages:PAGES",),
        doctor=(Part("numpy", "stats", "assay trace show, assay trace diff"),),
    ),
    Plugin(
        "trace-explain",
        needs=("trace", "golden"),
        options={"golden check": "assay.trace.explain:ExplainOptions"},
        functions={"golden.explain": "assay.trace.explain:explain_test"},
    ),
)

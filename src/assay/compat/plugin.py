"""Other tools' command lines and files: a plug-in for each tool, since the tools need different plug-ins of Assay."""

from __future__ import annotations

from assay.plugins import Part, Plugin, Program

_GROUP = "Other tools"
_CLOUD_CLI = "install Google Cloud's CLI: https://cloud.google.com/sdk/docs/install"
_HARNESS = "Run the convergence harness's files with its flags."
PLUGIN = (
    Plugin(
        "runx",
        commands={
            "runx": ("assay.compat.runx.command:command", "Run runx's files with its flags.", _GROUP),
            "sumx": ("assay.compat.runx.sumx:command", "Print sumx's table with its flags.", _GROUP),
        },
        reading=("sumx",),
        dialects={"runx": "assay.compat.dialects:RUNX"},
        importers=("assay.compat.originals:RUNX",),
    ),
    Plugin(
        "mlrunner",
        commands={
            "mlrunner": ("assay.compat.mlrunner.command:command", "Run mlrunner's files with its flags.", _GROUP)
        },
        dialects={"mlrunner": "assay.compat.dialects:MLRUNNER"},
        importers=("assay.compat.originals:MLRUNNER",),
    ),
    Plugin(
        "harness",
        needs=("golden",),
        commands={"convergence": ("assay.compat.harness.command:command", _HARNESS, _GROUP)},
    ),
    Plugin(
        "perfzero",
        needs=("bench", "exchange", "plots"),
        commands={
            "perfzero": ("assay.compat.perfzero.command:command", "Run PerfZero's benchmarks with its flags.", _GROUP)
        },
        doctor=(
            Part("xprof", "perfzero", "TensorBoard's tab for profiles"),
            Part("httpx", "download", "http:// and https:// in --data_downloads"),
            Part("google-cloud-bigquery", "bigquery", "assay perfzero --bigquery_project_name"),
            Program("docker", "assay perfzero setup", "install Docker: https://docs.docker.com/engine/install"),
            Program("gcloud", "assay perfzero cloud", _CLOUD_CLI),
        ),
    ),
    Plugin(
        "torq",
        needs=("models", "exchange"),
        functions={"sessions.is_study": "assay.compat.torq.session_runs:is_study"},
        pages=("assay.compat.torq.web_pages:PAGES",),
    ),
)

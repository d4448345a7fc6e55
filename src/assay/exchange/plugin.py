"""The plug-in that shares, imports and exports runs."""

from __future__ import annotations

from assay.plugins import Part, Plugin

PLUGIN = Plugin(
    "exchange",
    commands={
        "export": (
            "assay.exchange.commands.export:GROUP",
            "Write runs and series for other tools: CSV, JSON, Parquet, MLflow.",
            "Share",
        ),
        "push": ("assay.exchange.commands.share:push", "Send runs, studies or a folder to shared storage.", "Share"),
        "pull": ("assay.exchange.commands.share:pull", "Fetch runs, studies or a folder from shared storage.", "Share"),
        "upload": (
            "assay.exchange.upload:upload",
            "Send finished runs to an `assay serve`, and print the link.",
            "Share",
        ),
        "adopt": ("assay.exchange.adopt:adopt", "Adopt uploaded runs as runs of your study.", "Share"),
    },
    options={"run": "assay.exchange.options:NotifyOptions"},
    run_steps={"notify": "assay.exchange.notify:NotifyStep"},
    importers=("assay.exchange.importers.imported_run:IMPORTERS",),
    functions={
        "index.open_shared": "assay.exchange.postgres_index:PostgresIndex",
        "runs.import": "assay.exchange.importing:import_runs",
        "store.shared_folder": "assay.exchange.shared_folder:shared_folder",
        "tensorboard.write": "assay.exchange.export:write_hparams_events",
    },
    pages=("assay.exchange.web_pages:PAGES",),
    doctor=(
        Part("tensorboardX", "tensorboard", "assay sum --tensorboard, logx's event files"),
        Part("mlflow-skinny", "mlflow", "assay export mlflow"),
        Part("pyarrow", "parquet", "assay export parquet"),
        Part("psycopg", "postgres", "an index that a team shares: ASSAY_INDEX=postgresql://…"),
        Part("s3fs", "s3", "s3://"),
        Part("gcsfs", "gcs", "gs://"),
        Part("adlfs", "azure", "az://"),
    ),
)

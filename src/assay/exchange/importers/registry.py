"""The tools whose runs `assay index ingest` imports."""

from __future__ import annotations

from assay.record.importers.registry import Importer

IMPORTERS = (
    Importer(
        "mlflow",
        "MLflow's store (mlflow.db; a folder mlruns/, an experiment or a run in it)",
        "runs",
        "assay.exchange.importers.mlflow_store:is_mlflow",
        "assay.exchange.importers.mlflow_store:load_mlflow",
    ),
    Importer(
        "wandb",
        "the CSV of W&B's runs table",
        "runs",
        "assay.exchange.importers.wandb_csv:is_table",
        "assay.exchange.importers.wandb_csv:load_table",
    ),
    Importer(
        "wandb-history",
        "the CSV of one of W&B's charts",
        "runs",
        "assay.exchange.importers.wandb_csv:is_history",
        "assay.exchange.importers.wandb_csv:load_history",
    ),
    Importer(
        "optuna",
        "Optuna's journal",
        "runs",
        "assay.exchange.importers.optuna_journal:is_journal",
        "assay.exchange.importers.optuna_journal:load_journal",
    ),
    Importer(
        "trackio",
        "Trackio's database",
        "runs",
        "assay.exchange.importers.trackio_database:is_trackio",
        "assay.exchange.importers.trackio_database:load_trackio",
    ),
)

"""The tools whose runs `assay index ingest` imports."""

from __future__ import annotations

from assay.record.importers.registry import Importer

_MODULES = "assay.exchange.importers"
_STORE = "MLflow's store (mlflow.db; a folder mlruns/, an experiment or a run in it)"
IMPORTERS = tuple(
    Importer(name, title, "runs", f"{_MODULES}.{module}:{recognise}", f"{_MODULES}.{module}:{load}")
    for name, title, module, recognise, load in (
        ("mlflow", _STORE, "mlflow_store", "is_mlflow", "load_mlflow"),
        ("wandb", "the CSV of W&B's runs table", "wandb_csv", "is_table", "load_table"),
        ("wandb-history", "the CSV of one of W&B's charts", "wandb_csv", "is_history", "load_history"),
        ("optuna", "Optuna's journal", "optuna_journal", "is_journal", "load_journal"),
        ("trackio", "Trackio's database", "trackio_database", "is_trackio", "load_trackio"),
    )
)

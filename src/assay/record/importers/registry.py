"""The importers: which tools' files and folders are known, and who reads them.

`assay index ingest` takes folders and runs, `assay bench import` takes results; each knows what the other takes, and
names the other command where a file belongs there. A reader of results belongs to the product that keeps them, which
has its reader under the importer's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Literal, NamedTuple

from assay.record.importers.sample import Sample

Gives = Literal["folders", "runs", "results"]


class Importer(NamedTuple):
    name: str
    title: str  # for messages
    gives: Gives  # folders are read where they are, runs become run directories, results become benchmark executions
    recognise: str  # `module:function`, called with a Sample
    load: str = ""  # of runs: `module:function`, called with a path; gives ImportedRuns


IMPORTERS = (  # the first that recognises a file is its importer
    Importer(
        "perfzero",
        "PerfZero's perfzero_summary.json and perfzero.log",
        "results",
        "assay.record.importers.recognisers:is_perfzero",
    ),
    Importer("asv", "asv's results/MACHINE/*.json", "results", "assay.record.importers.recognisers:is_asv"),
    Importer(
        "pytest-benchmark",
        "pytest-benchmark's JSON",
        "results",
        "assay.record.importers.recognisers:is_pytest_benchmark",
    ),
    Importer(
        "google-benchmark",
        "google-benchmark's JSON",
        "results",
        "assay.record.importers.recognisers:is_google_benchmark",
    ),
    Importer("mlperf", ":::MLLOG lines", "results", "assay.record.importers.recognisers:is_mlperf"),
    Importer(
        "mlflow",
        "MLflow's file store (a folder mlruns/, an experiment or a run in it)",
        "runs",
        "assay.exchange.importers.mlflow_store:is_store",
        "assay.exchange.importers.mlflow_store:load_store",
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
    Importer("assay", "studies of Assay", "folders", "assay.record.importers.recognisers:is_assay"),
    Importer(
        "runx",
        "folders of runx and logx (hparams.json, metrics.csv)",
        "folders",
        "assay.record.importers.recognisers:is_runx",
    ),
    Importer(
        "mlrunner",
        "folders of mlrunner (param and stat)",
        "folders",
        "assay.record.importers.recognisers:is_mlrunner",
    ),
)


def choose_importer(sample: Sample, gives: Iterable[Gives]) -> Importer | None:
    """By content, among those that give one of these."""
    among = set(gives)
    return next((each for each in IMPORTERS if each.gives in among and resolve(each.recognise)(sample)), None)


def resolve(registered: str) -> Any:
    """What `module:name` stands for; loaded when it is asked for."""
    module, _, name = registered.partition(":")
    return getattr(import_module(module), name)


def describe_known(gives: Iterable[Gives]) -> str:
    """`known: …`, for a message about a file that nobody recognised."""
    among = set(gives)
    return "known: " + ", ".join(each.title for each in IMPORTERS if each.gives in among)

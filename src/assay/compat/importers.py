"""Folders of runx and mlrunner, for `assay index ingest`: they are read where they are."""

from __future__ import annotations

from assay.record.importers.registry import Importer
from assay.record.importers.sample import Sample, has_runs, holds
from assay.values import layout

RUNX = (
    Importer(
        "runx",
        "folders of runx and logx (hparams.json, metrics.csv)",
        "folders",
        "assay.compat.importers:is_runx",
    ),
)
MLRUNNER = (
    Importer(
        "mlrunner",
        "folders of mlrunner (param and stat)",
        "folders",
        "assay.compat.importers:is_mlrunner",
    ),
)


def is_runx(sample: Sample) -> bool:
    return has_runs(sample, lambda path: holds(path, layout.HPARAMS_FILE) or holds(path, layout.LOGX_METRICS_FILE))


def is_mlrunner(sample: Sample) -> bool:
    return has_runs(sample, lambda path: holds(path, layout.PARAM_FILE))

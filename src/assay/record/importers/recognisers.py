"""Which tool wrote a folder of runs: ours, and what recognisers of other tools' folders are made of."""

from __future__ import annotations

import os
from collections.abc import Callable

from assay.record.folders import is_run_dir
from assay.record.importers.sample import Sample, find_subfolders
from assay.values import layout


def is_assay(sample: Sample) -> bool:
    if any(holds(folder, layout.STUDY_META_DIR) for folder in (sample.path, *sample.folders)):
        return True
    return has_runs(sample, is_run_dir)


def has_runs(sample: Sample, is_run: Callable[[str], bool]) -> bool:
    """A study, or a folder of studies."""
    return any(is_run(path) or any(map(is_run, find_subfolders(path))) for path in sample.folders)


def holds(path: str, name: str) -> bool:
    return os.path.exists(os.path.join(path, name))

"""Which tool wrote a folder of runs, or a file of results. Readers of runs have recognisers of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from assay.record.folders import is_run_dir
from assay.record.importers.sample import Sample, find_subfolders
from assay.values import layout

# ---------------------------------------------------------------- folders, which are read where they are


def is_assay(sample: Sample) -> bool:
    if any(_holds(folder, layout.STUDY_META_DIR) for folder in (sample.path, *sample.folders)):
        return True
    return _has_runs(sample, is_run_dir)


def is_runx(sample: Sample) -> bool:
    return _has_runs(sample, lambda path: _holds(path, layout.HPARAMS_FILE) or _holds(path, layout.LOGX_METRICS_FILE))


def is_mlrunner(sample: Sample) -> bool:
    return _has_runs(sample, lambda path: _holds(path, layout.MLRUNNER_PARAM_FILE))


def _has_runs(sample: Sample, is_run: Callable[[str], bool]) -> bool:
    """A study, or a folder of studies."""
    return any(is_run(path) or any(map(is_run, find_subfolders(path))) for path in sample.folders)


def _holds(path: str, name: str) -> bool:
    return os.path.exists(os.path.join(path, name))


# ---------------------------------------------------------------- results of benchmarks

_MLPERF_LINE = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+\{.*\}")


def is_mlperf(sample: Sample) -> bool:
    text = sample.text or sample.head
    return ":::ML" in text and _MLPERF_LINE.search(text) is not None


def is_asv(sample: Sample) -> bool:
    return sample.has_keys("results", "commit_hash")


def is_perfzero(sample: Sample) -> bool:
    return sample.has_keys("benchmark_result", "execution_timestamp")


def is_google_benchmark(sample: Sample) -> bool:
    return sample.has_keys("context", "benchmarks")


def is_pytest_benchmark(sample: Sample) -> bool:
    return sample.has_keys("machine_info", "benchmarks")

"""Which tool wrote a file of results."""

from __future__ import annotations

import re
from operator import methodcaller

from assay.record.importers.registry import Importer
from assay.record.importers.sample import Sample

_TOOLS = (
    ("perfzero", "PerfZero's perfzero_summary.json and perfzero.log"),
    ("asv", "asv's results/MACHINE/*.json"),
    ("pytest-benchmark", "pytest-benchmark's JSON"),
    ("google-benchmark", "google-benchmark's JSON"),
    ("mlperf", ":::MLLOG lines"),
)
IMPORTERS = tuple(Importer(name, title, "results", f"{__name__}:is_{name.replace('-', '_')}") for name, title in _TOOLS)
_MLPERF_LINE = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+\{.*\}")


def is_mlperf(sample: Sample) -> bool:
    text = sample.text or sample.head
    return ":::ML" in text and _MLPERF_LINE.search(text) is not None


is_asv = methodcaller("has_keys", "results", "commit_hash")
is_perfzero = methodcaller("has_keys", "benchmark_result", "execution_timestamp")
is_google_benchmark = methodcaller("has_keys", "context", "benchmarks")
is_pytest_benchmark = methodcaller("has_keys", "machine_info", "benchmarks")

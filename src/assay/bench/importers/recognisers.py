"""Which tool wrote a file of results."""

from __future__ import annotations

import re

from assay.record.importers.registry import Importer
from assay.record.importers.sample import Sample

IMPORTERS = (
    Importer(
        "perfzero",
        "PerfZero's perfzero_summary.json and perfzero.log",
        "results",
        "assay.bench.importers.recognisers:is_perfzero",
    ),
    Importer("asv", "asv's results/MACHINE/*.json", "results", "assay.bench.importers.recognisers:is_asv"),
    Importer(
        "pytest-benchmark",
        "pytest-benchmark's JSON",
        "results",
        "assay.bench.importers.recognisers:is_pytest_benchmark",
    ),
    Importer(
        "google-benchmark",
        "google-benchmark's JSON",
        "results",
        "assay.bench.importers.recognisers:is_google_benchmark",
    ),
    Importer("mlperf", ":::MLLOG lines", "results", "assay.bench.importers.recognisers:is_mlperf"),
)
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

"""Names of files, folders and variables of benchmarks, in a run's directory and in a study's `.assay`."""

from __future__ import annotations

BENCH_FILE = "benchmark.json"
BENCH_REPORT_FILE = "report.jsonl"
BENCH_OUTPUT_DIR = "output"
BENCH_PROFILE_DIR = "profile"
BENCH_TRIAGE_FILE = "triage.jsonl"  # inside .assay
BENCH_QUEUE_PREFIX = "bench-queue."  # of what a call of `assay bench run` is going to run; gone when it has ended
ENV_BENCH_REPORT = "ASSAY_BENCH_REPORT"  # where a child reports to
ENV_TF_REPORT = "TEST_REPORT_FILE_PREFIX"  # TensorFlow's own: what its result files begin with

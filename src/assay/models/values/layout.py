"""Names of files and folders of model checks, in a run's directory and in a study's `.assay`."""

from __future__ import annotations

MODEL_FILE = "model.json"
MODEL_REQUEST_PREFIX = "request-"  # inside .assay: a request that is too long for a command line
MODEL_TENSORS_DIR = "tensors"  # <case>/<output>/{expected,actual}: tensors that differ
MODEL_ERROR_FILE = "error.json"  # why there is no report
MODEL_TRACE_FILES = {"chrome": "trace.json", "perfetto": "trace.pb", "csv": "trace.csv"}

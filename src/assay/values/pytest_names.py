"""Names that one of Assay's pytest plugins sets on a test, and another plugin reads."""

from __future__ import annotations

UPLOADS = "assay-run-uploads"  # the plugin that uploads runs, if a server is named
RUNS = "_assay_runs"  # attribute of a test: the root of the runs that the test made
PROPERTY_CASE, PROPERTY_ISSUE, PROPERTY_PROFILE = "case", "linked_issue", "profiling_output"  # for model tests

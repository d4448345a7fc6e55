"""`assay bench`: runs benchmarks, compares executions, and judges histories."""

"""`assay bench`: running benchmarks, their history, and what it says."""

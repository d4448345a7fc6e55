"""`assay bench`: run benchmarks, compare them, and judge their history."""

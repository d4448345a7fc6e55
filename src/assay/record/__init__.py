"""record: the run directory, which is the truth, and the index, which is a copy."""

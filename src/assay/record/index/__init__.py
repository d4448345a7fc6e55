"""The index: a copy of the run directories, for fast tables."""

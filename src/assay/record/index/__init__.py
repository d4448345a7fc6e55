"""The index: a copy of what the run directories say, for fast tables."""

"""The index: a copy of what the run directories hold, for fast tables."""

"""stage: bring things into and out of a run: the code, for a start."""

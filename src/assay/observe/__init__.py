"""Reads a run's metrics and its use of the machine while it runs."""

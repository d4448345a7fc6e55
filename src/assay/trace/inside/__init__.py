"""Modules that a traced program loads from a copy in the run directory: they use torch and the standard library."""

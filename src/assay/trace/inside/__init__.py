"""Modules that a traced program loads: they use only torch and the standard library. The run directory has a copy."""

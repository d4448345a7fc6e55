"""The run directory, which is authoritative, and the index, which is a copy."""

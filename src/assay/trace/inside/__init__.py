"""What a traced program loads: torch and the standard library alone. A copy of it is in the run directory."""

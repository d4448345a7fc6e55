"""Pure functions that judge curves by a recording."""

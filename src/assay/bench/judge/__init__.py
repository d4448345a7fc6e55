"""Pure functions that judge times: trials, comparisons and histories."""

"""Judging times: trials, comparisons, histories. Pure functions."""

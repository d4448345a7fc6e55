"""Judging curves against a recording. Pure functions."""

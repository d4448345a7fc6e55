"""Frozen values that the rooms exchange: no input or output, standard library only."""

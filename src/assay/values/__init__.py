"""Frozen values that the packages exchange: no input or output, standard library only."""

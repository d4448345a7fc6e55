"""Judging tensors and layers. Pure functions."""

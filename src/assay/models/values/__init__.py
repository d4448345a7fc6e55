"""Frozen values of models, tensors and traces."""

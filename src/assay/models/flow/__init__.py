"""Checks of models: every layer of a model on a target, compared with the reference."""

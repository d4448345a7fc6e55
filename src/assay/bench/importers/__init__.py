"""Loads the result files of other tools as executions."""

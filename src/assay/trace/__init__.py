"""Traces of torch programs. `from assay.trace import record` records a part of a program of your own."""

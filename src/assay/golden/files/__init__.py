"""Curves in files of other tools: goldens, and runs that are checked against them."""

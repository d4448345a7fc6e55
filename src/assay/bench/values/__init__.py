"""Frozen values of benchmarks."""

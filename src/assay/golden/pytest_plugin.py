"""pytest's entry point for convergence checks as tests: the marker and the fixture `convergence`."""

from __future__ import annotations

import pytest

from assay.golden.pytest_support import add_marker, convergence, pytest_runtest_call, pytest_runtest_makereport

__all__ = ["convergence", "pytest_runtest_call", "pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    add_marker(config)

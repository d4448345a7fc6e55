"""pytest's entry point for the results of a session in Torq's form."""

from __future__ import annotations

import pytest

from assay.compat.torq.pytest_session import watch_session


def pytest_configure(config: pytest.Config) -> None:
    watch_session(config)

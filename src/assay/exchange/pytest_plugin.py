"""pytest's entry point for `ASSAY_SERVER`: what the tests have run is sent there."""

from __future__ import annotations

import pytest

from assay.exchange.pytest_support import watch_uploads


def pytest_configure(config: pytest.Config) -> None:
    watch_uploads(config)

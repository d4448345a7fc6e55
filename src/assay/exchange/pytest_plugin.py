"""pytest's entry point for `ASSAY_SERVER`: the runs of tests are sent to that server."""

from __future__ import annotations

import os

import pytest

from assay.values.pytest_names import UPLOADS


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("ASSAY_SERVER", "").strip():
        from assay.exchange.pytest_support import Uploads  # not at the top: every session of pytest loads this file

        config.pluginmanager.register(Uploads(config), UPLOADS)

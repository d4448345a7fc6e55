"""pytest's entry point for the results of tests of models: a session in Torq's form, runs for `ASSAY_SERVER`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from assay.values.pytest_names import UPLOADS


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register after the plugin that sends runs; without the plug-in for models there are no tests of models."""
    if find_spec("assay.models") is None:
        return
    from assay.compat.torq.pytest_session import watch_session

    watch_session(config)
    uploads = config.pluginmanager.getplugin(UPLOADS)
    if uploads is not None and not hasattr(config, "workerinput"):
        from assay.compat.torq.pytest_uploads import ModelUploads

        config.pluginmanager.register(ModelUploads(uploads, str(config.rootpath)), "assay-model-uploads")

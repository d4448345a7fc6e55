"""The pytest plugin: convergence checks as tests (`convergence`), and models as tests (`models`).

Other tests are left alone. Options for models are added last, and only under names that nobody else has; their fixtures
do nothing until a test asks for one; nothing is collected until a test file imports `assay.models`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from assay.compat.torq.pytest_session import watch_session
from assay.golden.pytest_support import add_marker, convergence, pytest_runtest_call, pytest_runtest_makereport
from assay.models.pytest_support.collection import (
    expect_failures,
    is_model_test,
    parametrize,
    place_in_file,
    refuse_options,
    register_fixtures,
    register_markers,
    summarize,
)
from assay.models.pytest_support.options import add_options
from assay.pytest_plugin.uploads import watch_uploads

__all__ = ["convergence", "pytest_runtest_call", "pytest_runtest_makereport"]


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Behind everybody: an option of a conftest.py or of another plugin is theirs, whoever is installed beside it."""
    result = yield
    add_options(parser)
    return result


def pytest_configure(config: pytest.Config) -> None:
    add_marker(config)
    register_markers(config)
    register_fixtures(config)
    refuse_options(config)
    watch_session(config)
    watch_uploads(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_model_test(item):
        place_in_file(item)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if is_model_test(item)]
    if mine:
        expect_failures(config, mine)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    summarize(terminalreporter, config)

"""pytest's entry point for models as tests.

Options are added last, and only under names that no other plugin has; fixtures do nothing until a test asks for one;
nothing is collected until a test file imports `assay.models`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

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


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """After all others: an option that a conftest.py or another plugin defines stays theirs."""
    result = yield
    add_options(parser)
    return result


def pytest_configure(config: pytest.Config) -> None:
    register_markers(config)
    register_fixtures(config)
    refuse_options(config)


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

"""pytest's entry point for models as tests.

Options are added last, and only under names that no other plugin has; fixtures do nothing until a test requests one;
no test is collected until a test file imports `assay.models`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from assay.models.pytest_support.collection import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_generate_tests,
    pytest_itemcollected,
    pytest_terminal_summary,
)
from assay.models.pytest_support.options import add_options

__all__ = [
    "pytest_collection_modifyitems", "pytest_configure", "pytest_generate_tests", "pytest_itemcollected",
    "pytest_terminal_summary",
]  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Register the options last: options of the same name in a conftest.py or another plugin take precedence."""
    result = yield
    add_options(parser)
    return result

from __future__ import annotations

from tests.models.pytest_support.conftest import project

__all__ = ["project"]

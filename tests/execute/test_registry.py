"""Executors by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from assay.errors import NotFoundError
from assay.execute.local import LocalExecutor
from assay.execute.registry import build_executor


def test_local() -> None:
    executor = build_executor("local")
    assert isinstance(executor, LocalExecutor)
    assert executor.name == "local"
    executor.close()


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(NotFoundError) as caught:
        build_executor("locla")
    assert "local" in str(caught.value.hint)


def test_only_what_is_asked_for_is_loaded() -> None:
    text = "import sys, assay.execute.registry as r; r.build_executor('local'); sys.exit('assay.farms' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0

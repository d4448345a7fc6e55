from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.compat.perfzero.wheel import write_wheel


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assay as a wheel, which takes a quarter of a second to pack."""
    return Path(write_wheel(str(tmp_path_factory.mktemp("wheel"))))


@pytest.fixture
def copy_wheel(packed: Path) -> Callable[[str], str]:
    """In the place of `write_wheel`."""
    return lambda folder: shutil.copy(packed, os.path.join(folder, packed.name))

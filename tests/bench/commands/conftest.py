"""An address that alerts are sent to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.bad_servers import RecordingServer, recording


@pytest.fixture
def hook() -> Iterator[RecordingServer]:
    with recording(lambda _got: (204, b"")) as server:
        yield server

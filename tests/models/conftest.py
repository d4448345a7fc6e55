"""The workers of the session's checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.store.artifacts import ArtifactStore


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactBuilder]:
    """For tests that do not ask what is in the store: one worker for each target, and all that was made before."""
    with ArtifactBuilder(ArtifactStore(str(tmp_path_factory.mktemp("shared") / "store"))) as builder:
        yield builder

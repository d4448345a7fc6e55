"""A store of the test's own, and workers that find the examples' faults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.example_models import EXAMPLES, load_example, write_chain

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.store.artifacts import ArtifactStore


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' models, made once."""
    folder = tmp_path_factory.mktemp("models")
    load_example("build_models").write_models(str(folder))
    return folder


@pytest.fixture(autouse=True)
def _faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By us and by the workers."""
    folders = [str(EXAMPLES), str(Path(__file__).parent)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    for folder in folders:
        monkeypatch.syspath_prepend(folder)


@pytest.fixture
def open_builder(tmp_path: Path) -> Iterator[Callable[..., ArtifactBuilder]]:
    opened: list[ArtifactBuilder] = []

    def open_one(**further: Any) -> ArtifactBuilder:
        opened.append(ArtifactBuilder(ArtifactStore(str(tmp_path / "store")), **further))
        return opened[-1]

    yield open_one
    for builder in opened:
        builder.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactBuilder]:
    """For tests that do not ask what is in the store: one worker for each target, and all that was made before."""
    with ArtifactBuilder(ArtifactStore(str(tmp_path_factory.mktemp("shared") / "store"))) as builder:
        yield builder


@pytest.fixture
def builder(open_builder: Callable[..., ArtifactBuilder]) -> ArtifactBuilder:
    return open_builder()


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_chain(tmp_path / "chain.onnx")

"""A store of the test's own, and workers that find the examples' faults."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.example_models import EXAMPLES, load_example, write_chain

from assay.follow.locations import StudyLocation
from assay.launch.sweep import RunHooks
from assay.models import child
from assay.models.flow import run as model_run
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.store.artifacts import ArtifactStore
from assay.values.run import RunSpec
from assay.values.state import State


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


SETTINGS = ("store", "limits", "recompute", "explain_to", "dumps", "failure_dir", "slices", "notes")


@contextmanager
def lend(shared: ArtifactBuilder, store: ArtifactStore, **settings: Any) -> Iterator[ArtifactBuilder]:
    """The shared workers with another store and other settings."""
    before = {name: getattr(shared, name) for name in SETTINGS}  # a test may change any of them
    values = {**before, "store": store, "slices": [], "notes": [], **settings}
    with store, shared.changing(**values), shared.borrowing():
        yield shared


@pytest.fixture
def builder(shared: ArtifactBuilder, tmp_path: Path) -> Iterator[ArtifactBuilder]:
    """The shared workers, with a store of the test's own and settings that the test may change."""
    with lend(shared, ArtifactStore(str(tmp_path / "store"))) as found:
        yield found


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check is computed by this process instead of a run's. That it is a run is shown by `flow/test_run.py`."""

    def run_here(_study: object, location: StudyLocation, specs: list[RunSpec], hooks: RunHooks, **_: object) -> object:
        run_dir = Path(location.dir, specs[0].name)
        run_dir.mkdir(parents=True)
        with (run_dir / "model.log").open("w") as log, redirect_stdout(log):
            child.main([str(run_dir), shlex.split(specs[0].commands[0].text)[-1]])
        if hooks.echo is not None:
            hooks.echo((run_dir / "model.log").read_bytes())
        entry = SimpleNamespace(dir=str(run_dir), state=State.DONE, outcome=None)
        return SimpleNamespace(entries=[entry], problem=None, interrupted=None, notes=[])

    monkeypatch.setattr(model_run, "run_specs", run_here)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the check adds the folder


@pytest.fixture
def lent(in_process: None, shared: ArtifactBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the shared workers; so is `assay child model` when it is called in this process."""
    monkeypatch.setattr(
        child, "ArtifactBuilder", lambda store, limits, **settings: lend(shared, store, limits=limits, **settings)
    )


@pytest.fixture
def new_builder(tmp_path: Path) -> Iterator[ArtifactBuilder]:
    """With workers of its own, which see the environment of the test."""
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store"))) as builder:
        yield builder


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return write_chain(tmp_path / "chain.onnx")

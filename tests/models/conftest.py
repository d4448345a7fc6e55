"""The workers of the session's checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from assay.models.backends.registry import build_backend
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.model import Job, Step, StepOutcome, Target
from assay.models.worker import Worker
from assay.models.worker_process import WorkerProcess, parse_error

# Back ends that start programs, and options of `picky_backend` that end or hang a process.
WITH_PROCESS = {"command", "ssh", "iree", "abort", "hang", "hang_alone"}


class LocalWorker(Worker):
    """A back end in the process of the test, without the hashes of its code: they, and the way to a process and back,
    are most of a step. What only a process has (limits, a violent end, code that is edited) is tested with processes."""

    _process = None  # there is none to end

    def __init__(self, target: Target) -> None:
        super().__init__(-1)
        self._backend = build_backend(target)
        self._known: dict[Step | None, Mapping[str, str]] = {}

    def identity(self, step: Step | None = None) -> Mapping[str, str]:
        if step not in self._known:
            answer = self._identify(True if step is None else step)
            if "error" in answer:
                raise parse_error(answer["error"])
            self._known[step] = answer["identity"]
        return self._known[step]

    def work(self, job: Job, _limits: object) -> StepOutcome:
        return self._work(job)

    def close(self) -> None:
        """It has nothing to end."""


class LocalBuilder(ArtifactBuilder):
    """With workers in this process, but for targets that need one of their own."""

    def _find_worker(self, target: Target) -> WorkerProcess:
        if WITH_PROCESS & {target.backend, *target.options}:
            return super()._find_worker(target)
        worker: Any = self._workers.get(repr(target)) or LocalWorker(target)
        return self._workers.setdefault(repr(target), worker)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactBuilder]:
    """For tests that do not ask what is in the store: one worker for each target, and all that was made before."""
    with LocalBuilder(ArtifactStore(str(tmp_path_factory.mktemp("shared") / "store"))) as builder:
        yield builder

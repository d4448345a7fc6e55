"""The interface of a back end. Its methods are called in a worker process: they may crash, hang or eat all memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from assay.values.model import Ending, Job, Step, Target


@dataclass(frozen=True, slots=True)
class Made:
    """What a step made: `path` lies in the job's folder."""

    path: str
    command: str = ""
    stdout: str = ""
    stderr: str = ""
    times_s: tuple[float, ...] = ()
    profiles: tuple[str, ...] = ()


class BackendError(Exception):
    """A step that failed in a way the tool itself tells."""

    def __init__(
        self, message: str, *, ending: Ending = Ending.ERROR, command: str = "", stdout: str = "", stderr: str = "",
        hint: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.ending, self.hint = message, ending, hint
        self.command, self.stdout, self.stderr = command, stdout, stderr


class Backend(ABC):
    """A target's tools. One object serves many jobs, one after another."""

    extra: ClassVar[str] = "models"  # of pyproject: what to install when a library is missing
    steps: ClassVar[tuple[Step, ...]] = (Step.COMPILE, Step.RUN)

    def __init__(self, target: Target) -> None:
        self.target = target

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Every tool and its version: part of the key of all that is made with it. Raises MissingExtraError, or
        InfrastructureError where a tool or a board is not to be found."""

    @abstractmethod
    def perform(self, job: Job) -> Made:
        """Do one step. Raises BackendError where the tool refuses; whatever else escapes counts as an error too."""

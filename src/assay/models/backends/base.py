"""The interface of a back end. Its methods are called in a worker process: they may crash, hang or use all memory."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from assay.errors import InfrastructureError, MissingExtraError, UsageError, did_you_mean
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.system.fast_dataclasses import dataclass
from assay.system.processes import load_cpu_fields

Kind = type | tuple[type, ...]
_TEMPLATE: Kind = (str, list)
# Back end → the options that its table in the settings may have, and their types; each back end checks the values.
OPTIONS: dict[str, Mapping[str, Kind]] = {
    "ort": {"optimize": str, "threads": int},
    "reference": {},
    "openvino": {"precision": str, "threads": int},
    "iree": {"device": str, "driver": str, "cpu": str},
    "torch": {"device": str, "precision": str, "optimize": str, "rewrite": str},
    "command": {
        "run": _TEMPLATE, "compile": _TEMPLATE, "import": _TEMPLATE, "input": str, "artifact": str, "input_flag": str,
        "output_flag": str, "input_join": str, "input_format": str, "output_format": str, "chip": str, "hardware": str,
        "env": dict, "cwd": str, "depends": list, "version": (str, list, bool),
    },
}  # fmt: skip
OPTIONS["ssh"] = {
    **OPTIONS["command"], "address": str, "port": int, "key": str, "ssh_options": list,
    "connect_timeout_s": (int, float), "deploy": list, "lock": str, "lock_wait_s": int, "lock_expiry_s": int,
    "remote_root": str,
}  # fmt: skip

# Library → the extra that installs it.
EXTRAS = {
    "numpy": "models",
    "ml_dtypes": "models",
    "onnx": "models",
    "onnxruntime": "models",
    "openvino": "openvino",
    "iree": "iree",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a step: `path` is in the job's folder."""

    path: str
    command: str = ""
    stdout: str = ""
    stderr: str = ""
    times_s: tuple[float, ...] = ()
    profiles: tuple[str, ...] = ()


class BackendError(Exception):
    """A step that failed in a way that the tool itself reports."""

    def __init__(
        self, message: str, *, ending: StepEnding = StepEnding.ERROR, command: str = "", stdout: str = "",
        stderr: str = "", hint: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.ending, self.hint = message, ending, hint
        self.command, self.stdout, self.stderr = command, stdout, stderr


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def render_python(code: str) -> str:
    """Return a shell line that executes this code in an interpreter with the libraries of this process."""
    return shlex.join([name_program("python"), "-c", code])


def name_program(name: str) -> str:
    """Return the command of a program of our interpreter's environment: its name if PATH leads to it, else its path."""
    folder = os.path.dirname(sys.executable)
    ours, found = os.path.join(folder, name), shutil.which(name)
    is_on_path = found is not None and os.path.dirname(os.path.abspath(found)) == folder
    return name if is_on_path or not os.path.exists(ours) else ours


class Backend(ABC):
    """The tools of a target. One object serves many jobs, one after another. The parent process also builds a back end,
    to check the target: building loads no library, starts nothing, and raises UsageError for invalid options."""

    steps: tuple[Step, ...] = (Step.COMPILE, Step.RUN)
    may_change: bool = False  # whether the tools may change during a check: programs may, libraries are loaded once
    # Reports the command line that is about to run: if the command hangs or ends the worker, nothing else is known.
    announce: Callable[[str], None] = staticmethod(lambda _command: None)

    def __init__(self, target: Target) -> None:
        self.target = target

    def choose(self, option: str, known: Sequence[str]) -> str:
        """Return the value of an option, by default the first known one. Raises UsageError."""
        value = str(self.target.options.get(option) or known[0])
        if value not in known:
            hint = did_you_mean(value, known)
            raise UsageError(f"target {self.target.name}: {option} = {value!r} is not known", hint)
        return value

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return every tool, its version and the options that change results: this is part of the key of everything
        made with the back end. Raises MissingExtraError, or InfrastructureError if a tool or a board was not found."""

    def identify_step(self, _step: Step) -> Mapping[str, str]:
        """Return the identity that a step depends on: compiling for a board must not fail because the board is off."""
        return self.identity()

    @abstractmethod
    def perform(self, job: Job) -> Made:
        """Perform a step. Raises BackendError if the tool reports an error; any other exception is an error too."""

    def warm_up(self) -> None:  # noqa: B027 - optional, though most back ends load something
        """Load, before anything is timed, what takes long to load. Missing libraries are reported by `identity`."""

    def close(self) -> None:  # noqa: B027
        """End what was started for several jobs, such as a connection."""

    def import_library(self, name: str) -> Any:
        """Import a library. If it is missing, the error names what to install."""
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            root = name.partition(".")[0]
            if error.name and error.name.partition(".")[0] != root:
                raise InfrastructureError(f"{name} is installed and cannot be loaded: {error}") from error
            raise MissingExtraError(f"the target {self.target.name!r}", EXTRAS[root]) from None
        except (ImportError, OSError) as error:
            raise InfrastructureError(f"{name} is installed and cannot be loaded: {error}") from error


def describe_cpu() -> str:
    """Return the processor and its features, by which libraries choose their kernels, and so their rounding."""
    fields = load_cpu_fields()
    name = fields.get("model name") or fields.get("Hardware") or os.uname().machine
    features = fields.get("flags") or fields.get("Features") or ""
    return f"{name} {hashlib.sha256(features.encode()).hexdigest()[:12]}"

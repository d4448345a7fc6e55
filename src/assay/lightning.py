"""A logger for Lightning: `Trainer(logger=AssayLogger())`, of `lightning` or `pytorch_lightning`.

Metrics go to the run that started the script, else to a new run; checkpoints go to `checkpoints/` of the run.
Lightning is imported when `AssayLogger` is first used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assay import script
from assay.errors import MissingPackageError
from assay.exchange.script_run import ScriptRun, build_mapping, log_numbers, open_run

_WHO = "assay.lightning"
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class _Logging:
    """A logger with the methods that Lightning calls."""

    def __init__(self, project: str | None = None, name: str | None = None, prefix: str = "") -> None:
        """`project` and `name`: names of a new run, outside of a run of Assay; `prefix`: a prefix of all metrics."""
        super().__init__()
        self._project = project
        self._run_name = name
        self._prefix = f"{prefix}/" if prefix else ""
        self._place: ScriptRun | None = None

    def _open(self) -> ScriptRun:
        """Open the run on the first rank; return a run that records nothing on other ranks."""
        if self._place is None:
            self._place = open_run(_WHO, self._project, self._run_name) if self._is_first() else ScriptRun(_WHO, "")
        return self._place

    def _is_first(self) -> bool:
        # if Lightning has started the processes itself, its own variable has their ranks
        loaded = [found for each in _PACKAGES if (found := sys.modules.get(f"{each}.utilities"))]
        return script.find_rank() == 0 and not any(getattr(each.rank_zero_only, "rank", 0) for each in loaded[:1])

    # Lightning writes checkpoints to `<save_dir>/<name>/<version>/checkpoints`

    @property
    def log_dir(self) -> str | None:
        return self._open().dir or None

    @property
    def root_dir(self) -> str | None:
        return os.path.dirname(self._open().dir) or None

    @property
    def save_dir(self) -> str | None:
        return os.path.dirname(self.root_dir or "") or None

    @property
    def name(self) -> str | None:
        return os.path.basename(self.root_dir or "") or None

    @property
    def version(self) -> str | None:
        return os.path.basename(self._open().dir) or None

    @property
    def experiment(self) -> Any:
        return self

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if not self._is_first() or not self._open().dir:
            return
        log_numbers(_WHO, metrics, step, self._prefix)

    def log_hyperparams(self, params: Any, *_arguments: Any, **_options: Any) -> None:
        if self._is_first():
            self._open().write_config(build_mapping(params))

    def log_graph(self, *_arguments: Any, **_options: Any) -> None:
        """Ignore the call: the model is not recorded."""

    save = after_save_checkpoint = log_graph  # logged values are already on the disk

    def finalize(self, status: str) -> None:
        """Record the end of a training or test; after an exception the status is `failed`."""
        if self._is_first() and self._place is not None:
            self._place.note_training(is_over=status == "success")


def _find_base(package: str) -> list[type]:
    with suppress(ModuleNotFoundError):
        if package == "pytorch_lightning":
            from pytorch_lightning import loggers

            return [loggers.Logger]
        from lightning.pytorch import loggers as newer

        return [newer.Logger]
    return []


if TYPE_CHECKING:
    AssayLogger = _Logging
else:

    def __getattr__(name: str) -> Callable[..., Any]:
        if name != "AssayLogger":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # derive the logger from the bases of all loaded packages of Lightning, else of the first installed package
        bases = [base for package in _PACKAGES if package in sys.modules for base in _find_base(package)]
        bases = bases or _find_base(_PACKAGES[0]) or _find_base(_PACKAGES[1])
        if not bases:
            raise MissingPackageError(name, "lightning")
        attributes = {"__module__": __name__, "__doc__": _Logging.__doc__}
        return globals().setdefault(name, type(name, (_Logging, *bases), attributes))

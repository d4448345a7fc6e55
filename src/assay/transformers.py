"""A callback for the Hugging Face Trainer: `Trainer(..., callbacks=[AssayCallback()])`.

Values that the Trainer logs go to the run that started the script, else to a new run. The library transformers is
imported when `AssayCallback` is first used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from assay.errors import MissingPackageError
from assay.exchange.script_run import ScriptRun, log_numbers, open_run

_WHO = "assay.transformers"


class _Logging:
    """A callback with the methods that the Trainer calls."""

    def __init__(self, project: str | None = None, name: str | None = None) -> None:
        """`project` and `name`: names of a new run, outside of a run of Assay."""
        super().__init__()
        self._project = project
        self._run_name = name
        self._place: ScriptRun | None = None

    def _open(self) -> ScriptRun:
        if self._place is None:
            self._place = open_run(_WHO, self._project, self._run_name)
        return self._place

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Record the arguments that differ from their defaults as the configuration."""
        del control
        if state.is_world_process_zero:
            plain, defaults = args.to_sanitized_dict(), {}
            for field in dataclasses.fields(args):
                make = field.default_factory
                defaults[field.name] = make() if callable(make) else field.default
            changed = {name: plain[name] for name in plain if getattr(args, name, None) != defaults.get(name)}
            self._open().write_config(changed)
            self._open().note_training(is_over=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        del args, control
        if state.is_world_process_zero:
            self._open().note_training(is_over=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_more: Any) -> None:
        del args, control
        if not state.is_world_process_zero or not logs or not self._open().dir:
            return
        log_numbers(_WHO, logs, state.global_step)


if TYPE_CHECKING:
    AssayCallback = _Logging
else:

    def __getattr__(name: str) -> Callable[..., Any]:
        if name != "AssayCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from transformers import TrainerCallback
        except ImportError as error:
            raise MissingPackageError(name, "transformers") from error
        attributes = {"__module__": __name__, "__doc__": _Logging.__doc__}
        return globals().setdefault(name, type(name, (_Logging, TrainerCallback), attributes))

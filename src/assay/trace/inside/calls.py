"""Calls of operations with everything that went in and came out, of the modules that are kept: `calls.jsonl`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from assay.trace.inside.modules import ModuleHooks, find_tensors
from assay.trace.inside.rows import Rows, find_source


class KeptCalls:
    def __init__(self, rows: Rows, hooks: ModuleHooks, skip: tuple[str, ...]) -> None:
        self._rows, self._hooks, self._skip = rows, hooks, skip
        self._open: dict[int, dict[str, Any]] = {}  # by thread: what went in
        self._has_begun = False

    def is_wanted(self) -> bool:
        """Whether the module that is executed is kept; what comes before the step's first module makes weights."""
        self._has_begun = self._has_begun or bool(self._hooks.stack)
        return self._has_begun and self._hooks.is_kept()

    def begin(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep what goes in before the operation can change it."""
        named = {name: self._describe(value) for name, value in (kwargs or {}).items()}
        names = [each.name for each in func._schema.arguments]  # noqa: SLF001
        facts = {"names": names, "args": self._describe(args), "kwargs": named}
        self._open[threading.get_ident()] = facts

    def end(self, func: Any, result: Any) -> None:
        import torch

        facts = {
            "step": self._rows.step,
            "phase": "backward" if self._hooks.backwards else "forward",
            "module": self._hooks.path,
            "op": str(func),
            "source": find_source(self._skip),
            "random": torch.Tag.nondeterministic_seeded in func.tags,
            "executable": sys.executable,
            **self._open.pop(threading.get_ident()),
            "result": self._describe(find_tensors(result)),
        }
        self._rows.append_line("calls.jsonl", facts)

    def _describe(self, value: Any) -> Any:
        """As JSON; a tensor by its facts and where its values are kept."""
        import torch

        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, (list, tuple)):
            return [self._describe(each) for each in value]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        facts = self._rows.write_tensor(value) if isinstance(value, torch.Tensor) else None
        if facts is None or facts["dtype"] != str(value.dtype).removeprefix("torch."):
            return {"unknown": type(value).__name__}
        stride = list(value.stride()) if value.layout is torch.strided and 0 not in value.stride() else None
        return {**facts, "stride": stride, "device": str(value.device)}

"""Level `op`: records every dispatched operation, by a mode that leaves compiled regions compiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from assay.trace.inside.compiled import hide_from_dynamo, is_in_compiled
from assay.trace.inside.modules import ModuleHooks, find_tensors
from assay.trace.inside.placement import find_group
from assay.trace.inside.rows import Rows, find_source


def build_mode(rows: Rows, hooks: ModuleHooks, guard: Any, fail: Callable[[Exception], None], skip: Any) -> Any:
    """Build the mode without pushing it. The mode's own operations run below all other modes and autograd."""
    from torch._C import _DisableTorchDispatch
    from torch.utils._python_dispatch import TorchDispatchMode

    observe = _build_observer(rows, hooks, skip)
    # with several ranks do not wait for collective operations that are still computing a tensor
    apart = _DisableTorchDispatch if find_group() is not None else nullcontext
    calls = _KeptCalls(rows, hooks, skip)
    begin_call, end_call = guard(calls.begin), guard(calls.end)

    class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # otherwise torch.compile would silently run everything eagerly

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # True would load the compiler

        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_ours = not is_in_compiled()
            if is_kept := is_ours and calls.is_wanted():
                begin_call(func, args, kwargs)
            result = func(*args, **kwargs) if kwargs else func(*args)
            if is_ours and hooks.is_watching:
                try:
                    with apart():
                        observe(func, args, kwargs, result)
                except Exception as error:  # noqa: BLE001 recording ends, the program goes on
                    fail(error)
            if is_kept:
                end_call(func, result)
            return result

    hide_from_dynamo(OpMode.__torch_dispatch__, is_deep=False)
    return OpMode()  # type: ignore[no-untyped-call]


def _build_observer(rows: Rows, hooks: ModuleHooks, skip: tuple[str, ...]) -> Callable[..., None]:
    """Build the function that records an operation; it is called thousands of times in a step."""
    from torch import Tensor

    known: dict[Any, tuple[str, bool]] = {}

    def observe(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        path = hooks.path
        given = (*args, *kwargs.values()) if kwargs else args
        inputs = []
        for each in given:
            if isinstance(each, Tensor):
                inputs.append(rows.find(each))
            elif isinstance(each, (list, tuple)):
                inputs += [rows.find(inner) for inner in each if isinstance(inner, Tensor)]
        inputs = [row for row in inputs if row]
        if func not in known:
            aliases = [each.alias_info for each in func._schema.returns]  # noqa: SLF001
            # a view computes nothing: every result is a part of an argument
            known[func] = str(func), bool(aliases) and all(each is not None and not each.is_write for each in aliases)
        name, is_view = known[func]
        results = (result,) if isinstance(result, Tensor) else find_tensors(result)
        if is_view:
            for each in results if inputs else ():
                rows.remember(each, inputs[0])
        elif hooks.is_wanted(path):
            phase = "backward" if hooks.backwards else "forward"
            call = hooks.count((phase, path, name))
            for index, tensor in enumerate(results):
                rows.add((phase, path, "", f"output.{index}", call, name), tensor, tuple(inputs), skip)

    return observe


class _KeptCalls:
    """Writes the calls of operations in the selected modules, with all arguments and results: `calls.jsonl`."""

    def __init__(self, rows: Rows, hooks: ModuleHooks, skip: tuple[str, ...]) -> None:
        self._rows, self._hooks, self._skip = rows, hooks, skip
        self._open: dict[int, dict[str, Any]] = {}  # thread → facts of its current call
        self._has_begun = False

    def is_wanted(self) -> bool:
        """Return whether the current module is selected; False before the first module, when weights are made."""
        self._has_begun = self._has_begun or bool(self._hooks.stack)
        return self._has_begun and self._hooks.is_kept()

    def begin(self, func: Any, args: Any, kwargs: Any) -> None:
        """Store the arguments before the operation can change them."""
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
        """Describe a value as JSON; a tensor by its facts and the offset of its values."""
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


def push_below(mode: Any) -> None:
    """Push a mode below the modes of the program, which are removed in their own order."""
    _replace_modes(lambda modes: [mode, *modes])


def remove_mode(mode: Any) -> None:
    _replace_modes(lambda modes: [each for each in modes if each is not mode])


def _replace_modes(change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the stack of modes; `change` gets and returns the modes, lowest first."""
    from torch._C import _len_torch_dispatch_stack
    from torch.utils._python_dispatch import _pop_mode, _push_mode

    found = [_pop_mode() for _ in range(_len_torch_dispatch_stack())][::-1]
    for each in change(found):
        _push_mode(each)

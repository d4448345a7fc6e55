"""torch.compile and traces: the recorder's hooks are hidden from dynamo, so that regions compile as without a trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_inside: list[_Inside] = []


def hide_from_dynamo(function: Any, *, is_deep: bool = True) -> None:
    """Make a function, and with `is_deep` all that it calls, invisible to the compiler and to its count of frames."""
    from torch._C._dynamo import eval_frame

    code = getattr(function, "__func__", function).__code__
    if hasattr(eval_frame, "_FrameExecStrategy"):
        action = eval_frame._FrameAction  # noqa: SLF001
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if is_deep else action.DEFAULT)  # noqa: SLF001
        eval_frame.set_code_exec_strategy(code, strategy)
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)


def watch_compiler() -> Callable[[], None]:
    """Remove the global hooks while dynamo traces. Call this when torch._dynamo is loaded. Returns an undo function."""
    from torch._dynamo.callback import callback_handler as handler
    from torch.nn.modules import module

    hidden: list[tuple[Any, dict[Any, Any]]] = []
    start, end = handler.run_start_callbacks, handler.run_end_callbacks

    def run_start(args: Any) -> None:  # dynamo's own callbacks are not used: torch._dynamo.reset() removes them
        start(args)
        if _inside:
            _inside[0].name_modules()
            return
        for each in (module._global_forward_pre_hooks, module._global_forward_hooks):  # noqa: SLF001
            hidden.append((each, dict(each)))
            each.clear()

    def run_end(args: Any) -> None:
        while hidden:
            hooks, held = hidden.pop()
            hooks.clear()
            hooks.update(held)
        end(args)

    handler.run_start_callbacks, handler.run_end_callbacks = run_start, run_end  # type: ignore[method-assign]

    def undo() -> None:
        handler.run_start_callbacks, handler.run_end_callbacks = start, end  # type: ignore[method-assign]

    return undo


# ---------------------------------------------------------------- --inside


class _Inside:
    """The modules by number, and the operation that compiled code calls with the number of a module."""

    def __init__(self, rows: Any, names: Any, hooks: Any, guard: Any) -> None:
        import torch

        # the operation changes this argument, so that no compiler leaves the operation out
        self.mark = torch.zeros(1, device="cpu")
        self._rows, self._names, self.hooks = rows, names, hooks
        self._modules: list[tuple[str, str]] = []
        record = guard(self._record)

        def digest(tensor: torch.Tensor, mark: torch.Tensor, number: int, index: int) -> None:  # noqa: ARG001
            record(tensor, number, index)

        digest.__annotations__ = {"tensor": torch.Tensor, "mark": torch.Tensor, "number": int, "index": int}
        digest.__annotations__["return"] = None
        self.operation = torch.library.custom_op("assay_trace::digest", digest, mutates_args=("mark",))
        self.operation.register_fake(lambda *_args: None)

    def name_modules(self) -> None:
        for module, path in self._names.list_modules():
            if "_assay_number" not in module.__dict__:
                module.__dict__["_assay_number"] = len(self._modules)
                self._modules.append((path, type(module).__name__))

    def _record(self, tensor: Any, number: int, index: int) -> None:
        if self.hooks.is_watching and not self.hooks.backwards:
            path, kind = self._modules[number]
            if self.hooks.is_wanted(path):
                key = ("forward", path, kind, f"output.{index}", self.hooks.count(("inside", path, index)), None)
                self._rows.forget(tensor)
                self._rows.add(key, tensor)
                self._rows.forget(tensor)


def watch_inside(rows: Any, names: Any, hooks: Any, guard: Any) -> Callable[[], None]:
    """Make code that is compiled from now on record the outputs of its modules. Dynamo compiles again when the global
    hooks change, so the two hooks stay until the end, on every step."""
    _inside[:] = [_Inside(rows, names, hooks, guard)]
    for each in (_enter_inside, _leave_inside):
        hide_from_dynamo(each)  # a hook is not compiled as a region; inside a region dynamo traces it
    hooks.hold(_enter_inside, _leave_inside)

    def undo() -> None:
        _inside.clear()
        hooks.release()

    return undo


def _enter_inside(module: Any, args: Any) -> None:
    import torch

    if not torch.compiler.is_compiling():
        _inside[0].hooks.enter(module, args)


def _leave_inside(module: Any, args: Any, *rest: Any) -> None:
    """Record a module's output; dynamo compiles this function to the operation alone."""
    import torch

    if not torch.compiler.is_compiling():
        _inside[0].hooks.leave(module, args, *rest)
        return
    number, result = getattr(module, "_assay_number", -1), rest[-1]
    if number >= 0:
        results = (result,) if isinstance(result, torch.Tensor) else result
        for index, tensor in enumerate(results if isinstance(results, (tuple, list)) else ()):
            if isinstance(tensor, torch.Tensor):
                _inside[0].operation(tensor.detach(), _inside[0].mark, number, index)


def count_graphs() -> dict[str, int]:
    """Return the numbers of graphs, breaks and compiled frames so far, which must be the same without a trace."""
    if "torch._dynamo.utils" not in sys.modules:
        return {}
    counters = sys.modules["torch._dynamo.utils"].counters
    stats, frames = counters["stats"], counters["frames"]
    breaks = sum(counters["graph_break"].values())
    found = {"graphs": stats["unique_graphs"], "breaks": breaks, "frames": frames["total"]}
    return {name: int(number) for name, number in found.items()} if found["frames"] else {}


@functools.cache
def _load_questions() -> tuple[Callable[[], Any], Callable[[], Any]]:
    import torch
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    return get_eval_frame_callback, torch._C._current_autograd_node  # noqa: SLF001


def is_in_compiled() -> bool:
    """Return whether the running code belongs to a compiled region, forward or backward."""
    find_callback, find_node = _load_questions()
    if find_callback() is not None:
        return True
    node = find_node()
    return node is not None and node.name().startswith("CompiledFunction")

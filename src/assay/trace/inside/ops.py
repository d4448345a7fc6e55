"""Level `op`: every dispatched operation, by a mode that leaves compiled regions compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.trace.inside.calls import KeptCalls
from assay.trace.inside.compiled import hide_from_dynamo, is_in_compiled
from assay.trace.inside.modules import ModuleHooks, find_tensors
from assay.trace.inside.rows import Rows


def build_mode(rows: Rows, hooks: ModuleHooks, guard: Any, fail: Callable[[Exception], None], skip: Any) -> Any:
    """The mode; it is not on the stack yet. What it calls itself is below all other modes and autograd."""
    from torch.utils._python_dispatch import TorchDispatchMode

    observe = _build_observer(rows, hooks, skip)
    if _has_ranks():
        observe = _below_collectives(observe)
    calls = KeptCalls(rows, hooks, skip)
    begin_call, end_call = guard(calls.begin), guard(calls.end)

    class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # else torch.compile would silently run everything eagerly

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # it would load the compiler

        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_ours = not is_in_compiled()
            is_kept = is_ours and calls.is_wanted()
            if is_kept:
                begin_call(func, args, kwargs)
            result = func(*args, **kwargs) if kwargs else func(*args)
            if is_ours and hooks.is_watching:
                try:
                    observe(func, args, kwargs, result)
                except Exception as error:  # noqa: BLE001 the record ends, the program goes on
                    fail(error)
            if is_kept:
                end_call(func, result)
            return result

    hide_from_dynamo(OpMode.__torch_dispatch__, is_deep=False)
    return OpMode()  # type: ignore[no-untyped-call]


def _has_ranks() -> bool:
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def _below_collectives(observe: Callable[..., None]) -> Callable[..., None]:
    """Looks at tensors without waiting for the collective operations that still compute them."""
    from torch._C import _DisableTorchDispatch

    def observe_below(*arguments: Any) -> None:
        with _DisableTorchDispatch():
            observe(*arguments)

    return observe_below


def _build_observer(rows: Rows, hooks: ModuleHooks, skip: tuple[str, ...]) -> Callable[..., None]:
    """What is called thousands of times in a step."""
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
            known[func] = str(func), _is_view(func)
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


def _is_view(func: Any) -> bool:
    """Whether it computes nothing: every result shows the values of an argument."""
    returns = func._schema.returns  # noqa: SLF001
    aliases = [each.alias_info for each in returns]
    return bool(returns) and all(each is not None and not each.is_write for each in aliases)


def push_below(mode: Any) -> None:
    """Put the mode below those of the program, which end in an order of their own."""
    _replace_modes(lambda modes: [mode, *modes])


def remove_mode(mode: Any) -> None:
    _replace_modes(lambda modes: [each for each in modes if each is not mode])


def _replace_modes(change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the stack of modes, lowest first."""
    from torch._C import _len_torch_dispatch_stack
    from torch.utils._python_dispatch import _pop_mode, _push_mode

    found = [_pop_mode() for _ in range(_len_torch_dispatch_stack())][::-1]
    for each in change(found):
        _push_mode(each)

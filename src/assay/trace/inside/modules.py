"""Hooks that record outputs of modules, their gradients and the loss in a traced step, and are removed after it."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from assay.trace.inside.compiled import hide_from_dynamo
from assay.trace.inside.digest import BLOCK, load_tables
from assay.trace.inside.naming import Names
from assay.trace.inside.rows import Rows

_GRAPHS = ("GraphModule", "<lambda>")  # classes of graphs that torch.compile makes; the second is of torch 2.11
_WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}  # types by their number of bytes
Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


class ModuleHooks:
    """The hooks of a process. `on_begin`, `on_end`: called when a call of the outermost module begins, and ends."""

    def __init__(self, rows: Rows, names: Names, settings: dict[str, Any], skip: tuple[str, ...]) -> None:
        self._rows, self._names, self._skip = rows, names, skip
        self._only, self._keep = tuple(settings.get("in") or ()), tuple(settings.get("keep") or ())
        self._perturbed = settings.get("perturbed")
        self._is_outer_only = settings.get("level") == "step"
        self._local = threading.local()
        self._handles: list[Any] = []
        self._is_held, self.is_watching = False, False
        self.enter: Callable[..., None] = _do_nothing  # the hook of a traced step
        self.leave: Callable[..., None] = _do_nothing
        self._plain: dict[str, Any] = {}
        self._calls: dict[Any, int] = {}
        self._without_grad: dict[str, list[int]] = {}
        self.backwards = 0  # number of backward passes, which reentrant checkpoints nest
        self.backward_path = ""  # path of the module whose gradient was recorded last
        self._guard: Guard = lambda function: function
        self.on_begin: Callable[[], None] = _do_nothing
        self.on_end: Callable[[Any, Any, Any], None] = _do_nothing

    @property
    def stack(self) -> list[Any]:
        """Return the modules that this thread is executing, with their paths."""
        found: list[Any] | None = self._local.__dict__.get("stack")
        if found is None:
            found = self._local.stack = []
        return found

    @property
    def path(self) -> str:
        """Return the path of the module that is being executed."""
        if self.backwards:
            return self.backward_path
        stack = self.stack
        return stack[-1][1] if stack else ""

    def watch_modules(self, guard: Guard) -> None:
        self._guard, self.is_watching = guard, True
        self.enter, self.leave = guard(self._enter), guard(self._leave)
        if not self._is_held:
            self._register(self.enter, self.leave)

    def hold(self, enter: Callable[..., None], leave: Callable[..., None]) -> None:
        """Install two hooks until `release`; the hooks call the attributes `enter` and `leave`."""
        self._is_held = True
        self._register(enter, leave)

    def _register(self, enter: Callable[..., None], leave: Callable[..., None]) -> None:
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(enter),
            module.register_module_forward_hook(leave, with_kwargs=True, always_call=True),
        ]
        self._plain["any"] = module._has_any_global_hook  # noqa: SLF001
        module._has_any_global_hook = lambda: False  # noqa: SLF001 it would warn of ours

    def watch_backward(self, guard: Guard) -> None:
        """Record the argument of `backward` as the loss, and count the backward passes that are running."""
        import torch

        add_losses = guard(self._add_losses)
        for name in ("backward", "grad"):
            plain = self._plain[name] = getattr(torch.autograd, name)
            setattr(torch.autograd, name, self._build_watcher(name, plain, add_losses))

    def _build_watcher(self, name: str, plain: Any, add_losses: Any) -> Any:
        def watch(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "backward" and not self.backwards:
                add_losses(tensors)
            self.backwards += 1
            try:
                return plain(tensors, *args, **kwargs)
            finally:
                self.backwards -= 1

        hide_from_dynamo(watch, is_deep=False)
        return watch

    def remove_modules(self) -> None:
        self.is_watching, self.enter, self.leave = False, _do_nothing, _do_nothing
        if not self._is_held:
            self.release()

    def release(self) -> None:
        from torch.nn.modules import module

        for handle in self._handles:
            handle.remove()
            module._global_forward_hooks_always_called.pop(handle.id, None)  # noqa: SLF001 torch forgets these
            module._global_forward_hooks_with_kwargs.pop(handle.id, None)  # noqa: SLF001
        if "any" in self._plain:
            module._has_any_global_hook = self._plain.pop("any")  # noqa: SLF001
        self._handles, self._is_held = [], False

    def remove(self) -> None:
        import torch

        self.remove_modules()
        for name in self._plain.keys() - {"any"}:
            setattr(torch.autograd, name, self._plain.pop(name))
        self._calls, self._without_grad = {}, {}
        self._local = threading.local()
        self.backward_path = ""

    def count(self, key: Any) -> int:
        """Return how often a key was counted before in this step, and count it."""
        number = self._calls.get(key, 0)
        self._calls[key] = number + 1
        return number

    def is_wanted(self, path: str) -> bool:
        return not self._only or any(fnmatchcase(path, each) for each in self._only)

    def _is_wrapper(self, module: Any) -> bool:
        """Return whether a module only calls another one that is recorded, or is a graph that torch.compile made."""
        kind = type(module).__name__
        is_graph = kind.startswith(_GRAPHS) and self._names.find_module(module).startswith(_GRAPHS)
        return is_graph or kind in _WRAPPERS

    def is_kept(self, path: str | None = None) -> bool:
        """Return whether whole tensors of a module are stored; without `path`, of the module that is being executed."""
        return bool(self._keep) and any(fnmatchcase(self.path if path is None else path, each) for each in self._keep)

    def _enter(self, module: Any, args: Any) -> None:
        if self._is_wrapper(module):
            return
        stack, path = self.stack, self._names.find_module(module)
        if not stack and not self.backwards:
            self.on_begin()
            kind = type(module).__name__
            call = self._calls.get(path, 0)
            for index, tensor in enumerate(find_tensors((args, _find_keywords()))):
                self._rows.add(("input", path, kind, f"input.{index}", call, None), tensor, (), self._skip)
        stack.append((module, path))

    def _leave(self, module: Any, args: Any, *rest: Any) -> None:
        """Leave a module. `rest`: keyword arguments and result; after an exception, only the result."""
        if self._is_wrapper(module):
            return
        result, kwargs = rest[-1], rest[0] if len(rest) > 1 else {}
        stack = self.stack
        while stack and stack.pop()[0] is not module:
            pass  # an exception has left this module
        path = self._names.find_module(module)
        if self.backwards:
            self._watch_again(path, module, result)
            return
        if self._perturbed is not None and not self.count("perturbed"):
            move_first(find_tensors(result), self._perturbed)
        if self.is_wanted(path) and not (stack and self._is_outer_only):
            inputs = tuple(self._rows.find(each) for each in find_tensors((args, kwargs))[:4])
            self._add_outputs(path, module, result, inputs)
        if not stack and len(rest) > 1:  # a call that failed does not count as a step
            self.on_end(module, args, result)

    def _add_outputs(self, path: str, module: Any, result: Any, inputs: tuple[int, ...]) -> None:
        kind, call = type(module).__name__, self.count(path)
        has_gradient = False
        is_kept = self.is_kept(path)
        for index, tensor in enumerate(find_tensors(result)):
            row = self._rows.add(("forward", path, kind, f"output.{index}", call, None), tensor, inputs, self._skip)
            if is_kept:
                self._rows.keep(row, tensor)
            has_gradient |= self._watch_tensor(path, kind, index, call, tensor, is_kept)
        if not has_gradient:
            self._without_grad.setdefault(path, []).append(call)

    def _watch_tensor(self, path: str, kind: str, index: int, call: int, tensor: Any, is_kept: bool) -> bool:
        if not tensor.requires_grad or tensor.is_leaf:
            return False
        key = ("backward", path, kind, f"output.{index}", call, None)
        forward = self._rows.find(tensor)

        def on_gradient(gradient: Any) -> None:
            if self.is_watching:
                known = self._rows.find(gradient)
                row = self._rows.add(key, gradient, (forward,))
                self.backward_path = path if not known else self.backward_path  # of equal outputs the innermost counts
                if is_kept:
                    self._rows.keep(row, gradient)

        tensor.register_hook(self._guard(on_gradient))
        return True

    def _watch_again(self, path: str, module: Any, result: Any) -> None:
        """Watch the second forward pass of a reentrant checkpoint: the first forward pass had no gradients."""
        calls = self._without_grad.get(path)
        tensors = find_tensors(result)
        if calls and any(each.requires_grad for each in tensors):
            call = calls.pop()
            for index, tensor in enumerate(tensors):
                self._watch_tensor(path, type(module).__name__, index, call, tensor, False)

    def _add_losses(self, tensors: Any) -> None:
        for index, tensor in enumerate(find_tensors(tensors)):
            key = ("loss", "", "", f"loss.{index}", self.count(f"loss.{index}"), None)
            self._rows.loss = self._rows.add(key, tensor, (self._rows.find(tensor),), self._skip)


def _do_nothing(*_args: Any) -> None:
    """Do nothing: the hook of a step that is not traced."""


def find_tensors(value: Any) -> list[Any]:
    """Return the tensors in nested lists, tuples, dictionaries and dataclasses, in order; each object only once."""
    import torch

    found, todo, seen = [], [value], {}
    while todo:
        each = todo.pop()
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif id(each) not in seen:
            seen[id(each)] = each  # store the object, so that no other one gets its id
            todo += reversed(_list_inner(each))
    return found


def _list_inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return list(value) if isinstance(value, (list, tuple)) else []


def _find_keywords() -> Any:
    """Return the keyword arguments of the module call from its frame: torch gives them to no global pre-hook."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    for _ in range(6):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_code.co_name in ("inner", "_call_impl"):
            return frame.f_locals.get("kwargs")
    return None


def _find_places(tensor: Any) -> int:
    """Return the number of last bits that autocast's type does not have: a change of them would be rounded away."""
    import torch

    device = tensor.device.type
    if tensor.dtype is not torch.float32 or not torch.is_autocast_enabled(device):
        return 0
    return {torch.bfloat16: 16, torch.float16: 13}.get(torch.get_autocast_dtype(device), 0)


def move_first(tensors: list[Any], number: int) -> bool:
    """Add noise: move each element of the first floating-point tensor by one unit in the last place (of the type that
    autocast uses, if it is on), up or down by a pattern that `number` chooses."""
    import torch

    found = next((each for each in tensors if each.is_floating_point() and each.element_size() in _INTEGERS), None)
    if found is None or not found.numel():
        return False
    flat = found.detach().reshape(-1)
    pattern = (load_tables(flat.device)[0] >> (number % 24 + 4)) & 1
    repeats = -(-flat.numel() // BLOCK)
    steps = pattern.mul(2).sub_(1).repeat(repeats)[: flat.numel()]
    bits = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
    moved = (bits + (steps.to(bits.dtype) << _find_places(flat))).view(flat.dtype)
    keep = torch.isfinite(flat) & torch.isfinite(moved) & (flat != 0)
    with torch.inference_mode(found.is_inference()):
        found.data.copy_(torch.where(keep, moved, flat).view(found.shape))  # autograd ignores `data`
    return True

"""Records the steps of a torch program that are asked for. On other steps nothing is registered but the counter."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import weakref
from fnmatch import fnmatchcase
from typing import Any

from assay.trace.inside.digest import SLOT, digest_into, plain_tensor
from assay.trace.inside.files import TraceFiles, build_row
from assay.trace.inside.naming import Names, find_source
from assay.trace.inside.state import describe_group, describe_program, hash_random, load_flags
from assay.trace.inside.weights import hash_rows

_SLOTS = 1 << 15  # of 304 bytes: 10 MB on the device, and as much for the copy


class Recorder:
    """One for each process. `settings`: steps, level, modules (patterns), keep (patterns), perturbed."""

    def __init__(self, parent: str, settings: dict[str, Any]) -> None:
        self.level = settings.get("level", "module")
        self.steps = frozenset(settings.get("steps", (1,)))
        self.only = tuple(settings.get("in", ()))
        self.step, self.is_active = 1, False
        self._parent, self._settings = parent, settings
        self._files: TraceFiles | None = None
        self._names = Names()
        self._points: dict[Any, int] = {}
        self._new_points: list[dict[str, Any]] = []
        self._pending: list[tuple[int, int, tuple[int, ...], int, int]] = []  # point, flags, inputs, count, slot
        self._rows = 0
        self._slots: Any = None
        self._used = 0
        self._known: dict[int, tuple[Any, int, int]] = {}  # id of a tensor -> itself, its version, its row
        self._calls: dict[Any, int] = {}
        self._stack: list[Any] = []
        self._handles: list[Any] = []
        self._backwards = 0
        self._loss_row: int | None = None
        self._groups: list[dict[str, Any]] = []
        self._random = ""
        self._stepped: set[int] = set()
        self._optimisers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_weights = False
        self._skip = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(sys.modules["torch"].__file__ or ""))
        self._pid = os.getpid()

    # ------------------------------------------------------------ beginning and end

    def install(self) -> None:
        """Count optimisers' steps; everything else is registered when a traced step begins."""
        from torch.optim import optimizer

        self._always = [
            optimizer.register_optimizer_step_pre_hook(self._before_optimiser),
            optimizer.register_optimizer_step_post_hook(self._after_optimiser),
        ]
        os.register_at_fork(after_in_child=self.abandon)
        atexit.register(self.close)
        self._begin_step()

    def abandon(self) -> None:
        """A forked child records nothing."""
        self._leave()
        self.steps = frozenset()
        self._files = None
        self._pid = 0

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        self._leave()
        if self._pending:
            self._flush(is_whole=False)
        if self._files is not None:
            self._files.append_lines("steps.jsonl", [{"end": True}])
            self._files.close()
            self._files = None
        self.steps = frozenset()

    def _begin_step(self) -> None:
        if self.step not in self.steps or self.is_active:
            return
        self.is_active = True
        self._random = hash_random()
        if self.level == "step":
            return
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._enter_module),
            module.register_module_forward_hook(self._leave_module, with_kwargs=False, always_call=True),
        ]
        self._watch_backward()

    def _leave(self) -> None:
        """Remove every hook."""
        self.is_active = False
        for handle in self._handles:
            handle.remove()
        self._handles, self._stack = [], []
        if self._plain_backward is not None:
            import torch

            torch.autograd.backward, self._plain_backward = self._plain_backward, None

    _plain_backward: Any = None

    def _end_step(self, *, skipped: bool | None = False) -> None:
        if self.is_active:
            self._leave()
            self._flush(is_whole=True, skipped=skipped)
        self.step += 1
        self._calls, self._known, self._stepped = {}, {}, set()
        self._begin_step()

    # ------------------------------------------------------------ modules

    def _enter_module(self, module: Any, args: Any) -> None:
        if not self._stack and not self._backwards:
            path = self._names.find_module(module)
            for index, tensor in enumerate(_find_tensors(args)):
                self._record("input", path, module, f"input.{index}", self._count(path), tensor)
        self._stack.append(module)

    def _leave_module(self, module: Any, args: Any, result: Any) -> None:
        if self._stack:
            self._stack.pop()
        if self._backwards or type(module).__name__ == "OptimizedModule":
            return
        path = self._names.find_module(module)
        if self.only and not any(fnmatchcase(path, each) for each in self.only):
            return
        call = self._calls[path] = self._count(path) + 1
        inputs = tuple(self._find_row(each) for each in _find_tensors(args))
        for index, tensor in enumerate(_find_tensors(result)):
            row = self._record("forward", path, module, f"output.{index}", call - 1, tensor, inputs)
            if tensor.requires_grad and not tensor.is_leaf:
                point = ("backward", path, module, f"output.{index}", call - 1)
                tensor.register_hook(lambda gradient, point=point, row=row: self._on_gradient(point, gradient, row))

    def _count(self, path: str) -> int:
        return self._calls.get(path, 0)

    def _on_gradient(self, point: Any, gradient: Any, row: int) -> None:
        if self.is_active:
            self._record(*point, gradient, (row,))

    def _watch_backward(self) -> None:
        import torch

        plain = self._plain_backward = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._backwards:
                for index, tensor in enumerate(_find_tensors(tensors)):
                    name = f"loss.{index}"
                    call = self._calls[name] = self._count(name) + 1
                    self._loss_row = self._record("loss", "", None, name, call - 1, tensor, (self._find_row(tensor),))
            self._backwards += 1
            try:
                return plain(tensors, *args, **kwargs)
            finally:
                self._backwards -= 1

        torch.autograd.backward = backward

    # ------------------------------------------------------------ optimisers

    def _before_optimiser(self, optimiser: Any, _args: Any, _kwargs: Any) -> None:
        if not self.is_active:
            return
        for index, parameter in _list_parameters(optimiser):
            module, name = self._names.find_parameter(parameter, f"parameter.{index}")
            if parameter.grad is not None:
                self._record("gradient", module, None, name, 0, parameter.grad)
        self._groups = [describe_group(each) for each in optimiser.param_groups]
        self._write_weights(optimiser)

    def _after_optimiser(self, optimiser: Any, _args: Any, _kwargs: Any) -> None:
        self._optimisers.add(optimiser)
        if self.is_active:
            for index, parameter in _list_parameters(optimiser):
                module, name = self._names.find_parameter(parameter, f"parameter.{index}")
                self._record("parameter", module, None, name, 0, parameter)
                for key, value in optimiser.state.get(parameter, {}).items():
                    if hasattr(value, "untyped_storage"):
                        self._record("optimiser", module, None, f"{name}.{key}", 0, value)
        self._stepped.add(id(optimiser))
        self._end_step()

    def _write_weights(self, optimiser: Any) -> None:
        if self._has_weights:
            return
        self._has_weights = True
        lines, offset, data = [], 0, b""
        for index, parameter in _list_parameters(optimiser):
            module, name = self._names.find_parameter(parameter, f"parameter.{index}")
            found = hash_rows(parameter)
            count = len(found) // 8
            lines.append(
                {"module": module, "name": name, "shape": list(parameter.shape), "rows": count, "offset": offset}
            )
            offset, data = offset + count, data + found
        files = self._open_files()
        files.append("weights.bin", data)
        files.append_lines("weights.jsonl", lines)

    # ------------------------------------------------------------ rows

    def _record(
        self, phase: str, path: str, module: Any, name: str, call: int, tensor: Any, inputs: tuple[int, ...] = ()
    ) -> int:
        """Digest a tensor; returns its row's number + 1."""
        kind = type(module).__name__ if module is not None else ""
        key = (phase, path, kind, name, call, tensor.shape, tensor.dtype, tensor.device)
        point = self._points.get(key)
        if point is None:
            point = self._add_point(key)
        values, flags = plain_tensor(tensor)
        slot = self._take_slot(tensor.device)
        if values is not None:
            digest_into(values, self._slots[slot])
        self._pending.append((point, flags, inputs, tensor.numel(), slot))
        self._rows += 1
        if phase in ("input", "forward"):
            self._known[id(tensor)] = (tensor, tensor._version, self._rows)  # noqa: SLF001
        return self._rows

    def _find_row(self, tensor: Any) -> int:
        known = self._known.get(id(tensor))
        return known[2] if known is not None and known[0] is tensor else 0

    def _add_point(self, key: Any) -> int:
        phase, path, kind, name, call, shape, dtype, device = key
        self._points[key] = len(self._points)
        facts = {"phase": phase, "module": path, "kind": kind, "name": name, "call": call, "op": None}
        facts |= {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "device": str(device)}
        source = find_source(self._skip) if phase in ("input", "forward", "loss") else None
        self._new_points.append({**facts, "placement": None, "source": source})
        return self._points[key]

    def _take_slot(self, _device: Any) -> int:
        import torch

        if self._slots is None:
            self._slots = torch.zeros(_SLOTS, SLOT.size // 8, dtype=torch.int64)
        if self._used == _SLOTS:
            self._flush(is_whole=False)
        self._used += 1
        return self._used - 1

    def _flush(self, *, is_whole: bool, skipped: bool | None = False) -> None:
        files = self._open_files()
        data = ctypes.string_at(self._slots.data_ptr(), self._used * SLOT.size) if self._used else b""
        files.append_lines("points.jsonl", self._new_points)
        rows = [
            build_row(point, self.step, flags, inputs, count, data[slot * SLOT.size : (slot + 1) * SLOT.size])
            for point, flags, inputs, count, slot in self._pending
        ]
        files.append("rows.bin", b"".join(rows))
        files.rows += len(rows)
        loss = None
        if self._loss_row is not None:
            first = files.rows - len(rows)
            loss = SLOT.unpack_from(data, self._pending[self._loss_row - 1 - first][4] * SLOT.size)[3]
        self._new_points, self._pending, self._used = [], [], 0
        if is_whole:
            facts = {"step": self.step, "loss": loss, "groups": self._groups, "random": self._random}
            facts |= {"flags": load_flags(), "skipped": skipped, "rows": files.rows}
            files.append_lines("steps.jsonl", [facts])
            self._loss_row = None

    def _open_files(self) -> TraceFiles:
        if self._files is None:
            facts = describe_program(self._settings)
            self._files = TraceFiles(self._parent, facts["rank"], facts)
        return self._files


def start_recorder(parent: str, settings: dict[str, Any], note: Any) -> None:
    """Record what this process does from now on. `note` is told what goes wrong."""
    Recorder(parent, settings).install()


def _find_tensors(value: Any) -> list[Any]:
    """The tensors in nested lists, tuples, dictionaries and objects with fields, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _find_tensors(each)]
    return []


def _list_parameters(optimiser: Any) -> list[tuple[int, Any]]:
    return list(enumerate(parameter for group in optimiser.param_groups for parameter in group["params"]))

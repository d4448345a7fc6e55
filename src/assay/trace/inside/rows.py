"""Collects the rows of a step, with digests in buffers of a fixed size, and writes the rows to the files."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from assay.trace.inside.digest import NO_VALUES, SLOT, WORDS, Where, digest_cpu, digest_into, hash_rows, plain_tensor
from assay.trace.inside.files import TraceFiles, build_row
from assay.trace.inside.placement import Placements

_SLOTS = 1 << 15  # slots of 304 bytes: 10 MB on a device, and 10 MB for the copy
_NOTHING = bytes(SLOT.size)
_RAW = ("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


class DeviceSlots:
    """The digests of one device. Digests are copied once a step; a copy is waited for only before the next copy."""

    def __init__(self, device: Any) -> None:
        import torch

        self._is_cuda = device.type == "cuda"
        self.data = torch.zeros(_SLOTS, WORDS, dtype=torch.int64, device=device)
        self._host = torch.zeros(_SLOTS, WORDS, dtype=torch.int64, device="cpu", pin_memory=self._is_cuda)
        self._event: Any = torch.cuda.Event() if self._is_cuda else None  # type: ignore[no-untyped-call]
        self.used = self._copied = 0

    def copy(self) -> None:
        self._host[: self.used].copy_(self.data[: self.used], non_blocking=self._is_cuda)
        if self._is_cuda:
            self._event.record()
        self.data[: self.used].zero_()
        self._copied, self.used = self.used, 0

    def load(self) -> bytes:
        if self._is_cuda:
            self._event.synchronize()
        return ctypes.string_at(self._host.data_ptr(), self._copied * SLOT.size)


class Rows:
    """Points, rows and parameters' hashes of one process. A row is identified by its number, counted from 1."""

    def __init__(self, open_files: Callable[[], TraceFiles], placements: Placements) -> None:
        self._open_files, self._placements = open_files, placements
        self._points: dict[Any, tuple[int, Where]] = {}
        self._new_points: list[dict[str, Any]] = []
        self._pending: list[tuple[int, int, tuple[int, ...], int, Any]] = []  # point, flags, inputs, count, digest
        self._waiting: Any = None  # copied but not yet written: rows, lines of points, facts
        self._slots: dict[Any, DeviceSlots] = {}
        self._batch: list[tuple[Any, DeviceSlots, int, int]] | None = None  # tensors that one launch will digest
        self._known: dict[int, tuple[Any, int, int, Any]] = {}  # id of a tensor -> itself, version, row, digest
        self._weights: list[tuple[dict[str, Any], Any]] = []
        self._kept: dict[str, int] = {}  # hash of a whole tensor -> its offset in `kept.bin`
        self._kept_bytes = 0
        self.count = 0
        self.loss: int | None = None
        self.problem = ""
        self.is_silent = False  # the step only gets noise, and is not recorded
        self.step = 1

    def add(
        self, key: tuple[str, str, str, str, int, str | None], tensor: Any, inputs: tuple[int, ...] = (), skip: Any = ()
    ) -> int:
        """Digest a tensor. `key`: phase, module, kind, name, call, op. `skip`: files that are not the program's."""
        if self.is_silent or (tensor.is_cuda and self._is_refused()):
            return 0
        parts = getattr(tensor, "placements", None) if type(tensor).__name__ == "DTensor" else None
        shape = (tensor.size(0), -1) if tensor.is_nested else tensor.shape  # nested parts differ in length
        whole = (*key, shape, tensor.dtype, tensor.device, parts)
        known = self._points.get(whole)
        if known is None:
            placement, where = self._placements.find(key, tensor)
            known = self._points[whole] = len(self._points), where
            facts: dict[str, Any] = dict(zip(("phase", "module", "kind", "name", "call", "op"), key, strict=True))
            facts |= {"shape": list(shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            facts |= {"device": str(tensor.device), "placement": placement}
            self._new_points.append({**facts, "source": find_source(skip) if skip else None})
        point, where = known
        digest = self._find_digest(tensor, where)
        self._pending.append((point, digest[1], inputs[:4], digest[2], digest[0]))
        self.count += 1
        self.remember(tensor, self.count, (digest, where))
        return self.count

    def begin_batch(self) -> None:
        """Collect tensors until `end_batch`, which digests them with few kernels; tensors must not change before it."""
        self._batch = []

    def end_batch(self) -> None:
        found, self._batch = self._batch or [], None
        for slots in {id(each[1]): each[1] for each in found}.values():
            load_kernels().digest_many([(each[0], *each[2:]) for each in found if each[1] is slots], slots)

    def _is_refused(self) -> bool:
        """Return whether a CUDA graph is being captured: the recorder's kernels would be replayed with the graph."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            what = "a CUDA graph was captured in a traced step: what it computes is not recorded"
            self.problem = self.problem or what
            return True
        return False

    def remember(self, tensor: Any, row: int, digest: Any = None) -> None:
        version = -1 if tensor.is_inference() else tensor._version  # noqa: SLF001
        self._known[id(tensor)] = (weakref.ref(tensor), version, row, digest)

    def forget(self, tensor: Any) -> None:
        """Forget a tensor: compiled code may write to a tensor again without giving it a new version."""
        self._known.pop(id(tensor), None)

    def find(self, tensor: Any) -> int:
        """Return the row of the tensor's values; 0 if it is not known."""
        known = self._known.get(id(tensor))
        return known[2] if known is not None and known[0]() is tensor else 0

    def _find_digest(self, tensor: Any, where: Where) -> tuple[Any, int, int]:
        """Return digest (bytes, or device and slot), flags and element count. An unchanged tensor is digested once."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and not tensor.is_inference() and known[3] is not None:
            digest, place = known[3]
            if place == where and known[1] == tensor._version:  # noqa: SLF001
                return digest  # type: ignore[no-any-return]
        try:
            return self._digest(tensor, where)
        except Exception as error:  # noqa: BLE001 an unknown kind of tensor must not stop the others
            self.problem = self.problem or f"{type(tensor).__name__}: {type(error).__name__}: {error}"
            return _NOTHING, NO_VALUES, 0

    def _digest(self, tensor: Any, where: Where) -> tuple[Any, int, int]:
        local = tensor._local_tensor if type(tensor).__name__ == "DTensor" else tensor  # noqa: SLF001 no operation
        values, flags = plain_tensor(local)
        count = local.numel()
        if values is None or not count:
            return _NOTHING, flags, count
        if values.device.type == "cpu":
            return digest_cpu(values, where), flags, count
        slots = self._slots.get(values.device)
        if slots is None:
            slots = self._slots[values.device] = DeviceSlots(values.device)
        if slots.used == _SLOTS:
            self.write()
        slots.used += 1
        kernels = load_kernels() if values.is_cuda else None
        if kernels is None or not kernels.can_digest(values, where):
            digest_into(values, slots.data[slots.used - 1], where)
        elif self._batch is not None:
            self._batch.append((values, slots, slots.used - 1, where[0]))
        else:
            kernels.digest_into(values, slots, slots.used - 1, where[0])
        return (values.device, slots.used - 1), flags, count

    def add_weights(self, parameters: list[tuple[Any, str, str]]) -> None:
        """Hash the rows of all parameters, once."""
        for parameter, module, name in parameters:
            values, _ = plain_tensor(parameter.to_local() if type(parameter).__name__ == "DTensor" else parameter)
            if values is not None and values.numel():
                facts = {"module": module, "name": name, "shape": list(parameter.shape)}
                kernels = load_kernels() if values.is_cuda and values.is_floating_point() else None
                self._weights.append((facts, (kernels.hash_rows if kernels else hash_rows)(values)))

    def keep(self, row: int, tensor: Any) -> None:
        """Write a whole tensor, which waits for the device."""
        facts = self.write_tensor(tensor) if row else None
        if facts is not None:
            self.append_line("kept.jsonl", {"row": row, **facts})

    def write_tensor(self, tensor: Any) -> dict[str, Any] | None:
        """Append a tensor's values to `kept.bin`, once; return their facts, or None for a type that is not stored."""
        values, _ = plain_tensor(tensor.detach())
        name = str(values.dtype).removeprefix("torch.") if values is not None else ""
        if name not in _RAW:
            return None
        values = values.contiguous().cpu()
        size = values.numel() * values.element_size()
        data = ctypes.string_at(values.data_ptr(), size) if size else b""
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if digest not in self._kept:
            self._open_files().append("kept.bin", data)
            self._kept[digest] = self._kept_bytes
            self._kept_bytes += size
        facts = {"dtype": name, "shape": list(values.shape), "offset": self._kept[digest], "bytes": size}
        return {**facts, "hash": digest}

    def append_line(self, name: str, facts: dict[str, Any]) -> None:
        self._open_files().append_lines(name, [facts])

    def end_step(self, facts: dict[str, Any]) -> None:
        """Write the rows of the previous step, and start the copy of this step's digests."""
        self.flush()
        self._start_copy(facts)
        if not any(slots.data.is_cuda for slots in self._slots.values()):
            self.flush()
        self._known, self.loss = {}, None

    def write(self) -> None:
        """Write all rows now, because the buffer is full or the process ends."""
        if self._batch:
            self.end_batch()
            self.begin_batch()
        self.flush()
        self._start_copy(None)
        self.flush()

    def _start_copy(self, facts: dict[str, Any] | None) -> None:
        self._weights = [(each, hashes.to("cpu", non_blocking=True)) for each, hashes in self._weights]
        for slots in self._slots.values():
            slots.copy()  # the event after this copy also marks the end of the copies of weights
        loss = self._pending[self.loss - 1 - self.count][4] if facts and self.loss else None  # index from the end
        self._waiting = (self.step, self._pending, self._new_points, self._weights, facts, loss, self.count)
        self._pending, self._new_points, self._weights = [], [], []

    def flush(self) -> None:
        if self._waiting is None:
            return
        (step, pending, points, weights, facts, loss, count), self._waiting = self._waiting, None
        files = self._open_files()
        data = {device: slots.load() for device, slots in self._slots.items()}
        files.append_lines("points.jsonl", points)
        rows = [
            build_row(point, step, flags, inputs, size, _cut(digest, data))
            for point, flags, inputs, size, digest in pending
        ]
        files.append("rows.bin", b"".join(rows))
        if weights:
            files.append_weights(weights)
        if facts is not None:
            value = SLOT.unpack(_cut(loss, data))[3] if loss is not None else None
            files.append_lines("steps.jsonl", [{"step": step, "loss": value, **facts, "rows": count}])


def _cut(digest: Any, data: dict[Any, bytes]) -> bytes:
    if isinstance(digest, bytes):
        return digest
    device, number = digest
    return data[device][number * SLOT.size : (number + 1) * SLOT.size]


@functools.cache
def load_kernels() -> Any:
    """Load the kernels; None if Triton is not installed, and torch operations are used instead of kernels."""
    from assay.trace.inside import kernels

    try:
        kernels.load_kernels()
    except ImportError:
        return None
    return kernels


def find_source(skip: tuple[str, ...]) -> str | None:
    """Find the line of the program that is executed, in the innermost frame whose file is not below `skip`."""
    frame: Any = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(skip) and not file.startswith("<"):
            return f"{_shorten(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _shorten(file: str) -> str:
    """Return a path relative to the working directory, or to the folder of installed packages."""
    try:
        here = os.getcwd()
    except OSError:  # the working directory was removed
        here = ""
    roots = sorted({here, *sys.path}, key=len, reverse=True)
    return next((os.path.relpath(file, root) for root in roots if root and file.startswith(f"{root}{os.sep}")), file)

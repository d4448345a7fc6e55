"""Finds the part of a whole tensor that a process has, by DTensors, DDP and FSDP, or a declaration."""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import Any

from assay.trace.inside.digest import WHOLE, Where

_OF_PARAMETERS = ("parameter", "gradient", "optimiser")
_NOTATION = re.compile(r"([SI])\((-?\d+)\)|R|P\((?:sum|avg)\)")
NOTATION = "S(0) (parts of a dimension), I(0) (rows in turn), R (the same on all ranks), P(sum) or P(avg)"


def is_placement(text: str) -> bool:
    return _NOTATION.fullmatch(text) is not None


class Placements:
    """Placements of tensors. `declared`: patterns and placements; the first match counts. `is_parallel`: DDP, FSDP."""

    def __init__(self, declared: list[tuple[str, str]]) -> None:
        self._declared = declared
        self.is_parallel = False

    def find(self, key: tuple[Any, ...], tensor: Any) -> tuple[dict[str, Any] | None, Where]:
        """Return the facts of a point, and the positions of this process's values in the whole tensor."""
        if type(tensor).__name__ == "DTensor":
            return _describe_dtensor(tensor)
        rank, world = (find_group() if self._declared or self.is_parallel else None) or (0, 1)
        if world < 2:
            return None, WHOLE
        phase, module, _, name, *_ = key
        is_own = phase in _OF_PARAMETERS  # a pattern matches `module:weight`
        own = f"{module}:{name.split('.')[0]}" if is_own else phase if phase in ("input", "loss") else module
        facts: dict[str, Any] | None = None
        where = WHOLE
        if self.is_parallel:  # in DDP and FSDP each rank has a part of the batch, and the mean over it as loss
            text = "R" if is_own else "P(avg)" if phase == "loss" else "S(0)"
            facts, where = _place(text, tensor.shape, rank, world)
            facts["assumed"] = True
        for pattern, text in self._declared:
            if fnmatchcase(own, pattern) and (":" in pattern) == is_own and (tensor.shape or text[0] not in "SI"):
                facts, where = _place(text, tensor.shape, rank, world)
                break
        if facts and self.is_parallel and phase == "backward":
            facts["mean"] = True  # each rank has the gradients of its own mean loss
        return facts, where


def find_group() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, if torch has a process group."""
    import torch

    ranks = torch.distributed
    has_group = ranks.is_available() and ranks.is_initialized()
    return (ranks.get_rank(), ranks.get_world_size()) if has_group else None


def _place(text: str, shape: Any, rank: int, world: int) -> tuple[dict[str, Any], Where]:
    found = _NOTATION.fullmatch(text)
    if found is None or not found[1] or not shape:
        return {"placements": ["R" if found is not None and found[1] else text]}, WHOLE
    dim = int(found[2]) % len(shape)
    inner = math.prod(shape[dim + 1 :])
    whole = [size * world if at == dim else size for at, size in enumerate(shape)]
    facts = {"placements": [text], "global": whole}
    if found[1] == "I":
        return facts if dim == 0 else {"placements": [text]}, (rank * inner, inner, world * inner)
    run = shape[dim] * inner
    return facts, (rank * run, run if dim else WHOLE[1], run * world)


def _describe_dtensor(tensor: Any) -> tuple[dict[str, Any], Where]:
    """Describe a DTensor. `global`: the shape of the whole tensor, if indices refer to it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = tensor.device_mesh
    facts: dict[str, Any] = {
        "placements": [str(each) for each in tensor.placements],
        "mesh": list(mesh.shape),
        "coordinate": mesh.get_coordinate(),
    }
    if any(type(each).__name__ not in ("Shard", "Replicate", "Partial") for each in tensor.placements):
        return facts, WHOLE
    local, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    cut = [dim for dim, size in enumerate(tensor.shape) if local[dim] != size]
    if cut and any(dim in cut for dim in range(1, cut[-1])):
        return facts, WHOLE  # the part has runs of runs, which `Where` cannot describe
    strides = [math.prod(tensor.shape[dim + 1 :]) for dim in range(len(local))]
    start = sum(first * stride for first, stride in zip(offset, strides, strict=True))
    facts["global"] = list(tensor.shape)
    if not cut or cut == [0]:
        return facts, (start, *WHOLE[1:])
    return facts, (start, math.prod(local[cut[-1] :]), math.prod(tensor.shape[cut[-1] :]))

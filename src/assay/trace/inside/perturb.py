"""Noise: the first floating-point activation of a step moved by one unit in the last place."""

from __future__ import annotations

from typing import Any

from assay.trace.inside.digest import BLOCK, load_tables

_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}


def move_first(tensors: list[Any], number: int) -> bool:
    """Move each element of the first floating-point tensor up or down, by a pattern that `number` chooses."""
    import torch

    found = next((each for each in tensors if each.is_floating_point() and each.element_size() in _INTEGERS), None)
    if found is None or not found.numel():
        return False
    flat = found.detach().reshape(-1)
    pattern = (load_tables(flat.device)[0] >> (number % 24 + 4)) & 1
    repeats = -(-flat.numel() // BLOCK)
    steps = pattern.mul(2).sub_(1).repeat(repeats)[: flat.numel()]
    bits = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
    moved = (bits + steps.to(bits.dtype)).view(flat.dtype)
    keep = torch.isfinite(flat) & torch.isfinite(moved) & (flat != 0)
    found.data.copy_(torch.where(keep, moved, flat).view(found.shape))  # no operation of autograd sees it
    return True

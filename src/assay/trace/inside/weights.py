"""One hash for each row of a parameter, of values rounded to bf16: it finds a layer again under another name."""

from __future__ import annotations

import ctypes
from typing import Any

from assay.trace.inside.digest import BLOCK, block_factors, load_tables, plain_tensor

_PART = 1 << 20  # elements at once


def hash_rows(parameter: Any) -> bytes:
    """Hashes of 8 bytes; a parameter of one dimension is one row. The index of an element counts from its row."""
    import torch

    values, _ = plain_tensor(parameter.detach())
    if values is None or not values.numel():
        return b""
    with torch.no_grad():
        rows = values.reshape(values.shape[0] if values.dim() > 1 else 1, -1)
        many = max(1, _PART // rows.shape[1])
        found = torch.cat([_hash_part(part) for part in rows.split(many)]).cpu()
    return ctypes.string_at(found.data_ptr(), 8 * found.numel())


def _hash_part(rows: Any) -> Any:
    import torch

    words = rows.to(torch.bfloat16).contiguous().view(torch.int16)
    table, odd, _ = load_tables(words.device)
    total = torch.zeros(len(words), dtype=torch.int64, device=words.device)
    for number, part in enumerate(words.split(BLOCK, 1)):
        mixed = (part.to(torch.int32) ^ table[: part.shape[1]]).to(torch.int64)
        total += (mixed * odd[: part.shape[1]]).sum(1) * block_factors(number)[0]
    return total

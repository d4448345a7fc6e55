"""A tensor as 304 bytes: hash, counts, sums and a linear sketch, by torch operations that work on every device.

For element i of the whole tensor let j = i mod 65536 and b = i div 65536.
    hash          Σ g(b) · h(j) · (bits(x_i) XOR t(j)) mod 2^64, of fixed pseudo-random words t, odd h and odd g
    sketch[i%64]  Σ s(j) · s(b) · x_i in float32, of fixed pseudo-random signs s
`bits` is the element as a signed whole number of at most 32 bits; an element of 64 bits is two of them. What is not
finite is counted, and is 0 in every sum.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from functools import lru_cache
from typing import Any

BLOCK = 1 << 16
BUCKETS = 64
SLOT = struct.Struct("<QQQddd64f")  # hash, not finite, zeros, sum, sum of squares, largest, sketch
WORDS = SLOT.size // 8
NOT_PLAIN, NO_VALUES = 1, 2  # flags of a row
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_ODD = 0x9E3779B9
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int32"}
_TINY = 2  # elements: Python is faster there than torch
_PART = 1 << 20  # elements of rows at once
_FLOAT_LIMIT = 3.4028234663852886e38


def mix32(x: Any) -> Any:
    """Mix 32 bits; x is a number, or a tensor of int64."""
    x = ((x >> 16) ^ x) * 0x21F0AAAD & _U32
    x = ((x >> 15) ^ x) * 0x735A2D97 & _U32
    return (x >> 15) ^ x


@lru_cache(4096)
def block_factors(number: int) -> tuple[int, float]:
    """The odd multiplier of a block's hash, as a signed number, and the sign of its sketch."""
    x = (number + 1) * 0x9E3779B97F4A7C15 & _U64
    x = ((x >> 30) ^ x) * 0xBF58476D1CE4E5B9 & _U64
    x = (((x >> 27) ^ x) * 0x94D049BB133111EB & _U64) | 1
    return _signed(x, 64), 1.0 - 2.0 * (x >> 63)


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


@lru_cache(16)
def load_tables(device: Any) -> tuple[Any, Any, Any]:
    """t (int32), h (int64) and s (float32) for the elements of a block: one megabyte."""
    import torch

    word = mix32(torch.arange(1, BLOCK + 1, dtype=torch.int64))
    odd = mix32(word ^ _ODD) | 1
    sign = 1.0 - 2.0 * ((word >> 7) & 1).to(torch.float32)
    return _wrap(word).to(torch.int32).to(device), _wrap(odd).to(device), sign.to(device)


@lru_cache(4096)
def cut_tables(device: Any, length: int) -> tuple[Any, Any, Any]:
    table, odd, sign = load_tables(device)
    return table[:length], odd[:length], sign[:length]


@lru_cache(64)
def load_scratch(_thread: int, dtype: Any) -> Any:
    """Room for a block of intermediate values; each thread has its own."""
    import torch

    return torch.empty(BLOCK, dtype=dtype)


def _wrap(words: Any) -> Any:
    return words - ((words >> 31) << 32)  # unsigned to signed


def plain_tensor(tensor: Any) -> tuple[Any, int]:
    """The values of any tensor as a dense one of real numbers, and flags; None: it has no values here."""
    import torch

    if tensor.device.type == "meta" or type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
        return None, NO_VALUES
    flags = 0
    if tensor.is_nested:
        parts = [tensor.values()] if tensor.layout is torch.jagged else tensor.unbind()
        tensor, flags = torch.cat([each.reshape(-1) for each in parts]), NOT_PLAIN
    if tensor.layout is not torch.strided:
        is_coo = tensor.layout is torch.sparse_coo
        tensor, flags = tensor._values() if is_coo else tensor.to_dense(), NOT_PLAIN  # noqa: SLF001 no public one
    if tensor.is_quantized:
        tensor, flags = tensor.int_repr(), NOT_PLAIN
    if tensor.is_complex():
        tensor, flags = torch.view_as_real(tensor.resolve_conj()), NOT_PLAIN
    return (tensor.resolve_neg() if tensor.is_neg() else tensor), flags


def digest_cpu(tensor: Any) -> bytes:
    """The digest of a dense tensor of real numbers in the memory of this process."""
    import torch

    flat = tensor.detach().contiguous().view(-1)
    if flat.numel() <= _TINY:
        return digest_numbers(flat)
    words = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
    hashed = sum(_hash_block(part, number).item() for number, part in enumerate(words.split(BLOCK))) & _U64
    sketch, counts, sums = torch.zeros(BUCKETS), [0, 0], [0.0, 0.0, 0.0]
    for number, part in enumerate(flat.split(BLOCK)):
        values = part if part.dtype in (torch.float32, torch.float64) else part.to(torch.float32)
        total = values.sum(dtype=torch.float64).item()
        if not math.isfinite(total):
            finite = torch.isfinite(values)
            bad = len(values) - int(finite.sum())
            counts[0], counts[1] = counts[0] + bad, counts[1] - bad
            values = torch.where(finite, values, 0)
            total = values.sum(dtype=torch.float64).item()
        spare = load_scratch(threading.get_ident(), values.dtype)[: len(values)]
        counts[1] += len(values) - int(torch.ne(values, 0, out=spare).sum(dtype=torch.float64).item())
        sums[0], sums[1] = sums[0] + total, sums[1] + torch.dot(values, values).item()
        sums[2] = max(sums[2], torch.abs(values, out=spare).amax().item())
        _add_sketch(values, number, sketch)
    head = struct.pack("<QQQddd", hashed, *counts, *sums)
    return head + ctypes.string_at(sketch.data_ptr(), 4 * BUCKETS)


def digest_into(tensor: Any, slot: Any) -> None:
    """Write the digest to a slot of zeros, 38 numbers of int64 on the tensor's device, which nothing waits for."""
    import torch

    flat = tensor.detach().contiguous().view(-1)
    words = flat.view(getattr(torch, _INTEGERS[flat.element_size()]))
    doubles, sketch = slot[3:6].view(torch.float64), slot[6:].view(torch.float32)
    for number, part in enumerate(words.split(BLOCK)):
        slot[0] += _hash_block(part, number)
    for number, part in enumerate(flat.split(BLOCK)):
        values = part if part.dtype in (torch.float32, torch.float64) else part.to(torch.float32)
        finite = torch.isfinite(values)
        slot[1] += (~finite).sum()
        slot[2] += (values == 0).sum()
        values = torch.where(finite, values, 0)
        doubles[0] += values.sum(dtype=torch.float64)
        doubles[1] += torch.dot(values, values)
        doubles[2] = torch.maximum(doubles[2], values.abs().amax())
        _add_sketch(values, number, sketch)


def _hash_block(words: Any, number: int) -> Any:
    import torch

    table, odd, _ = cut_tables(words.device, len(words))
    mixed = torch.bitwise_xor(words if words.dtype == torch.int32 else words.to(torch.int32), table)
    if words.device.type != "cpu":
        return (mixed.to(torch.int64) * odd).sum() * block_factors(number)[0]
    spare = load_scratch(threading.get_ident(), torch.int64)[: len(words)]
    return spare.copy_(mixed).mul_(odd).sum().mul_(block_factors(number)[0])


def _add_sketch(values: Any, number: int, sketch: Any) -> None:
    import torch

    signed = values.to(torch.float32) * cut_tables(values.device, len(values))[2]
    rest = len(values) % BUCKETS
    if rest:
        signed = torch.nn.functional.pad(signed, (0, BUCKETS - rest))
    sketch.add_(signed.view(-1, BUCKETS).sum(0), alpha=block_factors(number)[1])


def digest_numbers(flat: Any) -> bytes:
    """The digest of a few numbers on the CPU, in Python."""
    import torch

    words = flat.view(getattr(torch, _INTEGERS[flat.element_size()])).tolist()
    numbers = flat.to(torch.float64).tolist()
    total, sketch = 0, [0.0] * BUCKETS
    for index, word in enumerate(words):
        table = mix32(index + 1)
        total += (_signed(table, 32) ^ word) * _signed(mix32(table ^ _ODD) | 1, 32)
    for index, value in enumerate(numbers):
        if math.isfinite(value):
            signed = value * (1.0 - 2.0 * (mix32(index + 1) >> 7 & 1)) * block_factors(0)[1]
            sketch[index] = max(-_FLOAT_LIMIT, min(_FLOAT_LIMIT, signed))
    finite = [each for each in numbers if math.isfinite(each)]
    sums = math.fsum(finite), math.fsum(each * each for each in finite), max(map(abs, finite), default=0.0)
    hashed = total * block_factors(0)[0] & _U64
    return SLOT.pack(hashed, len(numbers) - len(finite), numbers.count(0.0), *sums, *sketch)


def hash_rows(values: Any) -> Any:
    """One hash (int64) for each row of a parameter, of values rounded to bf16: it finds a layer under another name.

    The index of an element counts from the beginning of its row; a parameter of one dimension is one row.
    """
    import torch

    rows = values.detach().reshape(values.shape[0] if values.dim() > 1 else 1, -1)
    return torch.cat([_hash_rows(part) for part in rows.split(max(1, _PART // max(1, rows.shape[1])))])


def _hash_rows(rows: Any) -> Any:
    import torch

    words = rows.to(torch.bfloat16).contiguous().view(torch.int16)
    table, odd, _ = load_tables(words.device)
    total = torch.zeros(len(words), dtype=torch.int64, device=words.device)
    for number, part in enumerate(words.split(BLOCK, 1)):
        mixed = (part.to(torch.int32) ^ table[: part.shape[1]]).to(torch.int64)
        total += (mixed * odd[: part.shape[1]]).sum(1) * block_factors(number)[0]
    return total

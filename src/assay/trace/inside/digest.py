"""A tensor as 304 bytes: hash, counts, sums and a linear sketch, by torch operations that work on every device.

For element i of the whole tensor let j = i mod 65536 and b = i div 65536; `mix32` and `mix64` are fixed functions.
    hash          Σ g(b) · (bits(x_i) XOR t(j)) · h(j) mod 2^64, t, h and g fixed pseudo-random words, h and g odd
    sketch[i%64]  Σ s(j) · s(b) · x_i in float32, s fixed pseudo-random signs
`bits` is the element as a signed whole number of at most 32 bits; a 64-bit element is two elements of the hash. What is
not finite is counted, and is 0 in every sum.
"""

from __future__ import annotations

import ctypes
import math
import struct
from functools import lru_cache
from typing import Any

BLOCK = 1 << 16
BUCKETS = 64
SLOT = struct.Struct("<QQQddd64f")  # hash, nonfinite, zeros, sum, sumsq, largest, sketch
NOT_PLAIN, NO_VALUES = 1, 2  # flags of a row
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int32"}
_TINY = 2  # elements: Python is faster there than torch


def mix32(x: Any) -> Any:
    """Mix 32 bits; x is a number, or a tensor of int64."""
    x = ((x >> 16) ^ x) * 0x21F0AAAD & _U32
    x = ((x >> 15) ^ x) * 0x735A2D97 & _U32
    return (x >> 15) ^ x


def mix64(x: int) -> int:
    """A word and an odd one: what a block multiplies its hash with."""
    x = (x + 1) * 0x9E3779B97F4A7C15 & _U64
    x = ((x >> 30) ^ x) * 0xBF58476D1CE4E5B9 & _U64
    return (((x >> 27) ^ x) * 0x94D049BB133111EB & _U64) | 1


def block_factors(number: int) -> tuple[int, float]:
    """The multiplier of a block's hash, as a signed number, and the sign of its sketch."""
    factor = mix64(number)
    return _signed(factor, 64), 1.0 - 2.0 * (factor >> 63)


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


@lru_cache(8)
def load_tables(device: Any) -> tuple[Any, Any, Any]:
    """t (int32), h (int64) and s (float32) for the elements of a block: one megabyte."""
    import torch

    word = mix32(torch.arange(1, BLOCK + 1, dtype=torch.int64))
    odd = mix32(word ^ 0x9E3779B9) | 1
    sign = 1.0 - 2.0 * ((word >> 7) & 1).to(torch.float32)
    signed = torch.where(odd > 0x7FFFFFFF, odd - (1 << 32), odd)
    return word.to(torch.int32).to(device), signed.to(device), sign.to(device)


def plain_tensor(tensor: Any) -> tuple[Any, int]:
    """The values of any tensor as a dense one of real numbers, and flags; None: it has no values."""
    import torch

    flags = 0
    if tensor.device.type == "meta":
        return None, NO_VALUES
    if tensor.is_nested:
        tensor, flags = (
            tensor.values()
            if tensor.layout is torch.jagged
            else torch.cat([each.reshape(-1) for each in tensor.unbind()]),
            NOT_PLAIN,
        )
    if tensor.layout is not torch.strided:
        values = tensor._values() if tensor.layout is torch.sparse_coo else None  # noqa: SLF001 no public one
        tensor, flags = (values if values is not None else tensor.to_dense()), NOT_PLAIN
    if tensor.is_quantized:
        tensor, flags = tensor.int_repr(), NOT_PLAIN
    if tensor.is_complex():
        tensor, flags = torch.view_as_real(tensor.resolve_conj()), NOT_PLAIN
    return (tensor.resolve_neg() if tensor.is_neg() else tensor), flags


def digest_into(tensor: Any, slot: Any) -> None:
    """Write the digest of a dense tensor of real numbers to a slot: 38 numbers of int64 on the same device."""
    import torch

    with torch.no_grad():
        flat = tensor.detach().contiguous().view(-1)
        if flat.device.type == "cpu" and flat.numel() <= _TINY:
            ctypes.memmove(slot.data_ptr(), digest_numbers(flat), SLOT.size)
            return
        slot.zero_()
        doubles, sketch = slot[3:6].view(torch.float64), slot[6:].view(torch.float32)
        size = flat.element_size()
        words = flat.view(getattr(torch, _INTEGERS[size]))
        _add_hash(words, slot)
        for number in range(-(-flat.numel() // BLOCK)):
            _add_values(flat[number * BLOCK : (number + 1) * BLOCK], number, slot, doubles, sketch)


def _add_hash(words: Any, slot: Any) -> None:
    import torch

    table, odd, _ = load_tables(words.device)
    for number in range(-(-words.numel() // BLOCK)):
        part = words[number * BLOCK : (number + 1) * BLOCK]
        mixed = torch.bitwise_xor(part.to(torch.int32), table[: part.numel()]).to(torch.int64)
        slot[0] += mixed.mul_(odd[: part.numel()]).sum() * block_factors(number)[0]


def _add_values(part: Any, number: int, slot: Any, doubles: Any, sketch: Any) -> None:
    """Add counts, sums and the sketch of one block."""
    import torch

    values = part.to(torch.float32) if part.dtype != torch.float64 else part
    length = values.numel()
    if values.device.type != "cpu" or not math.isfinite(values.sum()):
        finite = torch.isfinite(values)
        slot[1] += length - finite.sum()
        values = torch.where(finite, values, 0)
    slot[2] += (values == 0).sum() - slot[1]
    doubles[0] += values.sum(dtype=torch.float64)
    doubles[1] += torch.dot(values, values)
    doubles[2] = torch.maximum(doubles[2], values.abs().amax())
    signed = values.to(torch.float32) * load_tables(values.device)[2][:length]
    if length % BUCKETS:
        signed = torch.nn.functional.pad(signed, (0, -length % BUCKETS))
    sketch.add_(signed.view(-1, BUCKETS).sum(0), alpha=block_factors(number)[1])


def digest_numbers(flat: Any) -> bytes:
    """The digest of a few numbers on the CPU, in Python."""
    import torch

    size = flat.element_size()
    words = flat.view(getattr(torch, _INTEGERS[size])).tolist()
    total, sketch = 0, [0.0] * BUCKETS
    for index, word in enumerate(words):
        table = mix32(index + 1)
        total += (_signed(table, 32) ^ word) * _signed(mix32(table ^ 0x9E3779B9) | 1, 32)
    numbers = flat.to(torch.float64).tolist()
    finite = [each for each in numbers if math.isfinite(each)]
    for index, value in enumerate(numbers):
        if math.isfinite(value):
            sketch[index] = value * (1.0 - 2.0 * (mix32(index + 1) >> 7 & 1)) * block_factors(0)[1]
    largest = max(map(abs, finite), default=0.0)
    sums = (math.fsum(finite), math.fsum(each * each for each in finite), largest)
    hashed = total * block_factors(0)[0] & _U64
    rounded = struct.unpack("64f", _pack_floats(sketch))
    return SLOT.pack(hashed, len(numbers) - len(finite), numbers.count(0.0), *sums, *rounded)


def _pack_floats(values: list[float]) -> bytes:
    limit = 3.4028234663852886e38
    return struct.pack("64f", *(max(-limit, min(limit, each)) for each in values))

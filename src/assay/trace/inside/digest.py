"""Digests a tensor to 304 bytes: hash, counts, sums and a linear sketch, by torch operations for every device.

For element i of the whole tensor let j = i mod 65536 and b = i div 65536.
    hash          Σ g(b) · h(k) · (bits(x_i) XOR t(k)) mod 2^64, of fixed pseudo-random words t, odd h and odd g
    sketch[i%64]  Σ s(j) · s(b) · x_i in float32, of fixed pseudo-random signs s
`bits` is an element of 32 bits as a signed integer, with k = j. Two elements of 16 bits are one integer, whose lower
half is the first element, with k = j div 2: what an element adds does not depend on the other element. In the hash, an
element of 64 bits counts as two elements of 32 bits. Values that are not finite are counted, and are 0 in every sum.

A part of a tensor is described by a `Where`: the elements of the part are runs of elements of the whole tensor.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

BLOCK = 1 << 16
BUCKETS = 64
SLOT = struct.Struct("<QQQddd64f")  # hash, not finite, zeros, sum, sum of squares, largest, sketch
WORDS = SLOT.size // 8
NOT_PLAIN, NO_VALUES = 1, 2  # flags of a row
Where = tuple[int, int, int]  # index of the first element in the whole tensor, length of a run, distance between runs
WHOLE: Where = (0, 1 << 62, 0)
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_ODD, _OTHER = 0x9E3779B9, 0x5BD1E995
_TINY = 8  # the most bytes of a tensor whose digest is cached
_ROWS = 4  # blocks processed together on the CPU: more blocks do not fit its cache
_PART = 1 << 18  # elements whose indices are computed at once: about 20 MB


def mix32(x: Any) -> Any:
    """Mix 32 bits; x is a number, or a tensor of int64."""
    x = ((x >> 16) ^ x) * 0x21F0AAAD & _U32
    x = ((x >> 15) ^ x) * 0x735A2D97 & _U32
    return (x >> 15) ^ x


def block_factors(number: Any) -> tuple[Any, Any]:
    """Return the odd multiplier (31 bits) of a block's hash and the sign of its sketch. `number`: also a tensor."""
    x = mix32((number + 1) ^ _OTHER)
    return (x >> 1) | 1, 1.0 - 2.0 * (x & 1)


def _wrap(words: Any) -> Any:
    return words - ((words >> 31) << 32)  # unsigned to signed


@lru_cache(16)
def load_tables(device: Any) -> tuple[Any, Any, Any]:
    """Return t (int32), h (int64) and s (float32) for the elements of a block: one megabyte."""
    import torch

    word = mix32(torch.arange(1, BLOCK + 1, dtype=torch.int64, device="cpu"))
    odd = mix32(word ^ _ODD) | 1
    bits = torch.stack([word[: BLOCK // 2] >> 7, word[: BLOCK // 2] >> 8], 1).view(-1) & 1
    sign = 1.0 - 2.0 * bits.to(torch.float32)
    return _wrap(word).to(torch.int32).to(device), _wrap(odd).to(device), sign.to(device)


@lru_cache(4096)
def _cut_tables(first: int, length: int) -> tuple[Any, ...]:
    """Return the tables of the CPU for some elements of a block: t, h as int32 and as float64, s."""
    import torch

    if length < BLOCK:
        return tuple(each[first : first + length] for each in _cut_tables(0, BLOCK))
    table, odd, sign = load_tables(torch.device("cpu"))
    return table, odd.to(torch.int32), odd.to(torch.float64), sign


@lru_cache(256)
def _load_scratch(thread: int, dtype: Any, *shape: int) -> Any:
    """Return memory for intermediate values; each thread has memory of its own."""
    import torch

    if shape != (_ROWS * BLOCK,):
        return _load_scratch(thread, dtype, _ROWS * BLOCK)[: math.prod(shape)].view(shape)
    if dtype is torch.float32:  # float32 and int32 share memory, to use less of the cache
        return _load_scratch(thread, torch.int32, *shape).view(dtype)
    return torch.empty(shape, dtype=dtype, device="cpu")


@lru_cache(4096)
def _load_signs(number: int, rows: int) -> Any:
    """Return the signs of the sketch for `rows` blocks from block `number` on."""
    import torch

    return block_factors(torch.arange(number, number + rows, device="cpu"))[1].to(torch.float32)


def plain_tensor(tensor: Any) -> tuple[Any, int]:
    """Return the values of any tensor as a dense tensor of real numbers, and flags; None for one without values."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        tensor = tensor.trigger_wait() if hasattr(tensor, "trigger_wait") else tensor  # wait for a collective operation
        if hasattr(tensor, "__tensor_flatten__") and not tensor.is_nested:
            return None, NO_VALUES  # the tensor only contains other tensors
    is_fake = tensor.device.type == "meta" or type(tensor).__name__ in ("FakeTensor", "FunctionalTensor")
    if is_fake or torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001 of torch.func: many, or none
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
    if tensor.numel() and not tensor.data_ptr():
        return None, NO_VALUES  # reading would crash: zeros of torch.func.jvp, or memory freed by FSDP
    return (tensor.resolve_neg() if tensor.is_neg() else tensor), flags


def digest_cpu(tensor: Any, where: Where = WHOLE) -> bytes:
    """Return the digest of a dense tensor of real numbers in the memory of this process."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.nbytes <= _TINY and where == WHOLE:
        return _digest_tiny(ctypes.string_at(flat.data_ptr(), flat.nbytes), flat.dtype)
    return _digest(flat, where)


@lru_cache(1024)
def _digest_tiny(data: bytes, dtype: Any) -> bytes:
    """Return the cached digest of a small tensor: an optimiser stores an equal step for each parameter."""
    import torch

    return _digest(torch.frombuffer(bytearray(data), dtype=dtype), WHOLE)


def _digest(flat: Any, where: Where) -> bytes:
    import torch

    first, count = where[0], flat.numel()
    if where[1] < count or (flat.element_size() == 2 and first % 2):
        slot = torch.zeros(WORDS, dtype=torch.int64, device="cpu")
        digest_into(flat, slot, where)
        return ctypes.string_at(slot.data_ptr(), SLOT.size)
    begin = first % BLOCK
    begin, end = (begin, begin + count) if begin + count <= BLOCK else (0, BLOCK)  # positions that have elements
    begin, end = begin - begin % BUCKETS, end + -end % BUCKETS
    thread, hashed, counts, sums = threading.get_ident(), 0, [0, 0], [0.0, 0.0, 0.0]
    columns = torch.zeros(end - begin, dtype=torch.float32, device="cpu")  # the sum of the blocks, with their signs
    for number, place, rows, part in _split(flat, first, BLOCK):
        hashed += _hash(part, number * BLOCK + place, thread)
        values = _add_figures(part, counts, sums, thread)
        if rows > 1:
            columns.addmv_(values.view(rows, -1).t(), _load_signs(number, rows))
        else:
            columns[place - begin :][: part.numel()].add_(values, alpha=block_factors(number)[1])
    sketch = columns.mul_(_cut_tables(begin, end - begin)[3]).view(-1, BUCKETS).sum(0)
    head = struct.pack("<QQQddd", hashed & _U64, *counts, *sums)
    return head + ctypes.string_at(sketch.data_ptr(), 4 * BUCKETS)


def _add_figures(part: Any, counts: list[int], sums: list[float], thread: int) -> Any:
    """Add to `counts` (not finite, zeros) and `sums` (sum, squares, largest). Returns float32, 0 if not finite."""
    import torch

    values = part if part.dtype in (torch.float32, torch.float64) else part.to(torch.float32)
    count, own = values.numel(), values.dtype
    spare = _load_scratch(thread, own, count)
    bits = torch.abs(values, out=spare).view(torch.int32 if own is torch.float32 else torch.int64)
    least, largest = (each.view(own).item() for each in torch.aminmax(bits))  # floats would take twice as long
    if not math.isfinite(largest):
        finite = torch.isfinite(values)
        values = torch.where(finite, values, 0)
        bad = count - int(finite.sum())
        counts[0], counts[1] = counts[0] + bad, counts[1] - bad
        least, largest = 0.0, torch.abs(values, out=spare).amax().item()
    if least == 0:
        counts[1] += count - int(torch.ne(values, 0, out=spare).sum().item())
    total = values.sum().item()
    sums[0] += total if math.isfinite(total) else values.sum(dtype=torch.float64).item()
    sums[1] += torch.dot(values, values).item()
    sums[2] = max(sums[2], largest)
    return values if own is torch.float32 else values.to(torch.float32)


def _split(flat: Any, first: int, length: int) -> Iterator[tuple[int, int, int, Any]]:
    """Yield parts of a tensor: the number of the part's first block, the position in this block, the number of blocks
    (1 for a fraction of a block), and the elements. `first`: the index of the first element. A part has several blocks
    because each call of torch takes time."""
    at, count = 0, flat.numel()
    while at < count:
        number, place = divmod(first + at, length)
        rows = 1 if place else max(1, min(_ROWS, (count - at) // length))
        end = min(count, at + rows * length - place)
        yield number, place, rows, flat[at:end]
        at = end


def _hash(flat: Any, first: int, thread: int) -> int:
    """Return the hash of the elements from index `first` on.

    torch is slow with int64, and fast with int32 and float64. The sum of a block in int32 is exact mod 2^32; its sum in
    float64 is exact within about 2^23, because t and h are random. The two sums together give the exact sum.
    """
    import torch

    size, count, total = flat.element_size(), flat.numel(), 0
    if size == 1:
        words = flat.view(torch.int8).to(torch.int32)
    elif size == 2 and (count % 2 or flat.data_ptr() % 4):
        words = torch.nn.functional.pad(flat.view(torch.int16), (0, count % 2 or 2)).view(torch.int32)
        words = words[: -(-count // 2)]
    else:
        words = flat.view(torch.int32)
    first, length = (first // 2, BLOCK // 2) if size == 2 else (first * max(1, size // 4), BLOCK)
    for number, place, rows, part in _split(words, first, length):
        shape = rows, part.numel() // rows
        table, odd, real, _ = _cut_tables(place, shape[1])
        mixed = torch.bitwise_xor(part.view(shape), table, out=_load_scratch(thread, torch.int32, *shape))
        if size == 2 and count % 2 and number * length + place + part.numel() == first + words.numel():
            mixed[-1, -1] &= 0xFFFF  # the last word has one element only
        near = torch.mv(_load_scratch(thread, torch.float64, *shape).copy_(mixed), real).tolist()
        low = mixed.mul_(odd).sum(1, dtype=torch.int32).tolist()
        for row, (about, rest) in enumerate(zip(near, low, strict=True)):
            total += (rest + (round((about - rest) / 2**32) << 32)) * block_factors(number + row)[0]
    return total


# ---------------------------------------------------------------- any device, any part of a tensor


def digest_into(tensor: Any, slot: Any, where: Where = WHOLE) -> None:
    """Write the digest to a slot of zeros, 38 numbers of int64 on the tensor's device, without waiting for it."""
    import torch

    flat, (start, run, stride) = tensor.detach().contiguous().view(-1), where
    table, odd, sign = load_tables(flat.device)
    for first in range(0, len(flat), _PART):
        part = flat[first : first + _PART]
        at = torch.arange(first, first + len(part), device=flat.device)
        index = start + at // run * stride + at % run
        for place, words in _list_words(part, index):
            number, lane = place // BLOCK, place % BLOCK
            if part.element_size() == 2:
                shift = lane % 2 * 16
                own = ((words & 0xFFFF) ^ ((table[lane // 2].to(torch.int64) >> shift) & 0xFFFF)) << shift
                mixed, factor = _wrap(own), odd[lane // 2]
            else:
                mixed, factor = (words ^ table[lane]).to(torch.int64), odd[lane]
            slot[0] += (mixed * factor * block_factors(number)[0]).sum()
        signs = sign[index % BLOCK] * block_factors(index // BLOCK)[1].to(torch.float32)
        values = _add_sums(part, slot).to(torch.float32)
        slot[6:].view(torch.float32).index_add_(0, index % BUCKETS, values * signs)


def _add_sums(part: Any, slot: Any) -> Any:
    """Add counts and sums of some elements to a slot. Returns the values, with 0 for values that are not finite."""
    import torch

    doubles = slot[3:6].view(torch.float64)
    values = part if part.dtype in (torch.float32, torch.float64) else part.to(torch.float32)
    finite = torch.isfinite(values)
    slot[1] += (~finite).sum()
    slot[2] += (values == 0).sum()
    values = torch.where(finite, values, 0)
    doubles[0] += values.sum(dtype=torch.float64)
    doubles[1] += torch.dot(values, values)
    doubles[2] = torch.maximum(doubles[2], values.abs().amax())
    return values


def _list_words(part: Any, index: Any) -> Iterator[tuple[Any, Any]]:
    """Yield positions in the hash, and the integers at these positions."""
    import torch

    if part.element_size() == 8:
        for half in (0, 1):
            yield index * 2 + half, part.view(torch.int32)[half::2]
    else:
        kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[part.element_size()]
        yield index, part.view(kind).to(torch.int32)


def hash_rows(values: Any) -> Any:
    """Return one hash (int64) for each row of a parameter, with values rounded to bf16, to find a layer under another
    name. The index of an element counts from the beginning of its row; a parameter of one dimension is one row."""
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

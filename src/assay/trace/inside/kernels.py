"""The digest of `digest.py` as a Triton kernel, which reads the tensor once and does not block the traced program.

A Triton program has the same positions of several blocks of 65536 elements, so that words and signs are made once. It
reads 32 bits at a time: two elements of 16 bits have one multiplication. Sums are added to the slot atomically: sums of
integers are exact in any order, and sums of floats differ in their last bits. Many tensors are digested in one launch.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, N803, N806
# Triton compiles these functions itself: their arguments are values of its own language.

from __future__ import annotations

from functools import lru_cache
from typing import Any

from assay.trace.inside.digest import BLOCK, WHOLE

# TILE: words of a program at a time; UNROLL: blocks that are fetched at once
SETTING = {"TILE": 1024, "UNROLL": 2, "num_warps": 4, "maxnreg": 128}
DEPTH = 16  # the fewest blocks of a program
MOST_GROUPS = 16  # programs that share the blocks of a column, for a tensor that is digested alone
_compiled: dict[Any, Any] = {}  # compiled kernels by variant: calling a compiled kernel takes 11 us instead of 28 us


@lru_cache(1)
def _load_kinds() -> dict[Any, int]:
    import torch

    return {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def can_digest(values: Any, where: Any = WHOLE) -> bool:
    """Return whether the kernels support the type, and the part of the whole tensor: one run from an even index."""
    return values.dtype in _load_kinds() and where[1] >= values.numel() and where[0] % 2 == 0


def digest_many(found: list[tuple[Any, int, int]], slots: Any) -> None:
    """Write digests of tensors on one device. `found`: values, number of a zeroed slot, index of the first element."""
    import torch

    kinds: dict[Any, list[Any]] = {}
    for values, number, start in found:
        flat, kind = _prepare(values, start)
        kinds.setdefault(kind, []).append((flat, number, start))
    for kind, members in kinds.items():
        if len(members) == 1:
            _launch_one(*members[0], kind, slots)
            continue
        rows = [(each.data_ptr(), number, start, *_plan(each, start, 1 << 31)) for each, number, start in members]
        counts = torch.tensor([columns * groups for *_, columns, groups in rows], device="cpu")
        first = counts.cumsum(0) - counts
        table = torch.cat([torch.tensor(rows, device="cpu"), first[:, None]], 1)
        which = torch.arange(len(rows), device="cpu").repeat_interleave(counts)
        table, which = (each.pin_memory().to(slots.data.device, non_blocking=True) for each in (table, which))
        load_kernels()[1][(len(which),)](table, which, slots.data, **_name(kind), **SETTING)


def digest_into(values: Any, slots: Any, number: int, start: int = 0) -> None:
    """Write the digest of a tensor to a slot of zeros."""
    flat, kind = _prepare(values, start)
    _launch_one(flat, number, start, kind, slots)


def _prepare(values: Any, start: int) -> tuple[Any, Any]:
    """Return the contiguous elements, and the variant of the kernel: type, and whether it reads 16 aligned bytes."""
    flat = values.detach().contiguous()
    address, size = flat.data_ptr(), flat.element_size()
    if address % 4:
        flat = flat.clone()
        address = flat.data_ptr()
    return flat, (flat.dtype, (address - start * size) % 16 == 0)


def _name(kind: Any) -> dict[str, Any]:
    return {"KIND": _load_kinds()[kind[0]], "ALIGNED": kind[1]}


def _plan(flat: Any, start: int, most: int) -> tuple[int, int, int]:
    """Return the number of elements, of columns of a block that have elements, and of programs for each column."""
    count = flat.numel()
    tile = SETTING["TILE"] * (4 // flat.element_size())
    columns = BLOCK // tile if start else min(BLOCK // tile, -(-count // tile))
    blocks = -(-(start % BLOCK + count) // BLOCK)
    return count, columns, max(1, min(most, -(-blocks // DEPTH)))


def _launch_one(flat: Any, number: int, start: int, kind: Any, slots: Any) -> None:
    count, columns, groups = _plan(flat, start, MOST_GROUPS)
    arguments = (flat.data_ptr(), slots.data, number, start, count, columns, groups)
    key = (kind, start < 1 << 31, count < 1 << 31, flat.device)
    if key in _compiled:
        compiled, constants = _compiled[key]
        try:
            compiled[(columns * groups, 1, 1)](*arguments, *constants)
        except TypeError:  # another version of Triton takes other arguments
            _compiled.clear()
        else:
            return
    named = {**_name(kind), **SETTING}
    made = load_kernels()[0][(columns * groups,)](*arguments, **named)
    _compiled[key] = made, tuple(value for name, value in named.items() if name.isupper())


def hash_rows(values: Any) -> Any:
    """Return one hash for each row of a parameter, equal to that of `digest.hash_rows`."""
    import torch

    rows = values.detach().reshape(values.shape[0] if values.dim() > 1 else 1, -1).to(torch.bfloat16).contiguous()
    found = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    load_kernels()[2][(len(rows),)](rows, found, rows.shape[1], TILE=1024, num_warps=4)
    return found


# ---------------------------------------------------------------- what Triton compiles

tl: Any = None  # triton.language, once it is loaded


def _mix32(x):
    x = ((x >> 16) ^ x) * 0x21F0AAAD
    x = ((x >> 15) ^ x) * 0x735A2D97
    return (x >> 15) ^ x


def _block_factors(number):
    x = _mix32((tl.full([], 1, tl.int64) + number).to(tl.uint32) ^ 0x5BD1E995)
    return ((x >> 1) | 1).to(tl.int32, bitcast=True).to(tl.int64), 1.0 - 2.0 * (x & 1).to(tl.float32)


def _find_odd(word):
    return (_mix32(word ^ 0x9E3779B9) | 1).to(tl.int32, bitcast=True).to(tl.int64)


def _load(word, KIND: tl.constexpr):
    """Load the one or two numbers in a word; a single number is returned twice."""
    if KIND == 0:
        first = word.to(tl.float32, bitcast=True)
        second = first
    elif KIND == 1:
        first = (word << 16).to(tl.float32, bitcast=True)
        second = (word & -65536).to(tl.float32, bitcast=True)
    else:
        first = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return first, second


def _add_plain(word, table, block, sums, KIND: tl.constexpr):
    """Add whole words of finite numbers; a number that is not finite shows in the sum."""
    hashed, bad, filled, total, squares, largest, sketch, other = sums
    factor, sign = _block_factors(block)
    hashed += (word ^ table).to(tl.int64) * factor
    x, y = _load(word, KIND)
    total, squares, largest, sketch = total + x, squares + x * x, tl.maximum(largest, tl.abs(x)), sketch + x * sign
    if KIND == 0:
        filled += (((word & 0x7FFFFFFF) + 0x7FFFFFFF).to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)
    else:
        total, squares, largest, other = total + y, squares + y * y, tl.maximum(largest, tl.abs(y)), other + y * sign
        spread = ((word & 0x7FFF7FFF) + 0x7FFF7FFF).to(tl.uint32, bitcast=True) >> 15
        filled += (spread & 0x00010001).to(tl.int32, bitcast=True)
    return hashed, bad, filled, total, squares, largest, sketch, other


def _add_careful(word, table, mask, half, block, sums, KIND: tl.constexpr):
    """Add words. `mask`: which words exist; `half`: which of them have a second number."""
    hashed, bad, filled, total, squares, largest, sketch, other = sums
    factor, sign = _block_factors(block)
    mixed = word ^ table
    if KIND != 0:
        mixed = tl.where(half, mixed, mixed & 0xFFFF)
    hashed += tl.where(mask, mixed, 0).to(tl.int64) * factor
    x, y = _load(word, KIND)
    fine = (x.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    bad += (mask & (fine == 0)).to(tl.int32)
    filled += (mask & (x != 0.0)).to(tl.int32)
    x = tl.where(mask & fine, x, 0.0)
    total, squares, largest, sketch = total + x, squares + x * x, tl.maximum(largest, tl.abs(x)), sketch + x * sign
    if KIND != 0:
        fine = (y.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
        bad += (half & (fine == 0)).to(tl.int32)
        filled += (half & (y != 0.0)).to(tl.int32) << 16
        y = tl.where(half & fine, y, 0.0)
        total, squares, largest, other = total + y, squares + y * y, tl.maximum(largest, tl.abs(y)), other + y * sign
    return hashed, bad, filled, total, squares, largest, sketch, other


def _sum(
    address, start, count, column, group, groups, table, CAREFUL: tl.constexpr,
    KIND: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute the sums of a program for its column, in the blocks group, group + groups, …"""
    EACH: tl.constexpr = 1 if KIND == 0 else 2
    LENGTH: tl.constexpr = 65536 // EACH
    place = column * TILE + tl.arange(0, TILE)
    none, nothing = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.float32)
    sums = (tl.zeros([TILE], tl.int64), none, none, nothing, nothing, nothing, nothing, nothing)
    begin, end = start // EACH, (start + count) // EACH  # in whole words
    origin = address - begin * 4  # address of the whole tensor
    source = origin.to(tl.pointer_type(tl.int32))
    if ALIGNED:
        source = tl.multiple_of(source, 16)
    inner = (begin + LENGTH - 1) // LENGTH
    outer = tl.maximum(end // LENGTH, inner)
    if not CAREFUL:
        for block in tl.range(inner + group, outer, groups, loop_unroll_factor=UNROLL):
            sums = _add_plain(tl.load(source + (block * LENGTH + place)), table, block, sums, KIND)
    last = (start + count + 65535) // 65536
    for block in range(begin // LENGTH + group, last, groups):
        if CAREFUL or (block < inner) or (block >= outer):
            index = block * LENGTH + place
            mask = (index >= begin) & (index * EACH < start + count)
            half = mask & (index * EACH + EACH - 1 < start + count)
            sums = _add_careful(tl.load(source + index, mask=mask, other=0), table, mask, half, block, sums, KIND)
    return sums


def _digest(
    address, data, number, start, count, columns, groups, program,
    KIND: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    column, group = program % columns, program // columns
    place = column * TILE + tl.arange(0, TILE)
    words = _mix32((place + 1).to(tl.uint32))
    table = words.to(tl.int32, bitcast=True)
    sums = _sum(address, start, count, column, group, groups, table, False, KIND, ALIGNED, TILE, UNROLL)
    infinite = (sums[3].to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000
    if tl.max(infinite.to(tl.int32), 0) != 0:
        sums = _sum(address, start, count, column, group, groups, table, True, KIND, ALIGNED, TILE, UNROLL)
    hashed, bad, filled, total, squares, largest, sketch, other = sums
    slot = data + number * 38
    doubles = (data + number * 38).to(tl.pointer_type(tl.float64), bitcast=True)
    floats = (data + number * 38 + 6).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.atomic_add(slot, tl.sum(hashed * _find_odd(words), 0), sem="relaxed")
    tl.atomic_add(slot + 1, tl.sum(bad, 0).to(tl.int64), sem="relaxed")
    some = tl.sum((filled & 0xFFFF) + (filled.to(tl.uint32, bitcast=True) >> 16).to(tl.int32), 0)
    tl.atomic_add(slot + 2, -some.to(tl.int64), sem="relaxed")
    tl.atomic_add(doubles + 3, tl.sum(total.to(tl.float64), 0), sem="relaxed")
    tl.atomic_add(doubles + 4, tl.sum(squares.to(tl.float64), 0), sem="relaxed")
    biggest = tl.max(largest, 0).to(tl.float64)  # doubles that are not negative have the same order as their bits
    tl.atomic_max(slot + 5, biggest.to(tl.int64, bitcast=True), sem="relaxed")
    if KIND == 0:
        pair = _mix32((place // 2 + 1).to(tl.uint32)) >> (place % 2).to(tl.uint32)
        signed = tl.where((pair & 128) != 0, -sketch, sketch)
        buckets = tl.sum(tl.reshape(signed, [TILE // 64, 64]), 0)
        tl.atomic_add(floats + tl.arange(0, 64), buckets, sem="relaxed")
    else:
        first = tl.where((words & 128) != 0, -sketch, sketch)
        second = tl.where((words & 256) != 0, -other, other)
        at = tl.arange(0, 32) * 2
        tl.atomic_add(floats + at, tl.sum(tl.reshape(first, [TILE // 32, 32]), 0), sem="relaxed")
        tl.atomic_add(floats + at + 1, tl.sum(tl.reshape(second, [TILE // 32, 32]), 0), sem="relaxed")
    if program == 0:  # the number of zeros: all elements, less the nonzero elements, which are subtracted above
        tl.atomic_add(slot + 2, count, sem="relaxed")


def _digest_one(
    address, data, number, start, count, columns, groups,
    KIND: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    long = tl.full([], 0, tl.int64)  # a number plus `long` has 64 bits
    _digest(
        long + address, data, long + number, long + start, long + count, columns, groups, tl.program_id(0),
        KIND, ALIGNED, TILE, UNROLL,
    )  # fmt: skip


def _digest_many(
    table, which, data, KIND: tl.constexpr, ALIGNED: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr
):
    row = table + tl.load(which + tl.program_id(0)) * 7
    columns, groups = tl.load(row + 4).to(tl.int32), tl.load(row + 5).to(tl.int32)
    program = tl.program_id(0) - tl.load(row + 6).to(tl.int32)
    _digest(
        tl.load(row), data, tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), columns, groups, program,
        KIND, ALIGNED, TILE, UNROLL,
    )  # fmt: skip


def _hash_rows(x_ptr, out, columns, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([TILE], tl.int64)
    for first in range(0, columns, TILE):
        index = first + tl.arange(0, TILE)
        x = tl.load(x_ptr + row * columns + index, mask=index < columns, other=0.0)
        words = _mix32((index % 65536 + 1).to(tl.uint32))
        mixed = x.to(tl.int16, bitcast=True).to(tl.int32) ^ words.to(tl.int32, bitcast=True)
        factor, _ = _block_factors(first // 65536)
        total += tl.where(index < columns, mixed.to(tl.int64) * _find_odd(words) * factor, 0)
    tl.store(out + row, tl.sum(total, 0))


_PARTS = (_mix32, _block_factors, _find_odd, _load, _add_plain, _add_careful, _sum, _digest)


@lru_cache(1)
def load_kernels() -> tuple[Any, ...]:
    """Return the kernels for one tensor, for many, and for rows; raises ImportError if Triton is not installed."""
    import triton
    import triton.language

    # Triton looks names up in the globals of the function that it compiles
    globals().update(tl=triton.language, **{each.__name__: triton.jit(each) for each in _PARTS})
    sizes = ["address", "number", "start", "count", "columns", "groups"]
    one = triton.jit(do_not_specialize=sizes)(_digest_one)
    return one, triton.jit(_digest_many), triton.jit(do_not_specialize=["columns"])(_hash_rows)

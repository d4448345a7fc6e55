"""The digest as one Triton kernel: one reading of the tensor, and nothing waits for it. The same hash as `digest.py`.

A program has the same places of several blocks of 65536 elements, so that words and signs are made once. Its sums go
to the slot by atomic additions: whole numbers are exact in any order, and sums of floats differ in their last bits.
"""

# mypy: ignore-errors
# Triton compiles these functions itself: their arguments are values of its own language.

from __future__ import annotations

from typing import Any

from assay.trace.inside.digest import BLOCK

_TILE = 1024  # elements of a program at a time
_COLUMNS = BLOCK // _TILE
_MOST_GROUPS = 16  # programs that share the blocks of a column
_STAGES = 3  # blocks that are fetched ahead
_PLAIN = ("torch.float32", "torch.bfloat16", "torch.float16")


def can_digest(values: Any) -> bool:
    return str(values.dtype) in _PLAIN


def digest_into(values: Any, slots: Any, number: int) -> None:
    """Write the digest to a slot of zeros. `slots`: its `data`, as `doubles` and as `floats`, on the same device."""
    flat = values.detach().contiguous()
    count = flat.numel()
    blocks = -(-count // BLOCK)
    grid = (min(_COLUMNS, -(-count // _TILE)), min(blocks, _MOST_GROUPS))
    arguments = (flat, slots.data, slots.doubles, slots.floats, number, count, grid[1])
    kind = (flat.dtype, flat.data_ptr() % 16 == 0, count < 1 << 31, flat.device)
    if kind in _compiled:
        try:
            _compiled[kind][(*grid, 1)](*arguments, _TILE, _STAGES)
        except TypeError:  # another version of Triton
            _compiled.clear()
        else:
            return
    _compiled[kind] = load_kernels()[0][grid](*arguments, TILE=_TILE, STAGES=_STAGES, num_warps=4)


def hash_rows(values: Any) -> Any:
    """One hash for each row, as `digest.hash_rows`."""
    import torch

    rows = values.detach().reshape(values.shape[0] if values.dim() > 1 else 1, -1).to(torch.bfloat16).contiguous()
    found = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    load_kernels()[1][(len(rows),)](rows, found, rows.shape[1], TILE=_TILE, num_warps=4)
    return found


_loaded: list[tuple[Any, Any]] = []
_compiled: dict[Any, Any] = {}  # by what a kernel was compiled for: to call one takes 11 us instead of 28


def load_kernels() -> tuple[Any, Any]:
    """The two kernels; ImportError where Triton is not installed."""
    if not _loaded:
        _loaded.append(_build_kernels())
    return _loaded[0]


def _build_kernels() -> tuple[Any, Any]:  # noqa: C901, PLR0915 the kernels, in Triton's own language
    global tl, _mix32, _block_factor, _find_words, _find_bits, _add_tile  # noqa: PLW0603 where Triton looks for names
    import triton
    import triton.language as tl

    @triton.jit
    def _mix32(x):  # noqa: ANN001, ANN202
        x = ((x >> 16) ^ x) * 0x21F0AAAD
        x = ((x >> 15) ^ x) * 0x735A2D97
        return (x >> 15) ^ x

    @triton.jit
    def _block_factor(number):  # noqa: ANN001, ANN202
        x = (number + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        x = ((x >> 30) ^ x) * 0xBF58476D1CE4E5B9
        return (((x >> 27) ^ x) * 0x94D049BB133111EB) | 1

    @triton.jit
    def _find_words(place):  # noqa: ANN001, ANN202
        word = _mix32((place + 1).to(tl.uint32))
        odd = _mix32(word ^ 0x9E3779B9) | 1
        return word.to(tl.int32, bitcast=True), odd.to(tl.int32, bitcast=True).to(tl.int64)

    @triton.jit
    def _find_bits(x, table):  # noqa: ANN001, ANN202
        if x.dtype == tl.float32:  # noqa: SIM108 decided when it is compiled
            bits = x.to(tl.int32, bitcast=True)
        else:
            bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        return (bits ^ table).to(tl.int64)

    @triton.jit
    def _add_tile(x, mask, block, table, sums):  # noqa: ANN001, ANN202
        hashed, bad, zeros, total, squares, largest, sketch = sums
        factor = _block_factor(block)
        block_sign = 1.0 - 2.0 * (factor >> 63).to(tl.float32)
        product = _find_bits(x, table) * factor.to(tl.int64, bitcast=True)
        hashed += tl.where(mask, product, 0)
        value = x.to(tl.float32)
        finite = (value.to(tl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
        bad += (mask & (finite == 0)).to(tl.int32)
        zeros += (mask & (value == 0.0)).to(tl.int32)
        value = tl.where(mask & finite, value, 0.0)
        largest = tl.maximum(largest, tl.abs(value))
        signed = value * block_sign
        sketch += tl.where((table & 128) != 0, -signed, signed)
        return hashed, bad, zeros, total + value, squares + value * value, largest, sketch

    @triton.jit(do_not_specialize=["number", "count", "groups"])
    def digest_kernel(x_ptr, data, doubles, floats, number, count, groups, TILE: tl.constexpr, STAGES: tl.constexpr):  # noqa: ANN001, ANN202, N803
        place = tl.program_id(0) * TILE + tl.arange(0, TILE)
        group = tl.program_id(1)
        table, odd = _find_words(place)
        nothing = tl.zeros([TILE], tl.float32)
        none = tl.zeros([TILE], tl.int32)
        everything = none == 0
        sums = (tl.zeros([TILE], tl.int64), none, none, nothing, nothing, nothing, nothing)
        whole = count // 65536
        long = tl.full([], 0, tl.int64)  # added to a number, it makes a long one
        for block in tl.range(group, whole, groups, num_stages=STAGES):
            x = tl.load(x_ptr + (long + block) * 65536 + place)
            sums = _add_tile(x, everything, long + block, table, sums)
        if whole % groups == group:
            index = (long + whole) * 65536 + place
            x = tl.load(x_ptr + index, mask=index < count, other=0.0)
            sums = _add_tile(x, index < count, long + whole, table, sums)
        hashed, bad, zeros, total, squares, largest, sketch = sums
        slot = data + (long + number) * 38
        tl.atomic_add(slot, tl.sum(hashed * odd, 0))
        tl.atomic_add(slot + 1, tl.sum(bad, 0).to(tl.int64))
        tl.atomic_add(slot + 2, tl.sum(zeros, 0).to(tl.int64))
        tl.atomic_add(doubles + (long + number) * 38 + 3, tl.sum(total.to(tl.float64), 0))
        tl.atomic_add(doubles + (long + number) * 38 + 4, tl.sum(squares.to(tl.float64), 0))
        biggest = tl.max(largest, 0).to(tl.float64)  # the bits of doubles that are not negative have their order
        tl.atomic_max(slot + 5, biggest.to(tl.int64, bitcast=True))
        buckets = tl.sum(tl.reshape(sketch, [TILE // 64, 64]), 0)
        tl.atomic_add(floats + (long + number) * 76 + 12 + tl.arange(0, 64), buckets)

    @triton.jit(do_not_specialize=["columns"])
    def rows_kernel(x_ptr, out, columns, TILE: tl.constexpr):  # noqa: ANN001, ANN202, N803
        long = tl.full([], 0, tl.int64)
        row = long + tl.program_id(0)
        total = tl.zeros([TILE], tl.int64)
        for first in range(0, columns, TILE):
            index = first + tl.arange(0, TILE)
            x = tl.load(x_ptr + row * columns + index, mask=index < columns, other=0.0)
            table, odd = _find_words(index % 65536)
            product = _find_bits(x, table) * odd
            total += tl.where(
                index < columns, product * _block_factor(long + first // 65536).to(tl.int64, bitcast=True), 0
            )
        tl.store(out + row, tl.sum(total, 0))

    return digest_kernel, rows_kernel

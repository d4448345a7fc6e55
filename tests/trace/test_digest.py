"""Hash, sketch and figures of a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.trace.inside.digest import (
    NO_VALUES,
    NOT_PLAIN,
    SLOT,
    WHOLE,
    digest_cpu,
    digest_into,
    hash_rows,
    plain_tensor,
)
from assay.trace.inside.modules import move_first


def digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    return SLOT.unpack(digest_cpu(tensor))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("count", [1, 2, 65, 327_683])
def test_operations_for_every_device_give_the_same_as_those_of_the_cpu(dtype: torch.dtype, count: int) -> None:
    values = (torch.randn(count) * 3).to(dtype)
    slot = torch.zeros(38, dtype=torch.int64)
    digest_into(values, slot)
    assert digest(values)[:3] == SLOT.unpack(bytes(slot.view(torch.uint8).tolist()))[:3]
    doubles, floats = slot[3:6].view(torch.float64), slot[6:].view(torch.float32)
    assert digest(values)[3:] == pytest.approx([*doubles.tolist(), *floats.tolist()], rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[[1, 0, *range(2, 300)]],  # two rows swapped
        lambda x: x.t().contiguous().view(300, 300),
        lambda x: torch.cat([-x[:2], x[2:]]),  # an even number of signs
        lambda x: torch.cat([torch.nextafter(x[:1], x[:1] + 1), x[1:]]),
        lambda x: torch.cat([x[:1].roll(1, 1), x[1:]]),
    ],
)
def test_the_hash_sees_what_norms_do_not(change: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 300)
    assert digest(change(x))[0] != digest(x)[0]
    assert digest(x.clone())[0] == digest(x)[0]


def test_the_sketch_estimates_the_norm_of_a_difference() -> None:
    ratios = []
    for seed in range(30):
        torch.manual_seed(seed)
        a, d = torch.randn(100_000), torch.randn(100_000) * 1e-2
        sketches = [torch.tensor(digest(each)[6:]) for each in (a, a + d)]
        ratios.append(float((sketches[0] - sketches[1]).norm() / ((a + d) - a).norm()))
    assert 0.9 < sum(ratios) / len(ratios) < 1.1
    assert all(0.6 < each < 1.4 for each in ratios)


def test_what_is_not_finite_is_counted_and_left_out_of_sums() -> None:
    values = torch.tensor([torch.nan, 2.0, 0.0, -3.0, torch.inf, -torch.inf])
    hashed, bad, zeros, total, squares, largest, *sketch = digest(values)
    assert (bad, zeros, total, squares, largest) == (3, 1, -1.0, 13.0, 3.0)
    assert hashed
    assert sorted(map(abs, sketch))[-2:] == [2.0, 3.0]


@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_tensor_has_values() -> None:
    pair, ones = torch.tensor([[1 + 2j, 3 - 1j]], dtype=torch.complex64), torch.ones(3)
    for tensor, flags, total in (
        (pair, NOT_PLAIN, 5.0),
        (pair.conj(), NOT_PLAIN, 3.0),
        (ones.to(torch.float8_e4m3fn), 0, 3.0),
        (torch.arange(16.0).view(4, 4).t()[::2], 0, 56.0),
        (torch.empty(0, 5), 0, 0.0),
        (torch.eye(3).to_sparse(), NOT_PLAIN, 3.0),
        (torch.eye(3).to_sparse_csr(), NOT_PLAIN, 3.0),
        (torch.nested.nested_tensor([torch.ones(2), ones]), NOT_PLAIN, 5.0),
        (torch.quantize_per_tensor(ones, 0.5, 0, torch.qint8), NOT_PLAIN, 6.0),
    ):
        values, found = plain_tensor(tensor)
        assert found == flags
        assert not values.numel() or digest(values)[3] == total
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    for each in (freed, torch._efficientzerotensor((3,)), torch.empty(2, device="meta")):
        assert plain_tensor(each) == (None, NO_VALUES)


def test_rows_are_found_again_inside_a_fused_parameter_and_in_another_precision() -> None:
    q, k = torch.randn(4, 70_000), torch.randn(2, 70_000)
    fused = hash_rows(torch.cat([q, k]))
    assert torch.equal(fused[:4], hash_rows(q.to(torch.bfloat16)))
    assert len(set(fused.tolist())) == 6
    assert len(hash_rows(torch.randn(5))) == 1


@pytest.mark.parametrize(
    ("dtype", "bits", "autocast", "unit"),
    [
        (torch.float32, torch.int32, False, 1),
        (torch.bfloat16, torch.int16, False, 1),
        (torch.float32, torch.int32, True, 1 << 16),  # less would be rounded away
    ],
)
def test_noise_is_one_unit_in_the_last_place(dtype: Any, bits: Any, autocast: bool, unit: int) -> None:
    x = torch.randn(1000).to(dtype)
    x[0] = 0.0
    moved, other = x.clone(), x.clone()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert move_first([torch.arange(3), moved], 1)
        move_first([other], 2)
    distance = (moved.view(bits) - x.view(bits)).abs()
    assert distance[0] == 0
    assert (distance[1:] == unit).all()
    assert not torch.equal(moved, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_with_global_indices_add_up_to_the_whole(dtype: torch.dtype, dim: int) -> None:
    x = (torch.randn(301, 333) * 3).to(dtype)
    total: list[Any] = [0] * 70
    for first, part in zip((0, 101), x.split([101, x.shape[dim] - 101], dim), strict=True):
        where = (first * 333, WHOLE[1], 0) if dim == 0 else (first, part.shape[1], 333)
        total = [a + b for a, b in zip(total, SLOT.unpack(digest_cpu(part, where)), strict=True)]
    whole = digest(x)
    assert (total[0] % 2**64, *total[1:3]) == whole[:3]
    assert total[6:] == pytest.approx(whole[6:], abs=1e-2)

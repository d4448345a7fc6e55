"""Programs of two real processes over gloo, compared with one process: placements are known when they are recorded."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimiser loads it: once, for all children
from tests.trace_files import compare_folders
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from assay.trace.comparing import load_recording
from assay.trace.inside.recorder import Recorder
from assay.trace.judge.difference import Comparison

Train = Callable[[int, int], None]


class Net(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.act, self.down = nn.Linear(6, 8), nn.LayerNorm(8, eps=eps), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.norm(self.up(x))))


def cut_batch(x: torch.Tensor, rank: int, world: int, in_turn: bool) -> torch.Tensor:
    return x[rank::world] if in_turn else x.chunk(world)[rank]


def train(rank: int, world: int, wrap: Any = lambda net: net, eps: float = 1e-5, **changes: Any) -> None:
    """Two steps; the whole batch has 4 rows."""
    net = Net(eps)
    model = wrap(net)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(2):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        part = cut_batch(x, rank, changes.get("parts", world), changes.get("in_turn", False))
        loss = model(part).square().mean() * changes.get("factor", 1.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def wrap_ddp(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def wrap_unreduced(net: nn.Module) -> nn.Module:
    found = nn.parallel.DistributedDataParallel(net)
    found.require_backward_grad_sync = False
    return found


def wrap_fsdp(net: nn.Module) -> nn.Module:
    return fully_shard(net, reshard_after_forward=False)


def wrap_tensor_parallel(net: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    columns = ColwiseParallel(use_local_output=False)
    plan = {"up": columns, "down": RowwiseParallel(use_local_output=False)}
    net.norm, net.act = nn.Identity(), nn.Tanh()
    return parallelize_module(net, mesh, plan)


def run(folder: Path, program: Train, world: int = 1, perturbed: int | None = None, **settings: Any) -> Path:
    """Record a program by children of this process, one for each rank."""
    below = folder / "trace" / (f"noise-{perturbed}" if perturbed else "")
    below.mkdir(parents=True, exist_ok=True)
    known = {"steps": [1, 2], "level": "module", "perturbed": perturbed, **settings}
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            os._exit(_run_rank(below, program, rank, world, known))
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * world
    return folder


def _run_rank(folder: Path, program: Train, rank: int, world: int, settings: dict[str, Any]) -> int:
    try:
        torch.set_num_threads(1)
        if world > 1:
            store = f"file://{folder}/store"
            torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
        recorder = Recorder(str(folder), settings, lambda *words, **facts: print(words, facts, file=sys.stderr))
        recorder.install()
        program(rank, world)
        recorder.close()
    except BaseException:  # noqa: BLE001 a child must not go on as its parent
        traceback.print_exc()
        return 1
    return 0


def judge(a: Path, b: Path) -> Comparison:
    return compare_folders(Path("/"), str(a), str(b))


@pytest.fixture(scope="module", autouse=True)
def quick_children() -> Iterator[None]:
    """The collector of a child finds the child's own objects alone, and nothing is copied."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One process with noise, and two that share its work in two ways."""
    folder = tmp_path_factory.mktemp("recorded")
    run(folder / "whole", train)
    run(folder / "whole", train, perturbed=1)
    run(folder / "ddp", partial(train, wrap=wrap_ddp), 2)
    run(folder / "fsdp", partial(train, wrap=wrap_fsdp), 2)
    return {name: folder / name for name in ("whole", "ddp", "fsdp")}


@pytest.fixture
def whole(recorded: dict[str, Path]) -> Path:
    return recorded["whole"]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_data_parallel_ranks_agree_with_one_process(way: str, recorded: dict[str, Path]) -> None:
    found = judge(recorded["whole"], recorded[way])
    assert (found.kind, found.coverage.unplaced) == ("PASS", 0), found.verdict
    assert found.coverage.fraction == 1.0


def test_as_many_ranks_that_share_in_another_way_are_added_up(recorded: dict[str, Path], tmp_path: Path) -> None:
    """Of a sharded bias a rank has a part of the row: its hash says nothing about the whole."""
    assert judge(recorded["ddp"], recorded["fsdp"]).kind == "PASS"
    found = judge(recorded["whole"], run(tmp_path, partial(train, wrap=wrap_fsdp, factor=2.0), 2))
    assert found.first is not None
    assert (found.kind, found.first.kind, found.first.phase) == ("FAIL", "module", "loss"), found.verdict


@pytest.mark.parametrize(
    ("changes", "kind", "module"),
    [
        ({"eps": 1e-2}, "module", "norm"),
        ({"factor": 2.0}, "module", "(model)"),
        ({"wrap": wrap_unreduced}, "ranks", "up"),
    ],
)
def test_what_is_wrong_on_two_ranks_is_named(
    changes: dict[str, Any], kind: str, module: str, whole: Path, tmp_path: Path
) -> None:
    """A module; the loss; gradients that nothing reduces."""
    found = judge(whole, run(tmp_path, partial(train, **{"wrap": wrap_ddp, **changes}), 2))
    assert found.first is not None
    assert (found.kind, found.first.kind, found.first.module) == ("FAIL", kind, module), found.verdict


def test_other_parts_of_the_batch_are_inconclusive_or_declared(whole: Path, tmp_path: Path) -> None:
    """Rows that are dealt out in turn, and a batch of another size."""
    program = partial(train, wrap=wrap_ddp, in_turn=True)
    found = judge(whole, run(tmp_path / "assumed", program, 2))
    assert found.first is not None
    assert (found.kind, found.first.kind) == ("INCONCLUSIVE", "input")
    assert "are rows dealt out in turn? record with --placement" in found.first.text
    assert judge(whole, run(tmp_path / "declared", program, 2, placement=[("*", "I(0)")])).kind == "PASS"
    found = judge(whole, run(tmp_path / "size", partial(train, wrap=wrap_ddp, parts=4), 2))
    assert found.kind == "INCONCLUSIVE", found.verdict


def test_tensor_parallel_weights_and_activations_add_up(tmp_path: Path) -> None:
    """Columns and rows of weights, a sharded last dimension, partial sums."""

    def wrap(net: nn.Module) -> nn.Module:
        net.norm, net.act = nn.Identity(), nn.Tanh()
        return net

    def program(rank: int, _world: int, make: Any) -> None:
        train(0, 1, wrap=make)

    one = run(tmp_path / "one", partial(program, make=wrap))
    run(tmp_path / "one", partial(program, make=wrap), perturbed=1)
    run(tmp_path / "ops", partial(program, make=wrap_tensor_parallel), 2, level="op")  # collectives that still run
    found = judge(one, run(tmp_path / "two", partial(program, make=wrap_tensor_parallel), 2))
    assert (found.kind, found.coverage.unplaced) == ("PASS", 0), found.verdict
    points = [point for rank in load_recording(str(tmp_path / "two")).ranks for point in rank.points]
    shards = {point.name for point in points if point.placement and "S(1)" in str(point.placement["placements"])}
    assert {"weight", "output.0"} <= shards

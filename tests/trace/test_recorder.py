"""What is recorded of a program, and that the program computes what it computes without it."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks_of
from torch.utils.checkpoint import checkpoint

from assay.trace import record
from assay.trace.comparing import compare, load_recording
from assay.trace.inside import compiled, recorder
from assay.trace.inside.digest import NO_VALUES, SLOT, _load_scratch, digest_cpu, load_tables
from assay.trace.inside.files import TraceFiles
from assay.trace.records import Trace, list_traces, load_trace

LEVELS = ("step", "module", "op")


@pytest.fixture(autouse=True)
def only_models_of_this_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))  # torch sets it
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes that stay
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch sets it too
    gc.collect()
    yield
    assert not hooks_of._has_any_global_hook()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.relu(self.linear(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int = 16, checkpoints: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 11)
        self.checkpoints = checkpoints

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x) if self.checkpoints is None else checkpoint(layer, x, use_reentrant=self.checkpoints)
        return self.head(x)


def train(steps: int = 3, build: Callable[[], nn.Module] = Net, wrap: Any = lambda model: model) -> tuple[Any, ...]:
    """Losses and weights of a small training."""
    torch.manual_seed(0)
    model = build()
    called = wrap(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 11, (4, 6))
        loss = nn.functional.cross_entropy(called(tokens).flatten(0, 1), tokens.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return (*losses, *(each.detach().clone() for each in model.parameters()))


def load(folder: Path) -> Trace:
    (found,) = list_traces(str(folder))
    return load_trace(found)


def equal(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def keys(trace: Trace, phase: str) -> list[tuple[str, str, int]]:
    return [(p.module, p.name, p.call) for p in trace.points if p.phase == phase and not p.op]


@pytest.mark.parametrize("level", LEVELS)
def test_a_traced_training_is_equal_bit_for_bit(level: str, tmp_path: Path) -> None:
    plain = train()
    with record(tmp_path, steps=[1, 3], level=level):
        traced = train()
    assert equal(plain, traced)
    trace = load(tmp_path)
    assert trace.is_complete
    assert [each["step"] for each in trace.steps] == [1, 3]
    assert [each["loss"] for each in trace.steps] == [float(plain[0]), float(plain[2])]
    assert trace.steps[0]["groups"][0]["lr"] == 0.01
    names = {module for module, _, _ in keys(trace, "parameter")}
    assert names == {"embed", "layers.0.norm", "layers.0.linear", "layers.1.norm", "layers.1.linear", "head"}
    assert ("head", "weight.exp_avg", 0) in keys(trace, "optimiser")
    forward = {module for module, _, _ in keys(trace, "forward")}
    assert ("layers.1.drop" in forward) == (level != "step")
    assert (keys(trace, "backward") != []) == (level != "step")
    assert any(point.op == "aten.addmm.default" for point in trace.points) == (level == "op")
    sources = {point.source for point in trace.points if point.module == "layers.1.linear" and point.phase == "forward"}
    assert all(str(each).split("/")[-1].startswith("test_recorder.py:") for each in sources)


def test_the_random_state_is_what_the_model_finds(tmp_path: Path) -> None:
    """Python's own is another one in each process; what the program draws before it calls the model counts."""

    def note(name: str, model: Callable[[Any], Any] = lambda model: model) -> str:
        with record(tmp_path / name, steps=[1]):
            train(1, wrap=model)
        return str(load(tmp_path / name).steps[0]["random"])

    def draw(model: Any) -> Any:
        torch.rand(1)
        return model

    first = note("a")
    random.seed(7)
    torch.rand(3)  # before the program has set its seed
    assert note("b") == first
    assert note("c", draw) != first


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_defaults_of_the_program_do_not_reach_the_recorder(tmp_path: Path, kind: torch.dtype) -> None:
    """A program may set the device and the type of tensors that it makes without naming them."""
    values = torch.arange(300_000, dtype=torch.float32).sin()
    wanted = digest_cpu(values)
    _load_scratch.cache_clear()
    load_tables.cache_clear()
    with record(tmp_path, steps=[1]):
        model = nn.Linear(3, 2)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(4, 3)
        torch.set_default_dtype(kind)
        torch.set_default_device("meta")
        try:
            model(x).sum().backward()
            optimiser.step()
            assert digest_cpu(values) == wanted
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    trace = load(tmp_path)
    assert len(trace.rows) > 5
    assert not trace.rows["flags"].any()


def test_rows_are_those_of_the_tensors(tmp_path: Path) -> None:
    with record(tmp_path, steps=[2]):
        *_, last = train(2)
    trace = load(tmp_path)
    row = next(row for row in trace.rows[::-1] if trace.points[row["point"]].phase == "parameter")
    assert row["step"] == 2
    assert row["count"] == last.numel()
    assert row["sumsq"] == pytest.approx(float(last.double().square().sum()))
    assert row["largest"] == float(last.abs().max())
    assert row["sum"] == pytest.approx(float(last.double().sum()), abs=1e-6)


def test_inputs_of_a_module_are_the_rows_that_made_them(tmp_path: Path) -> None:
    with record(tmp_path):
        train(1)
    trace = load(tmp_path)
    rows = {
        (p.module, p.name): (number, row)
        for number, row in enumerate(trace.rows)
        if (p := trace.points[row["point"]]).phase == "forward"
    }
    number, _ = rows["layers.0.norm", "output.0"]
    assert rows["layers.0.linear", "output.0"][1]["inputs"][0] == number + 1


def test_nothing_is_registered_on_steps_that_are_not_traced(tmp_path: Path) -> None:
    seen = []

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            is_patched = torch.autograd.backward.__module__ != "torch.autograd"
            modes = torch._C._len_torch_dispatch_stack()
            seen.append(
                (len(hooks_of._global_forward_hooks), len(hooks_of._global_forward_pre_hooks), modes, is_patched)
            )
            return x

    with record(tmp_path, steps=[2], level="op"):
        train(3, lambda: nn.Sequential(Net(), Spy()))
    assert seen == [(0, 0, 0, False), (1, 1, 1, True), (0, 0, 0, False)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_second_forward_of_a_checkpoint_is_not_counted(reentrant: bool, tmp_path: Path) -> None:
    plain = train(1, lambda: Net(checkpoints=reentrant))
    with record(tmp_path / "a"):
        train(1)
    with record(tmp_path / "b"):
        traced = train(1, lambda: Net(checkpoints=reentrant))
    assert equal(plain, traced)
    one, other = load(tmp_path / "a"), load(tmp_path / "b")
    assert sorted(keys(one, "forward")) == sorted(keys(other, "forward"))
    assert sorted(keys(one, "backward")) == sorted(keys(other, "backward"))


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    with record(tmp_path, steps=[1, 2]):
        model = nn.Linear(3, 1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(3):
                model(torch.randn(2, 3)).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
    trace = load(tmp_path)
    assert [each["step"] for each in trace.steps] == [1, 2]
    assert keys(trace, "forward") == [("", "output.0", call) for call in range(3)]


def test_several_optimisers_make_one_step(tmp_path: Path) -> None:
    with record(tmp_path, steps=[1, 2, 3]):
        one, other = nn.Linear(3, 1), nn.Linear(2, 1)
        first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.2)
        unused = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.3)
        for _ in range(4):
            one(torch.randn(2, 3)).sum().backward()
            first.step()
            other(torch.randn(2, 2)).sum().backward()
            second.step()
        del unused
    trace = load(tmp_path)
    lrs = [[group["lr"] for group in each["groups"]] for each in trace.steps]
    assert lrs[1:] == [[0.2, 0.1], [0.2, 0.1]] or lrs[1:] == [[0.1, 0.2], [0.1, 0.2]]
    assert {module for module, _, _ in keys(trace, "gradient")} == {"", "Linear"}


def test_a_step_that_the_scaler_skips_is_a_step(tmp_path: Path) -> None:
    with record(tmp_path, steps=[1, 2]):
        model = nn.Linear(3, 1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (float("inf"), 1.0):
            optimiser.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
            scaler.step(optimiser)
            scaler.update()
    trace = load(tmp_path)
    assert [(each["step"], each["skipped"]) for each in trace.steps] == [(1, True), (2, False)]
    gradient = next(row for row in trace.rows if trace.points[row["point"]].phase == "gradient")
    assert gradient["nonfinite"] == gradient["count"]


@pytest.mark.parametrize(
    ("build", "name", "factor"), [(torch.optim.AdamW, "exp_avg", "0.1"), (torch.optim.SGD, "momentum_buffer", "1")]
)
def test_a_state_of_the_optimiser_that_was_lost_is_named(
    tmp_path: Path, build: Callable[..., Any], name: str, factor: str
) -> None:
    """After a restart without it, the gradients of the first step are the same, and the parameter before them."""
    for side in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimiser = build(model.parameters(), **({"momentum": 0.9} if build is torch.optim.SGD else {}))
        for step in range(4):
            if step == 3 and side == "b":
                optimiser.state.clear()
            with record(tmp_path / side, level="step") if step == 3 else nullcontext():
                model(torch.randn(16, 8)).square().mean().backward()
                optimiser.step()
            optimiser.zero_grad()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    first = found.first
    assert first is not None
    assert (first.kind, first.phase, first.name, first.error_in) == ("optimiser", "optimiser", f"weight.{name}", 0.0)
    assert f"the state of weight.{name} in step 1 differs by" in first.text
    assert f"in B it was zero before this step: it is {factor} times the gradient" in first.text


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_only_infers_counts_calls_of_its_outermost_module(level: str, tmp_path: Path) -> None:
    model = Net().eval()
    with record(tmp_path, steps=[2, 4], level=level), torch.inference_mode():
        for number in range(5):
            model(torch.full((1, 2), number))
    trace = load(tmp_path)
    assert [each["step"] for each in trace.steps] == [2, 4]
    assert len(trace.weights) == 11
    inputs = [float(row["sum"]) for row in trace.rows if trace.points[row["point"]].phase == "input"]
    assert inputs == [2.0, 6.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("backend", "how"),
    [
        *(("aot_eager", how) for how in ("whole", "regions", "function", "breaks")),
        pytest.param("inductor", "regions", marks=pytest.mark.services("compiler")),
    ],
)
def test_compiled_regions_are_what_they_are_without_a_trace(backend: str, how: str, tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    def wrap(model: Any) -> Any:
        if how == "regions":
            for layer in model.layers:
                layer.compile(backend=backend)
            return model
        if how == "breaks":
            return torch.compile(lambda tokens: (model(tokens), torch._dynamo.graph_break())[0], backend=backend)
        return torch.compile(model if how == "whole" else lambda tokens: model(tokens) * 1.0, backend=backend)

    def train_counted() -> tuple[Any, dict[str, Any]]:
        torch._dynamo.reset()
        counters.clear()
        results = train(3, wrap=wrap)
        found = {name: dict(counters[name]) for name in ("stats", "frames")}
        return results, {**found, "breaks": sum(counters["graph_break"].values())}

    train_counted()  # what torch compiles once in its life
    plain, graphs = train_counted()
    for level in LEVELS if backend != "inductor" else ("module",):
        with record(tmp_path / level, steps=[1, 3], level=level):
            traced, counted = train_counted()
        assert counted == graphs, level
        assert equal(plain, traced), level
        assert load(tmp_path / level).meta["graphs"]["graphs"] == graphs["stats"]["unique_graphs"]


@pytest.mark.filterwarnings("ignore")
def test_inside_of_a_compiled_model_its_modules_are_recorded_by_one_graph(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with record(tmp_path, steps=[1, 3], inside=True):
        traced = train(4, wrap=partial(torch.compile, backend="aot_eager"))
    assert (counters["stats"]["unique_graphs"], len(counters["graph_break"])) == (1, 0)
    torch._dynamo.reset()
    assert equal(train(4, wrap=partial(torch.compile, backend="aot_eager")), traced)
    trace = load(tmp_path)
    rows = {(trace.points[row["point"]].module, int(row["step"])) for row in trace.rows}
    assert {("layers.1.linear", 1), ("layers.1.linear", 3), ("", 3)} <= rows


def test_a_buffer_that_compiled_code_writes_to_again_is_another_tensor(tmp_path: Path) -> None:
    """Inductor reuses its buffers: the same object, with the same version."""
    with record(tmp_path, inside=True):
        model, values = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.zeros(4)
        (inside,) = compiled._inside
        inside.name_modules()
        for number in (model[0]._assay_number, model[1]._assay_number):
            inside.operation(values, inside.mark, number, 0)
            values.numpy()[:] = 1.0
    trace = load(tmp_path)
    sums = {trace.points[row["point"]].module: float(row["sum"]) for row in trace.rows}
    assert sums == {"0": 0.0, "1": 4.0}


def test_whole_tensors_of_modules_are_kept(tmp_path: Path) -> None:
    with record(tmp_path, keep=["head"]):
        train(1)
    trace = load(tmp_path)
    lines = [json.loads(line) for line in (Path(trace.folder) / "kept.jsonl").read_text().splitlines()]
    data = (Path(trace.folder) / "kept.bin").read_bytes()
    kept = {trace.points[trace.rows[line["row"] - 1]["point"]].phase: line for line in lines}
    assert set(kept) == {"forward", "backward"}
    for line in lines:
        values = torch.frombuffer(bytearray(data[line["offset"] : line["offset"] + line["bytes"]]), dtype=torch.float32)
        assert line["shape"] == [4, 6, 11]
        assert SLOT.unpack(digest_cpu(values))[0] == trace.rows[line["row"] - 1]["hash"]


def test_what_a_cuda_graph_captures_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of a capture are those of its replays. A tensor that says it is on a GPU stands in for one."""

    class OnDevice(torch.Tensor):
        is_cuda = True

    class Captured(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_subclass(OnDevice)

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plain = train(2, lambda: nn.Sequential(Net(), Captured()))
    said = "left out: a CUDA graph was captured in a traced step"
    with pytest.warns(UserWarning, match=said), record(tmp_path, steps=[1, 2]):
        assert equal(plain, train(2, lambda: nn.Sequential(Net(), Captured())))
    trace = load(tmp_path)
    assert [each["step"] for each in trace.steps] == [1, 2]
    assert {module for module, _, _ in keys(trace, "forward")} >= {"0.head", "0.layers.1"}
    assert "1" not in {module for module, _, _ in keys(trace, "forward")}


@pytest.mark.long
def test_a_program_of_a_hundred_thousand_modules(tmp_path: Path) -> None:
    count = 100_000
    with record(tmp_path):
        train(1, lambda: nn.Sequential(Net(), *(nn.Identity() for _ in range(count))))
    trace = load(tmp_path)
    assert len([each for each in keys(trace, "forward") if each[0].isdigit()]) == count + 1
    assert sum(path.stat().st_size for path in Path(trace.folder).glob("rows.bin")) <= 400 * len(trace.rows)


def test_buffers_that_a_step_writes_to_are_recorded(tmp_path: Path) -> None:
    """The momentum of a running mean changes nothing else until the model is evaluated."""

    def fit(momentum: float) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum))
        model.register_buffer("mask", torch.ones(2))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 3)).square().mean().backward()
            optimiser.step()

    for name, momentum in (("a", 0.1), ("b", 0.2)):
        with record(tmp_path / name, steps=[1, 2]):
            fit(momentum)
    wanted = [("1", "running_mean", 0), ("1", "running_var", 0), ("1", "num_batches_tracked", 0)]
    assert sorted(keys(load(tmp_path / "a"), "buffer")) == sorted(wanted)
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert found.first.text.startswith("1.running_mean in step 1 differs by")
    assert (found.first.kind, found.first.module, found.first.inside) == ("module", "1", "")


def test_parameters_that_no_optimiser_has_are_recorded(tmp_path: Path) -> None:
    """An average of the weights changes nothing else until it is evaluated."""

    def fit(share: float) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        average = copy.deepcopy(model).requires_grad_(False)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 3)).square().mean().backward()
            optimiser.step()
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.data.lerp_(other.data, share)  # torch counts no version of it

    for name, share in (("a", 0.1), ("b", 0.2)):
        with record(tmp_path / name, steps=[1, 2], level="step"):
            fit(share)
    trace = load(tmp_path / "a")
    assert ("Sequential.0", "weight", 0) in keys(trace, "parameter")
    assert ("Sequential.0", "weight") in {(each.module, each.name) for each in trace.weights}
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert (found.kind, found.first.module, found.first.step) == ("CHANGED", "Sequential.0", 2)
    assert "it has no gradient in this step: the program changes it itself" in found.first.text


def test_parameters_that_are_replaced_keep_the_name(tmp_path: Path) -> None:
    """A model that is called with other tensors in the place of its parameters, and one that is given new ones."""
    with record(tmp_path):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        others = {name: each.detach() for name, each in model.named_parameters()}
        torch.func.functional_call(model, others, (torch.randn(8, 3),))
        model[1].weight = nn.Parameter(torch.ones(1, 4))
        optimiser.param_groups[0]["params"][2] = model[1].weight
        model(torch.randn(8, 3)).sum().backward()
        optimiser.step()
    found = keys(load(tmp_path), "parameter")
    assert sorted(found) == [("0", "bias", 0), ("0", "weight", 0), ("1", "bias", 0), ("1", "weight", 0)]


def test_modules_that_are_called_while_the_model_is_built_have_its_names(tmp_path: Path) -> None:
    class Probed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 4)
            self.head = nn.Linear(self.body(torch.zeros(1, 3)).shape[1], 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    with record(tmp_path):
        model = Probed()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 3)).sum().backward()
        optimiser.step()
    assert {module for module, *_ in keys(load(tmp_path), "parameter")} == {"body", "head"}
    assert {module for module, *_ in keys(load(tmp_path), "backward")} == {"body", "head", ""}


def test_a_program_that_fails_in_a_traced_step_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"), record(tmp_path / "failed", steps=[1]):
        nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2))(torch.ones(1, 2))
    assert not load(tmp_path / "failed").is_complete
    with record(tmp_path / "evaluated", steps=[1, 2]):
        train(1)
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert load(tmp_path / "evaluated").is_complete


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_recorded(tmp_path: Path) -> None:
    class Cut(nn.Module):
        def forward(self, x: torch.Tensor, layout: torch.layout) -> torch.Tensor:
            return torch.nested.nested_tensor([x[:1], x], layout=layout)

    with record(tmp_path, steps=[1, 2]), torch.no_grad():
        for layout in (torch.strided, torch.jagged):
            Cut()(torch.ones(3, 2), layout)
    trace = load(tmp_path)
    assert [each.shape for each in trace.points if each.phase == "forward"] == [(2, -1), (2, -1)]
    assert [row["sumsq"] for row in trace.rows if trace.points[row["point"]].phase == "forward"] == [8, 8]


def test_a_training_after_an_evaluation_in_inference_mode_is_recorded(tmp_path: Path) -> None:
    """What the recorder keeps for itself is made by the evaluation, and used by the training."""
    _load_scratch.cache_clear()
    with record(tmp_path, steps=[1, 2]):
        with torch.inference_mode():
            nn.Linear(300, 300)(torch.ones(300, 300))  # a step of its own
        train(1, partial(Net, 300))
    trace = load(tmp_path)
    assert trace.is_complete
    assert {int(each["flags"]) for each in trace.rows} == {0}


def test_a_record_that_failed_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on; what was not recorded is not equal."""
    monkeypatch.setattr(recorder, "describe_group", lambda _group: 1 / 0)
    for name in ("a", "b"):
        with pytest.warns(UserWarning, match="division by zero"), record(tmp_path / name, steps=[1, 2]):
            train(3)
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.kind == "INCONCLUSIVE"
    assert "the trace of A ends before its program did" in str(found.verdict.findings)


class Returns(nn.Module):
    """Hands its input on with something else."""

    def __init__(self, build: Callable[[], Any]) -> None:
        super().__init__()
        self.build = build

    def forward(self, x: torch.Tensor) -> Any:
        return x, self.build()


class First(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return x[0]


def build_loop() -> list[Any]:
    found: list[Any] = [torch.ones(2)]
    for _ in range(5000):
        found = [found]
    found.append(found)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), [(2, -1)]),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), [(2, -1)]),
        (build_loop, [(2,)]),
        (lambda: (v for v in (torch.ones(2),)), []),
        (lambda: None, []),
    ],
)
def test_what_a_module_returns_may_be_anything(build: Callable[[], Any], shapes: list[Any], tmp_path: Path) -> None:
    with record(tmp_path):
        train(1, lambda: nn.Sequential(Net(), Returns(build), First()))
    trace = load(tmp_path)
    assert trace.is_complete
    assert [p.shape for p in trace.points if (p.phase, p.module) == ("forward", "1")] == [(4, 6, 11), *shapes]


def use_transforms(model: nn.Module) -> None:
    values = {name: each.detach() for name, each in model.named_parameters()}

    def call(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    x = torch.zeros(3, 1, 2).long()
    torch.func.vmap(torch.func.grad(call), in_dims=(None, 0), randomness="same")(values, x)
    torch.func.jvp(model.get_submodule("layers.0"), (torch.ones(2, 16),), (torch.ones(2, 16),))


@pytest.mark.filterwarnings("ignore:.*(trace|Trace|deprecated).*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda model: torch.jit.trace(model.eval(), torch.zeros(1, 2).long()), "what torch.jit.trace called"),
        (use_transforms, ""),
    ],
)
@pytest.mark.parametrize("level", ["module", "op"])
def test_other_uses_of_the_model_in_a_traced_step(
    use: Callable[[Any], Any], said: str, level: str, tmp_path: Path
) -> None:
    def wrap(model: Any) -> Any:
        use(model)
        return model

    plain = train(2, wrap=wrap)
    says = pytest.warns(UserWarning, match=said) if said else nullcontext()
    with says, record(tmp_path, steps=[1, 2], level=level):
        assert equal(plain, train(2, wrap=wrap))
    trace = load(tmp_path)
    assert trace.is_complete
    assert (trace.rows["flags"] == NO_VALUES).any() == (not said)


def test_parameters_without_a_shape_get_one(tmp_path: Path) -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Embedding(11, 4), nn.LazyLinear(11))
        model(torch.zeros(1, 1).long())
        return model

    with record(tmp_path):
        train(1, build)
    assert ("1", "weight", 0) in keys(load(tmp_path), "parameter")


@pytest.mark.parametrize("kind", [TimeoutError, KeyboardInterrupt])
def test_a_signal_while_the_recorder_works_reaches_the_program(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_number: int, _frame: Any) -> None:
        raise kind("the program's own")

    before = signal.signal(signal.SIGALRM, stop)
    monkeypatch.setattr(recorder, "describe_group", lambda _group: signal.raise_signal(signal.SIGALRM))
    try:
        with pytest.warns(UserWarning, match="own"), record(tmp_path), pytest.raises(kind, match="own"):
            train(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not load(tmp_path).is_complete


def test_the_record_stays_where_it_is_and_no_file_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may leave its folder, remove it, and close all files that it did not open."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(tmp_path)
    found: list[str] = []

    def leave(model: Any) -> Any:
        os.chdir(gone)
        gone.rmdir()
        return model

    with record("kept", steps=[1, 2]):
        train(2, wrap=leave)
        found += [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        os.chdir(tmp_path)
    assert load(tmp_path / "kept").is_complete
    assert not [each for each in found if each.startswith(str(tmp_path / "kept"))]


def test_a_part_of_a_write_is_a_failure(tmp_path: Path) -> None:
    """Of a disk that is nearly full; rows after it would not be where the reader looks for them."""
    resource = pytest.importorskip("resource")
    own = TraceFiles(str(tmp_path), 0, {})
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        own.append("rows.bin", bytes(400))
        with pytest.raises(OSError, match="only a part was written"):
            own.append("rows.bin", bytes(400))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)

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
import torch._dynamo  # an optimiser loads it
from tests.trace_files import compare_folders
from torch import nn
from torch.nn.modules import module as hooks_of
from torch.utils.checkpoint import checkpoint

from assay.trace import record
from assay.trace.inside import compiled, recorder
from assay.trace.inside.digest import NO_VALUES, SLOT, _load_scratch, digest_cpu, load_tables
from assay.trace.inside.files import TraceFiles
from assay.trace.judge.difference import Comparison
from assay.trace.records import Trace, list_traces, load_trace

LEVELS = ("step", "module", "op")
MODULES = {"embed", "head", "", *(f"layers.{n}{name}" for n in (0, 1) for name in ("", ".norm", ".linear", ".drop"))}


@pytest.fixture(scope="module", autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def only_models_of_this_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The recorder looks for models among all objects: of what was there before, the collector shows it nothing."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))  # torch sets it
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes that stay
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch sets it too
    gc.collect()
    gc.freeze()
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


class Apply(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


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


def descend(model: nn.Module, *inputs: torch.Tensor) -> torch.optim.Optimizer:
    """One step of gradient descent, with the gradients of all inputs."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for each in inputs:
        model(each).sum().backward()
    optimiser.step()
    return optimiser


def load(folder: Path) -> Trace:
    (found,) = list_traces(str(folder))
    return load_trace(found)


def record_sides(folder: Path, program: Callable[[Any], object], a: Any, b: Any, **settings: Any) -> Comparison:
    """Record a program twice, with two values of what it is called with."""
    for name, value in (("a", a), ("b", b)):
        with record(folder / name, **settings):
            program(value)
    return compare_folders(folder)


def equal(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def keys(trace: Trace, phase: str) -> list[tuple[str, str, int]]:
    return [(p.module, p.name, p.call) for p in trace.points if p.phase == phase and not p.op]


def modules(trace: Trace, phase: str) -> set[str]:
    return {module for module, *_ in keys(trace, phase)}


# ---------------------------------------------------------------- what is recorded


@pytest.mark.parametrize("level", LEVELS)
def test_a_traced_training_is_equal_bit_for_bit(level: str, tmp_path: Path) -> None:
    plain = train()
    with record(tmp_path, steps=[1, 3], level=level):
        assert equal(plain, train())
    trace = load(tmp_path)
    assert trace.is_complete
    assert [(each["step"], each["loss"]) for each in trace.steps] == [(1, float(plain[0])), (3, float(plain[2]))]
    assert trace.steps[0]["groups"][0]["lr"] == 0.01
    names = {"embed", "layers.0.norm", "layers.0.linear", "layers.1.norm", "layers.1.linear", "head"}
    assert modules(trace, "parameter") == names
    assert ("head", "weight.exp_avg", 0) in keys(trace, "optimiser")
    assert ("layers.1.drop" in modules(trace, "forward")) == (level != "step")
    assert (keys(trace, "backward") != []) == (level != "step")
    assert any(point.op == "aten.addmm.default" for point in trace.points) == (level == "op")
    sources = {point.source for point in trace.points if point.module == "layers.1.linear" and point.phase == "forward"}
    assert all(str(each).split("/")[-1].startswith("test_recorder.py:") for each in sources)


def test_the_random_state_is_what_the_model_finds(tmp_path: Path) -> None:
    """Python's own is another one in each process; what the program draws before it calls the model counts."""

    def note(name: str, draws: int = 0) -> str:
        with record(tmp_path / name, steps=[1]):
            train(1, wrap=lambda model: (torch.rand(draws), model)[1])
        return str(load(tmp_path / name).steps[0]["random"])

    first = note("a")
    random.seed(7)
    torch.rand(3)  # before the program has set its seed
    assert note("b") == first
    assert note("c", 1) != first


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_defaults_of_the_program_do_not_reach_the_recorder(tmp_path: Path, kind: torch.dtype) -> None:
    """A program may set the device and the type of tensors that it makes without naming them."""
    values = torch.arange(300_000, dtype=torch.float32).sin()
    wanted = digest_cpu(values)
    _load_scratch.cache_clear()
    load_tables.cache_clear()
    with record(tmp_path, steps=[1]):
        model, x = nn.Linear(3, 2), torch.ones(4, 3)
        torch.set_default_dtype(kind)
        torch.set_default_device("meta")
        try:
            descend(model, x)
            assert digest_cpu(values) == wanted
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    trace = load(tmp_path)
    assert len(trace.rows) > 5
    assert not trace.rows["flags"].any()


def test_rows_are_those_of_the_tensors(tmp_path: Path) -> None:
    """Their figures, the rows that made them, and whole tensors of the modules that are kept."""
    with record(tmp_path, steps=[2], keep=["head"]):
        *_, last = train(2)
    trace = load(tmp_path)
    points = [trace.points[row["point"]] for row in trace.rows]
    row = next(row for row, point in zip(trace.rows[::-1], points[::-1], strict=True) if point.phase == "parameter")
    assert (row["step"], row["count"], row["largest"]) == (2, last.numel(), float(last.abs().max()))
    assert row["sumsq"] == pytest.approx(float(last.double().square().sum()))
    assert row["sum"] == pytest.approx(float(last.double().sum()), abs=1e-6)
    forward = [point.module if point.phase == "forward" else None for point in points]
    assert trace.rows[forward.index("layers.0.linear")]["inputs"][0] == forward.index("layers.0.norm") + 1
    lines = [json.loads(line) for line in (Path(trace.folder) / "kept.jsonl").read_text().splitlines()]
    data = bytearray((Path(trace.folder) / "kept.bin").read_bytes())
    assert {points[line["row"] - 1].phase for line in lines} == {"forward", "backward"}
    for line in lines:
        values = torch.frombuffer(data[line["offset"] : line["offset"] + line["bytes"]], dtype=torch.float32)
        assert line["shape"] == [4, 6, 11]
        assert SLOT.unpack(digest_cpu(values))[0] == trace.rows[line["row"] - 1]["hash"]


def test_nothing_is_registered_on_steps_that_are_not_traced(tmp_path: Path) -> None:
    seen = []

    def spy(x: torch.Tensor) -> torch.Tensor:
        hooks = len(hooks_of._global_forward_hooks), len(hooks_of._global_forward_pre_hooks)
        is_patched = torch.autograd.backward.__module__ != "torch.autograd"
        seen.append((*hooks, torch._C._len_torch_dispatch_stack(), is_patched))
        return x

    with record(tmp_path, steps=[2], level="op"):
        train(3, lambda: nn.Sequential(Net(), Apply(spy)))
    assert seen == [(0, 0, 0, False), (1, 1, 1, True), (0, 0, 0, False)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_second_forward_of_a_checkpoint_is_not_counted(reentrant: bool, tmp_path: Path) -> None:
    build = partial(Net, checkpoints=reentrant)
    plain = train(1, build)
    with record(tmp_path / "a"):
        train(1)
    with record(tmp_path / "b"):
        assert equal(plain, train(1, build))
    one, other = load(tmp_path / "a"), load(tmp_path / "b")
    for phase in ("forward", "backward"):
        assert sorted(keys(one, phase)) == sorted(keys(other, phase))


# ---------------------------------------------------------------- steps


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    with record(tmp_path, steps=[1, 2]):
        model = nn.Linear(3, 1)
        for _ in range(2):
            descend(model, *torch.randn(3, 2, 3)).zero_grad()
    trace = load(tmp_path)
    assert [each["step"] for each in trace.steps] == [1, 2]
    assert keys(trace, "forward") == [("", "output.0", call) for call in range(3)]


def test_an_evaluation_in_a_step_is_not_the_training(tmp_path: Path) -> None:
    """It shifts the numbers of the calls after it; the flattening has no backward of its own."""

    def program(evaluates: bool, eps: float = 1e-5) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8, eps if evaluates else 1e-5), nn.Linear(8, 2)
        )
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        x, other = torch.randn(16, 2, 2), torch.randn(16, 2, 2)
        for _ in range(2):
            if evaluates:
                model.eval()
                model(other)
                model.train()
            optimiser.zero_grad()
            model(x).square().mean().backward()
            optimiser.step()

    for one, two in ((False, True), (True, False)):
        found = record_sides(tmp_path / str(one), program, one, two)
        assert (found.kind, found.first) == ("PASS", None)
    found = record_sides(tmp_path / "fault", partial(program, eps=1e-2), False, True)
    assert found.kind == "CHANGED"
    assert (found.first.module, found.first.phase) == ("2", "forward")


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
    assert lrs[1:] in ([[0.2, 0.1], [0.2, 0.1]], [[0.1, 0.2], [0.1, 0.2]])
    assert modules(trace, "gradient") == {"", "Linear"}


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
    ("build", "name", "factor"),
    [(torch.optim.AdamW, "exp_avg", "0.1"), (partial(torch.optim.SGD, momentum=0.9), "momentum_buffer", "1")],
)
def test_a_state_of_the_optimiser_that_was_lost_is_named(
    tmp_path: Path, build: Callable[..., Any], name: str, factor: str
) -> None:
    """After a restart without it, the gradients of the first step are the same, and the parameter before them."""
    for side in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimiser = build(model.parameters())
        for step in range(4):
            if step == 3 and side == "b":
                optimiser.state.clear()
            with record(tmp_path / side, level="step") if step == 3 else nullcontext():
                model(torch.randn(16, 8)).square().mean().backward()
                optimiser.step()
            optimiser.zero_grad()
    first = compare_folders(tmp_path).first
    assert (first.kind, first.phase, first.name, first.error_in) == ("optimiser", "optimiser", f"weight.{name}", 0.0)
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


def test_a_training_after_an_evaluation_in_inference_mode_is_recorded(tmp_path: Path) -> None:
    """What the recorder keeps for itself is made by the evaluation, and used by the training."""
    _load_scratch.cache_clear()
    with record(tmp_path, steps=[1, 2]):
        with torch.inference_mode():
            nn.Linear(300, 300)(torch.ones(300, 300))  # a step of its own
        train(1, partial(Net, 300))
    trace = load(tmp_path)
    assert trace.is_complete
    assert not trace.rows["flags"].any()


# ---------------------------------------------------------------- torch.compile


def compile_parts(model: Any, backend: str) -> Any:
    """A module that is compiled in its place, one in a wrapper, and a function with a break of the graph."""
    model.layers[0].compile(backend=backend)
    model.layers[1] = torch.compile(model.layers[1], backend=backend)
    called = torch.compile(lambda x: (model.embed(x), torch._dynamo.graph_break())[0] * 1.0, backend=backend)
    return lambda tokens: model.head(model.layers[1](model.layers[0](called(tokens))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("wrap", "backend", "recorded"),
    [
        (compile_parts, "aot_eager", [("step", False, set()), ("op", False, {"layers.0", "layers.1", "head"})]),
        (torch.compile, "aot_eager", [("module", False, {""}), ("module", True, MODULES)]),
        pytest.param(
            *(compile_parts, "inductor", [("module", False, {"layers.0", "layers.1", "head"})]),
            marks=pytest.mark.services("compiler"),
        ),
    ],
)
def test_compiled_regions_are_what_they_are_without_a_trace(
    wrap: Any, backend: str, recorded: list[tuple[str, bool, set[str]]], tmp_path: Path
) -> None:
    """Their graphs too; inside of them modules are recorded where that is asked for."""
    from torch._dynamo.utils import counters

    def train_counted() -> tuple[Any, dict[str, int]]:
        torch._dynamo.reset()
        gc.collect()  # the model before
        counters.clear()
        results = train(3, wrap=partial(wrap, backend=backend))
        return results, {**counters["stats"], **counters["frames"], "breaks": sum(counters["graph_break"].values())}

    plain, graphs = train_counted()
    for level, inside, wanted in recorded:
        folder = tmp_path / f"{level}-{inside}"
        with record(folder, steps=[1, 3], level=level, inside=inside):
            traced, counted = train_counted()
        assert {**counted, **({"calls_captured": graphs["calls_captured"]} if inside else {})} == graphs
        assert equal(plain, traced)
        trace = load(folder)
        assert trace.meta["graphs"]["graphs"] == graphs["unique_graphs"]
        for step in (1, 3):
            points = [trace.points[row["point"]] for row in trace.rows if row["step"] == step]
            assert {each.module for each in points if each.phase == "forward" and not each.op} == wanted


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


def test_what_a_cuda_graph_captures_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of a capture are those of its replays. A tensor that says it is on a GPU stands in for one."""

    class OnDevice(torch.Tensor):
        is_cuda = True

    def build() -> nn.Module:
        return nn.Sequential(Net(), Apply(lambda x: x.as_subclass(OnDevice)))

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plain = train(2, build)
    said = "left out: a CUDA graph was captured in a traced step"
    with pytest.warns(UserWarning, match=said), record(tmp_path, steps=[1, 2]):
        assert equal(plain, train(2, build))
    trace = load(tmp_path)
    assert [each["step"] for each in trace.steps] == [1, 2]
    assert {"0.head", "0.layers.1"} <= modules(trace, "forward")
    assert "1" not in modules(trace, "forward")


# ---------------------------------------------------------------- names


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
        for _ in range(2):
            descend(model, torch.randn(8, 3))

    first = record_sides(tmp_path, fit, 0.1, 0.2, steps=[1, 2]).first
    names = {name for _, name, _ in keys(load(tmp_path / "a"), "buffer")}
    assert names == {"running_mean", "running_var", "num_batches_tracked"}
    assert first.text.startswith("1.running_mean in step 1 differs by")
    assert (first.kind, first.module, first.inside) == ("module", "1", "")


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

    found = record_sides(tmp_path, fit, 0.1, 0.2, steps=[1, 2], level="step")
    trace = load(tmp_path / "a")
    assert ("Sequential.0", "weight", 0) in keys(trace, "parameter")
    assert ("Sequential.0", "weight") in {(each.module, each.name) for each in trace.weights}
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
    """Also those whose parameters get their shapes by it."""

    def build() -> nn.Module:
        body, head = nn.Embedding(11, 4), nn.LazyLinear(11)
        head(body(torch.zeros(1, 1).long()))
        return nn.Sequential(body, head)

    with record(tmp_path):
        train(1, build)
    trace = load(tmp_path)
    assert (modules(trace, "parameter"), modules(trace, "backward")) == ({"0", "1"}, {"0", "1", ""})
    assert ("1", "weight", 0) in keys(trace, "parameter")


# ---------------------------------------------------------------- other programs


def test_a_program_that_fails_in_a_traced_step_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"), record(tmp_path / "failed", steps=[1]):
        nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2))(torch.ones(1, 2))
    assert not load(tmp_path / "failed").is_complete
    with record(tmp_path / "evaluated", steps=[1, 2]):
        train(1)
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert load(tmp_path / "evaluated").is_complete


def test_a_record_that_failed_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program goes on; what was not recorded is not equal."""
    monkeypatch.setattr(recorder, "describe_group", lambda _group: 1 / 0)
    with pytest.warns(UserWarning, match="division by zero"):
        found = record_sides(tmp_path, train, 3, 3, steps=[1, 2])
    assert found.kind == "INCONCLUSIVE"
    assert "the trace of A ends before its program did" in str(found.verdict.findings)


def build_loop() -> list[Any]:
    found: list[Any] = [torch.ones(2)]
    for _ in range(5000):
        found = [found]
    found.append(found)
    return found


@pytest.mark.filterwarnings("ignore")
def test_what_a_module_returns_may_be_anything(tmp_path: Path) -> None:
    def hand_on(x: torch.Tensor) -> Any:
        parts = [torch.ones(1, 2), torch.ones(3, 2)]
        nested = [torch.nested.nested_tensor(parts, layout=each) for each in (torch.strided, torch.jagged)]
        return x, *nested, build_loop(), (each for each in parts), None, *nested

    with record(tmp_path):
        train(1, lambda: nn.Sequential(Net(), Apply(hand_on), Apply(lambda x: x[0])))
    trace = load(tmp_path)
    assert trace.is_complete
    found = [i for i, p in enumerate(trace.points) if (p.phase, p.module) == ("forward", "1")]
    assert [trace.points[i].shape for i in found] == [(4, 6, 11), (2, -1), (2, -1), (2,), (2, -1), (2, -1)]
    assert [row["sumsq"] for row in trace.rows if row["point"] in found[1:]] == [8, 8, 2, 8, 8]


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
    ("use", "said", "level"),
    [
        (lambda model: torch.jit.trace(model.eval(), torch.zeros(1, 2).long()), "what torch.jit.trace called", "op"),
        (use_transforms, "", "module"),
        (use_transforms, "", "op"),
    ],
)
def test_other_uses_of_the_model_in_a_traced_step(
    use: Callable[[Any], Any], said: str, level: str, tmp_path: Path
) -> None:
    program = partial(train, 2, wrap=lambda model: (use(model), model)[1])
    plain = program()
    says = pytest.warns(UserWarning, match=said) if said else nullcontext()
    with says, record(tmp_path, steps=[1, 2], level=level):
        assert equal(plain, program())
    trace = load(tmp_path)
    assert trace.is_complete
    assert (trace.rows["flags"] == NO_VALUES).any() == (not said)


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
    with record("kept", steps=[1, 2]):
        train(2, wrap=lambda model: (os.chdir(gone), gone.rmdir(), model)[2])
        found = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
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

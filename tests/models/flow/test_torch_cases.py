"""Torch modules through the checks of models, with back ends in the test's own process: torch is loaded once."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.models.conftest import LocalBuilder

from assay.errors import InfrastructureError, UsageError
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.bisect import bisect_model
from assay.models.flow.check import check_model
from assay.models.flow.reduce import reduce_failure
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.model import WRONG, InputChoice, ModelReport, ModelRequest, Target
from assay.system.fast_dataclasses import replace

NET = """
import torch
from torch import nn


class Mixer(nn.Module):
    shift = 1

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.left(x) * self.right(x).roll(self.shift, 0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixer, self.up, self.act, self.down = (
            nn.LayerNorm(32), Mixer(), nn.Linear(32, 128), nn.ReLU(inplace=True), nn.Linear(128, 32)
        )

    def forward(self, x):
        return x + self.mixer(self.norm(x)) + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.unused = nn.Embedding(50, 32), nn.ModuleList(Block() for _ in range(3)), nn.Linear(2, 2)

    def forward(self, ids, mask=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return {"hidden": x, "ids": ids}


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 8), Noise(), nn.Dropout(0.3)

    def forward(self, x):
        return self.b(self.drop(self.a(x)))


class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


class Counter(nn.Module):
    count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x


def build():
    return Net(), {"ids": torch.randint(0, 50, (64,)), "mask": None}


def drawing():
    return Drawing(), torch.randn(16, 8)


def counting():
    counter = Counter()
    return nn.Sequential(nn.Linear(8, 8), counter, counter), torch.randn(16, 8)


def small():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(16, 8)


def deciding():
    return Deciding(8, 8), torch.randn(16, 8)


class Odd(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
        self.add_module("a:b", nn.Linear(8, 8))

    def forward(self, x):
        return self.change(self._modules["a:b"](x))


def empty():
    return Odd(lambda x: x), torch.randn(0, 8)


def broken():
    return Odd(lambda x: x / 0 * 0), torch.randn(4, 8)


def noisy():
    return Odd(lambda x: x + 9 * torch.randn_like(x)), torch.randn(4, 8)


def lazy():
    return Odd(lambda x: (each for each in (x,))), torch.randn(4, 8)


def frozen():
    return nn.Sequential(nn.Flatten()), torch.arange(12).reshape(3, 4)


def unfitting():
    return Net(), torch.randn(3)


def unseeded():
    module = nn.Linear(4, 4)
    nn.init.constant_(module.weight, next(TIMES))
    return module, torch.randn(4, 4)


TIMES = iter(range(100))


def same(module):
    return module


def row(module):
    with torch.no_grad():
        module.blocks[1].up.weight[17] *= 1.03
    return module


def epsilon(module):
    module.blocks[2].norm.eps = 3e-2
    return module


def glue(module):
    module.blocks[0].mixer.shift = 2
    return module


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.2


def gradient(module):
    layer = module.blocks[1].down
    forward = layer.forward
    layer.forward = lambda x: nn.functional.linear(x, Wrong.apply(layer.weight), layer.bias)
    return module


class FusedMixer(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.both = nn.Linear(32, 64)
        for name in ("weight", "bias"):
            parts = [getattr(each, name) for each in (other.left, other.right)]
            setattr(self.both, name, nn.Parameter(torch.cat(parts).detach()))

    def forward(self, x):
        left, right = self.both(x).chunk(2, -1)
        return left * right.roll(1, 0)


def fused(module):
    for block in module.blocks:
        block.mixer = FusedMixer(block.mixer)
    return module


def dead(module):
    module.blocks[0].up.forward = lambda x: torch.full((64, 128), float("nan"))
    return module


def number(module):
    return 3


class Signs(nn.Module):  # names like the labels of calls
    def __init__(self):
        super().__init__()
        for name in ("a", "a#2", "a#b"):
            self.add_module(name, nn.Linear(8, 8))

    def forward(self, x):
        for name in ("a", "a", "a#2", "a#b"):
            x = self.get_submodule(name)(x)
        return x


def signs():
    return Signs(), torch.randn(4, 8)


def first_sign(module):
    with torch.no_grad():
        module.get_submodule("a#2").weight[1] *= 1.1
    return module


def last_sign(module):
    with torch.no_grad():
        module.get_submodule("a#b").weight[1] *= 1.1
    return module


class Scan(nn.Module):  # a recurrence without a module inside
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(32, 32) / 6), nn.Parameter(torch.randn(16, 32) / 4)

    def forward(self, x):
        h = x.new_zeros(len(x), 32)
        for each in x.unbind(1):
            h = torch.tanh(h @ self.a + each @ self.b)
        return h


def build_lstm():
    return nn.LSTM(24, 36, 2, batch_first=True), torch.randn(4, 24, 24)


def build_gru():
    return nn.Sequential(nn.Linear(8, 8), nn.GRU(8, 16, 2, bidirectional=True)), torch.randn(20, 4, 8)


def build_scan():
    return nn.Sequential(nn.Linear(16, 16), Scan(), nn.Linear(32, 8)), torch.randn(4, 60, 16)


def swap_gates(model):
    with torch.no_grad():
        for each in (model.weight_ih_l1, model.weight_hh_l1, model.bias_ih_l1, model.bias_hh_l1):
            each.copy_(torch.cat([each.chunk(4)[at] for at in (1, 0, 2, 3)]))
    return model


class Hidden(nn.Module):  # begins with another state than zeros
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x, (x.new_full((2, len(x), 36), 0.1), x.new_zeros(2, len(x), 36)))
"""


OWN_OP = """
import torch
from torch import nn


@torch.library.custom_op("assay_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * (2.0 if x.dtype is torch.float32 else 2.2)


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.b(twice(torch.relu(self.a(x)).detach()))


def build():
    return Net(), torch.randn(16, 32)
"""


@pytest.fixture(autouse=True)
def _torch_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # torch.export sets it otherwise
    monkeypatch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)  # which formats no stack for a GPU


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("my net")
    (made / "net.py").write_text(NET)
    return made


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtifactBuilder]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with LocalBuilder(ArtifactStore(str(tmp_path_factory.mktemp("store")))) as builder:
        yield builder
    torch.set_num_threads(before)


VOTER = Target("torch-float64", "torch", {"precision": "float64"})


def build_request(folder: Path, model: str, change: str = "same", **more: Any) -> ModelRequest:
    options = {**more.pop("options", {}), "rewrite": f"{folder}/net.py:{change}"}
    target = Target(change, "torch", options)
    return ModelRequest(f"{folder}/net.py:{model}", Target("torch", "torch"), target, VOTER, folder=str(folder), **more)


def check(local: ArtifactBuilder, folder: Path, change: str, model: str = "build", **more: Any) -> ModelReport:
    return check_model(build_request(folder, model, change, **more), local, str(folder / "keep"))


def find_first(report: ModelReport) -> str:
    return next((case.layer.label for case in report.cases if case.layer and case.name == report.first_wrong), "")


BF16 = {"precision": "bfloat16"}


def test_a_correct_target_passes_and_every_call_is_compared(local: ArtifactBuilder, folder: Path) -> None:
    report = check(local, folder, "same", options=BF16)
    assert report.verdict.kind == "PASS"
    labels = [case.layer.label for case in report.cases if case.layer]
    block = [f"blocks.0.{name}" for name in ("norm", "mixer.left", "mixer.right", "mixer", "up", "act", "down")]
    assert labels[:9] == ["embed", *block, "blocks.0"]
    assert labels[-1] == "embed:backward"
    assert labels.index("blocks.2.mixer.left:backward") < labels.index("blocks.2.mixer:backward")
    assert len(labels) == 2 * 25
    assert all(case.local and case.verdict.comparisons for case in report.cases)
    assert "not called by the model, and so not judged: unused" in report.notes
    words = shlex.split(report.cases[0].steps[-1].command)
    assert words == ["assay", "model", "check", f"{folder}/net.py:build", "--target", "same", "--only", "embed"]


@pytest.mark.parametrize(
    ("change", "options", "place", "backward"),
    [
        ("epsilon", BF16, "blocks.2.norm", False),
        ("glue", {}, "blocks.0.mixer", False),
        ("gradient", BF16, "blocks.1.down:backward", True),
        ("dead", {}, "blocks.0.up", False),
    ],
)
def test_a_planted_fault_is_named(
    local: ArtifactBuilder, folder: Path, change: str, options: dict[str, str], place: str, backward: bool
) -> None:
    report = check(local, folder, change, options=options, backward=backward)
    assert report.verdict.kind in WRONG
    assert find_first(report) == place
    assert report.confirmed


def test_what_the_end_hides_is_found_by_rows_and_by_bisect(local: ArtifactBuilder, folder: Path) -> None:
    asked = {"options": BF16, "backward": False}
    report = check(local, folder, "row", **asked)
    assert (report.verdict.kind, find_first(report), report.confirmed) == ("FAIL", "blocks.1.up", True)
    assert next(case for case in report.cases if case.layer is None).verdict.kind == "PASS"
    (wrong,) = [case for case in report.cases if case.name == report.first_wrong]
    assert "1 of 128 slices along axis 1 is off, [17] by 0.03" in wrong.verdict.findings[0].message
    found = bisect_model(build_request(folder, "build", "row", goal="bisect", **asked), local, str(folder / "keep"))
    assert find_first(found) == "blocks.1.up"
    right = bisect_model(build_request(folder, "small", goal="bisect"), local, str(folder / "keep"))
    assert (right.verdict.kind, right.first_wrong) == ("PASS", None)


@pytest.mark.parametrize(
    ("model", "change", "kind"),
    [
        ("build_lstm", "same", "PASS"),
        ("build_gru", "same", "PASS"),
        ("build_scan", "same", "PASS"),
        ("build_lstm", "swap_gates", "FAIL"),
        ("build_lstm", "Hidden", "FAIL"),
    ],
)
def test_rounding_inside_of_a_recurrence_is_measured(
    local: ArtifactBuilder, folder: Path, model: str, change: str, kind: str
) -> None:
    """One call rounds in each of its steps, and there is no border between them."""
    assert check(local, folder, change, model, options=BF16).verdict.kind == kind


def test_reduce_writes_the_wrong_call_as_a_model_of_its_own(
    local: ArtifactBuilder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "net", ModuleType("net"))  # another one of the same name
    output = str(tmp_path / "small.py")
    manner = (("--target", "net.py:row"),)
    request = build_request(folder, "build", "row", goal="reduce", output=output, manner=manner, backward=False)
    report = reduce_failure(request, local, str(folder / "keep"))
    assert find_first(report) == "blocks.1.up"
    assert report.command == f"assay model check {output}:build --target {output}:target"
    assert f"its inputs: {tmp_path}/small.pt, 1 rows" in report.notes
    target = Target("small", "torch", {"rewrite": f"{output}:target"})
    again = check_model(
        ModelRequest(f"{output}:build", Target("torch", "torch"), target, VOTER, folder=str(folder)),
        local,
        str(tmp_path),
    )
    assert find_first(again) == "part"
    right = reduce_failure(build_request(folder, "small", goal="reduce"), local, str(folder / "keep"))
    assert "no call fails alone: there is nothing to reduce" in right.notes


@pytest.mark.parametrize(
    ("change", "first", "name"), [("first_sign", "a#2#1", "a#2"), ("last_sign", "a#b", "a#b")], ids=["number", "word"]
)
def test_a_sign_in_the_name_of_a_module_is_no_number_of_a_call(
    local: ArtifactBuilder, folder: Path, tmp_path: Path, change: str, first: str, name: str
) -> None:
    output = tmp_path / "small.py"
    request = build_request(folder, "signs", change, goal="reduce", output=str(output), backward=False)
    assert find_first(reduce_failure(request, local, str(folder / "keep"))) == first
    assert f".get_submodule({name!r})" in output.read_text()
    report = check(local, folder, "same", "signs")
    assert report.verdict.kind == "PASS"
    assert not any("not called" in note for note in report.notes)
    labels = [case.layer.label for case in report.cases if case.layer and not case.layer.label.endswith("backward")]
    assert labels[:4] == ["a", "a#2", "a#2#1", "a#b"]


def test_another_implementation_is_compared_where_names_agree(local: ArtifactBuilder, folder: Path) -> None:
    report = check(local, folder, "fused")
    assert report.verdict.kind == "PASS"
    labels = [case.layer.label for case in report.cases if case.layer]
    assert "blocks.0.mixer" in labels
    assert "blocks.0.mixer.left" not in labels
    assert any("so not judged alone: blocks.0.mixer.left" in note for note in report.notes)
    assert any("no parameter of this name and shape for 12 gradients" in note for note in report.notes)


def test_ops_take_the_place_of_modules(local: ArtifactBuilder, folder: Path) -> None:
    (folder / "own_op.py").write_text(OWN_OP)
    request = build_request(folder, "build", ops=True)
    request = replace(request, model=f"{folder}/own_op.py:build", target=Target("torch-bf16", "torch", BF16))
    report = check_model(request, local, str(folder / "keep"))
    assert find_first(report) == "twice"
    labels = [case.layer.label for case in report.cases if case.layer]
    assert labels == ["linear", "relu", "detach", "twice", "linear_1", "linear_1:backward"]
    with pytest.raises(UsageError, match=r"--ops: torch\.export cannot export this model"):
        check(local, folder, "same", "deciding", ops=True)


def test_forward_alone_and_several_samples(local: ArtifactBuilder, folder: Path) -> None:
    several = check(local, folder, "same", "small", backward=False, inputs=InputChoice(samples=2))
    assert (several.verdict.kind, several.samples) == ("PASS", 2)
    assert not any(":backward" in case.name for case in several.cases)
    frozen = check(local, folder, "same", "frozen")
    assert frozen.verdict.kind == "PASS"
    assert "the backward pass is not judged: no output has a gradient" in frozen.notes


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [("empty", {}, "no elements"), ("broken", {}, "not a single finite number"), ("noisy", BF16, "rounding alone")],
)
def test_an_output_that_proves_nothing_neither_fails_nor_passes(
    local: ArtifactBuilder, folder: Path, model: str, options: Any, text: str
) -> None:
    """`noisy`: random numbers that the outermost module draws. The name of the layer has a colon."""
    report = check(local, folder, "same", model, options=options)
    assert (report.verdict.kind, report.first_wrong) == ("INCONCLUSIVE", None)
    assert text in report.cases[-1].verdict.findings[0].message


def test_what_draws_or_counts_proves_nothing(local: ArtifactBuilder, folder: Path) -> None:
    drawn = check(local, folder, "same", "drawing")
    assert drawn.verdict.kind == "INCONCLUSIVE"
    by_label = {case.layer.label: case for case in drawn.cases if case.layer}
    assert by_label["a"].verdict.kind == "PASS"
    assert "it draws random numbers" in by_label["b"].verdict.findings[0].message
    assert any("switched off" in note and note.endswith("drop") for note in drawn.notes)
    counted = check(local, folder, "same", "counting")
    assert counted.verdict.kind == "INCONCLUSIVE"
    assert any(
        "depends on more than its inputs" in finding.message
        for case in counted.cases
        for finding in case.verdict.findings
    )


@pytest.mark.parametrize(
    ("change", "model", "message"),
    [
        ("same", "unfitting", r"net\.py:\d+: the module fails with its example inputs"),
        ("same", "lazy", "the module returns generator without a tensor"),
        ("same", "unseeded", r"build\(\) makes another model in each process"),
        ("number", "build", "returned int, not a torch module"),
        ("nothing_of_this_name", "build", "has no class 'nothing_of_this_name'"),
    ],
)
def test_what_cannot_be_checked_is_refused(
    local: ArtifactBuilder, folder: Path, change: str, model: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check(local, folder, change, model)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_an_error(local: ArtifactBuilder, folder: Path) -> None:
    with pytest.raises(InfrastructureError, match="no CUDA device for the target"):
        check(local, folder, "same", options={"device": "cuda"})

"""Calls of torch modules: recorded, and made again alone."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from assay.errors import UsageError
from assay.models.backends.torch_calls import (
    CallRecorder,
    build_model,
    call_alone,
    fits_call,
    from_array,
    hooked,
    load_attribute,
    map_leaves,
    preserved,
    to_array,
)


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


@dataclass
class Answer:
    logits: torch.Tensor
    count: int = 3


class Odd(nn.Module):
    """Shared and repeated modules, one in place, keyword arguments, a dataclass."""

    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.again = self.first

    def forward(self, x, *, scale):
        return Answer(self.act(self.again(self.act(self.first(input=x)))) * scale)


def test_structures_keep_their_form():
    one = torch.ones(2)
    value = {"a": [one, (one, None)], "b": Pair(one, "x"), "c": OrderedDict(z=Answer(one))}
    seen: list[str] = []
    made = map_leaves(value, torch.Tensor, lambda path, each: seen.append(path) or each + 1)
    assert seen == ["a.0", "a.1.0", "b.0", "c.z.logits"]
    assert isinstance(made["b"], Pair)
    assert isinstance(made["c"], OrderedDict)
    assert made["c"]["z"].count == 3
    assert made["c"]["z"].logits.tolist() == [2.0, 2.0]
    assert value["c"]["z"].logits.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_arrays_keep_type_and_values(dtype):
    tensor = torch.tensor([[0.0, 1.0], [2.5, -3.0]]).to(dtype)
    again = from_array(to_array(tensor.T))
    assert again.dtype is dtype
    assert torch.equal(again.float(), tensor.T.float())


def record(module, x, **kwargs):
    recorder = CallRecorder()
    leaf = x.clone().requires_grad_()
    with hooked(module, recorder.enter_module, recorder.leave):
        output = module(leaf.clone(), **kwargs)
    logits = output.logits if isinstance(output, Answer) else output
    logits.backward(torch.ones_like(logits))
    recorder.finish()
    return recorder, logits


def test_a_call_made_alone_is_the_call_inside_the_model():
    """And recording changes neither the result nor the gradients."""
    torch.manual_seed(0)
    module, x = Odd(), torch.randn(4, 8)
    plain = module(x.clone().requires_grad_().clone(), scale=2.0).logits
    plain.backward(torch.ones_like(plain))
    seen = module.first.weight.grad.clone()
    module.zero_grad()
    recorder, recorded = record(module, x, scale=2.0)
    assert torch.equal(plain, recorded)
    assert torch.equal(module.first.weight.grad, seen)
    assert not module.first._forward_hooks
    assert [call.label for call in recorder.calls] == ["first", "act", "first#2", "act#2"]
    total = torch.zeros(8, 8)
    for call in recorder.calls:
        function = module.get_submodule(call.label.partition("#")[0])
        params = dict(function.named_parameters())
        alone = call_alone(function, call.label, recorder.kept[call.label], load(recorder), params, None, [])
        assert list(alone) == call.outputs
        assert all(torch.equal(alone[name], recorder.tensors[name]) for name in call.outputs)
        grads = call_alone(function, call.label, recorder.kept[call.label], load(recorder), params, call.grad_outs, [])
        for name in call.grad_ins:
            torch.testing.assert_close(grads[name], recorder.tensors[name])
        total += grads.get(f"{call.label}:grad.weight", 0)
    torch.testing.assert_close(total, module.first.weight.grad)
    kept = recorder.kept["first"]
    assert fits_call(module.first.forward, kept)
    assert not fits_call(nn.Bilinear(1, 1, 1).forward, kept), "it takes other arguments"


def load(recorder):
    return lambda name: recorder.tensors[name].clone()


def test_what_draws_and_what_cannot_be_kept_is_marked():
    class Drawing(nn.Module):
        def forward(self, x, _callback):
            return nn.functional.dropout(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.plain = Drawing(), nn.Linear(8, 8)

        def forward(self, x):
            return self.plain(self.inner(x, lambda: None))

    recorder, _ = record(Outer(), torch.randn(4, 8))
    inner, plain = recorder.calls
    assert (inner.draws, plain.draws) == (True, False)
    assert "cannot be kept" in inner.problem
    assert not plain.problem


def test_noise_moves_every_border_by_its_size():
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(64, 8)
    exact, noisy = CallRecorder(), CallRecorder(noise=1e-2)
    for recorder in (exact, noisy):
        with hooked(module, recorder.enter_module, recorder.leave):
            module(x)
    moved = (noisy.tensors["0"] / exact.tensors["0"] - 1).abs()
    assert 5e-3 < moved.max() <= 1.01e-2


def test_a_module_is_left_as_it_was():
    module = nn.BatchNorm1d(8)
    with torch.no_grad():
        module.weight.fill_(1.001)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    with preserved(module, torch.bfloat16):
        assert module.weight[0] == 1.0
        module(torch.randn(16, 8))
        assert not torch.equal(module.running_mean, before["running_mean"])
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


RETURNS = r"return \(module, inputs\)"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("def biuld(): ...", "has no function 'build'", "did you mean 'biuld'"),
        ("def build(:", r"net\.py:1:\d+: ", ""),
        ("import nothing_of_this_name", r"net\.py:1: .*cannot be loaded: ModuleNotFoundError", ""),
        (
            "def build():\n    raise ValueError('no weights')",
            r"net\.py:2: build\(\) failed: ValueError: no weights",
            "",
        ),
        ("def build():\n    return 3", "returned int", RETURNS),
        ("import torch\ndef build():\n    return torch.nn.ReLU()", "a module without example inputs", RETURNS),
        ("def build():\n    return 1, 2", r"returned \['int', 'int'\]", RETURNS),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message, hint):
    path = tmp_path / "net.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as refused:
        build_model(f"{path}:build", str(tmp_path), 1)
    assert re.search(hint, refused.value.hint or "")


def test_inputs_come_as_a_tensor_a_tuple_a_dict_or_both(tmp_path):
    forms = {"one": "x", "several": "(x, 2)", "named": "{'a': x}", "both": "(x,), {'a': 1}"}
    lines = [f"def {name}(): return torch.nn.ReLU(), {form}" for name, form in forms.items()]
    (tmp_path / "forms.py").write_text("\n".join(["import torch", "x = torch.ones(1)", *lines]))
    built = {name: build_model(f"{tmp_path}/forms.py:{name}", "", 1) for name in forms}
    assert [list(given) for _, given in built.values()] == [[0], [0, 1], ["a"], [0, "a"]]


def test_a_module_is_found_from_the_folder(tmp_path):
    (tmp_path / "own_kernels_of_a_test.py").write_text("class Fused: ...")
    assert load_attribute("own_kernels_of_a_test:Fused", str(tmp_path), "class").__name__ == "Fused"
    with pytest.raises(UsageError, match="own_kernels_that_are_not_there cannot be loaded: ModuleNotFoundError"):
        load_attribute("own_kernels_that_are_not_there:Fused", str(tmp_path), "class")

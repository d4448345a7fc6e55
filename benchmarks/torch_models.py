"""Faults planted into torch modules, one at a time: is the right module named? And without a fault: is there silence?

    python benchmarks/torch_models.py [--seeds 3] [--modes rewrite,bf16,compile] [--only row] [--jobs 8] [--tune]

A small transformer and a small convolutional network are checked as `assay model check` does, on a target that is the
same module but for one fault: rewritten by a function (`module:Class`), and that in bfloat16, compiled, and on a GPU
where there is one. Harmless variants compute the same in another way. Rules were chosen with the seeds of `--tune`; the
others are what to report. Intervals are Wilson's, 95%. The file is also what is checked: `build`, `build_conv`, and one
function for each fault and seed (`epsilon_7`).
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HERE = os.path.abspath(__file__)
SOURCE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "src")
WORDS, SIZE, HEADS, DEPTH = 97, 256, 4, 3
TUNING, REPORTED = 1000, 2000  # first seeds; rules were also changed by what seed 0 showed


# ---------------------------------------------------------------- the models


class Attention(nn.Module):
    is_swapped, is_leaking, power = False, False, -0.5

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x)
        length, width = x.shape[1], SIZE // HEADS
        allowed = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1 if self.is_leaking else 0)
        y = functional.scaled_dot_product_attention(q, k, v, allowed, scale=width**self.power)
        y = y[:, [1, 0, *range(2, HEADS)]] if self.is_swapped else y
        return self.out(y.transpose(1, 2).flatten(2))

    def project(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE), Attention()
        self.mlp = nn.Sequential(nn.Linear(SIZE, 4 * SIZE), nn.GELU(), nn.Linear(4 * SIZE, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, SIZE), nn.Embedding(64, SIZE)
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(size, size, 3, padding=1, bias=False), nn.BatchNorm2d(size)
        self.conv2, self.norm2 = nn.Conv2d(size, size, 3, padding=1, bias=False), nn.BatchNorm2d(size)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))


def build() -> tuple[nn.Module, torch.Tensor]:
    return Transformer(), torch.randint(0, WORDS, (2, 32))


def build_conv() -> tuple[nn.Module, torch.Tensor]:
    body = [Residual(32) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2), *body, nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10))
    images = torch.randn(4, 3, 33, 33)
    with torch.no_grad():
        model(images)  # the lazy layer, and running statistics
    return model.eval(), images


# ---------------------------------------------------------------- faults: the module is changed, its place returned


def choose(module: nn.Module, kind: type | tuple[type, ...], rng: random.Random) -> tuple[str, Any]:
    return rng.choice([(name, each) for name, each in module.named_modules() if isinstance(each, kind)])


def epsilon(module: nn.Module, rng: random.Random) -> str:
    name, norm = choose(module, (nn.LayerNorm, nn.BatchNorm2d), rng)
    norm.eps = 1e-2
    return name


def row(module: nn.Module, rng: random.Random) -> str:
    """One of 1024 in the transformer."""
    name, layer = rng.choice(
        [(name, each) for name, each in module.named_modules() if name.endswith("mlp.0") or isinstance(each, nn.Conv2d)]
    )
    with torch.no_grad():
        layer.weight[rng.randrange(len(layer.weight))] *= 1.05
    return name


def rolled(module: nn.Module, rng: random.Random) -> str:
    name, layer = choose(module, (nn.Linear, nn.Conv2d), rng)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.roll(1, 0))
    return name


def heads(module: nn.Module, rng: random.Random) -> str:
    name, layer = choose(module, Attention, rng)
    layer.is_swapped = True
    return name


def mask(module: nn.Module, rng: random.Random) -> str:
    name, layer = choose(module, Attention, rng)
    layer.is_leaking = True
    return name


def scale(module: nn.Module, rng: random.Random) -> str:
    name, layer = choose(module, Attention, rng)
    layer.power = -1.0
    return name


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1.1


class WrongLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, WrongGradient.apply(self.weight), self.bias)


class WrongConv(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(x, WrongGradient.apply(self.weight), self.bias)


def gradient(module: nn.Module, rng: random.Random) -> str:
    name, layer = choose(module, (nn.Linear, nn.Conv2d), rng)
    layer.__class__ = WrongLinear if isinstance(layer, nn.Linear) else WrongConv
    return f"{name}:backward"


FAULTS: dict[str, Callable[[nn.Module, random.Random], str]] = {
    each.__name__: each for each in (epsilon, row, rolled, heads, mask, scale, gradient)
}
ATTENTION_ONLY = ("heads", "mask", "scale")


# ---------------------------------------------------------------- harmless: the same in another way


class FusedAttention(Attention):
    def __init__(self, other: Attention) -> None:
        nn.Module.__init__(self)
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), other.out
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([each.weight for each in (other.q, other.k, other.v)]))
            self.qkv.bias.copy_(torch.cat([each.bias for each in (other.q, other.k, other.v)]))

    def project(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)]


class OwnNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight.float() + self.bias.float()).to(x.dtype)


class SplitLinear(nn.Linear):
    """The sum in two halves, the second one first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.in_features // 2
        wide, weight = x.float(), self.weight.float()
        y = functional.linear(wide[..., half:], weight[:, half:]) + functional.linear(
            wide[..., :half], weight[:, :half]
        )
        return (y + self.bias.float()).to(x.dtype)


class OwnGelu(nn.GELU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * 0.5 * (1.0 + torch.erf(wide / math.sqrt(2.0)))).to(x.dtype)


def nothing(_module: nn.Module, _rng: random.Random) -> str:
    return ""


def fused(module: nn.Module, _rng: random.Random) -> str:
    for layer in module.layers if isinstance(module, Transformer) else ():
        layer.attn = FusedAttention(layer.attn)
    return ""


def rewritten(module: nn.Module, _rng: random.Random) -> str:
    own = {nn.LayerNorm: OwnNorm, nn.Linear: SplitLinear, nn.GELU: OwnGelu}
    for each in module.modules():
        each.__class__ = own.get(type(each), type(each))
    return ""


HARMLESS = {each.__name__: each for each in (nothing, fused, rewritten)}


def __getattr__(name: str) -> Callable[[nn.Module], nn.Module]:
    """`epsilon_7`: what makes of a module one with that fault."""
    fault, _, seed = name.rpartition("_")
    if fault not in FAULTS and fault not in HARMLESS:
        raise AttributeError(name)

    def change(module: nn.Module) -> nn.Module:
        (FAULTS | HARMLESS)[fault](module, random.Random(int(seed)))
        return module

    return change


# ---------------------------------------------------------------- checks

MODES = {
    "rewrite": {},
    "bf16": {"precision": "bfloat16"},
    "compile": {"optimize": "compile"},
    "cuda": {"device": "cuda"},
    "cuda-bf16": {"device": "cuda", "precision": "bfloat16"},
    "cuda-compile": {"device": "cuda", "optimize": "compile"},
}


class Checks:
    """One worker for the reference and one for float64 serve all checks; each target has its own."""

    def __init__(self, folder: str) -> None:
        from assay.models.flow.artifact_builder import ArtifactBuilder
        from assay.models.store.artifacts import ArtifactStore

        self.folder = folder
        self.builder = ArtifactBuilder(ArtifactStore(os.path.join(folder, "store")))

    def check(self, model: str, name: str, seed: int, mode: str) -> Any:
        from assay.models.flow.check import check_model
        from assay.models.values.model import InputChoice, ModelRequest, Target

        options = {**MODES[mode], "rewrite": f"{HERE}:{name}_{seed}"}
        target = Target(f"{name}-{mode}", "torch", options)
        request = ModelRequest(
            model=f"{HERE}:{model}",
            reference=Target("torch", "torch"),
            target=target,
            voter=Target("torch-float64", "torch", {"precision": "float64"}),
            inputs=InputChoice(seed=seed),
            folder=self.folder,
        )
        try:
            return check_model(request, self.builder, os.path.join(self.folder, "keep"))
        finally:
            self.builder.forget(target)


def find_place(model: str, name: str, seed: int) -> str:
    torch.manual_seed(seed)
    module = {"build": build, "build_conv": build_conv}[model]()[0]
    return FAULTS[name](copy.deepcopy(module), random.Random(seed))


def main() -> None:
    sys.path.insert(0, SOURCE)
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    usual = [
        "rewrite",
        "bf16",
        "compile",
        *(["cuda", "cuda-bf16", "cuda-compile"] if torch.cuda.is_available() else []),
    ]
    parser.add_argument("--modes", default=",".join(usual))
    parser.add_argument("--models", default="build,build_conv")
    parser.add_argument("--only", default=",".join([*FAULTS, *HARMLESS]))
    parser.add_argument("--jobs", type=int, default=1, help="processes that check (%(default)s)")
    parser.add_argument("--tune", action="store_true", help="the seeds that rules are chosen with")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    print(f"torch {torch.__version__}, {device}; {'tuning' if asked.tune else 'reported'} seeds")
    first = TUNING if asked.tune else REPORTED
    groups = [
        (seed, model, mode, names)
        for mode in reversed(asked.modes.split(","))  # those that take longest come first
        for seed in range(first, first + asked.seeds)
        for model in asked.models.split(",")
        for names in divide_names(model, asked.only.split(","), asked.jobs)
    ]
    named: dict[tuple[str, str], list[bool]] = defaultdict(list)
    quiet: dict[tuple[str, str], list[str]] = defaultdict(list)
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        for (_, _, mode, _), found in zip(groups, pool.map(check_group, *zip(*groups, strict=True)), strict=True):
            for name, kind, is_named in found:
                if name in FAULTS:
                    named[name, mode].append(is_named)
                else:
                    quiet[name, mode].append(kind)
    report(named, quiet)


def divide_names(model: str, names: list[str], jobs: int) -> list[tuple[str, ...]]:
    """The checks of a model for one process each; a single one does them together and starts the reference once."""
    left_out = (*ATTENTION_ONLY, "fused", "rewritten") if model == "build_conv" else ()
    chosen = tuple(name for name in names if name not in left_out)
    return [chosen] if jobs == 1 else [(name,) for name in chosen]


def check_group(seed: int, model: str, mode: str, names: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    """The checks of a model in a mode: name, verdict, and whether the module that has the fault is named."""
    sys.path.insert(0, SOURCE)
    with tempfile.TemporaryDirectory(prefix="assay-torch-") as folder:
        checks = Checks(folder)
        found = [check_one(checks, model, name, seed, mode) for name in names]
        checks.builder.close()
    return found


def check_one(checks: Checks, model: str, name: str, seed: int, mode: str) -> tuple[str, str, bool]:
    begun = time.monotonic()
    found = checks.check(model, name, seed, mode)
    first = next((case.layer.label for case in found.cases if case.name == found.first_wrong), "")
    place = find_place(model, name, seed) if name in FAULTS else ""
    kind, planted = str(found.verdict.kind), f", planted in {place}" if place else ""
    took = f"{time.monotonic() - begun:.0f} s"
    print(f"{model} {mode} {name} {seed}: {kind}, named {first or 'nothing'}{planted}  {took}", flush=True)
    for case in found.cases if name in HARMLESS and kind != "PASS" else ():
        for finding in case.verdict.findings:
            print(f"    {case.name} {finding.kind} {finding.subject}: {finding.message}"[:200], flush=True)
    return name, kind, first == place


def report(named: Any, quiet: Any) -> None:
    from measuring import render_share  # not where a worker loads this file as a model

    print()
    for mode in dict.fromkeys(mode for _, mode in named):
        rows = {name: hits for (name, each), hits in named.items() if each == mode}
        total = [hit for hits in rows.values() for hit in hits]
        print(render_share(f"{mode}: faults whose module is named", sum(total), len(total)))
        print("    " + ", ".join(f"{name} {sum(hits)}/{len(hits)}" for name, hits in rows.items()))
    total = [hit for hits in named.values() for hit in hits]
    print(render_share("all modes: faults whose module is named", sum(total), len(total)))
    kinds = [kind for found in quiet.values() for kind in found]
    print(render_share("harmless variants that FAIL", sum(kind in ("FAIL", "ERROR") for kind in kinds), len(kinds)))
    print("  " + ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds)))


if __name__ == "__main__":
    main()

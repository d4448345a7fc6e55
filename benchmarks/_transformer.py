"""A small transformer on bytes, with faults that can be planted: the training of two benchmarks, on a CPU or a GPU.

AdamW, warm-up and cosine, clipping, gradient accumulation, dropout. `Way` says how the same training is computed: what
it changes is harmless (precision, kernels, parts of a batch, order of a sum). `Recipe` says what is trained: what a
fault changes. Everything random is drawn from (seed, step), so a run from a checkpoint repeats the training.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.golden.values import Golden, Segment, Track

SEED = 17
METRICS = ("loss", "grad_norm", "lr")
CheckRun = dict[str, dict[str, Track]]


@dataclass(frozen=True)
class Size:
    """Of the model and of the training. The checkpoint is written after `warm` steps."""

    context: int
    batch: int
    width: int
    layers: int
    heads: int
    warm: int
    steps: int
    text_bytes: int = 1_000_000
    eval_every: int = 20


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    device: str = "cpu"
    precision: str = "fp32"  # fp32, tf32, bf16
    parts: int = 2  # of a batch, one after another
    attention: str = "fused"  # or plain
    optimiser: str = "foreach"  # loop, fused
    library: str = "cublas"  # or cublaslt
    threads: int = 1
    order: int | None = None  # seed of the order of the rows in a batch, another one at each step
    jitter: float = 0.0  # relative, on every activation between blocks and every gradient, as coarse rounding does
    seed: int = 0  # of the jitter


@dataclass(frozen=True)
class Recipe:
    """What is trained. The defaults are the good training."""

    peak: float = 2e-3
    warmup: int = 40
    horizon: int = 400
    lowest: float = 0.1  # share of the peak at the end of the cosine
    shift: int = 0  # of the schedule, in steps
    logged_scale: float = 1.0
    hidden_scale: float = 1.0  # of the rate that is applied but not logged
    clip: float | None = 0.4
    clip_each: bool = False
    decay: float = 0.1
    decays_all: bool = False
    is_coupled: bool = False  # decay through the gradient, as Adam without W does
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    resets: tuple[str, ...] = ()  # state of the optimiser that is not restored
    dropped_part: int | None = None
    doubled_part: int | None = None
    is_normalised: bool = True
    keeps_gradients: int = 0  # each so many steps the gradients are not cleared
    frozen: str = ""  # parameters whose name has this get no gradient
    scaled: Mapping[str, float] = field(default_factory=dict)  # and these get so much of it
    is_stale: bool = False
    attention_scale: float = 1.0
    leak: int = 0  # characters of the future that attention sees
    dropout: float = 0.1
    wrong_rows: int = 0  # of a batch, whose targets are those of the row before
    repeats: int | None = None  # steps after which the data come again
    restarts: bool = False  # the data begin from the start after the checkpoint
    mantissa: int | None = None  # bits of the stored weights
    sum_mantissa: int | None = None  # bits of the gradients that are summed over the parts of a batch
    norm_eps: float = 1e-5
    gelu: str = "none"  # or tanh
    smoothing: float = 0.0


FAULTS: dict[str, Recipe] = {
    "lr-up-2": Recipe(logged_scale=1.02),
    "hidden-lr-up-5": Recipe(hidden_scale=1.05),
    "hidden-lr-down-10": Recipe(hidden_scale=0.9),
    "schedule-off-by-one": Recipe(shift=-1),
    "warmup-halved": Recipe(warmup=20),
    "cosine-horizon-x1.5": Recipe(horizon=600),
    "cosine-without-floor": Recipe(lowest=0.0),
    "clipping-off": Recipe(clip=None),
    "clipping-doubled": Recipe(clip=0.8),
    "clipped-each-tensor": Recipe(clip_each=True),
    "decay-zero": Recipe(decay=0.0),
    "decay-on-everything": Recipe(decays_all=True),
    "decay-coupled": Recipe(is_coupled=True),
    "beta1-0.8": Recipe(beta1=0.8),
    "beta2-0.95": Recipe(beta2=0.95),
    "eps-1e-5": Recipe(eps=1e-5),
    "moments-lost": Recipe(resets=("exp_avg", "exp_avg_sq")),
    "second-moment-lost": Recipe(resets=("exp_avg_sq",)),
    "step-count-lost": Recipe(resets=("step",)),
    "micro-batch-lost": Recipe(dropped_part=1),
    "micro-batch-twice": Recipe(doubled_part=0),
    "unnormalised-accumulation": Recipe(is_normalised=False),
    "gradients-not-cleared": Recipe(keeps_gradients=10),
    "no-gradient-norm-weight": Recipe(frozen="1.norm1.weight"),
    "no-gradient-bias": Recipe(frozen="1.narrow.bias"),
    "no-gradient-positions": Recipe(frozen="positions"),
    "half-gradient-qkv": Recipe(scaled={"0.qkv.weight": 0.5}),
    "stale-gradient": Recipe(is_stale=True),
    "attention-scale": Recipe(attention_scale=0.8),
    "attention-sees-one-ahead": Recipe(leak=1),
    "dropout-lost": Recipe(dropout=0.0),
    "dropout-doubled": Recipe(dropout=0.2),
    "labels-of-one-row": Recipe(wrong_rows=1),
    "repeated-data": Recipe(repeats=10),
    "data-restarted": Recipe(restarts=True),
    "bf16-weights": Recipe(mantissa=8),
    "norm-eps-1e-3": Recipe(norm_eps=1e-3),
    "gelu-tanh": Recipe(gelu="tanh"),
    "label-smoothing-1": Recipe(smoothing=0.01),
}
# So small that only variants show that they are not rounding.
SMALL_FAULTS: dict[str, Recipe] = {
    "eps-x100": Recipe(eps=1e-6),
    "eps-x10": Recipe(eps=1e-7),
    "fp16-accumulation": Recipe(sum_mantissa=11),
    "tf32-like-accumulation": Recipe(sum_mantissa=14),
    "beta2-0.9801": Recipe(beta2=0.9801),
    "decay-0.0999": Recipe(decay=0.0999),
    "norm-eps-1.1e-5": Recipe(norm_eps=1.1e-5),
    "half-gradient-bias": Recipe(scaled={"1.narrow.bias": 0.5}),
}


# ---------------------------------------------------------------- data and model


@cache
def load_bytes(count: int, device: str) -> Any:
    """Python's own library."""
    import torch

    found = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))[:count]
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).long().to(device)


def build_model(size: Size) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = size.width
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    torch.manual_seed(SEED)
    parts = {"tokens": nn.Embedding(256, size.width), "positions": nn.Embedding(size.context, size.width)}
    parts |= {str(depth): Block() for depth in range(size.layers)}
    parts |= {"norm": nn.LayerNorm(size.width), "head": nn.Linear(size.width, 256)}
    model = nn.ModuleDict(parts)
    for name in ("tokens", "positions"):
        nn.init.normal_(model[name].weight, std=0.3)
    return model


def attend(parts: Any, size: Size, way: Way, recipe: Recipe) -> Any:
    import torch
    from torch.nn import functional

    query, key, value = parts
    scale = recipe.attention_scale / math.sqrt(size.width // size.heads)
    if way.attention == "fused" and not recipe.leak:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    scores = (query @ key.transpose(-2, -1)) * scale
    hidden = torch.ones(size.context, size.context, dtype=torch.bool, device=scores.device).triu(1 + recipe.leak)
    return scores.masked_fill(hidden, -math.inf).softmax(-1).to(value.dtype) @ value


def forward(model: Any, tokens: Any, mask: Any, size: Size, way: Way, recipe: Recipe, noise: Any = None) -> Any:
    import torch
    from torch.nn import functional

    def norm(layer: Any, x: Any) -> Any:
        return functional.layer_norm(x, (size.width,), layer.weight, layer.bias, recipe.norm_eps)

    x = model["tokens"](tokens) + model["positions"].weight
    x = x if mask is None else x * mask
    for depth in range(size.layers):
        block = model[str(depth)]
        parts = block.qkv(norm(block.norm1, x))
        parts = parts.view(len(tokens), size.context, 3, size.heads, -1).permute(2, 0, 3, 1, 4)
        read = attend(parts, size, way, recipe).transpose(1, 2).reshape(len(tokens), size.context, size.width)
        x = x + block.out(read)
        x = x + block.narrow(functional.gelu(block.wide(norm(block.norm2, x)), approximate=recipe.gelu))
        if noise is not None:
            x = x * (1 + way.jitter * torch.randn(x.shape, generator=noise, device=x.device))
    return model["head"](norm(model["norm"], x))


# ---------------------------------------------------------------- training


@contextmanager
def surroundings(way: Way) -> Iterator[None]:
    """The settings of torch that hold for a whole process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(way.threads)
    if way.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = way.precision == "tf32"
        torch.backends.cuda.preferred_blas_library(way.library)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def find_rate(recipe: Recipe, step: int) -> float:
    step += recipe.shift
    if step < recipe.warmup:
        return recipe.peak * (step + 1) / recipe.warmup
    share = min(1.0, (step - recipe.warmup) / (recipe.horizon - recipe.warmup))
    return recipe.peak * (recipe.lowest + (1 - recipe.lowest) * 0.5 * (1 + math.cos(math.pi * share)))


class Training:
    """One training: the model, its optimiser, the data."""

    def __init__(self, size: Size, way: Way, recipe: Recipe | None = None) -> None:
        import torch

        self.size, self.way, self.recipe = size, way, recipe or Recipe()
        self.text = load_bytes(size.text_bytes, way.device)
        self.model = build_model(size).to(way.device)
        decayed = [p for p in self.model.parameters() if p.ndim > 1 or self.recipe.decays_all]
        others = [p for p in self.model.parameters() if p.ndim == 1 and not self.recipe.decays_all]
        groups = [{"params": decayed, "weight_decay": self.recipe.decay}]
        groups += [{"params": others, "weight_decay": 0.0}] if others else []
        kind = torch.optim.Adam if self.recipe.is_coupled else torch.optim.AdamW
        self.optimiser = kind(
            groups,
            betas=(self.recipe.beta1, self.recipe.beta2),
            eps=self.recipe.eps,
            foreach=way.optimiser == "foreach",
            fused=way.optimiser == "fused",
        )
        self._reach = torch.arange(size.context, device=way.device)
        self._noise = torch.Generator(way.device).manual_seed(way.seed)
        self._last: list[Any] = []
        self._began: int | None = None

    def save(self) -> Any:
        names = {id(p): name for name, p in self.model.named_parameters()}
        ordered = [p for group in self.optimiser.param_groups for p in group["params"]]
        moments = {names[id(p)]: copy.deepcopy(self.optimiser.state[p]) for p in ordered}
        return copy.deepcopy(self.model.state_dict()), moments

    def load(self, saved: Any) -> None:
        """By names: a fault may put the parameters into other groups."""
        self.model.load_state_dict(saved[0])
        for name, parameter in self.model.named_parameters():
            state = {key: value.clone() for key, value in saved[1][name].items()}
            state["step"] = state["step"].to(parameter.device if self.way.optimiser == "fused" else "cpu")
            for key in self.recipe.resets:
                state[key].zero_()
            self.optimiser.state[parameter] = state

    def draw(self, step: int) -> tuple[Any, Any, Any]:
        """Tokens, targets and dropout of a step, the rows in this way's order."""
        import torch

        size, recipe = self.size, self.recipe
        self._began = step if self._began is None else self._began
        at = step % recipe.repeats if recipe.repeats else step - self._began if recipe.restarts else step
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + at)
        starts = torch.randint(0, len(self.text) - size.context - 1, (size.batch, 1), generator=generator)
        places = starts.to(self.way.device) + self._reach
        tokens, targets = self.text[places], self.text[places + 1]
        if recipe.wrong_rows:
            targets = torch.cat([targets[-recipe.wrong_rows :], targets[recipe.wrong_rows :]])
        mask = self._draw_mask(step, (size.batch, size.context, size.width), recipe.dropout)
        if self.way.order is not None:
            shuffle = torch.Generator().manual_seed(self.way.order * 1_000_003 + step)
            order = torch.randperm(size.batch, generator=shuffle).to(self.way.device)
            tokens, targets, mask = tokens[order], targets[order], None if mask is None else mask[order]
        return tokens, targets, mask

    def _draw_mask(self, step: int, shape: Sequence[int], share: float) -> Any:
        import torch

        if not share:
            return None
        generator = torch.Generator(self.way.device).manual_seed(SEED * 7_000_003 + step)
        return (torch.rand(*shape, generator=generator, device=self.way.device) >= share) / (1 - share)

    def measure_loss(self, tokens: Any, targets: Any, mask: Any, smoothing: float = 0.0) -> Any:
        import torch
        from torch.nn import functional

        low = self.way.precision == "bf16"
        with torch.autocast(self.way.device, dtype=torch.bfloat16, enabled=low):
            noise = self._noise if self.way.jitter else None
            logits = forward(self.model, tokens, mask, self.size, self.way, self.recipe, noise)
        return functional.cross_entropy(logits.float().reshape(-1, 256), targets.reshape(-1), label_smoothing=smoothing)

    def step(self, number: int) -> tuple[Any, Any, float]:
        """One update: loss, gradient norm, learning rate."""
        import torch

        recipe, parts = self.recipe, self.way.parts
        tokens, targets, mask = self.draw(number)
        if not (recipe.keeps_gradients and number % recipe.keeps_gradients == 0):
            self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.way.device, dtype=torch.float64)
        cut = self.size.batch // parts
        half = self.size.batch // 2  # faults of accumulation know two parts, whatever the way
        for part in range(parts):
            rows = slice(part * cut, (part + 1) * cut)
            weight = 1.0 / (parts if recipe.is_normalised else parts / 2)
            weight *= self._weigh(part * cut // half)
            loss = self.measure_loss(
                tokens[rows], targets[rows], None if mask is None else mask[rows], recipe.smoothing
            )
            (loss * weight).backward()
            total += loss.detach() / parts
            if recipe.sum_mantissa:
                self._round([p.grad for p in self.model.parameters()], recipe.sum_mantissa)
        norm = self._spoil_gradients()
        rate = find_rate(recipe, number) * recipe.logged_scale
        for group in self.optimiser.param_groups:
            group["lr"] = rate * recipe.hidden_scale
        self.optimiser.step()
        if recipe.mantissa:
            self._round(list(self.model.parameters()), recipe.mantissa)
        return total, norm, rate

    def _weigh(self, part: int) -> float:
        return 0.0 if part == self.recipe.dropped_part else 2.0 if part == self.recipe.doubled_part else 1.0

    def _spoil_gradients(self) -> Any:
        """Jitter, faults and clipping; returns the norm before clipping."""
        import torch

        recipe, named = self.recipe, list(self.model.named_parameters())
        for name, parameter in named:
            grad = parameter.grad
            if self.way.jitter:
                noise = torch.randn(grad.shape, generator=self._noise, device=grad.device)
                grad.mul_(1 + self.way.jitter * noise)
            if recipe.frozen and recipe.frozen in name:
                grad.zero_()
            for which, scale in recipe.scaled.items():
                if which in name:
                    grad.mul_(scale)
        if recipe.is_stale:
            self._last.append([p.grad.clone() for _, p in named])
            for (_, parameter), old in zip(named, self._last[0], strict=True):
                parameter.grad.copy_(old)
            self._last = self._last[-1:]
        parameters = [p for _, p in named]
        if recipe.clip_each:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
            for parameter in parameters:
                torch.nn.utils.clip_grad_norm_([parameter], recipe.clip or math.inf)
            return norm
        return torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf)

    def _round(self, tensors: Sequence[Any], bits: int) -> None:
        import torch

        with torch.no_grad():
            for tensor in tensors:
                fraction, exponent = torch.frexp(tensor)
                tensor.copy_(torch.ldexp(torch.round(fraction * 2.0**bits) / 2.0**bits, exponent))

    def evaluate(self) -> Any:
        """On a batch that is never trained on."""
        import torch

        generator = torch.Generator().manual_seed(1)
        starts = torch.randint(0, len(self.text) - self.size.context - 1, (self.size.batch, 1), generator=generator)
        places = starts.to(self.way.device) + self._reach
        with torch.no_grad():
            return self.measure_loss(self.text[places], self.text[places + 1], None)


@dataclass(frozen=True)
class Outcome:
    run: CheckRun
    weights: Any  # numpy, all parameters in one row


def write_start(size: Size, way: Way, recipe: Recipe | None = None) -> Any:
    """The training up to the checkpoint; returns what a checkpoint holds."""
    with surroundings(way):
        training = Training(size, way, recipe)
        for number in range(size.warm):
            training.step(number)
        return training.save()


def train(size: Size, way: Way, saved: Any, recipe: Recipe | None = None) -> Outcome:
    """From the checkpoint on; values are fetched once at the end, so that a GPU is never waited for."""
    with surroundings(way):
        training = Training(size, way, recipe)
        training.load(saved)
        rows, evals = [], []
        for number in range(size.warm, size.warm + size.steps):
            rows.append(training.step(number))
            if (number + 1 - size.warm) % size.eval_every == 0:
                evals.append((number, training.evaluate()))
        steps = tuple(range(size.warm, size.warm + size.steps))
        columns = zip(*((float(value) for value in row) for row in rows), strict=True)
        run = {name: {"": Track(steps, tuple(column))} for name, column in zip(METRICS, columns, strict=True)}
        run["eval_loss"] = {"": Track(tuple(at for at, _ in evals), tuple(float(value) for _, value in evals))}
        weights = np.concatenate([p.detach().float().cpu().numpy().ravel() for p in training.model.parameters()])
    return Outcome(run, weights)


# ---------------------------------------------------------------- judging


def build_golden(size: Size, replicas: Sequence[CheckRun], variants: Mapping[str, CheckRun] | None = None) -> Golden:
    tracks = {metric: {"": tuple(run[metric][""] for run in replicas)} for metric in replicas[0]}
    segment = Segment(size.warm, "", tracks, variants=dict(variants or {}))
    return Golden("transformer", (segment,), steps_per_segment=size.steps)


def measure_distance(one: Any, other: Any) -> float:
    """Between the weights of two trainings."""
    return float(np.linalg.norm(one.astype(float) - other.astype(float)))

"""The models of `trace_faults.py`: a small decoder with planted faults, and transformers' Llama with its weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 64, 4, 3, 16, 8
AT = 1  # the layer that has the fault


@dataclass(frozen=True)
class Setting:
    """A training: one fault or none, one way to execute it."""

    seed: int = 0
    fault: str = ""
    precision: str = "float32"
    compiled: bool = False
    names: str = "own"  # or: fused, transformers
    experts: bool = False
    variant: str = ""  # a harmless one
    steps: int = 2


class Linear(nn.Linear):
    """Without a bias; `split`: the sum in two halves."""

    split = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not Linear.split:
            return super().forward(x)
        half = x.shape[-1] // 2
        first = functional.linear(x[..., :half], self.weight[:, :half])
        return first + functional.linear(x[..., half:], self.weight[:, half:])


class Norm(nn.Module):
    wide = torch.float32

    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(Norm.wide)
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * self.weight


def rotate(x: torch.Tensor, base: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = (each.to(x.dtype).repeat(1, 2) for each in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self, fault: str, fused: bool, variant: str) -> None:
        super().__init__()
        self.fault, self.variant = fault, variant
        if fused:
            self.qkv = Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.o = Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.q(x), self.k(x), self.v(x))
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in parts)
        base = 9000.0 if self.fault == "rope base" else 10000.0
        q, k = rotate(q, base), rotate(k, base)
        length = x.shape[1]
        mask = torch.ones(length, length).tril(-1 if self.fault == "mask off by one" else 0).bool()
        mask[0, 0] = True
        if self.variant == "written-out attention" or self.fault == "softmax in bf16":
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(~mask, -math.inf)
            scores = scores.bfloat16() if self.fault == "softmax in bf16" else scores
            y = scores.softmax(-1).to(v.dtype) @ v
        elif self.variant == "attention in float64":
            wide = (each.double() for each in (q, k, v))
            y = functional.scaled_dot_product_attention(*wide, attn_mask=mask).to(v.dtype)
        else:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.fault == "heads swapped":
            y = y[:, [1, 0, *range(2, HEADS)]]
        return self.o(y.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gate, self.up = (Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.act = nn.SiLU()
        self.down = Linear(2 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = self.gate(x)
        hidden = (functional.silu(gated + 1e-3) if self.fault == "activation" else self.act(gated)) * self.up(x)
        if self.fault == "stale scale":  # of the step before: amax moved, the scale did not
            hidden = hidden * self.scale
            self.scale = (hidden.detach().abs().amax() / hidden.detach().abs().amax().round(decimals=1)).clamp(0.9, 1.1)
        return self.down(hidden)


class Experts(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.router = Linear(WIDTH, 4)
        self.experts = nn.ModuleList(Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        outputs = [each(x) for each in self.experts]
        if self.fault == "expert order":
            outputs = [*outputs[1:], outputs[0]]
        return sum(w[..., None] * y for w, y in zip(weights.unbind(-1), outputs, strict=True))


class Block(nn.Module):
    def __init__(self, setting: Setting, number: int) -> None:
        super().__init__()
        fault = setting.fault if number == AT else ""
        self.fault = fault
        self.norm1, self.norm2 = Norm(), Norm(1e-2 if fault == "epsilon" else 1e-6)
        self.attn = Attention(fault, setting.names == "fused", setting.variant)
        self.mlp = Experts(fault) if setting.experts and number == AT else Mlp(fault)
        self.drop = nn.Dropout(0.1 if fault == "dropout left on" else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        skip = x * 0.99 if self.fault == "residual scaled" else x
        return skip + self.drop(self.mlp(self.norm2(x)))


class Decoder(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(setting, number) for number in range(LAYERS))
        self.norm = Norm()
        self.head = Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(setting: Setting) -> nn.Module:
    torch.manual_seed(setting.seed)
    Norm.wide = torch.float64 if setting.variant == "norm in float64" else torch.float32
    Linear.split = setting.variant == "sums in halves"
    plain = Decoder(Setting(setting.seed, experts=setting.experts))
    state = plain.state_dict()
    if setting.names == "transformers":
        return _build_llama(state)
    model = Decoder(setting)
    if setting.names == "fused":
        for number in range(LAYERS):
            names = [f"layers.{number}.attn.{part}.weight" for part in "qkv"]
            state[f"layers.{number}.attn.qkv.weight"] = torch.cat([state.pop(name) for name in names])
    model.load_state_dict(state)
    _break_weights(model, setting)
    return model


def _break_weights(model: Any, setting: Setting) -> None:
    mlp = model.layers[AT].mlp
    with torch.no_grad():
        if setting.fault == "rows swapped":
            mlp.up.weight[[3, 7]] = mlp.up.weight[[7, 3]]
        if setting.fault == "initialisation":
            mlp.down.weight[5] *= 1.05


def _build_llama(state: dict[str, torch.Tensor]) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, rms_norm_eps=1e-6, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    words = {"attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj"}
    words |= {"attn.o": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj"}
    words |= {"mlp.down": "mlp.down_proj", "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    renamed = {"lm_head.weight": state["head.weight"], "model.norm.weight": state["norm.weight"]}
    renamed["model.embed_tokens.weight"] = state["embed.weight"]
    for number in range(LAYERS):
        for mine, theirs in words.items():
            renamed[f"model.layers.{number}.{theirs}.weight"] = state[f"layers.{number}.{mine}.weight"]
    model.load_state_dict(renamed, strict=False)
    return model


# ---------------------------------------------------------------- training


def train(setting: Setting, rank: int = 0, world: int = 1) -> None:
    """A few steps of AdamW; of two ranks each has half of the batch."""
    model = build(setting).to(getattr(torch, setting.precision))
    if setting.compiled:
        for layer in model.layers:
            layer.compile()
    if setting.variant == "two threads":
        torch.set_num_threads(2)
    if setting.fault == "gradient missing":
        model.layers[AT].mlp.up.weight.requires_grad_(False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if _uses_ddp(setting, world) else model
    choices = {"fused": True} if setting.variant == "fused optimiser" else {}
    optimiser = torch.optim.AdamW(_build_groups(model, setting), lr=1e-3, betas=_choose_betas(setting), **choices)
    with _precise(setting):
        for step in range(setting.steps):
            _step(wrapped, optimiser, setting, step, rank, world)


def _uses_ddp(setting: Setting, world: int) -> bool:
    return world > 1 and setting.fault not in ("dropped all-reduce", "sum for mean over ranks")


def _choose_betas(setting: Setting) -> tuple[float, float]:
    return (0.95, 0.9) if setting.fault == "betas swapped" else (0.9, 0.95)


def _build_groups(model: nn.Module, setting: Setting) -> list[dict[str, Any]]:
    parts: tuple[list[Any], list[Any]] = ([], [])
    for parameter in model.parameters():
        is_decayed = parameter.dim() > 1 or setting.fault == "wrong decay group"
        parts[0 if is_decayed else 1].append(parameter)
    return [{"params": part, "weight_decay": decay} for part, decay in zip(parts, (0.1, 0.0), strict=True) if part]


def _step(model: Any, optimiser: Any, setting: Setting, step: int, rank: int, world: int) -> None:
    tokens = _load_batch(setting, step)
    part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    inputs, labels = tokens[part, :-1], tokens[part, 1:]
    if setting.variant == "smaller micro-batches":
        halves = [(inputs[:4], labels[:4]), (inputs[4:], labels[4:])]
    else:
        halves = [(inputs, labels)]
    warm = 0.5 if setting.fault == "warm-up off by one" and step == 0 else 1.0
    for group in optimiser.param_groups:
        group["lr"] = 1e-3 * warm
    optimiser.zero_grad()
    for x, y in halves:
        logits = model(x)
        logits = getattr(logits, "logits", logits).float()
        smoothing = 0.05 if setting.fault == "label smoothing" else 0.0
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=smoothing)
        (loss / len(halves)).backward()
    if world > 1 and setting.fault == "sum for mean over ranks":
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
    norm = 1e9 if setting.fault == "clipping left out" or setting.variant == "no clipping" else 0.5
    nn.utils.clip_grad_norm_(model.parameters(), norm)
    optimiser.step()


def _load_batch(setting: Setting, step: int) -> torch.Tensor:
    order = {0: 1, 1: 0}.get(step, step) if setting.fault == "data order" else step
    generator = torch.Generator().manual_seed(1000 * setting.seed + order)
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


@contextlib.contextmanager
def _precise(setting: Setting) -> Iterator[None]:
    """TF32 has no effect on CPUs: its rounding of the operands to 10 bits is done by hand, the flag is the real one."""
    if setting.fault != "tf32 on":
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    plain = functional.linear

    def rounded(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            return x
        return (
            ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
            if not x.requires_grad
            else x + (((x.detach().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) - x).detach()
        )

    functional.linear = lambda x, w, b=None: plain(rounded(x), rounded(w), b)
    try:
        yield
    finally:
        functional.linear = plain

"""How much a real training on a GPU differs from itself: same checkpoint, same data, same seed, default kernels.

Two small byte-level language models (a transformer and a stack of causal convolutions) read Python's own library, once
to a checkpoint and then several times from it, in fp32, TF32 and bf16. Printed: the sd, over the replicas, of the log
of the loss and of the gradient norm, per step and per window of 50 steps; and how far the modes lie apart, which is
what a change of kernels that nobody would call a bug does. Needs torch and a GPU; without them it says so and is done.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT, BATCH, WIDTH, LAYERS, HEADS = 128, 32, 256, 4, 4
WINDOW = 50
SEED = 17
MODES = ("fp32", "tf32", "bf16")
Curves = np.ndarray[Any, Any]  # replica, step, (loss, gradient norm)


# ---------------------------------------------------------------- data and models


def load_bytes(limit: int = 4_000_000) -> Any:
    import os

    import torch

    found = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))[:limit]
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).long().cuda()


def draw_starts(data: Any, steps: int) -> Any:
    """Where the windows of every step begin: the same in every replica, and moved to the GPU once."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, len(data) - CONTEXT - 1, (steps, BATCH, 1), generator=generator).cuda()


def build_model(kind: str) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.norm1(x)).view(BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            read = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + functional.dropout(self.out(read.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH)), 0.1)
            return x + functional.dropout(self.narrow(functional.gelu(self.wide(self.norm2(x)))), 0.1)

    class Convolution(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.reach = 2 * dilation
            self.conv = nn.Conv1d(WIDTH, WIDTH, 3, dilation=dilation)
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            read = self.conv(functional.pad(self.norm(x).transpose(1, 2), (self.reach, 0))).transpose(1, 2)
            return x + functional.dropout(self.out(functional.gelu(read)), 0.1)

    torch.manual_seed(SEED)
    layers = [Attention() if kind == "transformer" else Convolution(3**depth) for depth in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(256, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
    return model.cuda()


# ---------------------------------------------------------------- training


@contextmanager
def precision(mode: str) -> Iterator[None]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tf32"
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "bf16"):
        yield


def train(model: Any, optimiser: Any, data: tuple[Any, Any], steps: range, mode: str) -> Curves:
    """Loss and gradient norm of every step; fetched once at the end, so that the GPU is never waited for."""
    import torch
    from torch.nn import functional

    text, starts = data
    reach = torch.arange(CONTEXT, device="cuda")
    seen = torch.zeros(len(steps), 2, device="cuda", dtype=torch.float64)
    for row, step in enumerate(steps):
        places = starts[step] + reach
        torch.manual_seed(SEED + step)  # the same dropout masks in every replica
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
        optimiser.zero_grad(set_to_none=True)
        with precision(mode):
            loss = functional.cross_entropy(model(text[places]).float().view(-1, 256), text[places + 1].reshape(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        seen[row, 0], seen[row, 1] = loss.detach(), norm.detach()
    return np.asarray(seen.cpu().numpy())


def measure(kind: str, text: Any, warm: int, steps: int, replicas: int) -> dict[str, Curves]:
    import copy

    import torch

    model, data = build_model(kind), (text, draw_starts(text, warm + steps))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = train(model, optimiser, data, range(warm), "fp32")
    print(
        f"{kind}: {sum(p.numel() for p in model.parameters()):,} parameters, loss {first[0, 0]:.3f} at step 0, "
        f"{first[-WINDOW:, 0].mean():.3f} around the checkpoint at {warm}",
        flush=True,
    )
    saved = copy.deepcopy((model.state_dict(), optimiser.state_dict()))
    curves = {}
    for mode in MODES:
        runs = []
        for _ in range(replicas):
            model.load_state_dict(saved[0])
            optimiser.load_state_dict(copy.deepcopy(saved[1]))
            runs.append(train(model, optimiser, data, range(warm, warm + steps), mode))
        curves[mode] = np.stack(runs)
    return curves


# ---------------------------------------------------------------- figures


def window_means(logs: Curves) -> Curves:
    count = logs.shape[1] // WINDOW
    return np.asarray(logs[:, : count * WINDOW].reshape(len(logs), count, WINDOW).mean(axis=2))


def rms(values: Curves) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def print_noise(kind: str, mode: str, curves: Curves) -> None:
    equal = all(np.array_equal(curves[0], other) for other in curves[1:])
    for column, name in enumerate(("loss", "grad_norm")):
        logs = np.log(curves[:, :, column])
        per_step, per_window = logs.std(axis=0, ddof=1), window_means(logs).std(axis=0, ddof=1)
        print(
            f"{kind:<12} {mode:<5} {name:<10} {rms(per_step[:25]):9.1e} {rms(per_step[-WINDOW:]):9.1e} "
            f"{per_window[0]:9.1e} {per_window[-1]:9.1e} {rms(per_window):9.1e}   {'bit-equal' if equal else ''}"
        )


def print_distance(kind: str, curves: dict[str, Curves]) -> None:
    for mode in MODES[1:]:
        for column, name in enumerate(("loss", "grad_norm")):
            gap = window_means(np.log(curves[mode][:, :, column])).mean(axis=0) - window_means(
                np.log(curves["fp32"][:, :, column])
            ).mean(axis=0)
            print(
                f"{kind:<12} {mode} against fp32  {name:<10} first window {gap[0]:+.1e}  last {gap[-1]:+.1e}  "
                f"largest {np.abs(gap).max():.1e}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm", type=int, default=400, help="steps before the checkpoint")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=6)
    parser.add_argument("--out", type=Path, help="keep the curves in this .npz file")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("needs torch: not measured here")
        return 0
    if not torch.cuda.is_available():
        print("needs a GPU: not measured here")
        return 0
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"{options.replicas} replicas of {options.steps} steps")
    began, data, found = time.monotonic(), load_bytes(), {}
    for kind in ("transformer", "convolution"):
        found[kind] = measure(kind, data, options.warm, options.steps, options.replicas)
    if options.out:
        np.savez_compressed(
            options.out, **{f"{kind}.{mode}": runs for kind, by in found.items() for mode, runs in by.items()}
        )
    print(f"\n{'sd of the log':<29} {'step':>9} {'step':>9} {'window':>9} {'window':>9} {'window':>9}")
    print(f"{'':<29} {'first 25':>9} {'last 50':>9} {'first':>9} {'last':>9} {'all':>9}")
    for kind, by_mode in found.items():
        for mode, runs in by_mode.items():
            print_noise(kind, mode, runs)
    for kind, by_mode in found.items():
        print_distance(kind, by_mode)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

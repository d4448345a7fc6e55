"""How much a real training on a GPU differs from itself: same checkpoint, same data, same seed, default kernels.

Two small byte-level language models (a transformer and a stack of causal convolutions) read Python's own library, once
to a checkpoint and then several times from it, in fp32, TF32 and bf16. Printed: the sd, over the replicas, of the log
of the loss and of the gradient norm, per step and per window of 50 steps; and how far changes lie from it that nobody
would call a bug: other kernels (another library for products, plain attention, deterministic convolutions), a batch
taken in two halves, another precision. Needs torch and a GPU; without them it says so and is done.
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
CHANGES = ("kernels", "halves")
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
            parts = self.qkv(self.norm1(x)).view(-1, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            read = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(read.transpose(1, 2).reshape(-1, CONTEXT, WIDTH))
            return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))

    class Convolution(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.reach = 2 * dilation
            self.conv = nn.Conv1d(WIDTH, WIDTH, 3, dilation=dilation)
            self.out = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            read = self.conv(functional.pad(self.norm(x).transpose(1, 2), (self.reach, 0))).transpose(1, 2)
            return x + self.out(functional.gelu(read))

    torch.manual_seed(SEED)
    layers = [Attention() if kind == "transformer" else Convolution(3**depth) for depth in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(256, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
    return model.cuda()


# ---------------------------------------------------------------- training


@contextmanager
def surroundings(mode: str, change: str) -> Iterator[None]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    other = change == "kernels"
    usual = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode == "tf32"
    torch.backends.cudnn.deterministic = other
    torch.backends.cuda.preferred_blas_library("cublaslt" if other else "cublas")
    with sdpa_kernel([SDPBackend.MATH] if other else list(usual)):
        yield


def measure_loss(model: Any, places: Any, text: Any, mode: str) -> Any:
    import torch
    from torch.nn import functional

    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "bf16"):
        logits = model(text[places])
    return functional.cross_entropy(logits.float().view(-1, 256), text[places + 1].reshape(-1))


def train(model: Any, optimiser: Any, data: tuple[Any, Any], steps: range, *, parts: int, mode: str) -> Curves:
    """Loss and gradient norm of every step; fetched once at the end, so that the GPU is never waited for."""
    import torch

    text, starts = data
    reach = torch.arange(CONTEXT, device="cuda")
    seen = torch.zeros(len(steps), 2, device="cuda", dtype=torch.float64)
    for row, step in enumerate(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
        optimiser.zero_grad(set_to_none=True)
        for places in (starts[step] + reach).chunk(parts):
            loss = measure_loss(model, places, text, mode) / parts
            loss.backward()
            seen[row, 0] += loss.detach()
        seen[row, 1] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return np.asarray(seen.cpu().numpy())


def measure(kind: str, text: Any, warm: int, steps: int, replicas: int) -> dict[str, Curves]:
    import copy

    import torch

    model, data = build_model(kind), (text, draw_starts(text, warm + steps))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with surroundings("fp32", ""):
        first = train(model, optimiser, data, range(warm), parts=1, mode="fp32")
    print(
        f"{kind}: {sum(p.numel() for p in model.parameters()):,} parameters, loss {first[0, 0]:.3f} at step 0, "
        f"{first[-WINDOW:, 0].mean():.3f} around the checkpoint at {warm}",
        flush=True,
    )
    saved = copy.deepcopy((model.state_dict(), optimiser.state_dict()))
    curves = {}
    for mode, change in ((mode, change) for mode in MODES for change in ("", *CHANGES)):
        runs = []
        for _ in range(1 if change else replicas):
            model.load_state_dict(saved[0])
            optimiser.load_state_dict(copy.deepcopy(saved[1]))
            with surroundings(mode, change):
                steps_after = range(warm, warm + steps)
                runs.append(train(model, optimiser, data, steps_after, parts=1 + (change == "halves"), mode=mode))
        curves[f"{mode} {change}".strip()] = np.stack(runs)
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
    for name in curves:
        mode, _, change = name.partition(" ")
        base = mode if change else "fp32"
        if name == base:
            continue
        for column, metric in enumerate(("loss", "grad_norm")):
            found, before = (window_means(np.log(curves[key][:, :, column])).mean(axis=0) for key in (name, base))
            gaps = "".join(f" {100 * gap:+8.4f}" for gap in found - before)
            print(f"{kind:<12} {name:<13} against {base:<5} {metric:<10}{gaps}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm", type=int, default=400, help="steps before the checkpoint")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=4)
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
        for mode in MODES:
            print_noise(kind, mode, by_mode[mode])
    print("\nchange of the window means, in percent, window by window")
    for kind, by_mode in found.items():
        print_distance(kind, by_mode)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

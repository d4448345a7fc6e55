"""Benchmarks with torch, on a GPU where there is one: `assay bench run torch_bench.MatMul.half`.

Needs torch: `pip install torch==2.13.0`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from assay.bench import Benchmark

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


class MatMul(Benchmark):
    """Products of square matrices; `--args '{"size": 4096}'` chooses how large."""

    def __init__(self, size: int | None = None, seconds: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size or (8192 if HAS_GPU else 256)
        self.seconds = seconds

    def single(self) -> None:
        self._measure(torch.float32)

    def half(self) -> None:
        self._measure(torch.bfloat16)

    def _measure(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        a, b = (torch.randn(self.size, self.size, device=DEVICE, dtype=dtype) for _ in range(2))
        timing = self.measure(lambda: a @ b, seconds=self.seconds, sync=torch)
        per_call_s = timing.device_median_s or timing.median_s
        flops = 2 * self.size**3 / per_call_s
        self.report_benchmark(
            iters=timing.iters,
            wall_time=timing.median_s,
            throughput=flops,
            metrics=[{"name": "tflops_per_second", "value": flops / 1e12}],
            extras={"device": str(DEVICE), "size": self.size},
        )


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.inner(self.second(x))


class Transformer(Benchmark):
    """One step of training: forward, backward, optimiser."""

    def __init__(self, seconds: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds
        self.width, self.depth, self.length, self.batch = (1024, 12, 1024, 8) if HAS_GPU else (64, 2, 32, 4)

    def training_step(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*(Block(self.width, 8) for _ in range(self.depth))).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x = torch.randn(self.batch, self.length, self.width, device=DEVICE)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()

        timing = self.measure(step, seconds=self.seconds, sync=torch)
        tokens = self.batch * self.length
        parameters = sum(each.numel() for each in model.parameters())
        flops = 6 * parameters * tokens + 12 * self.depth * self.batch * self.length**2 * self.width
        self.report_benchmark(
            iters=timing.iters,
            wall_time=timing.median_s,
            throughput=tokens / timing.median_s,
            metrics=[
                {"name": "tokens_per_second", "value": tokens / timing.median_s},
                {"name": "tflops_per_second", "value": flops / timing.median_s / 1e12},
            ],
            extras={"device": str(DEVICE), "parameters": parameters},
        )

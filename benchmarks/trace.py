"""What a trace costs, and that it does not disturb: a Llama-like model, with and without, interleaved in one process.

    python benchmarks/trace.py                                        on the CPU: a small model
    PYTHONPATH=src python3 benchmarks/trace.py --gpu                  on a GPU: 950M parameters in bf16

Each part has a time limit and reports what went wrong in it; the others go on. JSON is written to $OUT/trace.json.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from measuring import render_ratio
from torch import nn
from torch.nn import functional

from assay.trace import record
from assay.trace.inside import digest
from assay.trace.inside.rows import DeviceSlots, load_kernels
from assay.trace.records import list_traces, load_trace

LIMITS = {"step": 1.02, "module": 1.2, "op": 1.7}  # of the issue, at 1B parameters on a GPU
CPU_LIMIT = 1.5  # of `module`


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(width), Attention(width, heads)
        self.norm2, self.mlp = Norm(width), Mlp(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, inner: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


SIZES = {  # vocabulary, width, layers, heads, inner; batch, length
    "small": ((512, 128, 2, 4, 344), (4, 32)),
    "cpu": ((2048, 256, 4, 4, 688), (8, 128)),
    "cuda": ((32000, 2048, 16, 16, 5632), (16, 1024)),  # a step of about 250 ms
}


class Training:
    def __init__(self, size: str, device: str, dtype: torch.dtype, compiled: str = "") -> None:
        shape, self.batch = SIZES[size]
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Llama(*shape).to(dtype)
        self.vocabulary, self.device = shape[0], device
        self.called = self.model
        if compiled == "whole":
            self.called = torch.compile(self.model)
        elif compiled == "regions":
            for layer in self.model.layers:
                layer.compile()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.generator = torch.Generator().manual_seed(1)
        self.loss = torch.zeros(())

    def step(self) -> None:
        tokens = torch.randint(0, self.vocabulary, self.batch, generator=self.generator).to(self.device)
        self.loss = functional.cross_entropy(self.called(tokens).flatten(0, 1).float(), tokens.flatten())
        self.loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()

    def run(self, steps: int) -> list[torch.Tensor]:
        for _ in range(steps):
            self.step()
        return [self.loss.detach().clone(), *(each.detach().clone() for each in self.model.parameters())]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---------------------------------------------------------------- parts


def measure_speed(device: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step in each mode, in turn; the first step of a trace, which names the modules, is not counted."""
    training = Training(device, device, torch.bfloat16 if device == "cuda" else torch.float32)
    count = 4
    times: dict[str, list[float]] = {}
    host: dict[str, list[float]] = {}  # until the call returns: what is left the GPU does alone
    modes = ("plain", *LIMITS, "plain")
    training.run(3)
    for number in range(rounds + 1):
        for mode in modes:
            with tempfile.TemporaryDirectory() as folder, trace_or_not(folder, mode, range(1, count + 2)):
                training.step()
                for _ in range(count):
                    wait(device)
                    began = time.perf_counter()
                    training.step()
                    returned = time.perf_counter()
                    wait(device)
                    if number:
                        times.setdefault(mode, []).append(time.perf_counter() - began)
                        host.setdefault(mode, []).append(returned - began)
    plain = statistics.median(times["plain"])
    found = {
        mode: {
            "median_ms": statistics.median(each) * 1e3,
            "spread_ms": [statistics.quantiles(each, n=10)[0] * 1e3, statistics.quantiles(each, n=10)[-1] * 1e3],
            "ratio": statistics.median(each) / plain,
            "ratios": [a / b for a, b in zip(by_round(each, rounds), by_round(times["plain"], rounds), strict=True)],
            "host_ms": statistics.median(host[mode]) * 1e3,
        }
        for mode, each in times.items()
    }
    parameters = sum(each.numel() for each in training.model.parameters())
    limits = LIMITS if device == "cuda" else {"module": CPU_LIMIT}
    met = {mode: found[mode]["ratio"] <= limit for mode, limit in limits.items()}
    return {"parameters": parameters, "modes": found, "limits": limits, "met": met}


def by_round(values: Sequence[float], rounds: int) -> list[float]:
    """The median of each round."""
    size = len(values) // rounds
    return [statistics.median(values[size * number : size * (number + 1)]) for number in range(rounds)]


@contextlib.contextmanager
def trace_or_not(folder: str, mode: str, steps: range) -> Iterator[None]:
    with record(folder, steps=steps, level=mode) if mode != "plain" else contextlib.nullcontext():
        yield


def measure_debug_mode(device: str, rounds: int) -> dict[str, Any]:
    """torch's own DebugMode with hashes, on the same model."""
    from torch.utils._debug_mode import DebugMode

    training = Training(device, device, torch.bfloat16 if device == "cuda" else torch.float32)
    training.run(2)
    times: dict[str, list[float]] = {"plain": [], "debug": []}
    for _ in range(max(1, rounds // 2)):
        for mode, each in times.items():
            wait(device)
            began = time.perf_counter()
            if mode == "plain":
                training.step()
            else:
                with DebugMode(), DebugMode.log_tensor_hashes(hash_fn="hash_tensor", hash_inputs=False):
                    training.step()
            wait(device)
            each.append(time.perf_counter() - began)
    medians = {mode: statistics.median(each) * 1e3 for mode, each in times.items()}
    return {**medians, "ratio": medians["debug"] / medians["plain"]}


def check_kernels(device: str, _rounds: int) -> dict[str, Any]:
    """The kernel, the torch operations on the device and those of the CPU give one hash; the sketch within rounding."""
    if device != "cuda" or load_kernels() is None:
        return {"skipped": "no GPU or no Triton"}
    slots, wrong, compared = DeviceSlots(torch.device(device)), [], 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for count in (1, 2, 3, 63, 64, 65, 1000, 1024, 1025, 65535, 65536, 65537, 1_000_003, 9 * 65536):
            values = torch.randn(count, device=device).to(dtype)
            if count > 3:
                values[1], values[2], values[3] = float("nan"), 0.0, float("-inf")
            for each in (values, values.view(3, -1).t() if count % 3 == 0 else values[::2]):
                slots.data.zero_()
                load_kernels().digest_into(each, slots, 5)
                digest.digest_into(each, slots.data[6])
                kernel, operations = (_unpack(slots.data[number].cpu()) for number in (5, 6))
                local = digest.SLOT.unpack(digest.digest_cpu(each.cpu())) if each.numel() else (0,) * 70
                scale = 1e-4 * (1 + each.nan_to_num(0, 0, 0).float().abs().sum().item())
                is_near = all(abs(a - b) <= scale for a, b in zip(kernel[3:5], local[3:5], strict=True))
                is_near &= all(abs(a - b) <= scale for a, b in zip(kernel[6:], local[6:], strict=True))
                compared += 1
                if not (kernel[:3] == operations[:3] == local[:3] and kernel[5] == local[5] and is_near):
                    wrong.append([str(dtype), count, kernel[:7], operations[:7], local[:7]])
    for shape in ((5, 7), (300, 2048), (9,), (3, 70000)):
        values = torch.randn(shape, device=device)
        compared += 1
        if not torch.equal(load_kernels().hash_rows(values).cpu(), digest.hash_rows(values.cpu())):
            wrong.append(["rows", shape])
    more, faulty = _check_many(device, slots)
    return {"compared": compared + more, "wrong": wrong + faulty}


def _check_many(device: str, slots: DeviceSlots) -> tuple[int, list[Any]]:
    many = [
        (torch.randn(count, device=device).to(dtype), number, start)
        for number, (count, dtype, start) in enumerate(MANY)
    ]
    slots.data.zero_()
    wrong: list[Any] = []
    load_kernels().digest_many(many, slots)
    for values, number, start in many:
        local = digest.SLOT.unpack(digest.digest_cpu(values.cpu(), (start, *digest.WHOLE[1:])))
        if _unpack(slots.data[number].cpu())[:3] != local[:3]:
            wrong.append(["many", number, _unpack(slots.data[number].cpu())[:7], local[:7]])
    return len(many), wrong


MANY = [(7, torch.float32, 0), (70_000, torch.bfloat16, 0), (70_000, torch.bfloat16, 70_000), (2048, torch.bfloat16, 0)]
MANY += [(300_001, torch.float16, 0), (65_536 * 40, torch.float32, 6), (65_536 * 40, torch.bfloat16, 65_536)]
SETTINGS = [  # TILE, UNROLL, num_warps, maxnreg; blocks of a program, most groups
    ((1024, 2, 4, 128), 8, 32), ((1024, 2, 4, 168), 8, 32), ((1024, 4, 4, 128), 16, 32), ((512, 4, 4, 96), 16, 16),
    ((1024, 2, 8, 96), 8, 32), ((2048, 2, 8, 128), 8, 64), ((1024, 2, 4, 128), 4, 64), ((1024, 2, 4, 128), 16, 16),
]  # fmt: skip


def tune_kernels(device: str, _rounds: int) -> dict[str, Any]:
    """Terabytes a second that settings of the kernel read: of tensors of several sizes, and of a model's together."""
    if device != "cuda" or load_kernels() is None:
        return {"skipped": "no GPU or no Triton"}
    kernels, slots, found = load_kernels(), DeviceSlots(torch.device(device)), {}
    before = dict(kernels.SETTING), kernels.DEPTH, kernels.MOST_GROUPS
    sizes = {
        count: torch.randn(count, device=device, dtype=torch.bfloat16) for count in (1 << 14, 1 << 22, 1 << 25, 1 << 29)
    }
    sizes[-(1 << 27)] = torch.randn(1 << 27, device=device)  # float32
    shape, _ = SIZES["cuda"]
    with torch.device("meta"):
        model = [each.numel() for each in Llama(*shape).parameters()]
    whole = [(torch.randn(count, device=device, dtype=torch.bfloat16), number, 0) for number, count in enumerate(model)]
    for setting, depth, groups in SETTINGS:
        kernels.SETTING.update(zip(("TILE", "UNROLL", "num_warps", "maxnreg"), setting, strict=True))
        kernels.DEPTH, kernels.MOST_GROUPS = depth, groups
        kernels._compiled.clear()  # noqa: SLF001 they are of the setting before
        try:
            line = {
                str(count): _time(partial(kernels.digest_into, values, slots, 1), values.nbytes)
                for count, values in sizes.items()
            }
            line["many"] = _time(lambda: kernels.digest_many(whole, slots), 2 * sum(model))
        except Exception as error:  # noqa: BLE001 the other settings go on
            line = {"problem": f"{type(error).__name__}: {error}"[:200]}
        found[f"{setting} {depth} {groups}"] = line
    kernels.SETTING.update(before[0])
    kernels.DEPTH, kernels.MOST_GROUPS = before[1:]
    kernels._compiled.clear()  # noqa: SLF001
    return found


def _time(function: Callable[[], None], size: int) -> list[float]:
    """Microseconds of the GPU, TB/s, and microseconds until the call returns."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    best, host = float("inf"), float("inf")
    for _ in range(5):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        began = time.perf_counter()
        events[0].record()
        for _ in range(10):
            function()
        events[1].record()
        host = min(host, (time.perf_counter() - began) * 1e5)
        torch.cuda.synchronize()
        best = min(best, events[0].elapsed_time(events[1]) * 100)
    return [round(best, 1), round(size / best / 1e6, 3), round(host, 1)]


def _unpack(slot: torch.Tensor) -> tuple[Any, ...]:
    return digest.SLOT.unpack(ctypes.string_at(slot.data_ptr(), digest.SLOT.size))


def check_results(device: str, _rounds: int) -> dict[str, Any]:
    """Losses and weights of traced trainings, bit for bit, with deterministic algorithms; nothing waits for the GPU."""
    torch.use_deterministic_algorithms(True)
    found: dict[str, Any] = {}
    try:
        for dtype in (torch.bfloat16, torch.float32):
            plain = Training("small", device, dtype).run(4)
            found[f"{dtype} again"] = _equal(plain, Training("small", device, dtype).run(4))
            for level in LIMITS:
                with tempfile.TemporaryDirectory() as folder, record(folder, steps=[1, 3], level=level):
                    found[f"{dtype} {level}"] = _equal(plain, Training("small", device, dtype).run(4))
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def check_no_waiting(device: str, _rounds: int) -> dict[str, Any]:
    """torch reports each call that waits for the GPU; a traced step after the first has none."""
    if device != "cuda":
        return {"skipped": "no GPU"}
    training = Training("small", device, torch.bfloat16)
    training.generator = torch.Generator().manual_seed(1)
    training.run(2)
    found = {}
    for level in LIMITS:
        with tempfile.TemporaryDirectory() as folder, record(folder, steps=[1, 2, 3], level=level):
            training.step()
            torch.cuda.set_sync_debug_mode("error")
            try:
                tokens = torch.zeros((2, 16), dtype=torch.long, device=device)
                training.called(tokens).float().sum().backward()
                training.optimiser.step()
                found[level] = True
            except RuntimeError as error:
                found[level] = str(error)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return found


def check_compiled(device: str, _rounds: int) -> dict[str, Any]:
    """Compiled trainings: equal at borders; inside equal where precision casts are emulated on both sides."""
    from torch._dynamo.utils import counters
    from torch._inductor import config

    torch.use_deterministic_algorithms(True)
    found: dict[str, Any] = {}

    def run(how: str) -> tuple[list[torch.Tensor], tuple[int, int]]:
        torch.compiler.reset()
        counters.clear()
        results = Training("small", device, torch.bfloat16, how).run(3)
        return results, (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))

    try:
        for how in ("whole", "regions"):
            run(how)
            plain, graphs = run(how)
            with tempfile.TemporaryDirectory() as folder, record(folder, steps=[1, 3]):
                traced, counted = run(how)
            found[f"{how}, borders"] = {"equal": _equal(plain, traced), "graphs": [graphs, counted]}
        config.emulate_precision_casts = True
        plain, graphs = run("whole")
        with tempfile.TemporaryDirectory() as folder:
            with record(folder, steps=[1, 3], inside=True):
                traced, counted = run("whole")
            trace = load_trace(list_traces(folder)[0])
            names = {point.module for point in trace.points if point.phase == "forward"}
        result = {"equal": _equal(plain, traced), "graphs": [graphs, counted], "modules": len(names)}
        found["whole, inside"] = result
    finally:
        config.emulate_precision_casts = False
        torch.use_deterministic_algorithms(False)
    return found


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, first, second))


def measure_memory(device: str, _rounds: int) -> dict[str, Any]:
    """Megabytes that a traced step needs more than a plain one."""
    if device != "cuda":
        slots = DeviceSlots(torch.device("cpu"))
        return {"buffer_MB": 2 * slots.data.nbytes / 1e6}
    training = Training("cuda", device, torch.bfloat16)
    training.run(2)
    peaks = {}
    for mode in ("plain", *LIMITS):
        with tempfile.TemporaryDirectory() as folder, trace_or_not(folder, mode, range(1, 4)):
            training.step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            training.step()
            torch.cuda.synchronize()
            peaks[mode] = torch.cuda.max_memory_allocated() / 1e6
    return {**peaks, **{f"{mode} more": peaks[mode] - peaks["plain"] for mode in LIMITS}}


PARTS: dict[str, tuple[Callable[[str, int], dict[str, Any]], int]] = {  # with a limit in seconds
    "kernels": (check_kernels, 40),
    "tune": (tune_kernels, 80),
    "speed": (measure_speed, 100),
    "results": (check_results, 30),
    "waiting": (check_no_waiting, 20),
    "memory": (measure_memory, 20),
    "compiled": (check_compiled, 60),
    "debug mode": (measure_debug_mode, 60),
}


class TooLongError(Exception):
    pass


def _stop(_number: int, _frame: object) -> None:
    raise TooLongError


def run_part(name: str, device: str, rounds: int) -> dict[str, Any]:
    function, limit_s = PARTS[name]
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(limit_s)
    began = time.perf_counter()
    try:
        found = function(device, rounds)
    except TooLongError:
        found = {"problem": f"not finished after {limit_s} s"}
    except Exception as error:  # noqa: BLE001 the other parts go on
        found = {"problem": f"{type(error).__name__}: {error}", "where": traceback.format_exc().splitlines()[-6:]}
    finally:
        signal.alarm(0)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", dest="device", action="store_const", const="cuda", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    found: dict[str, Any] = {"torch": torch.__version__, "device": name}
    print(f"torch {torch.__version__}, {name}", flush=True)
    for part in arguments.parts:
        found[part] = run_part(part, arguments.device, arguments.rounds)
        print(f"{part}: {json.dumps(found[part])}", flush=True)
        if os.environ.get("OUT"):
            with open(os.path.join(os.environ["OUT"], "trace.json"), "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
    for mode, each in found.get("speed", {}).get("modes", {}).items():
        low, high = each["spread_ms"]
        print(f"{mode:8} {each['median_ms']:9.2f} ms  ({low:.2f} to {high:.2f})")
        if mode != "plain":
            what, most = (
                f"{arguments.device}: a step with traces of {mode} / without",
                found["speed"]["limits"].get(mode),
            )
            print(render_ratio(what, each["ratio"], at_most=most, of_each=each["ratios"]))


if __name__ == "__main__":
    main()
    sys.exit(0)

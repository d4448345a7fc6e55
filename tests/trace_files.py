"""Traces as the recorder writes them, of a small program in numpy: for tests of comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.trace.comparing import compare, load_recording
from assay.trace.judge.difference import Comparison
from assay.trace.records import _ROW

Values = np.ndarray[Any, Any]
UNKNOWN = 0xFFFFFFFF


def compare_folders(folder: Path, a: str = "a", b: str = "b") -> Comparison:
    return compare(load_recording(str(folder / a)), load_recording(str(folder / b)))


class Writer:
    """The traces of one process. Points that are new are added; rows are in order of execution."""

    def __init__(self, run_dir: Path, below: str = "", rank: int = 0, world: int = 1, **meta: Any) -> None:
        self.folder = run_dir / "trace" / below / f"rank-{rank}"
        self.folder.mkdir(parents=True)
        facts = {"format": 1, "level": "module", "rank": rank, "world": world, "torch": "2.13", "flags": {}, **meta}
        (self.folder / "trace.json").write_text(json.dumps(facts))
        self.points: list[dict[str, Any]] = []
        self.rows: list[Any] = []
        self.steps: list[dict[str, Any]] = []
        self.weights: list[tuple[dict[str, Any], Values]] = []

    def row(
        self, step: int, phase: str, module: str, values: Values, *inputs: int, name: str = "", start: int = 0,
        placement: Mapping[str, Any] | None = None, kind: str = "Linear", call: int = 0,
    ) -> int:  # fmt: skip
        """Add a row and return its number + 1. `start`: the index of the first element in the whole tensor."""
        own = name or ("output.0" if phase in ("forward", "backward") else f"{phase}.0")
        point = {"phase": phase, "module": module, "kind": kind, "name": own, "call": call, "op": None}
        point |= {"shape": list(values.shape), "dtype": str(values.dtype), "device": "cpu", "placement": placement}
        point |= {"source": f"model.py:{len(module)}"}
        if point not in self.points:
            self.points.append(point)
        row = np.zeros(1, np.dtype(_ROW))
        row["point"], row["step"], row["count"] = self.points.index(point), step, values.size
        row["inputs"][0, : len(inputs)] = inputs
        _digest(row, values.astype(np.float32).ravel(), start)
        self.rows.append(row)
        return len(self.rows)

    def weight(self, module: str, values: Values, name: str = "weight") -> None:
        rounded = (values.astype(np.float32).view(np.uint32) + 0x8000) >> 16
        rows = rounded.reshape(len(rounded) if rounded.ndim > 1 else 1, -1).astype(np.uint64)
        odd = np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
        hashes = (rows * odd).sum(axis=1, dtype=np.uint64)
        offset = sum(len(each) for _, each in self.weights)
        line = {"module": module, "name": name, "shape": list(values.shape), "rows": len(hashes), "offset": offset}
        self.weights.append((line, hashes))

    def step(self, step: int, **facts: Any) -> None:
        self.steps.append(
            {"step": step, "loss": 1.0, "groups": [], "random": "0", "flags": {}, "skipped": False, **facts}
        )

    def close(self, *, end: bool = True) -> Path:
        lines = [*self.steps, *([{"end": True}] if end else [])]
        _write_lines(self.folder / "points.jsonl", self.points)
        _write_lines(self.folder / "steps.jsonl", lines)
        _write_lines(self.folder / "weights.jsonl", [line for line, _ in self.weights])
        (self.folder / "weights.bin").write_bytes(b"".join(each.tobytes() for _, each in self.weights))
        (self.folder / "rows.bin").write_bytes(b"".join(row.tobytes() for row in self.rows))
        return self.folder


def _write_lines(path: Path, lines: list[Any]) -> None:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))


def _digest(row: Any, values: Values, start: int) -> None:
    """Write hash, sketch and sums that add up over shards, as in docs/reference/formats-results.md; not finite: 0."""
    index = np.arange(start, start + values.size)
    random = np.random.default_rng(0).integers(1, 1 << 62, 4096, dtype=np.uint64)[index % 4096]
    bits = values.view(np.uint32).astype(np.uint64)
    row["hash"] = ((bits ^ random) * (random | np.uint64(1))).sum(dtype=np.uint64)
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    signs = 1.0 - 2.0 * ((random >> np.uint64(7)) & np.uint64(1)).astype(float)
    np.add.at(row["sketch"][0], index % 64, (signs * finite).astype(np.float32))
    row["nonfinite"], row["zeros"] = (~np.isfinite(values)).sum(), (values == 0).sum()
    row["sum"], row["sumsq"], row["largest"] = finite.sum(), finite @ finite, np.abs(finite).max(initial=0)


class Program:
    """Three layers, `x + W x` each, trained by plain gradient descent for two steps. Attributes are what can differ."""

    def __init__(self, **changes: Any) -> None:
        self.names = ["layers.0", "layers.1", "layers.2"]
        self.dtype: Any = np.float32
        self.scale = dict[tuple[int, int], float]()  # (step, layer) → factor of its output
        self.noise = 0.0  # relative, of the first activation
        self.seed, self.decay, self.steps, self.end = 0, 0.0, (1, 2), True
        self.without_gradient = ""
        self.swapped = False  # two rows of layer 1's weight
        self.poison: tuple[int, int] | None = None  # (step, layer) → one value becomes NaN
        self.facts: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}
        self.shift = 0  # of the data
        self.batch = 8
        self.narrow: tuple[int, int] | None = None  # (step, layer) → from there on the last columns are missing
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    def write(self, run_dir: Path, below: str = "") -> Path:
        writer = Writer(run_dir, below, **self.meta)
        random = np.random.default_rng(self.seed)
        weights = [random.standard_normal((16, 16)) * 0.1 for _ in self.names]
        if self.swapped:
            weights[1][[3, 5]] = weights[1][[5, 3]]
        weights = [each.astype(self.dtype) for each in weights]
        for name, weight in zip(self.names, weights, strict=True):
            writer.weight(name, weight)
        for step in self.steps:
            weights = self._step(writer, weights, step)
        writer.close(end=self.end)
        return run_dir

    def _step(self, writer: Writer, weights: list[Values], step: int) -> list[Values]:
        data = np.random.default_rng(100 + step + self.shift).standard_normal((16, self.batch)).astype(self.dtype)
        signs = np.random.default_rng(int(1e9 * self.noise) + step).choice([-1.0, 1.0], data.shape)
        at = writer.row(step, "input", "", data, kind="")
        x = (data * (1 + self.noise * signs)).astype(self.dtype)
        gradients = []
        for number, (name, weight) in enumerate(zip(self.names, weights, strict=True)):
            gradients.append(np.tanh(x @ x.T).astype(self.dtype))
            x = ((x + weight @ x) * self.scale.get((step, number), 1.0)).astype(self.dtype)
            if self.narrow == (step, number):
                x = x[:, :-2]
            if self.poison == (step, number):
                x[2, 3] = np.nan
            at = writer.row(step, "forward", name, x, at)
        writer.row(step, "loss", "", np.array([(np.nan_to_num(x) ** 2).mean()], self.dtype), at, kind="")
        for name, gradient in zip(self.names, gradients, strict=True):
            if name != self.without_gradient:
                writer.row(step, "gradient", name, gradient, name="weight", kind="")
        after = [w - 0.01 * (g + self.decay * w) for w, g in zip(weights, gradients, strict=True)]
        after = [each.astype(self.dtype) for each in after]
        for name, weight in zip(self.names, after, strict=True):
            writer.row(step, "parameter", name, weight, name="weight", kind="")
        writer.step(step, **self.facts)
        return after

"""`assay model compare` on real quantisers and fusions, and on faults that were planted into what they made.

    python benchmarks/model_compare.py [--group held-out] [--faults 1] [--seed 1] [--only cnn]

Harmless rewrites: onnxruntime's quantiser (QDQ, QDQ with a scale for each channel, QOperator, dynamic), its optimiser
offline, 16-bit floats, and the same files with all names replaced. None of them is to be FAIL. Faults, one at a time:
weights with another scale, with a zero point off by one, reversed; integers read with another scale or zero point than
they are written with; a bias that is missing; an epsilon that is a thousand times too large. Each changes what its node
makes by 2% or more (in a model of floats 0.01%). The layer that has it is to be named. Factors of `judge/rounded.py`
were chosen on the group `chosen`; `held-out` is what to report. Intervals are Wilson's, 95%.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _fault_models import write_old, write_small
from measuring import ROOT, quick_folder, render_rate, render_share

EXAMPLES = ROOT / "examples" / "models"
sys.path[:0] = [str(ROOT / "src"), str(EXAMPLES)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from assay.models.flow.artifact_builder import ArtifactBuilder  # noqa: E402
from assay.models.flow.check import check_model  # noqa: E402
from assay.models.flow.compare import ComparedCases  # noqa: E402
from assay.models.graph.graph import build_outline, load_model  # noqa: E402
from assay.models.graph.inputs import build_samples  # noqa: E402
from assay.models.report.summary import describe_outcome, find_first, label_of  # noqa: E402
from assay.models.store.artifacts import ArtifactStore  # noqa: E402
from assay.models.values.model import InputChoice, ModelRequest, Target  # noqa: E402

ORT = Target("ort", "ort", {"optimize": "none"})
SPEECH = ROOT / ".tools" / "models" / "speechmos"
REAL = {
    "dnsmos": SPEECH / "dnsmos_models" / "model_v8.onnx",
    "sig": SPEECH / "dnsmos_models" / "sig.onnx",
    "plcmos": SPEECH / "plcmos_models" / "plcmos_v2.onnx",
    "aecmos": SPEECH / "aecmos_models" / "Run_1663915512_Stage_0.onnx",
    "silero": ROOT / ".tools" / "models" / "faster_whisper" / "assets" / "silero_vad_v6.onnx",
}
GROUPS = {
    "chosen": ("cnn", "old-9", "tiny-mlp", "attention", "silero", "plcmos", "dnsmos"),
    "held-out": ("tiny-cnn", "aecmos", "sig"),
}
CALIBRATION = 24  # samples, of the kind that are compared


class Samples:
    def __init__(self, path: Path) -> None:
        choice = InputChoice(samples=CALIBRATION, seed=7)
        found = build_samples(build_outline(str(path)), load_model(str(path)), choice)
        self._left = list(found)

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def write_rewrites(path: Path, folder: Path) -> dict[str, Path]:
    """What a user would make of the model; one that a tool refuses is left out."""
    import onnxruntime as ort
    from onnxruntime import quantization as quant
    from onnxruntime.transformers.float16 import convert_float_to_float16

    def optimise(target: Path) -> None:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath, options.log_severity_level = str(target), 3
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def quantise(target: Path, form: str, **options: Any) -> None:
        quant.quantize_static(path, target, Samples(path), quant_format=quant.QuantFormat[form], **options)

    makers: dict[str, Callable[[Path], object]] = {
        "qdq": lambda target: quantise(target, "QDQ"),
        "qdq-channels": lambda target: quantise(target, "QDQ", per_channel=True),
        "qoperator": lambda target: quantise(target, "QOperator"),
        "dynamic": lambda target: quant.quantize_dynamic(path, target),
        "optimised": optimise,
        "float16": lambda target: onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), target),
        "renamed": lambda target: onnx.save(onnx.load(path), target),
    }
    made = {}
    for name, make in makers.items():
        target = folder / f"{path.stem}-{name}.onnx"
        try:
            make(target)
            _open(str(target))
            made[name] = target
        except Exception as error:  # noqa: BLE001 whatever a quantiser raises for a model that it cannot take
            print(f"  ({path.stem}: no {name}: {str(error)[:80]})")
    if path.stem.startswith("tiny"):
        made.pop("float16", None)  # its numbers are smaller than those that 16 bits have: that is not harmless
    for name, target in (("qdq", "qdq-renamed"), ("optimised", "optimised-renamed"), ("renamed", "renamed")):
        if name in made:
            model = onnx.load(made[name])
            replace_names(model)
            made[target] = folder / f"{path.stem}-{target}.onnx"
            onnx.save(model, made[target])
    return made


def replace_names(model: Any) -> None:
    graph = model.graph
    ends = {value.name for value in (*graph.input, *graph.output)}
    made = [name for node in graph.node for name in node.output] + [tensor.name for tensor in graph.initializer]
    names = {name: f"renamed_{number}" for number, name in enumerate(made) if name not in ends and name}
    _replace(graph, names)
    del graph.value_info[:]


def _replace(graph: Any, names: dict[str, str]) -> None:
    for node in graph.node:
        node.name = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _replace(attribute.g, names)
    for value in (*graph.initializer, *graph.output):
        value.name = names.get(value.name, value.name)


# ---------------------------------------------------------------- faults


def plant_faults(model: Any) -> Iterator[tuple[str, str, Any]]:
    """(kind, tensor in whose layer it is, the model with the fault): every place of every kind."""
    for index in range(len(model.graph.node)):
        for kind, change in FAULTS.items():
            faulty = onnx.ModelProto.FromString(model.SerializeToString())
            place = change(faulty, faulty.graph.node[index])
            if place:
                yield kind, place, faulty


def _constant(model: Any, name: str) -> Any:
    return next((numpy_helper.to_array(each) for each in model.graph.initializer if each.name == name), None)


def _exchange(model: Any, node: Any, at: int, array: Any) -> None:
    """For this node alone: others may read the same constant."""
    name = f"{node.input[at]}_faulty"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    node.input[at] = name


def _reader(model: Any, name: str) -> Any:
    return next((node for node in model.graph.node if name in node.input), None)


def _weights_at(model: Any, node: Any) -> int | None:
    """The input of DequantizeLinear or QLinearConv that holds weights, by the place of their scale less one."""
    at = {"DequantizeLinear": 0, "QLinearConv": 3, "QLinearMatMul": 3}.get(node.op_type)
    array = _constant(model, node.input[at]) if at is not None and len(node.input) > at else None
    return at if array is not None and array.ndim > 1 else None


def _owner(model: Any, node: Any) -> str:
    """The tensor that the weights are used for."""
    user = _reader(model, node.output[0]) if node.op_type == "DequantizeLinear" else node
    return user.output[0] if user is not None else ""


def wrong_scale(model: Any, node: Any) -> str:
    at = _weights_at(model, node)
    if at is None:
        return ""
    _exchange(model, node, at + 1, _constant(model, node.input[at + 1]) * np.float32(1.5))
    return _owner(model, node)


def weight_zero_point(model: Any, node: Any) -> str:
    at = _weights_at(model, node)
    if at is None or len(node.input) <= at + 2:
        return ""
    zero = _constant(model, node.input[at + 2])
    _exchange(model, node, at + 2, (zero + 1).astype(zero.dtype))
    return _owner(model, node)


def reversed_weights(model: Any, node: Any) -> str:
    at = 1 if node.op_type in ("Conv", "MatMul", "Gemm", "FusedConv") else _weights_at(model, node)
    array = _constant(model, node.input[at]) if at is not None and len(node.input) > at else None
    if array is None or array.ndim < 2 or array.shape[-1] < 2:
        return ""
    square = array.shape[-1] == array.shape[-2]
    _exchange(model, node, at, np.swapaxes(array, -1, -2) if square else array[..., ::-1])
    return _owner(model, node)


def dropped_bias(model: Any, node: Any) -> str:
    at = {"Conv": 2, "Gemm": 2, "FusedConv": 2, "QLinearConv": 8}.get(node.op_type)
    if at is None or len(node.input) <= at:
        return ""
    name, maker = node.input[at], next((each for each in model.graph.node if node.input[at] in each.output), None)
    owner, place, source = (maker, 0, maker.input[0]) if maker is not None else (node, at, name)
    array = _constant(model, source)
    if array is None or array.ndim != 1:
        return ""
    _exchange(model, owner, place, np.zeros_like(array))
    return str(node.output[0])


def wrong_reading(model: Any, node: Any, *, scale: float = 1.0, zero: int = 0) -> str:
    if node.op_type != "DequantizeLinear" or _constant(model, node.input[0]) is not None or len(node.input) < 3:
        return ""
    _exchange(model, node, 1, _constant(model, node.input[1]) * np.float32(scale))
    array = _constant(model, node.input[2])
    _exchange(
        model, node, 2, (array + (zero if array.max() < np.iinfo(array.dtype).max else -zero)).astype(array.dtype)
    )
    return str(node.output[0])


def wrong_epsilon(model: Any, node: Any) -> str:  # noqa: ARG001 as the others
    if node.op_type not in ("BatchNormalization", "LayerNormalization", "InstanceNormalization"):
        return ""
    found = [each for each in node.attribute if each.name == "epsilon"]
    attribute = found[0] if found else node.attribute.add(name="epsilon", type=onnx.AttributeProto.FLOAT, f=1e-5)
    attribute.f *= 1000
    return str(node.output[0])


FAULTS: dict[str, Callable[[Any, Any], str]] = {
    "weight scale": wrong_scale,
    "weight zero point": weight_zero_point,
    "reversed weights": reversed_weights,
    "dropped bias": dropped_bias,
    "read scale": lambda model, node: wrong_reading(model, node, scale=1.25),
    "read zero point": lambda model, node: wrong_reading(model, node, zero=1),
    "epsilon": wrong_epsilon,
}


def measure_effect(clean: Any, faulty: Any, tensor: str, feeds: Any) -> float:
    """How much of the tensor changes, of its root mean square."""
    found = []
    for model in (clean, faulty):
        marked = onnx.ModelProto.FromString(model.SerializeToString())
        if tensor not in {each.name for each in marked.graph.output}:
            marked.graph.output.append(onnx.ValueInfoProto(name=tensor))
        found.append(_run(marked, tensor, feeds).astype(np.float64))
    return float(np.sqrt(np.mean((found[0] - found[1]) ** 2)) / (np.sqrt(np.mean(found[0] ** 2)) or 1.0))


def _run(model: Any, tensor: str, feeds: Any) -> Any:
    return _open(model.SerializeToString()).run([tensor], feeds)[0]


def _open(model: str | bytes) -> Any:
    """Without optimisations: onnxruntime 1.31 dies in those of some quantised models."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# ---------------------------------------------------------------- the measurement


class Bench:
    def __init__(self, builder: ArtifactBuilder, folder: Path) -> None:
        self.builder, self.folder = builder, folder
        self.harmless: list[tuple[str, str]] = []  # (rewrite, verdict)
        self.coverage: list[float] = []
        self.faults: list[tuple[str, str, bool, str]] = []  # (kind, rewrite, named, verdict)

    def request(self, path: Path, other: Path) -> ModelRequest:
        return ModelRequest(str(path), ORT, ORT, goal="compare", other=str(other), folder=str(self.folder))

    def compare(self, path: Path, other: Path) -> Any:
        return check_model(self.request(path, other), self.builder, str(self.folder / "tensors"))

    def try_harmless(self, name: str, path: Path, word: str, other: Path) -> bool:
        begun, report = time.monotonic(), self.compare(path, other)
        kind = str(report.verdict.kind)
        self.harmless.append((word, kind))
        self.coverage.append(float(report.coverage.split("(")[1].split("%")[0]))
        text = "" if kind == "PASS" else describe_outcome(report)[:150]
        print(
            f"{name:10} {word:18} {kind:12} {self.coverage[-1]:4.0f}% paired {time.monotonic() - begun:4.0f} s {text}",
            flush=True,
        )
        return kind != "FAIL"

    def try_faults(self, name: str, path: Path, word: str, other: Path, count: int, rng: random.Random) -> None:
        clean = onnx.load(other)
        cases = ComparedCases(self.request(path, other), self.builder)
        rows = {tensor: layer.label for layer in cases.outline.layers for tensor in layer.outputs}
        feeds = build_samples(build_outline(str(path)), load_model(str(path)))[0]
        options = list(plant_faults(clean))
        rng.shuffle(options)
        tried: Counter[str] = Counter()
        for kind, tensor, faulty in options:
            pair = next((each for each in cases.pairs.values() if tensor in each.right.names), None)
            if tried[kind] == count or pair is None or pair.left.value not in rows:
                continue
            try:
                if measure_effect(clean, faulty, tensor, feeds) < (1e-4 if word == "renamed" else 0.02):
                    continue
            except Exception:  # noqa: BLE001 a tensor that cannot be an output
                continue
            tried[kind] += 1
            target = self.folder / "faulty.onnx"
            onnx.save(faulty, target)
            report = self.compare(path, target)
            first, verdict = find_first(report), str(report.verdict.kind)
            named = first is not None and label_of(first, report) == rows[pair.left.value]
            self.faults.append((kind, word, named, verdict))
            found = label_of(first, report) if first else "-"
            mark = "" if named else "   <<<"
            print(
                f"{name:10} {word:18} {kind:18} in {rows[pair.left.value]:14} named {found:14} {verdict}{mark}",
                flush=True,
            )


def load_models(folder: Path) -> dict[str, Path]:
    from build_models import write_models

    write_models(folder)
    found = {path.stem.removeprefix("example-"): path for path in sorted(folder.glob("*.onnx"))}
    found |= {**write_small(folder / "small"), **write_old(folder / "old")}
    return found | {name: path for name, path in REAL.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", choices=GROUPS, default="held-out")
    parser.add_argument("--faults", type=int, default=1, help="of each kind in each rewrite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    with quick_folder() as folder, ArtifactBuilder(ArtifactStore(str(folder / "store"))) as builder:
        bench, models, rng = Bench(builder, folder), load_models(folder), random.Random(given.seed)
        for name in given.only or GROUPS[given.group]:
            if name not in models:
                continue
            for word, other in write_rewrites(models[name], folder).items():
                bench.try_harmless(name, models[name], word, other)
                if word in ("qdq", "qoperator", "renamed"):
                    bench.try_faults(name, models[name], word, other, given.faults, rng)
        print_figures(bench)


def print_figures(bench: Bench) -> None:
    verdicts = [verdict for _, verdict in bench.harmless]
    print(f"\nlayers paired: {np.mean(bench.coverage):.1f}% on average, least {min(bench.coverage):.0f}%")
    faults = len(bench.faults)
    print(render_share("harmless rewrites that FAIL", verdicts.count("FAIL"), len(verdicts)), dict(Counter(verdicts)))
    print(render_share("faults whose layer is named", sum(each[2] for each in bench.faults), faults))
    print(render_share("faults that PASS", sum(each[3] == "PASS" for each in bench.faults), faults))
    for kind in FAULTS:
        own = [each for each in bench.faults if each[0] == kind]
        print(f"  {kind:18} named {render_rate(sum(each[2] for each in own), len(own))}")


if __name__ == "__main__":
    main()

"""Faults planted into models, one at a time: is the right layer named? And on clean pairs: is there silence?

    python benchmarks/model_faults.py [--faults 8] [--seed 1] [--clean-only] [--group held-out]

A target that is onnxruntime but for one node (examples/models/faulty.py) computes each model; `assay model bisect`
looks for it, without knowing. Models: three of examples/models, and real ones out of PyPI packages
(benchmarks/models.txt, in .tools/models: `make .tools/models/.stamp`), models of small outputs, of old opsets, and
quantised ones (`_fault_models.py`; there the target does not optimise, so that steps move by rounding as well).
A fault that changes its layer's output by no more than rounding would is no fault, and is drawn again. Clean pairs are
checked layer by layer and as a whole; on clean quantised models bisect has to pass. The rules were chosen on the group
`seen`; `held-out` is what to report. Intervals are Wilson's, 95%.

Whole-target faults (--whole) are in every node that can have them: rounding rules, epsilons a hundred times too large,
factors of int4 weights in 8 bits. `assay model check` must pass neither the model nor a layer that has the fault.

Beside us the rule of the tool whose users we serve, |a - b| / (|a| + |b| + 1e-6) > 1e-2 for any element, on the same
numbers: how many layers that are right would it fail, and which faults would it miss in their own layer?
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _fault_models import write_int4, write_old, write_quantized, write_small
from measuring import ROOT, quick_folder, render_share

EXAMPLES = ROOT / "examples" / "models"
sys.path[:0] = [str(ROOT / "src"), str(EXAMPLES)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])

from assay.models.flow.artifact_builder import ArtifactBuilder  # noqa: E402
from assay.models.flow.bisect import bisect_model  # noqa: E402 behind the path
from assay.models.flow.cases import Cases  # noqa: E402
from assay.models.flow.check import Examination, check_model  # noqa: E402
from assay.models.flow.targets import VoterTests  # noqa: E402
from assay.models.store.artifacts import ArtifactStore  # noqa: E402
from assay.models.values.model import InputChoice, Layer, ModelRequest, Target  # noqa: E402
from assay.values.verdict import VerdictKind  # noqa: E402

REAL = {
    "magika": ("magika/models/standard_v3_3/model.onnx", {}),
    "dnsmos": ("speechmos/dnsmos_models/model_v8.onnx", {}),
    "plcmos": ("speechmos/plcmos_models/plcmos_v2.onnx", {}),
    "silero": ("faster_whisper/assets/silero_vad_v6.onnx", {}),
    "ocr-cls": ("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "ocr-det": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 64)}),
    "aecmos": ("speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", {}),
}
QUANTIZED = ("cnn", "attention", "dnsmos", "silero", "magika", "plcmos", "aecmos", "old-11")
SEEN = (
    "cnn", "attention", "magika", "dnsmos", "silero", "ocr-cls", "tiny-mlp", "cancelling", "tails", "old-9", "old-13",
    "cnn-qdq", "attention-qdq", "dnsmos-qdq", "silero-qdq", "silero-dynamic", "cnn-dynamic", "aecmos-dynamic", "int4",
)  # fmt: skip
HELD_OUT = (
    "plcmos", "aecmos", "ocr-det", "tiny-cnn", "old-11", "magika-qdq", "plcmos-qdq", "aecmos-qdq", "old-11-qdq",
    "magika-dynamic", "plcmos-dynamic", "dnsmos-dynamic", "attention-dynamic", "int4-wide",
)  # fmt: skip
GROUPS = {"seen": SEEN, "held-out": HELD_OUT}
CLEAN = ("ort", "reference", "openvino", "iree")
WHOLE = ("epsilon", "rounds-late", "rounds-down", "8-bit-inputs")
SLOW = ("ocr-cls", "ocr-det")  # on IREE: a quarter of an hour of compiling tells nothing more


@dataclass(frozen=True)
class Model:
    name: str
    path: str
    dims: dict[str, int | tuple[int, ...]]

    @property
    def is_quantized(self) -> bool:
        return self.name.endswith(("-qdq", "-dynamic"))

    def request(self, target: Target) -> ModelRequest:
        """With the second reference that is asked by default."""
        ort = Target("ort", "ort", {"optimize": "none"})  # as `--reference ort` is
        voter = None if target.backend == "reference" else Target("reference", "reference")
        return ModelRequest(self.path, ort, target, voter, inputs=InputChoice(dims=self.dims), folder=str(EXAMPLES))


@dataclass(frozen=True)
class Fault:
    model: Model
    kind: str
    at: str
    layer: Layer

    @property
    def target(self) -> Target:
        options: dict[str, Any] = {"fault": {"kind": self.kind, "at": self.at}}
        if self.model.is_quantized:
            options["optimize"] = "none"
        return Target("faulty", "faulty:FaultyBackend", options)


def load_models(folder: Path) -> dict[str, Model]:
    from build_models import write_models

    write_models(folder)
    found = {
        path.stem.removeprefix("example-"): Model(path.stem.removeprefix("example-"), str(path), {})
        for path in sorted(folder.glob("*.onnx"))
    }
    for name, (place, dims) in REAL.items():
        path = ROOT / ".tools" / "models" / place
        if path.exists():
            found[name] = Model(name, str(path), dims)
        else:
            print(f"(without {name}: make .tools/models/.stamp)")
    made = {**write_small(folder / "small"), **write_old(folder / "old"), **write_int4(folder / "int4")}
    found |= {name: Model(name, str(path), {}) for name, path in made.items()}
    for name in QUANTIZED:
        if name in found:
            found |= _quantize(found[name], folder / "quantized")
    return found


def _quantize(model: Model, folder: Path) -> dict[str, Model]:
    folder.mkdir(exist_ok=True)
    made = {}
    for word, is_dynamic in (("qdq", False), ("dynamic", True)):
        name = f"{model.name}-{word}"
        path = write_quantized(Path(model.path), folder / f"{name}.onnx", model.dims, is_dynamic=is_dynamic)
        made[name] = Model(name, str(path), model.dims)
    return made


# ---------------------------------------------------------------- faults


def draw_faults(model: Model, count: int, rng: random.Random, builder: ArtifactBuilder) -> Iterator[Fault]:
    """As many kinds as the model can have, each at a place of its own; only those that change something."""
    from faulty import PLANTS

    cases = Cases(model.request(Target("ort", "ort")), builder)
    owner = {place: layer for layer in cases.outline.layers for place in layer.nodes}
    nodes = [(place, node) for place, node in enumerate(cases.proto.graph.node) if place in owner and node.output]
    taken: set[int] = set()
    kinds = sorted(PLANTS)
    rng.shuffle(kinds)
    drawn = 0
    for turn in range(20):
        for kind in kinds:
            options = [(place, node) for place, node in nodes if place not in taken]
            rng.shuffle(options)
            fault = next((f for f in _try_places(model, kind, options[:40], owner, cases, builder)), None)
            if fault is not None:
                taken.add(fault.layer.nodes[0])
                drawn += 1
                yield fault
            if drawn == count:
                return
        if not taken and turn:
            return


def _try_places(
    model: Model, kind: str, options: list[Any], owner: dict[int, Layer], cases: Cases, builder: ArtifactBuilder
) -> Iterator[Fault]:
    from faulty import plant

    for place, node in options:
        fault = Fault(model, kind, node.output[0], owner[place])
        trial = type(cases.proto)()
        trial.CopyFrom(cases.proto)
        if plant(trial, kind, fault.at) and _changes(fault, cases, builder):
            yield fault


def _changes(fault: Fault, cases: Cases, builder: ArtifactBuilder) -> bool:
    """Its layer alone gives other numbers: by more than rounding would."""
    case = next(cases.iterate([fault.layer.name]))
    if case.problem:
        return False
    request = fault.model.request(fault.target)
    examination = Examination(request, builder, cases, "")
    work, results = examination.compute(case)
    builder.forget(fault.target)
    if work.failed is not None:
        return True  # a shape that contradicts what the layer says of itself
    expected, actual = case.trials[0].expected, results[0]
    return any(not _is_near(expected[name], actual[name]) for name in case.outputs)


def _is_near(one: Any, other: Any) -> bool:
    import numpy as np

    if one.shape != other.shape or one.dtype.kind not in "fiu":
        return bool(one.shape == other.shape and (one == other).all())
    scale = float(np.sqrt(np.mean(np.square(one.astype(np.float64))))) or 1.0
    gap = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return bool(np.isfinite(gap).all() and gap.max() <= 1e-4 * scale)


@dataclass
class Score:
    planted: int = 0
    found: int = 0
    confirmed: int = 0
    elsewhere: int = 0
    passed: int = 0
    inconclusive: int = 0
    unnamed: int = 0  # FAIL without a layer
    by_rule: int = 0  # found in their own layer by the other tool's rule


def localise(fault: Fault, builder: ArtifactBuilder, keep: Path, score: Score) -> str:
    report = bisect_model(fault.model.request(fault.target), builder, str(keep))
    score.planted += 1
    score.found += report.first_wrong == fault.layer.name
    score.confirmed += bool(report.confirmed) and report.first_wrong == fault.layer.name
    score.elsewhere += report.first_wrong not in (None, fault.layer.name)
    if report.first_wrong is None:
        kind = report.verdict.kind
        score.passed += kind is VerdictKind.PASS
        score.inconclusive += kind is VerdictKind.INCONCLUSIVE
        score.unnamed += kind in (VerdictKind.FAIL, VerdictKind.ERROR)
    score.by_rule += _is_seen_by_rule(fault, builder)
    builder.forget(fault.target)
    return (report.first_wrong or "nothing").split("_layer_")[-1]


def _is_seen_by_rule(fault: Fault, builder: ArtifactBuilder) -> bool:
    cases = Cases(fault.model.request(fault.target), builder)
    case = next(cases.iterate([fault.layer.name]))
    work, results = Examination(fault.model.request(fault.target), builder, cases, "").compute(case)
    if work.failed is not None:
        return True
    return any(breaks_rule(case.trials[0].expected[name], results[0][name]) for name in case.outputs)


def breaks_rule(expected: Any, actual: Any) -> bool:
    """Torq's comparison: a share of elements above 1e-2, of which none is allowed; infinities fall out of it."""
    import numpy as np

    if expected.shape != actual.shape or (np.isnan(actual) != np.isnan(expected)).any():
        return True
    a, b = expected.astype(np.float32), actual.astype(np.float32)
    with np.errstate(all="ignore"):
        return bool((np.abs(a - b) / (np.abs(a) + np.abs(b) + 1e-6) > 1e-2).any())


# ---------------------------------------------------------------- faults of a whole target


def check_whole(model: Model, kind: str, builder: ArtifactBuilder, keep: Path) -> tuple[str, int, int, int] | None:
    """The verdict; layers that have the fault, those of them that pass, and others that do not. None: no node has it.
    The fault counts where it changes its layer by more than float32's rounding, 4e-6 of the scale."""
    from faulty import PLANTS, Graph

    target = Target(f"all-{kind}", "faulty:FaultyBackend", {"fault": {"kind": kind, "at": "*"}, "optimize": "none"})
    cases = Cases(model.request(target), builder)
    trial = type(cases.proto)()
    trial.CopyFrom(cases.proto)
    graph, nodes = Graph(trial), list(trial.graph.node)
    planted = {place for place, node in enumerate(nodes) if node.output and PLANTS[kind](graph, node)}
    if not planted:
        return None
    report = check_model(model.request(target), builder, str(keep))
    builder.forget(target)
    alone = [case for case in report.cases if case.layer is not None]
    passed = {case.name: case.verdict.kind is VerdictKind.PASS for case in alone}
    errors = {case.name: max((each.error for each in case.local), default=0.0) for case in alone}
    faulty = {case.name for case in alone if case.layer and planted & {*case.layer.nodes} and errors[case.name] > 4e-6}
    others = {case.name for case in alone if case.layer and not planted & {*case.layer.nodes}}
    missed, false = [name for name in faulty if passed[name]], [name for name in others if not passed[name]]
    print(f"{model.name:14} {kind:13} {report.verdict.kind:12} {len(faulty):3} layers, missed {missed}, others {false}")
    return (str(report.verdict.kind), len(faulty), len(missed), len(false)) if faulty else None


def run_whole(names: Sequence[str], models: dict[str, Model], builder: ArtifactBuilder, keep: Path, word: str) -> None:
    pairs = [(models[name], kind) for name in names if name in models for kind in WHOLE]
    found = [each for model, kind in pairs if (each := check_whole(model, kind, builder, keep)) is not None]
    layers, missed = sum(each[1] for each in found), sum(each[2] for each in found)
    passed = sum(each[0] == "PASS" for each in found)
    print(render_share(f"{word}: faults of a whole target: models that pass", passed, len(found)))
    layers_passed = render_share(f"{word}: faults of a whole target: layers with the fault that pass", missed, layers)
    print(f"{layers_passed}; others: {sum(each[3] for each in found)}")


# ---------------------------------------------------------------- clean pairs


def check_clean(model: Model, name: str, builder: ArtifactBuilder, keep: Path) -> tuple[str, int, list[str]]:
    """An alarm is true where the target's operator is wrong by float64's measure, with ordinary numbers."""
    target = Target(name, name)
    request = model.request(target)
    search = bisect_model if model.is_quantized else check_model
    report = search(request, builder, str(keep))
    failed = [case for case in report.cases if case.verdict.kind in (VerdictKind.FAIL, VerdictKind.CHANGED)]
    cases = Cases(request, builder)
    tests = VoterTests(builder, cases)
    true = {case.name for case in failed if tests.find_fault(target, cases.find(case.name))}
    builder.forget(target)
    for case in failed:
        if case.name in true:
            print(f"  (a true alarm: {tests.find_fault(target, cases.find(case.name))})")
    return str(report.verdict.kind), len(report.cases), [case.name for case in failed if case.name not in true]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=12, help="of each model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--group", choices=sorted(GROUPS), help="only the models of this group")
    parser.add_argument("--targets", nargs="*", default=list(CLEAN), help="of the clean pairs")
    parser.add_argument("--clean-only", action="store_true")
    parser.add_argument("--faults-only", action="store_true")
    parser.add_argument("--whole", action="store_true", help="only faults of a whole target")
    given = parser.parse_args()
    begun = time.monotonic()
    with quick_folder() as folder:
        models = load_models(folder / "models")
        builder = ArtifactBuilder(ArtifactStore(str(folder / "store")))
        with builder:
            groups = {given.group: GROUPS[given.group]} if given.group else GROUPS
            groups = {"chosen": given.models} if given.models else groups
            if given.whole:
                for word, names in groups.items():
                    run_whole(names, models, builder, folder / "keep", word)
                return 0
            scores = {} if given.clean_only else {
                word: _run_faults(given, names, models, builder, folder / "keep") for word, names in groups.items()
            }  # fmt: skip
            given.models = [name for names in groups.values() for name in names]
            pairs = [] if given.faults_only else list(_run_clean(given, models, builder, folder / "keep"))
    alarms = [pair for pair in pairs if pair[2]]
    print(f"\ntook {time.monotonic() - begun:.0f} s")
    if pairs:
        cases, false = sum(pair[1] for pair in pairs), sum(len(pair[2]) for pair in pairs)
        print(render_share("clean pairs with a false alarm", len(alarms), len(pairs)))
        print(render_share("clean pairs: cases with a false alarm", false, cases))
        print(", ".join(f"{kind} {count}" for kind, count in Counter(pair[0] for pair in pairs).items()))
    for word, score in scores.items():
        print_score(word, score)
    return int(bool(alarms) or any(score.found < score.planted for score in scores.values()))


def print_score(word: str, score: Score) -> None:
    print(render_share(f"{word}: faults whose layer is named", score.found, score.planted))
    print(f"  confirmed alone {score.confirmed}, another layer {score.elsewhere}, FAIL without a layer {score.unnamed}")
    print(render_share(f"{word}: faults that pass", score.passed, score.planted), f"inconclusive {score.inconclusive}")
    what = f"{word}: faults that the other tool's rule sees in their own layer"
    print(render_share(what, score.by_rule, score.planted))


def _run_faults(
    given: argparse.Namespace, names: Sequence[str], models: dict[str, Model], builder: ArtifactBuilder, keep: Path
) -> Score:
    score, kinds = Score(), Counter[str]()
    for name in names:
        if name not in models:
            continue
        rng = random.Random(f"{given.seed} {name}")
        for fault in draw_faults(models[name], given.faults, rng, builder):
            named = localise(fault, builder, keep, score)
            mark = "ok" if named == fault.layer.label else "WRONG"
            kinds[fault.kind] += 1
            print(f"{name:10} {fault.kind:14} in {fault.layer.label:24} → {named:24} {mark}", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    return score


def _run_clean(
    given: argparse.Namespace, models: dict[str, Model], builder: ArtifactBuilder, keep: Path
) -> Iterator[tuple[str, int, list[str]]]:
    for name in given.models:
        for target in given.targets if name in models else ():
            if name in SLOW and target == "iree":
                continue
            started = time.monotonic()
            kind, cases, alarms = check_clean(models[name], target, builder, keep)
            took = time.monotonic() - started
            print(
                f"{name:10} on {target:16} {kind:13} {cases:4} cases {took:6.1f} s {' '.join(alarms[:5])}", flush=True
            )
            yield kind, cases, alarms


if __name__ == "__main__":
    sys.exit(main())

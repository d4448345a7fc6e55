"""What finding the first wrong layer costs, against compiling the layers one by one; and a second run from the cache.

    python benchmarks/model_localise.py [--repeats 3]

A CNN of 25 layers (examples/models), IREE for the CPU with a fault in one of them. Both ways in turns, each time with
an empty store, their workers running already (both need one); then the full check twice with one store, workers
included. Times are wall and CPU seconds of this process and its workers, the IREE compiler included. Ratios come last.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from measuring import ROOT, quick_folder, render_ratio

EXAMPLES = ROOT / "examples" / "models"
sys.path[:0] = [str(ROOT / "src"), str(EXAMPLES)]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])

from assay.models.flow.artifact_builder import ArtifactBuilder  # noqa: E402
from assay.models.flow.bisect import LayerSearch, find_wrong  # noqa: E402 behind the path
from assay.models.flow.cases import Cases  # noqa: E402
from assay.models.flow.check import Examination, check_model  # noqa: E402
from assay.models.store.artifacts import ArtifactStore  # noqa: E402
from assay.models.values.model import CaseReport, Layer, ModelRequest, Target  # noqa: E402
from assay.models.values.tensors import TensorComparison  # noqa: E402

FAULTS = [("weights", 7), ("padding", 13), ("lost-bias", 2)]  # kind, and the number of the layer


def measure(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds, of us and of the workers that run."""
    begun, before = time.perf_counter(), _cpu()
    work()
    return time.perf_counter() - begun, _cpu() - before


def _cpu() -> float:
    import psutil

    us = psutil.Process()
    times = [process.cpu_times() for process in (us, *us.children(recursive=True))]
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)  # of workers that have ended
    return float(sum(each.user + each.system for each in times) + gone.ru_utime + gone.ru_stime)


class Stopwatch(LayerSearch):
    """Looks at the clock when a layer is named, before it is confirmed."""

    named = (0.0, 0.0)

    def examine_layer(self, layer: Layer, accumulated: Mapping[str, TensorComparison]) -> CaseReport:
        self.named = (time.perf_counter(), _cpu())
        return LayerSearch.examine_layer(self, layer, accumulated)


class Bench:
    def __init__(self, folder: Path) -> None:
        from build_models import write_models

        self.folder = folder
        paths = write_models(str(folder / "models"))
        self.model = next(path for path in paths if "cnn" in path)
        self.numbers = 0

    def request(self, kind: str, number: int) -> ModelRequest:
        clean = ModelRequest(self.model, Target("ort", "ort"), Target("iree", "iree"), folder=str(EXAMPLES))
        with self.builder() as builder:
            cases = Cases(clean, builder)
            layer = cases.outline.layers[number]
            at = cases.proto.graph.node[layer.nodes[0]].output[0]
        target = Target("iree", "faulty:FaultyIree", {"device": "llvm-cpu", "fault": {"kind": kind, "at": at}})
        return ModelRequest(self.model, Target("ort", "ort"), target, folder=str(EXAMPLES))

    def builder(self, store: str | None = None) -> ArtifactBuilder:
        self.numbers += 1
        return ArtifactBuilder(ArtifactStore(store or str(self.folder / f"store{self.numbers}")))

    def one_by_one(self, request: ModelRequest) -> tuple[tuple[float, float], str]:
        """Every layer imported, compiled, run and compared."""
        found: list[str] = []
        with self.builder() as builder:
            examination = self.examine(request, builder)

            def work() -> None:
                cases = examination.cases
                reports = [examination.examine(case) for case in cases.iterate(list(cases.outline.cases))]
                found.extend(report.layer.label for report in reports if report.layer and report.outcome != "ok")

            return measure(work), found[0] if found else "nothing"

    def bisect(self, request: ModelRequest) -> tuple[tuple[float, float], tuple[float, float], str]:
        """Until the layer is named; and until it is confirmed by itself as well."""
        with self.builder() as builder:
            search = Stopwatch(self.examine(request, builder))
            begun = (time.perf_counter(), _cpu())
            whole = measure(lambda: find_wrong(search))
            label = search.first.label if search.first else "nothing"
            named = search.named
            return (named[0] - begun[0], named[1] - begun[1]), whole, label

    def examine(self, request: ModelRequest, builder: ArtifactBuilder) -> Examination:
        """With its workers running."""
        builder.begin(request.reference, request.target)
        builder.find_tools(request.reference)
        builder.find_tools(request.target)
        return Examination(request, builder, Cases(request, builder), str(self.folder / "keep"))

    def check(self, store: str) -> tuple[float, float]:
        request = ModelRequest(self.model, Target("ort", "ort"), Target("iree", "iree"), folder=str(EXAMPLES))

        def work() -> None:
            with self.builder(store) as builder:
                check_model(request, builder, str(self.folder / "keep"))

        return measure(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    named: dict[str, list[float]] = {"wall": [], "cpu": []}
    confirmed: dict[str, list[float]] = {"wall": [], "cpu": []}
    cached: dict[str, list[float]] = {"wall": [], "cpu": []}
    with quick_folder() as folder:
        bench = Bench(folder)
        for turn in range(given.repeats):
            kind, number = FAULTS[turn % len(FAULTS)]
            request = bench.request(kind, number)
            (plain_s, plain_cpu), plain = bench.one_by_one(request)
            (name_s, name_cpu), (ours_s, ours_cpu), ours = bench.bisect(request)
            _add(named, name_s / plain_s, name_cpu / plain_cpu)
            _add(confirmed, ours_s / plain_s, ours_cpu / plain_cpu)
            print(
                f"{kind:10} in layer {number:2}: one by one {plain_s:5.1f} s ({plain_cpu:5.1f} CPU) finds {plain:8} "
                f"bisect names {ours} after {name_s:4.1f} s ({name_cpu:4.1f} CPU), confirms it after {ours_s:4.1f} s",
                flush=True,
            )
            store = str(folder / "kept")
            shutil.rmtree(store, ignore_errors=True)
            first, second = bench.check(store), bench.check(store)
            _add(cached, second[0] / first[0], second[1] / first[1])
            print(
                f"check: first {first[0]:5.1f} s ({first[1]:5.1f} CPU), from the cache {second[0]:5.2f} s", flush=True
            )
    print()
    _tell("layer named / one by one", named, 0.2)
    _tell("named and confirmed by itself / one by one", confirmed)
    _tell("second check / first", cached, 0.1)
    return 0


def _add(found: dict[str, list[float]], wall: float, cpu: float) -> None:
    found["wall"].append(wall)
    found["cpu"].append(cpu)


def _tell(name: str, found: dict[str, list[float]], most: float | None = None) -> None:
    for kind, values in found.items():
        print(render_ratio(f"{name}, {kind}", statistics.median(values), at_most=most, of_each=values))


if __name__ == "__main__":
    sys.exit(main())

"""Faults planted into trainings, one at a time: does `assay trace diff` name what began the difference?

    python benchmarks/trace_faults.py [--seeds 0,1,2,3] [--columns eager,compiled,bf16,names,ranks] [--harmless 100]
    python benchmarks/trace_faults.py --speed

22 faults in one layer, the optimiser, the data, a flag or the reduction over ranks; each is compared with the training
as it should be: both eager; against `torch.compile` (each block); fp32 against bf16; own names with a fused qkv against
transformers' Llama; one process against two (DDP over gloo). Faults that a column cannot have are listed. Each side is
a real recording of a real training of two steps; the reference has three perturbed executions. Then harmless variants
of the same training: none may be FAIL. Seeds with even numbers chose the factors of `judge/errors.py`; odd ones are
what to report. Intervals are Wilson's, 95%.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from measuring import ROOT, quick_folder, render_rate, render_ratio, render_share

sys.path[:0] = [str(ROOT / "src")]

import torch  # noqa: E402 behind the path
import torch._dynamo  # noqa: E402 an optimiser loads it: once, for all children
import torch.distributed.algorithms.ddp_comm_hooks  # noqa: E402 DDP too
from _trace_models import AT, Setting, train  # noqa: E402

from assay.trace.comparing import Traces, compare, load_recording  # noqa: E402
from assay.trace.inside.recorder import Recorder  # noqa: E402
from assay.values.verdict import VerdictKind  # noqa: E402

LAYER = f"layers.{AT}"
# fault → what has to be named: a kind of cause, or modules of which one must be named
FAULTS: dict[str, tuple[str, ...]] = {
    "heads swapped": (f"{LAYER}.attn",),
    "rope base": (f"{LAYER}.attn",),
    "mask off by one": (f"{LAYER}.attn",),
    "softmax in bf16": (f"{LAYER}.attn",),
    "epsilon": (f"{LAYER}.norm2",),
    "activation": (f"{LAYER}.mlp",),
    "stale scale": (f"{LAYER}.mlp",),
    "dropout left on": (f"{LAYER}.drop",),
    "residual scaled": (LAYER,),
    "expert order": (f"{LAYER}.mlp",),
    "rows swapped": ("weights", f"{LAYER}.mlp.up"),
    "initialisation": ("weights", f"{LAYER}.mlp.down"),
    "label smoothing": ("loss",),
    "gradient missing": ("missing", f"{LAYER}.mlp.up"),
    "clipping left out": ("gradient",),
    "wrong decay group": ("group",),
    "betas swapped": ("group",),
    "warm-up off by one": ("group",),
    "data order": ("input",),
    "tf32 on": ("flag",),
    "dropped all-reduce": ("ranks",),
    "sum for mean over ranks": ("gradient",),
}
RANKS = ("dropped all-reduce", "sum for mean over ranks")
COLUMNS = ("eager", "compiled", "bf16", "names", "ranks")
# outside of torch.compile's regions tf32's rounding is done by a patch that compiled code does not call; transformers'
# Llama has neither experts nor the same modules for dropout
NOT_APPLICABLE = {
    "compiled": ("tf32 on", "stale scale"),
    "bf16": ("tf32 on", "softmax in bf16"),
    "names": ("expert order",),
    "ranks": ("data order",),
}
VARIANTS = (
    "written-out attention", "attention in float64", "norm in float64", "sums in halves", "fused optimiser",
    "two threads", "smaller micro-batches", "names", "ranks", "compiled",
)  # fmt: skip
NOISE = 3


class Recordings:
    """Real recordings, each made once, by children of this process."""

    def __init__(self, folder: str) -> None:
        self.folder, self.made = folder, dict[Any, Traces]()
        self.seconds = 0.0

    def make(self, setting: Setting, world: int = 1, noise: int = 0) -> Traces:
        key = (setting, world, noise)
        if key not in self.made:
            folder = os.path.join(self.folder, str(len(self.made)))
            started = time.monotonic()
            _record(os.path.join(folder, "trace"), setting, world)
            for number in range(1, noise + 1):
                _record(os.path.join(folder, "trace", f"noise-{number}"), setting, world, number)
            self.seconds += time.monotonic() - started
            self.made[key] = load_recording(folder)
        return self.made[key]


def _record(folder: str, setting: Setting, world: int, perturbed: int | None = None) -> None:
    children = []
    port = 20000 + os.getpid() % 20000 + len(os.listdir(os.path.dirname(os.path.dirname(folder)))) % 1000
    os.makedirs(folder, exist_ok=True)
    for rank in range(world):
        child = os.fork()
        if not child:
            os._exit(_train(folder, setting, rank, world, perturbed, port))
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{setting} could not be recorded")


def _train(folder: str, setting: Setting, rank: int, world: int, perturbed: int | None, port: int) -> int:
    try:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
        }
        if world > 1:
            torch.distributed.init_process_group("gloo")
        settings = {"level": "module", "steps": (1, 2), "perturbed": perturbed}
        recorder = Recorder(folder, settings, lambda *words, **_: print(*words, file=sys.stderr))
        recorder.install()
        train(setting, rank, world)
        recorder.close()
    except BaseException:  # noqa: BLE001 a child must not go on as its parent
        import traceback

        traceback.print_exc()
        return 1
    return 0


# ---------------------------------------------------------------- faults


def build_pair(column: str, fault: str, seed: int) -> tuple[tuple[Setting, int], tuple[Setting, int]]:
    """The reference, and the training that has the fault: setting and number of processes of each."""
    variant = "no clipping" if fault == "sum for mean over ranks" else ""  # it would hide a factor
    plain = Setting(seed, experts=fault == "expert order", variant=variant)
    wrong = replace(plain, fault=fault)
    if column == "compiled":
        return (plain, 1), (replace(wrong, compiled=True), 1)
    if column == "bf16":
        return (plain, 1), (replace(wrong, precision="bfloat16"), 1)
    if column == "names":
        return (replace(plain, names="transformers"), 1), (replace(wrong, names="fused"), 1)
    return (plain, 1), (wrong, 2 if column == "ranks" else 1)


def is_applicable(column: str, fault: str) -> bool:
    return fault not in NOT_APPLICABLE.get(column, ()) and (column == "ranks" or fault not in RANKS)


def is_named(column: str, fault: str, found: Any) -> bool:
    """Whether the answer is right. Where precisions differ it is the command that decides it, unless the cause is one
    of those that have no rounding."""
    first, wanted = found.first, FAULTS[fault]
    if first is None:
        return False
    facts = {"weights", "group", "flag", "input", "missing", "ranks"}
    if column == "bf16" and not facts & set(wanted):
        return found.kind is VerdictKind.INCONCLUSIVE and bool(found.other_precision)
    if wanted[0] in facts | {"gradient", "loss"}:
        is_kind = wanted[0] in (first.kind, first.phase)
        return is_kind and (len(wanted) < 2 or not first.module or _is_same(column, wanted[1], first.module))
    return any(_is_same(column, wanted[0], name) for name in (first.module, first.inside))


def _is_same(column: str, wanted: str, name: str) -> bool:
    words = {"self_attn": "attn", "post_attention_layernorm": "norm2", "up_proj": "up", "down_proj": "down"}
    plain = ".".join(words.get(part, part) for part in name.removeprefix("model.").split("."))
    if column == "compiled" and plain == LAYER:
        return True  # the compiled region that holds it
    return plain in (wanted, f"{wanted}.o") or (wanted.endswith(".drop") and plain == LAYER)


def examine(
    recordings: Recordings, columns: Sequence[str], faults: Sequence[str], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for column in columns:
        for fault in faults:
            for seed in seeds if is_applicable(column, fault) else ():
                (plain, ranks), (wrong, others) = build_pair(column, fault, seed)
                a = recordings.make(plain, ranks, NOISE)
                found = compare(a, recordings.make(wrong, others))
                first = found.first
                yield {
                    "column": column, "fault": fault, "seed": seed, "verdict": str(found.kind),
                    "right": is_named(column, fault, found), "coverage": round(found.coverage.fraction, 3),
                    "first": [first.kind, first.module, first.inside, first.phase, first.step] if first else None,
                    "ratio": float(found.compared.ratio.max(initial=0.0)),
                }  # fmt: skip


# ---------------------------------------------------------------- harmless variants


def examine_harmless(recordings: Recordings, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        variant, seed = VARIANTS[number % len(VARIANTS)], 100 + number // len(VARIANTS)
        plain, world = Setting(seed), 1
        other = replace(plain, variant=variant)
        if variant in ("compiled", "names"):
            other = replace(
                plain, compiled=variant == "compiled", names="transformers" if variant == "names" else "own"
            )
        if variant == "ranks":
            other, world = plain, 2
        a = recordings.make(plain, 1, NOISE)
        found = compare(a, recordings.make(other, world))
        ratio = found.compared.ratio
        finite = ratio[ratio < math.inf]
        first = found.first
        yield {
            "variant": variant, "seed": seed, "verdict": str(found.kind), "coverage": round(found.coverage.fraction, 3),
            "ratio": float(finite.max(initial=0.0)), "why": found.verdict.findings[-1].message,
            "first": [first.kind, first.module, first.phase] if first else None,
        }  # fmt: skip


# ---------------------------------------------------------------- figures


def show(case: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(case), file=sys.stderr, flush=True)
    return case


def report(found: Sequence[dict[str, Any]], half: Callable[[int], bool], title: str) -> None:
    chosen = [each for each in found if half(each["seed"])]
    print(render_share(f"{title}: named", sum(each["right"] for each in chosen), len(chosen)))
    for column in COLUMNS:
        own = [each for each in chosen if each["column"] == column]
        kinds = Counter(each["verdict"] for each in own)
        if own:
            named = render_share(f"{title}, {column}: named", sum(each["right"] for each in own), len(own))
            print(f"{named}; {dict(kinds)}")
    for each in chosen:
        if not each["right"]:
            print(f"  wrong: {each['column']}, {each['fault']}, seed {each['seed']}: {each['verdict']} {each['first']}")


def report_harmless(found: Sequence[dict[str, Any]]) -> None:
    kinds = Counter(each["verdict"] for each in found)
    print(render_share("harmless variants: FAIL", kinds["FAIL"], len(found)))
    print("  " + ", ".join(f"{kind} {render_rate(count, len(found))}" for kind, count in kinds.most_common()))
    for variant in VARIANTS:
        own = [each for each in found if each["variant"] == variant]
        if own:
            worst = max(own, key=lambda each: each["ratio"])
            kinds = dict(Counter(each["verdict"] for each in own))
            print(f"  {variant:24} {kinds}, largest {worst['ratio']:.2g} times noise")


def measure_speed(folder: str, rows: int = 1_000_000, points: int = 20_000) -> None:
    """Two traces of a million rows that differ from the middle on."""
    import numpy as np

    from assay.trace.records import _ROW

    for name, seed in (("a", 0), ("b", 1)):
        path = os.path.join(folder, name, "trace", "rank-0")
        os.makedirs(path)
        data = np.zeros(rows, np.dtype(_ROW))
        data["point"], data["step"] = (
            np.tile(np.arange(points), rows // points),
            np.repeat(np.arange(rows // points) + 1, points),
        )
        random = np.random.default_rng(0)
        data["hash"], data["count"], data["sumsq"] = random.integers(1, 1 << 62, rows), 64, 64.0
        data["sketch"] = random.standard_normal((rows, 64), np.float32)
        if seed:
            data["hash"][rows // 2 :] += 1
            data["sketch"][rows // 2 :] += 1e-3
        data.tofile(os.path.join(path, "rows.bin"))
        line = {"phase": "forward", "kind": "Linear", "name": "output.0", "call": 0, "op": None, "shape": [64]}
        line |= {"dtype": "float32", "device": "cpu", "placement": None, "source": "model.py:1"}
        with open(os.path.join(path, "points.jsonl"), "w") as file:
            file.writelines(json.dumps({**line, "module": f"layers.{n}"}) + "\n" for n in range(points))
        with open(os.path.join(path, "trace.json"), "w") as file:
            json.dump({"format": 1, "level": "module", "rank": 0, "world": 1, "flags": {}}, file)
        with open(os.path.join(path, "steps.jsonl"), "w") as file:
            file.writelines(
                json.dumps({"step": n + 1, "groups": [], "flags": {}}) + "\n" for n in range(rows // points)
            )
            file.write('{"end": true}\n')
        del data
    child = os.fork()
    if not child:
        os.execv(
            sys.executable, [sys.executable, "-m", "assay", "trace", "diff", f"{folder}/a", f"{folder}/b", "--json"]
        )
    started = time.monotonic()
    _, _, usage = os.wait4(child, 0)
    wall, cpu = time.monotonic() - started, usage.ru_utime + usage.ru_stime
    what = f"diff of two traces of {rows:,} rows"
    for name, figure in (("s", wall), ("s of CPU", cpu), ("MB", usage.ru_maxrss / 1024)):
        print(render_ratio(f"{what}, {name}", figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2,3")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--faults", default=",".join(FAULTS), help="empty: none")
    parser.add_argument("--harmless", type=int, default=100)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with quick_folder() as folder:
        if options.speed:
            measure_speed(str(folder))
            return
        recordings = Recordings(str(folder))
        faults, seeds = (
            [each for each in options.faults.split(",") if each],
            [int(each) for each in options.seeds.split(",")],
        )
        found = list(map(show, examine(recordings, options.columns.split(","), faults, seeds)))
        harmless = list(map(show, examine_harmless(recordings, options.harmless)))
        for column in COLUMNS:
            left = [fault for fault in FAULTS if not is_applicable(column, fault)]
            print(f"{column}: {len(FAULTS) - len(left)} faults; not applicable: {', '.join(left) or 'none'}")
        report(found, lambda seed: seed % 2 == 0, "chosen on (even seeds)")
        report(found, lambda seed: seed % 2 == 1, "reported on (odd seeds)")
        report_harmless(harmless)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"faults": found, "harmless": harmless}, file, indent=1)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()

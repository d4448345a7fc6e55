"""The flow of `assay trace run`: executes a run whose program records itself."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from assay.errors import UsageError
from assay.follow.entry import Entry
from assay.launch.api import Report, RunHooks, build_bare_study, find_study_location, run_specs
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings
from assay.system.fast_dataclasses import replace
from assay.system.files import load_lines
from assay.trace.records import NO_VALUES, TRACE_DIR, Trace
from assay.trace.settings import ENV_TRACE, TraceSettings
from assay.values import layout
from assay.values.run import Command, RunSpec, spec_id
from assay.values.verdict import VerdictKind

STUDY = "traces"
COMMAND = "program"
PROOF = "proof"
_PROVED = ("loss", "gradient", "parameter", "optimiser")  # phases whose tensors must be equal in a second execution
_INSIDE = f"{TRACE_DIR}/inside"  # the folder in the run directory with the modules that the program loads
_PACKAGE = "assay_trace"  # the package of the copied modules: the program may have another Assay, or none


class TraceStep(RunStep):
    """Makes the runs of a study with `trace:`, or of `assay trace run`, record themselves."""

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        settings = context.prepared.study.extras.get("trace")

        def add(entry: Entry) -> None:
            if settings is not None and ENV_TRACE not in dict(entry.spec.env):
                entry.spec = trace_spec(entry.spec, settings)

        def create(entry: Entry) -> bool:
            add(entry)
            made = loop.create(entry)
            write_inside(entry.dir)
            return made

        for entry in context.entries:
            add(entry)
        return replace(loop, create=create)


def trace_spec(spec: RunSpec, settings: TraceSettings) -> RunSpec:
    """Add to a run the environment variables that load the recorder."""
    env = dict(spec.env)
    before = env.get("PYTHONPATH") or spec.pythonpath or os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (f"{layout.RUN_DIR_REFERENCE}/{_INSIDE}", before)))
    env |= {"PYTHONPATH": path, ENV_TRACE: settings.render()}
    return replace(spec, env=tuple(env.items()), pythonpath=None)


def write_inside(run_dir: str) -> None:
    """Copy the modules that the program loads, so that the run directory is complete by itself."""
    folder = os.path.join(run_dir, _INSIDE)
    os.makedirs(os.path.join(folder, _PACKAGE), exist_ok=True)
    for source in files("assay.trace.inside").iterdir():
        if source.name.endswith(".py"):
            own = () if source.name == "sitecustomize.py" else (_PACKAGE,)
            text = source.read_text(encoding="utf-8").replace("assay.trace.inside", _PACKAGE)
            with open(os.path.join(folder, *own, source.name), "w", encoding="utf-8") as file:
                file.write(text)


def record_program(
    words: Sequence[str], settings: TraceSettings, noise: int, prove: bool, hooks: RunHooks, root: str | None
) -> Report:
    """Run a program that records itself, as a run of the study `traces`: once more for each perturbed execution, and
    once to prove that recording does not change the program."""
    numbers = {f"noise-{number}": number for number in range(1, noise + 1)}
    further = {each: settings.render(below=each, perturbed=number) for each, number in numbers.items()}
    if prove:
        last = replace(settings, steps=settings.steps[-1:], level="step", only=(), keep=())
        further[PROOF] = last.render(below=PROOF)
    named = [word for word in words[1:] if not word.startswith("-")]
    script = next((word for word in named if word.endswith(".py")), named[0] if named else words[0])
    stem = re.sub(r"[^\w.-]+", "-", os.path.splitext(os.path.basename(script))[0]) or COMMAND
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    text = shlex.join(words)
    commands = [Command(COMMAND, text)]
    for each, own in further.items():  # the metrics of these executions are not metrics of the run
        folder = f'{layout.ENV_RUN_DIR}="{layout.RUN_DIR_REFERENCE}/{TRACE_DIR}/{each}"'
        commands.append(Command(each, f"{folder} {ENV_TRACE}={shlex.quote(own)} {text}"))
    params = {"name": name}
    spec = RunSpec(id=spec_id(tuple(commands), params), name=name, params=params, commands=tuple(commands))
    study, location = build_bare_study(STUDY, "assay trace run", os.getcwd()), find_study_location(STUDY, root)
    return run_specs(study, location, [trace_spec(spec, settings)], hooks, command_line=tuple(sys.argv))


def judge_proof(traced: Sequence[Trace], again: Sequence[Trace]) -> tuple[VerdictKind, str]:
    """Judge the proof. PASS: all tensors are equal. INCONCLUSIVE: some differ; the program may be nondeterministic."""
    last = max((int(each["step"]) for trace in again for each in trace.steps), default=0)
    first, second = _collect_hashes(traced, last), _collect_hashes(again, last)
    shared = first.keys() & second.keys()
    if not shared or shared != second.keys():
        return VerdictKind.INCONCLUSIVE, f"step {last}: the second execution has other tensors, or none"
    graphs = [[trace.meta.get("graphs") for trace in each] for each in (traced, again)]
    if graphs[0] != graphs[1]:
        return VerdictKind.INCONCLUSIVE, f"torch.compile made {graphs[0][0]}, and {graphs[1][0]} without hooks"
    if wrong := [key for key in second if first[key] != second[key]]:
        rank, phase, module, name, _ = wrong[0]
        what = f"{phase} {'.'.join(filter(None, (module, name)))} of rank {rank}"
        reason = "is the program deterministic? run it twice without a trace"
        text = f"step {last}: {len(wrong)} of {len(second)} tensors differ, first {what}; {reason}"
        return VerdictKind.INCONCLUSIVE, text
    return VerdictKind.PASS, f"step {last}: all {len(second)} tensors are equal bit for bit with one step traced"


def _collect_hashes(traces: Sequence[Trace], step: int) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    for trace in traces:
        for row in trace.rows[(trace.rows["step"] == step) & (trace.rows["flags"] & NO_VALUES == 0)]:
            point = trace.points[row["point"]]
            if point.phase in _PROVED:
                key = (int(trace.meta["rank"]), point.phase, point.module, point.name, point.call)
                found[key] = int(row["hash"])
    return found


def describe_nothing(run_dir: str) -> str:
    events = [each.get("event") for each in _load_events(run_dir)]
    if problems := list_problems(run_dir):
        return problems[0]
    if not events:
        return "no Python of the program loaded the recorder: it has -I, -E or -S, or the program is not Python"
    if "torch" not in events:
        return "the program did not import torch"
    what = "an optimiser's step, or a call of a module without gradients"
    return f"no step that was asked for was reached: {what}; forked processes are not recorded, spawned ones are"


def list_problems(run_dir: str) -> list[str]:
    found = []
    for each in _load_events(run_dir):
        if each.get("event") == "problem":
            step = f" in step {each['step']}" if "step" in each else ""
            found.append(f"the record of process {each.get('pid')} ends{step}: {each.get('text')}")
        elif each.get("event") == "left out":
            what = f"tensors of process {each.get('pid')} that could not be read"
            found.append(f"{what} were left out: {each.get('text')}")
    return found


def _load_events(run_dir: str) -> list[dict[str, Any]]:
    return load_lines(os.path.join(run_dir, TRACE_DIR, "processes.jsonl"))


def check_target(path: str, flag: str) -> None:
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise UsageError(f"{flag} {path} exists", "choose a new folder, or remove it")

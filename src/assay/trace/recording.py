"""The flow of `assay trace run`: a run whose program records itself."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from assay.errors import UsageError
from assay.follow.entry import Entry
from assay.launch.api import Report, RunHooks, build_bare_study, find_study_location, run_specs
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings
from assay.show.console import Console
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import load_lines
from assay.trace.records import TRACE_DIR, list_traces
from assay.trace.settings import ENV_TRACE, TraceSettings
from assay.values import layout
from assay.values.run import Command, RunSpec, spec_id

STUDY = "traces"
COMMAND = "program"
PROOF = "proof"
_INSIDE = f"{TRACE_DIR}/inside"  # what the program loads, in the run directory
_PACKAGE = "assay_trace"  # its name there: the program may have another Assay, or none


class TraceStep(RunStep):
    """The runs of a study with `trace:`, or of `assay trace run`, record themselves."""

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
    """Add the variables that bring the recorder in to a run."""
    env = dict(spec.env)
    before = env.get("PYTHONPATH") or spec.pythonpath or os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (f"{layout.RUN_DIR_REFERENCE}/{_INSIDE}", before)))
    env |= {"PYTHONPATH": path, ENV_TRACE: settings.render()}
    return replace(spec, env=tuple(env.items()), pythonpath=None)


def write_inside(run_dir: str) -> None:
    """Copy what the program loads; a run directory is complete by itself."""
    folder = os.path.join(run_dir, _INSIDE)
    os.makedirs(os.path.join(folder, _PACKAGE), exist_ok=True)
    for source in files("assay.trace.inside").iterdir():
        if source.name.endswith(".py"):
            own = () if source.name == "sitecustomize.py" else (_PACKAGE,)
            text = source.read_text(encoding="utf-8").replace("assay.trace.inside", _PACKAGE)
            with open(os.path.join(folder, *own, source.name), "w", encoding="utf-8") as file:
                file.write(text)


@dataclass(frozen=True, slots=True)
class Recording:
    """How a recorded run ended."""

    entry: Entry
    report: Report
    traces: tuple[str, ...]  # folders of its processes


def record_program(
    words: Sequence[str], settings: TraceSettings, further: Mapping[str, str], console: Console, **more: Any
) -> Recording:
    """Run a program that records itself, as a run of the study `traces`. `further`: settings of more executions."""
    location = find_study_location(STUDY, more.get("root"))
    spec = trace_spec(_build_spec(words, further), settings)
    hooks = RunHooks(console=console, owns_process=True, tick_s=0.1, steps=(TraceStep(),), echo=more.get("echo"))
    study = build_bare_study(STUDY, "assay trace run", os.getcwd())
    report = run_specs(study, location, [spec], hooks, command_line=more.get("command_line", ()))
    entry = report.entries[0]
    return Recording(entry, report, tuple(list_traces(entry.dir)))


def list_further(settings: TraceSettings, noise: int, prove: bool) -> dict[str, str]:
    """Further executions by name: with noise, and the one that proves that the record disturbs nothing."""
    names = {f"noise-{number}": {"perturbed": number} for number in range(1, noise + 1)}
    found = {name: settings.render(below=name, **more) for name, more in names.items()}
    if prove:
        last = replace(settings, steps=settings.steps[-1:], level="step", only=(), keep=())
        found[PROOF] = last.render(below=PROOF)
    return found


def _build_spec(words: Sequence[str], further: Mapping[str, str]) -> RunSpec:
    named = [word for word in words[1:] if not word.startswith("-")]
    script = next((word for word in named if word.endswith(".py")), named[0] if named else words[0])
    stem = re.sub(r"[^\w.-]+", "-", os.path.splitext(os.path.basename(script))[0]) or COMMAND
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    text = shlex.join(words)
    commands = [Command(COMMAND, text)]
    for each, settings in further.items():  # metrics of theirs are not the run's
        own = f'{layout.ENV_RUN_DIR}="{layout.RUN_DIR_REFERENCE}/{TRACE_DIR}/{each}"'
        commands.append(Command(each, f"{own} {ENV_TRACE}={shlex.quote(settings)} {text}"))
    params = {"name": name}
    return RunSpec(id=spec_id(tuple(commands), params), name=name, params=params, commands=tuple(commands))


def describe_nothing(run_dir: str) -> str:
    """Why there is no record."""
    events = [each.get("event") for each in _load_events(run_dir)]
    if problems := list_problems(run_dir):
        return problems[0]
    if not events:
        return "no Python of the program loaded the recorder: it has -I, -E or -S, or the program is not Python"
    if "torch" not in events:
        return "the program did not import torch"
    return "no step that was asked for was reached: an optimiser's step, or a call of a module without gradients"


def list_problems(run_dir: str) -> list[str]:
    """What went wrong with the record, in sentences."""
    found = []
    for each in _load_events(run_dir):
        if each.get("event") == "problem":
            step = f" in step {each['step']}" if "step" in each else ""
            found.append(f"the record of process {each.get('pid')} ends{step}: {each.get('text')}")
        elif each.get("event") == "left out":
            found.append(
                f"tensors of process {each.get('pid')} that could not be read were left out: {each.get('text')}"
            )
    return found


def _load_events(run_dir: str) -> list[dict[str, Any]]:
    return load_lines(os.path.join(run_dir, TRACE_DIR, "processes.jsonl"))


def copy_record(run_dir: str, target: str) -> None:
    """Copy the record to a folder of the user's choice."""
    shutil.copytree(os.path.join(run_dir, TRACE_DIR), os.path.join(target, TRACE_DIR))


def check_target(path: str, flag: str) -> None:
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise UsageError(f"{flag} {path} exists", "choose a new folder, or remove it")

"""Run benchmarks: one process per method and trial, each a run of the study `bench`."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from assay.config.settings import Settings, load_settings
from assay.flows.bench.conclude import COMMAND, ENV_EXTRA, ENV_OUTPUT, Surroundings, build_execution, render_points
from assay.flows.places import StudyPlace, choose_root
from assay.flows.prepared import Prepared, Report, RunOptions
from assay.flows.supervise import Entry, Observer
from assay.flows.sweep import Doors, run_study
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import CpuMeter, add_aftermath, load_gpus, load_machine
from assay.observe.readings import TreeSampler
from assay.plan.identity import spec_id
from assay.record.benchmarks import write_execution
from assay.values import layout
from assay.values.benchmark import (
    STUDY,
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchVariant,
    GpuState,
    Machine,
)
from assay.values.environment import Environment
from assay.values.run import Command, Plan, RunSpec, Usage
from assay.values.slots import CPU
from assay.values.study import CodePolicy, Pattern, Resources, Study

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_COMMAND_SCRIPT = os.path.join(_SOURCE, "assay", "bench", "command.py")
_LIST_TIMEOUT_S = 300.0
_LOOK_AT_GPUS_S = 2.0
_EARLY_LOOKS_S = (0.1, 0.2, 0.4, 0.8)
POINTS_FILE = "bench.jsonl"  # in metrics/
_ID_FORMAT = "%Y-%m-%d-%H-%M-%S-%f"


Told = Callable[[BenchExecution, int, int], None]  # an execution that has just ended; which one, of how many


def tell_nobody(_execution: BenchExecution, _number: int, _total: int) -> None:
    """Whoever calls looks at the report."""


def run_benchmarks(request: BenchRequest, doors: Doors | None = None, told: Told = tell_nobody) -> BenchReport:
    """Every method, trial by trial. A child that crashes, hangs or never reports is a recorded failure, and the next
    one still runs. Each execution is a run directory of the study `bench` with `benchmark.json` in it, and is in the
    index when this returns."""
    request = replace(request, folder=os.path.abspath(request.folder or os.getcwd()))
    settings = load_settings(os.getcwd(), os.environ)
    place = find_bench_place(request.root, settings)
    methods = resolve_methods(request)
    jobs = list(_build_jobs(request, methods, place))
    slots = _choose_slots(request, settings)
    witness = _Witness(request, {job.spec.name: job for job in jobs}, told)
    given = doors or Doors()
    report = _run(
        request,
        place,
        slots,
        [job.spec for job in jobs],
        replace(given, observe=lambda inner: given.observe(witness.around(inner))),
    )
    executions = [witness.found[entry.dir] for entry in report.entries if entry.dir in witness.found]
    return BenchReport(tuple(executions), report.interrupted, report.problem, tuple(report.notes))


def find_bench_place(root: str | None, settings: Settings) -> StudyPlace:
    return StudyPlace(choose_root(root, None, settings)[0], STUDY)


def _run(
    request: BenchRequest,
    place: StudyPlace,
    slots: tuple[str, ...],
    specs: Sequence[RunSpec],
    doors: Doors,
) -> Report:
    assert request.folder is not None
    settings = load_settings(os.getcwd(), os.environ)
    study = Study(
        STUDY, "native", "assay bench", request.folder, (), (), resources=Resources(gpus=0), code=CodePolicy("live")
    )
    options = RunOptions("", slots=slots, grace_s=request.grace_s, command_line=request.command_line)
    return run_study(Prepared(study, Plan(study, tuple(specs)), place, True, None, settings, options), doors)


def _choose_slots(request: BenchRequest, settings: Settings) -> tuple[str, ...]:
    """One slot, unless somebody asks for several: what runs side by side disturbs each other."""
    if request.slots:
        return request.slots
    if settings.slots:
        return settings.slots[:1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(gpu.index) for gpu in Devices().list()]
    chosen = [index for index in found if visible is None or index in re.split(r"\s*,\s*", visible.strip())]
    return (",".join(chosen) if chosen else CPU,)


def _gpus_of(entry: Entry) -> tuple[int, ...]:
    slot = entry.handle.slot if entry.handle else None
    return tuple(int(part) for part in (slot or "").split(",") if part.strip().isdecimal())


# ---------------------------------------------------------------- methods


def resolve_methods(request: BenchRequest) -> tuple[BenchMethod, ...]:
    """Filters become the methods that they stand for; one that cannot be resolved stays, and its run says why."""
    filters = [method.text for method in request.methods if method.is_filter]
    found = _list_matches(request, filters) if filters else {}
    methods: dict[str, BenchMethod] = {}
    for method in request.methods:
        matches = found.get(method.text)
        for name in matches if isinstance(matches, list) else [None]:
            chosen = method if name is None else BenchMethod(name, name)
            methods.setdefault(chosen.name, chosen)
    return tuple(methods.values())


def _list_matches(request: BenchRequest, filters: Sequence[str]) -> Mapping[str, Any]:
    """Asked of a child: a user's modules are never imported into the supervisor."""
    argv = [*_python(request), "list", *filters, *_child_flags(request, os.devnull)]
    env = {**os.environ, **dict(request.env)}
    try:
        done = subprocess.run(
            argv, cwd=request.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_LIST_TIMEOUT_S, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}  # each filter's own run will fail, and say why
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- specs


@dataclass(frozen=True, slots=True)
class _Job:
    spec: RunSpec
    variant: BenchVariant | None


def _build_jobs(request: BenchRequest, methods: Sequence[BenchMethod], place: StudyPlace) -> Iterator[_Job]:
    """Trial by trial, and within a trial method by method; of two variants now the one begins, now the other."""
    ids = _build_ids(request.execution_id)
    for trial in range(1, request.trials + 1):
        for method in methods:
            variants: Sequence[BenchVariant | None] = request.variants or (None,)
            for variant in variants if trial % 2 else reversed(variants):
                specs = (_build_spec(request, method, trial, variant, execution_id) for execution_id in ids)
                yield _Job(next(spec for spec in specs if not _is_taken(request, place, spec)), variant)


def _is_taken(request: BenchRequest, place: StudyPlace, spec: RunSpec) -> bool:
    """By an earlier call with the same id: nothing is overwritten."""
    output = os.path.join(request.output_root, spec.title or "") if request.output_root else None
    return os.path.lexists(os.path.join(place.dir, spec.name)) or (output is not None and os.path.lexists(output))


def _build_ids(fixed: str | None) -> Iterator[str]:
    """A given id belongs to the first execution: trials never overwrite one another."""
    if fixed is not None:
        yield fixed
        number = 2
        while True:
            yield f"{fixed}-{number}"
            number += 1
    now = datetime.now()  # noqa: DTZ005 in local time, as PerfZero's
    while True:
        yield now.strftime(_ID_FORMAT)
        now += timedelta(microseconds=1)


def _build_spec(
    request: BenchRequest, method: BenchMethod, trial: int, variant: BenchVariant | None, execution_id: str
) -> RunSpec:
    output = (
        os.path.join(request.output_root, execution_id)
        if request.output_root
        else f"{layout.RUN_DIR_REFERENCE}/{layout.BENCH_OUTPUT_DIR}"
    )
    commands = (Command(COMMAND, _render_command(request, method, variant, output)),)
    label = variant.label if variant else request.label
    params: dict[str, Any] = {"method": method.name, "kind": method.kind, "trial": trial}
    if label is not None:
        params["label"] = label
    env = {
        **dict(request.env),
        **dict(variant.env if variant else ()),
        layout.ENV_BENCH_REPORT: f"{layout.RUN_DIR_REFERENCE}/{layout.BENCH_REPORT_FILE}",
        layout.ENV_TF_REPORT: f"{output}/proto_",
        ENV_OUTPUT: output,
    }
    if request.extra:
        env[ENV_EXTRA] = json.dumps(request.extra)
    return RunSpec(
        id=spec_id(commands, params),
        name=_build_name(execution_id, method),
        params=params,
        commands=commands,
        title=execution_id,
        tag=label,
        resources=Resources(gpus=0),
        patterns=tuple(Pattern(metric, regex) for metric, regex in request.patterns),
        timeout_s=request.timeout_s,
        env=tuple(env.items()),
        code=CodePolicy("live"),
    )


def _build_name(execution_id: str, method: BenchMethod) -> str:
    words = method.name if method.kind == "command" else ".".join(method.name.split(".")[-2:])
    return re.sub(r"[^\w.+-]+", "_", f"{execution_id}_{words}")[:150].rstrip("._")


def _render_command(request: BenchRequest, method: BenchMethod, variant: BenchVariant | None, output: str) -> str:
    quoted = f'"{output}"' if layout.RUN_DIR_REFERENCE in output else shlex.quote(output)
    steps = [f"mkdir -p {quoted}"]
    if variant is not None and variant.folder is not None:
        steps.append(f"cd {shlex.quote(variant.folder)}")
    if method.kind == "command":
        return " && ".join([*steps, shlex.join([sys.executable, "-I", "-S", _COMMAND_SCRIPT, method.text])])
    child = [*map(shlex.quote, [*_python(request), "run", method.text]), *_child_words(request, output)]
    return " && ".join([*steps, " ".join(child)])


def _python(request: BenchRequest) -> list[str]:
    """Our own interpreter; another one finds us at the end of its path, behind everything of its own."""
    if request.python is None:
        return [sys.executable, "-m", "assay.bench.child"]
    code = f"import sys; sys.path.append({_SOURCE!r}); from assay.bench.child import main; sys.exit(main())"
    return [request.python, "-c", code]


def _child_words(request: BenchRequest, output: str) -> list[str]:
    """As shell words: a reference to the run directory is left to the shell."""
    return [
        f'"{word}"' if layout.RUN_DIR_REFERENCE in word else shlex.quote(word) for word in _child_flags(request, output)
    ]


def _child_flags(request: BenchRequest, output: str) -> list[str]:
    told = f"{request.scratch_url}/{os.path.basename(output)}" if request.scratch_url else output
    flags = [f"--output-dir={told}", f"--data-dir={request.data_dir}"]
    flags += [f"--path={path}" for path in request.python_path]
    flags += [f"--first-path={path}" for path in request.first_path]
    if request.tpu is not None:
        flags.append(f"--tpu={request.tpu}")
    if request.constructor_args:
        flags.append(f"--args={json.dumps(dict(request.constructor_args))}")
    if request.class_type == "tf_benchmark":
        flags.append("--only-args")
    if request.profile:
        windows = ",".join(f"{w.begin_s:g}:{'' if w.end_s is None else f'{w.end_s:g}'}" for w in request.profile)
        folder = (
            f"{output}/profiler_data"
            if request.profile_in_output
            else f"{layout.RUN_DIR_REFERENCE}/{layout.BENCH_PROFILE_DIR}"
        )
        flags += [f"--profile={windows}", f"--profiler={request.profiler}", f"--profile-dir={folder}"]
    return flags


# ---------------------------------------------------------------- watching


@dataclass(slots=True)
class _Live:
    machine: Machine
    environment: Environment
    meter: CpuMeter | None
    sampler: TreeSampler | None = None
    peak_bytes: int = 0  # seen by early looks
    early: list[float] = field(default_factory=list)  # moments of those that are still to come
    next_look: float = 0.0
    gpus: dict[int, GpuState] = field(default_factory=dict)  # strangers seen meanwhile


class _Witness:
    """Looks at the machine when a benchmark begins, while it runs and when it ends; then writes what came of it."""

    def __init__(self, request: BenchRequest, jobs: Mapping[str, _Job], told: Told) -> None:
        self._request = request
        self._told = told
        self._jobs = jobs
        self._devices = Devices()
        self._environments: dict[str, Environment] = {}
        self._live: dict[str, _Live] = {}
        self._inner: Observer | None = None
        self.found: dict[str, BenchExecution] = {}

    def around(self, inner: Observer) -> _Witness:
        self._inner = inner
        return self

    @property
    def inner(self) -> Observer:
        assert self._inner is not None
        return self._inner

    def started(self, entry: Entry) -> None:
        environment = self._load_environment(entry)
        machine = load_machine(environment, self._devices, _gpus_of(entry))
        now = time.time()
        self._live[entry.dir] = _Live(machine, environment, _open_meter(), early=[now + s for s in _EARLY_LOOKS_S])
        self.inner.started(entry)

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self.inner.tick(running, now)
        for entry in running:
            live = self._live.get(entry.dir)
            if live is not None and live.early and now >= live.early[0]:
                self._look_early(entry, live, now)
            if live is not None and now >= live.next_look and _gpus_of(entry):
                live.next_look = now + _LOOK_AT_GPUS_S
                self._look_at_gpus(entry, live)

    def _look_early(self, entry: Entry, live: _Live, now: float) -> None:
        """Readings begin after a second: what is killed before that would leave no word of its memory."""
        live.early = [moment for moment in live.early if moment > now]
        if live.sampler is None and entry.handle is not None:
            live.sampler = TreeSampler(entry.handle.pid, entry.handle.tag, start=entry.handle.start)
        reading = live.sampler.sample(now) if live.sampler else None
        live.peak_bytes = max(live.peak_bytes, reading.peak_rss_bytes if reading else 0)

    def _look_at_gpus(self, entry: Entry, live: _Live) -> None:
        for state in load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None):
            before = live.gpus.get(state.index)
            throttle = tuple(sorted({*state.throttle, *(before.throttle if before else ())}))
            processes = tuple(sorted({*state.processes, *(before.processes if before else ())}))
            live.gpus[state.index] = replace(state, throttle=throttle, processes=processes)

    def usage(self, entry: Entry) -> Usage | None:
        return self.inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        live = self._live.pop(entry.dir, None)
        execution = build_execution(
            entry.dir, entry.spec, entry.outcome, str(entry.state), self._look_around(entry, live)
        )
        with suppress(OSError):  # a full disk: it can be made again from what the child wrote
            write_execution(entry.dir, execution)
            write_points(entry.dir, execution)
        self.found[entry.dir] = execution
        self.inner.ended(entry)
        self._told(execution, len(self.found), len(self._jobs))

    def flush(self) -> None:
        self.inner.flush()

    def _look_around(self, entry: Entry, live: _Live | None) -> Surroundings:
        if live is None:
            return Surroundings(extra=self._request.extra, own_peak_bytes=_own_peak_bytes())
        if live.gpus:
            self._look_at_gpus(entry, live)
        after = load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None)
        after = tuple(
            replace(state, processes=live.gpus[state.index].processes) if state.index in live.gpus else state
            for state in after
        )
        seen = [reason for state in live.gpus.values() for reason in state.throttle]
        cpu_s = entry.outcome.cpu_s if entry.outcome and entry.outcome.cpu_s else 0.0
        foreign = live.meter.foreign_share(cpu_s, live.machine.logical_cpus) if live.meter else None
        variant = self._jobs[entry.spec.name].variant
        git = live.environment.git
        return Surroundings(
            machine=add_aftermath(live.machine, after, seen, foreign),
            git=git,
            commit=(variant.commit if variant else None) or (git.commit if git else None),
            foreign_limit=self._request.foreign_limit,
            refuses=self._request.refuse_contaminated,
            extra=self._request.extra,
            own_peak_bytes=_own_peak_bytes(),
            seen_peak_bytes=live.peak_bytes,
        )

    def _load_environment(self, entry: Entry) -> Environment:
        """Of the code that is measured: a variant has its own."""
        variant = self._jobs[entry.spec.name].variant
        folder = (variant.folder if variant else None) or self._request.folder or os.getcwd()
        if folder not in self._environments:
            self._environments[folder] = load_environment(folder, self._request.command_line, self._devices)
        return self._environments[folder]


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_meter() -> CpuMeter | None:
    try:
        return CpuMeter()
    except (OSError, ValueError, IndexError):
        return None


def write_points(run_dir: str, execution: BenchExecution) -> None:
    text = render_points(execution)
    if not text:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POINTS_FILE), "w", encoding="utf-8") as file:
        file.write(text)

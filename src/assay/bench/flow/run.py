"""Run benchmarks: one process per method and trial, each a run of the study `bench`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from assay.bench.child_report import load_story
from assay.bench.flow.execution_builder import COMMAND, ENV_EXTRA, ENV_OUTPUT
from assay.bench.flow.observer import BenchObserver, Told, tell_nobody
from assay.bench.records import hold_queue, take_queue, write_execution
from assay.bench.values.execution import (
    PROFILE,
    STUDY,
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchVariant,
    render_windows,
)
from assay.bench.values.layout import (
    BENCH_OUTPUT_DIR,
    BENCH_PROFILE_DIR,
    BENCH_REPORT_FILE,
    ENV_BENCH_REPORT,
    ENV_TF_REPORT,
)
from assay.config.settings import Settings, load_settings
from assay.errors import UsageError
from assay.observe.devices import Devices
from assay.plan.identity import spec_id
from assay.show.console import Console
from assay.study.api import RunHooks, StudyLocation, build_bare_study, find_study_location, run_specs
from assay.values import layout
from assay.values.run import Command, RunSpec
from assay.values.study import CodePolicy, Pattern, Resources
from assay.values.units import CPU

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_COMMAND_SCRIPT = os.path.join(_SOURCE, "assay", "bench", "command.py")
_FAULTHANDLER = "PYTHONFAULTHANDLER"
_LIST_TIMEOUT_S = 300.0
_ID_FORMAT = "%Y-%m-%d-%H-%M-%S-%f"


def run_benchmarks(request: BenchRequest, hooks: RunHooks | None = None, told: Told = tell_nobody) -> BenchReport:
    """Every method, trial by trial. A child that crashes, hangs or never reports is a recorded failure, and the next
    one still runs. Each execution is a run directory of the study `bench` with `benchmark.json` in it, and is in the
    index when this returns."""
    request = _mark_profiled(replace(request, folder=os.path.abspath(request.folder or os.getcwd())))
    _check_profile(request)
    settings = load_settings(os.getcwd(), os.environ)
    location = find_study_location(STUDY, request.root, settings)
    methods = resolve_methods(request)
    forgotten = [_Job(spec, None) for spec in _find_forgotten(request, location)]
    jobs = [*forgotten, *_build_jobs(request, methods, location)]
    slots = _choose_slots(request, settings)
    noter = _Noter(told)
    given = hooks or RunHooks()
    heard = _EventRelay(given.console)
    variants = {job.spec.name: job.variant for job in jobs}
    observer = BenchObserver(request, variants, noter.told if request.profile else told, heard.take)
    specs = [job.spec for job in jobs]
    watched = replace(
        given,
        use="benchmark",
        max_wait_s=request.max_wait_s or given.max_wait_s,
        observe=lambda inner: given.observe(observer.around(inner)),
    )
    with hold_queue(location.dir, request.folder or "", specs) if _is_plain(request) else nullcontext():
        report = run_specs(
            build_bare_study(STUDY, "assay bench", request.folder or ""),
            location,
            specs,
            watched,
            slots=slots,
            grace_s=request.grace_s,
            command_line=request.command_line,
        )
    found = observer.found | noter.found
    executions = [found[entry.dir] for entry in report.entries if entry.dir in found]
    notes = [*_describe_forgotten([job.spec for job in forgotten]), *report.notes]
    notes = [*(note for note in notes if note not in heard.texts), *(heard.texts if hooks is None else ())]
    return BenchReport(tuple(executions), report.interrupted, report.problem, tuple(notes))


@dataclass(slots=True)
class _EventRelay:
    """Warnings about the code that is measured: given at once, and not repeated as a note of the report."""

    console: Console
    texts: list[str] = field(default_factory=list)

    def take(self, text: str) -> None:
        self.texts.append(text)
        self.console.warning(text)


def _is_plain(request: BenchRequest) -> bool:
    """Comparisons, profiles and PerfZero's calls are never continued: each has its own trees or output."""
    return not request.extra and not request.variants and request.output_root is None


def _find_forgotten(request: BenchRequest, location: StudyLocation) -> list[RunSpec]:
    return take_queue(location.dir, request.folder or "") if _is_plain(request) else []


def _describe_forgotten(specs: Sequence[RunSpec]) -> Iterator[str]:
    counts = Counter(str(spec.params.get("method")) for spec in specs)
    if counts:
        names = ", ".join(f"{count} of {name}" for name, count in counts.items())
        yield f"an earlier call was killed before everything had run; running the rest now: {names}"


def _choose_slots(request: BenchRequest, settings: Settings) -> tuple[str, ...]:
    """One slot, unless several are requested: parallel runs disturb each other."""
    if request.slots:
        return request.slots
    if settings.slots:
        return settings.slots[:1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(gpu.index) for gpu in Devices().list()]
    chosen = [index for index in found if visible is None or index in re.split(r"\s*,\s*", visible.strip())]
    return (",".join(chosen) if chosen else CPU,)


# ---------------------------------------------------------------- profiles


def _mark_profiled(request: BenchRequest) -> BenchRequest:
    """In the record of every execution: its results are not comparable with ordinary ones."""
    if not request.profile:
        return request
    asked = {"windows": render_windows(request.profile), "profiler": request.profiler}
    return replace(request, extra={**request.extra, PROFILE: asked})


def _check_profile(request: BenchRequest) -> None:
    """Refused before anything runs: a command can only be sampled from outside."""
    if not request.profile or all(method.kind != "command" for method in request.methods):
        return
    if request.profiler == "framework":
        raise UsageError(
            "a framework's own profiler works inside a METHOD, and not in a --command",
            "leave --profiler out, or use --profiler py-spy, which samples the command's Python from outside",
        )
    if not find_py_spy():
        raise UsageError(
            "--profile of a --command needs py-spy, which is neither on PATH nor next to our interpreter",
            "pip install 'assay[profile]'",
        )


def find_py_spy() -> str | None:
    """Also next to our interpreter: a caller by full path may not have our folder on PATH."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


@dataclass(slots=True)
class _Noter:
    """Adds to an execution that has ended why it has no profile, before it is reported."""

    listener: Told
    found: dict[str, BenchExecution] = field(default_factory=dict)

    def told(self, execution: BenchExecution, number: int, total: int) -> None:
        notes = _load_profile_notes(execution)
        if notes:
            extra = {**execution.extra, PROFILE: {**execution.extra[PROFILE], "notes": notes}}
            execution = self.found[execution.run_dir] = replace(execution, extra=extra)
            with suppress(OSError):  # a full disk: the child's report exists
                write_execution(execution.run_dir, execution)
        self.listener(execution, number, total)


def _load_profile_notes(execution: BenchExecution) -> list[str]:
    end = load_story(os.path.join(execution.run_dir, BENCH_REPORT_FILE)).end
    if end is None:
        return [] if execution.profiles else ["it ended before it wrote its profile"]
    return [str(note) for note in end.get("profile_notes") or ()]


# ---------------------------------------------------------------- methods


def resolve_methods(request: BenchRequest) -> tuple[BenchMethod, ...]:
    """Filters become the methods that they match; one that cannot be resolved stays, and its run reports why."""
    filters = [method.text for method in request.methods if method.is_filter]
    found = _list_matches(request, filters) if filters else {}
    methods: dict[str, BenchMethod] = {}
    for method in request.methods:
        matches = found.get(method.text)
        for name in matches if isinstance(matches, list) else [None]:
            chosen = method if name is None else BenchMethod(name, name)
            _check_name(chosen, methods.get(chosen.name))
            methods.setdefault(chosen.name, chosen)
    return tuple(methods.values())


def _check_name(method: BenchMethod, other: BenchMethod | None) -> None:
    """A history is identified by its name: two commands need different names."""
    if other is not None and "command" in (method.kind, other.kind):
        both = "two commands are" if method.kind == other.kind else "a method and a command are"
        raise UsageError(
            f"{both} named {method.name!r}",
            "give each its own name: --command 'NAME=TEXT'; the same one several times: --trials N",
        )


def _list_matches(request: BenchRequest, filters: Sequence[str]) -> Mapping[str, Any]:
    """In a child process: a user's modules are never imported into the supervisor."""
    argv = [*_python(request), "list", *filters, *_child_flags(request, os.devnull)]
    env = {**os.environ, **dict(request.env)}
    try:
        done = subprocess.run(
            argv, cwd=request.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_LIST_TIMEOUT_S, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}  # each filter's own run will fail and report why
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- specs


@dataclass(frozen=True, slots=True)
class _Job:
    spec: RunSpec
    variant: BenchVariant | None


def _build_jobs(request: BenchRequest, methods: Sequence[BenchMethod], location: StudyLocation) -> Iterator[_Job]:
    """Trial by trial, and within a trial method by method; two variants alternate in who begins."""
    ids = _build_ids(request.execution_id)
    for trial in range(1, request.trials + 1):
        for method in methods:
            variants: Sequence[BenchVariant | None] = request.variants or (None,)
            for variant in variants if trial % 2 else reversed(variants):
                specs = (_build_spec(request, method, trial, variant, execution_id) for execution_id in ids)
                yield _Job(next(spec for spec in specs if not _is_taken(request, location, spec)), variant)


def _is_taken(request: BenchRequest, location: StudyLocation, spec: RunSpec) -> bool:
    """By an earlier call with the same id: nothing is overwritten."""
    output = os.path.join(request.output_root, spec.title or "") if request.output_root else None
    return os.path.lexists(os.path.join(location.dir, spec.name)) or (output is not None and os.path.lexists(output))


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
        else f"{layout.RUN_DIR_REFERENCE}/{BENCH_OUTPUT_DIR}"
    )
    commands = (Command(COMMAND, _render_command(request, method, variant, output)),)
    label = variant.label if variant else request.label
    params: dict[str, Any] = {"method": method.name, "kind": method.kind, "trial": trial}
    if label is not None:
        params["label"] = label
    env = {
        **({} if _FAULTHANDLER in os.environ else {_FAULTHANDLER: "1"}),  # a crash prints where Python was
        **dict(request.env),
        **dict(variant.env if variant else ()),
        ENV_BENCH_REPORT: f"{layout.RUN_DIR_REFERENCE}/{BENCH_REPORT_FILE}",
        ENV_TF_REPORT: f"{output}/proto_",
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
        words = shlex.join([sys.executable, "-I", "-S", _COMMAND_SCRIPT, method.text])
        return " && ".join([*steps, " ".join([words, *map(_quote, _command_profiler(request, output))])])
    child = [
        *map(shlex.quote, [*_python(request), "run", method.text]),
        *[_quote(word) for word in _child_flags(request, output)],
    ]
    return " && ".join([*steps, " ".join(child)])


def _python(request: BenchRequest) -> list[str]:
    """Our own interpreter; another one finds us at the end of its path, after everything of its own."""
    if request.python is None:
        return [sys.executable, "-m", "assay", "child", "bench"]
    code = f"import sys; sys.path.append({_SOURCE!r}); from assay.bench.child import main; sys.exit(main())"
    return [request.python, "-c", code]


def _quote(word: str) -> str:
    """Quoted for the shell, which expands a reference to the run directory."""
    return f'"{word}"' if layout.RUN_DIR_REFERENCE in word else shlex.quote(word)


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
        flags += [*_profile_flags(request, output), f"--profiler={request.profiler}"]
    return flags


def _command_profiler(request: BenchRequest, output: str) -> list[str]:
    """Started together with a command, by its wrapper."""
    if not request.profile:
        return []
    return [sys.executable, "-m", "assay", "child", "command-profile", *_profile_flags(request, output)]


def _profile_flags(request: BenchRequest, output: str) -> list[str]:
    folder = (
        f"{output}/profiler_data" if request.profile_in_output else f"{layout.RUN_DIR_REFERENCE}/{BENCH_PROFILE_DIR}"
    )
    windows, py_spy = render_windows(request.profile), find_py_spy() or ""
    return [f"--profile={windows}", f"--profile-dir={folder}", f"--py-spy={py_spy}"]

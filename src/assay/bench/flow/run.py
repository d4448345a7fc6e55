"""Runs benchmarks: one process per method and trial, each a run of the study `bench`."""

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
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from assay.bench.benchmark import ENV_BENCH_REPORT, ENV_TF_REPORT
from assay.bench.flow.execution_builder import COMMAND, ENV_EXTRA, ENV_OUTPUT
from assay.bench.flow.observer import BenchObserver, ReportEnd
from assay.bench.records import hold_queue, take_queue
from assay.bench.values.execution import (
    ASSAY,
    BENCH_OUTPUT_DIR,
    BENCH_PROFILE_DIR,
    BENCH_REPORT_FILE,
    COMPARED,
    ENV_SOURCE,
    PROFILE,
    STUDY,
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    BenchVariant,
    render_windows,
)
from assay.config.places import choose_asked_farm
from assay.config.settings import Settings, load_settings
from assay.errors import UsageError
from assay.follow.api import StudyLocation
from assay.launch.api import NODE_PYTHON, RunHooks, build_bare_study, build_side_command, find_study_location, run_specs
from assay.observe.devices import Devices
from assay.record import run_directory
from assay.system.fast_dataclasses import replace
from assay.system.files import parse_json
from assay.values import layout
from assay.values.run import Command, RunSpec, spec_id
from assay.values.secrets import HIDDEN
from assay.values.study import CodePolicy, Farm, Pattern, Resources
from assay.values.units import CPU

_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_COMMAND_SCRIPT = os.path.join(_SOURCE, "assay", "bench", "command.py")
_FAULTHANDLER = "PYTHONFAULTHANDLER"
_LIST_TIMEOUT_S = 300.0
_MAX_WAIT_S = 3600.0
_ID_FORMAT = "%Y-%m-%d-%H-%M-%S-%f"


def run_benchmarks(
    request: BenchRequest,
    hooks: RunHooks | None = None,
    report_end: ReportEnd = lambda _execution, _number, _total: None,
    again: Sequence[RunSpec] = (),
) -> BenchReport:
    """Run every method, trial by trial, after the executions of `again`. A child that crashes, hangs or never reports
    is a recorded failure, and the next child still runs. Each execution is a run directory of the study `bench` with
    `benchmark.json` in it, and is in the index when the function returns."""
    request = replace(request, folder=os.path.abspath(request.folder or os.getcwd()))
    if request.profile:  # each execution records its profile: profiled results are not comparable with others
        _check_profile(request)
        asked = {"windows": render_windows(request.profile), "profiler": request.profiler}
        request = replace(request, extra={**request.extra, PROFILE: asked})
    settings = load_settings(os.getcwd(), os.environ)
    location = find_study_location(STUDY, request.root, settings)
    study = build_bare_study(STUDY, "assay bench", request.folder or "")
    farm = choose_asked_farm(study, request.farm, settings)
    request = replace(request, farm=farm.name if farm else None)
    if farm is not None and not request.slots:
        farm = _make_exclusive(farm)
    methods = resolve_methods(request)
    folder, is_continued = request.folder or "", _is_continued(request)
    forgotten = take_queue(location.dir, folder) if is_continued else []
    jobs = [*((spec, None) for spec in (*forgotten, *again)), *_build_jobs(request, methods, location)]
    specs = [spec for spec, _ in jobs]
    given = hooks or RunHooks()
    observer = BenchObserver(request, {spec.name: variant for spec, variant in jobs}, report_end, given.console)
    watched = replace(
        given,
        use="benchmark",
        max_wait_s=request.max_wait_s or given.max_wait_s,
        at_once=len(request.slots or (CPU,)),
        observe=lambda inner: given.observe(observer.around(inner)),
    )
    with hold_queue(location.dir, folder, specs) if is_continued else nullcontext():
        report = run_specs(
            study,
            location,
            specs,
            watched,
            slots=_choose_slots(request, settings),
            farm=farm,
            settings=settings,
            grace_s=request.grace_s,
            command_line=request.command_line,
        )
    executions = [observer.found[entry.dir] for entry in report.entries if entry.dir in observer.found]
    notes = [note for note in report.notes if note not in observer.warnings]
    notes += observer.warnings if hooks is None else []
    if forgotten:
        counts = Counter(str(spec.params.get("method")) for spec in forgotten)
        names = ", ".join(f"{number} of {name}" for name, number in counts.items())
        notes.insert(0, f"an earlier call was killed before everything had run; running the rest now: {names}")
    return BenchReport(tuple(executions), report.interrupted, report.problem, tuple(notes))


def run_again(execution: BenchExecution, request: BenchRequest, hooks: RunHooks, report_end: ReportEnd) -> BenchReport:
    """Run an execution once more: with the command, environment and folder that its run directory records."""
    name = f"{execution.method}, {execution.execution_id}"
    if execution.source != ASSAY:
        hint = f"measure it with {execution.source} again, and: assay bench import FILE"
        raise UsageError(f"{name} was imported from {execution.source}: it cannot be executed here", hint)
    record = run_directory.load_record(execution.run_dir)
    obstacle = next(_find_obstacles(record, execution), "")
    if obstacle:
        raise UsageError(
            f"{name} cannot be executed again: {obstacle}", "use the call of `assay bench run` that made it"
        )
    execution_id = next(_build_ids(None))
    method = BenchMethod("", execution.method, "command" if record.spec.params.get("kind") == "command" else "method")
    # values that the record hides are taken from our environment
    env = tuple((key, value) for key, value in record.spec.env if HIDDEN not in value)
    spec = replace(record.spec, name=_name_run(execution_id, method), title=execution_id, env=env)
    return run_benchmarks(replace(request, folder=record.workdir, label=execution.label), hooks, report_end, (spec,))


def _find_obstacles(record: run_directory.RunRecord, execution: BenchExecution) -> Iterator[str]:
    """Yield reasons why the record is not enough to execute the run again."""
    env = dict(record.spec.env)
    text = " ".join(command.text for command in record.spec.commands)
    if not text or HIDDEN in text:
        yield "its command has a secret, which is not recorded" if text else "no command was recorded"
    if execution.is_compared or NODE_PYTHON in text or layout.RUN_DIR_REFERENCE not in env.get(ENV_OUTPUT, ""):
        yield "it was run by compare or bisect, on a farm, or with its output elsewhere"
    if not os.path.isdir(record.workdir):
        yield f"its folder {record.workdir} does not exist"
    for name, value in env.items():
        if HIDDEN in value and name not in os.environ:
            yield f"{name} is a secret, which is not recorded, and it is not set here"


def _is_continued(request: BenchRequest) -> bool:
    """Return whether the next call runs the rest if this call is killed. Comparisons, searches, profiles and PerfZero's
    calls have trees or output of their own, and are not continued; runs on a farm continue on their nodes."""
    is_own_work = any(key in request.extra for key in (PROFILE, *COMPARED))
    return not (is_own_work or request.profile or request.variants or request.output_root or request.farm)


def _make_exclusive(farm: Farm) -> Farm:
    """Request an exclusive node if the farm uses Slurm, so that Slurm runs no other jobs on that node."""
    flags = tuple(farm.options.get("flags") or ())
    if farm.kind != "slurm" or any(flag.partition("=")[0] == "--exclusive" for flag in flags):
        return farm
    return replace(farm, options={**farm.options, "flags": (*flags, "--exclusive")})


def _choose_slots(request: BenchRequest, settings: Settings) -> tuple[str, ...]:
    """Choose one slot, unless several are requested: parallel runs disturb each other."""
    if request.slots:
        return request.slots
    if settings.slots:
        return settings.slots[:1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(gpu.index) for gpu in Devices().list()]
    chosen = [index for index in found if visible is None or index in re.split(r"\s*,\s*", visible.strip())]
    return (",".join(chosen) if chosen else CPU,)


# ---------------------------------------------------------------- profiles


def _check_profile(request: BenchRequest) -> None:
    """Refuse a profile that is not possible, before anything runs: a command can only be sampled from outside."""
    if all(method.kind != "command" for method in request.methods):
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
    """Find py-spy on PATH or next to our interpreter, whose folder may not be on PATH if it was called by full path."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


# ---------------------------------------------------------------- methods


def resolve_methods(request: BenchRequest) -> tuple[BenchMethod, ...]:
    """Replace filters by the methods that they match; an unresolved filter stays, and its run reports the reason."""
    filters = [method.text for method in request.methods if method.is_filter]
    found = _list_matches(request, filters) if filters else {}
    methods: dict[str, BenchMethod] = {}
    for method in request.methods:
        matches = found.get(method.text)
        for match in matches if isinstance(matches, list) else [None]:
            chosen = method
            if match is not None:
                own = match.get("timeout_s")
                chosen = BenchMethod(match["text"], match["name"], timeout_s=own, is_listed=True)
            if chosen.name in methods:  # a history is identified by its benchmark's name
                _check_same(chosen, methods[chosen.name])
            methods.setdefault(chosen.name, chosen)
    return tuple(methods.values())


def _check_same(one: BenchMethod, other: BenchMethod) -> None:
    if "command" in (one.kind, other.kind):
        both = "two commands are" if one.kind == other.kind else "a method and a command are"
        hint = "give each its own name: --command 'NAME=TEXT'; the same one several times: --trials N"
        raise UsageError(f"{both} named {one.name!r}", hint)
    if one.is_listed and other.is_listed and one.text != other.text:
        hint = "run the suites in two calls, each with its own --root: a history is identified by the name"
        raise UsageError(f"two benchmarks are named {one.name!r}: {other.text} and {one.text}", hint)


def _list_matches(request: BenchRequest, filters: Sequence[str]) -> Mapping[str, Any]:
    """List the matches in a child process: a user's modules are never imported into the supervisor."""
    environment = next((each.environment for each in request.variants if each.environment), "")
    chosen = replace(request, python="python") if environment else request
    argv = [*_python(chosen), "list", *filters, *_child_flags(request, os.devnull)]
    argv = ["bash", "-c", f"{environment} {shlex.join(argv)}"] if environment else argv
    env = {**os.environ, **dict(request.env)}
    try:
        done = subprocess.run(
            argv, cwd=request.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=_LIST_TIMEOUT_S, check=False,
        )  # fmt: skip
        found = parse_json(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}  # each filter's own run will fail and report why
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- specs


def _build_jobs(
    request: BenchRequest, methods: Sequence[BenchMethod], location: StudyLocation
) -> Iterator[tuple[RunSpec, BenchVariant | None]]:
    """Build the jobs trial by trial, and within a trial method by method; two variants take turns to begin."""
    ids = _build_ids(request.execution_id)
    for trial in range(1, request.trials + 1):
        for method in methods:
            variants: Sequence[BenchVariant | None] = request.variants or (None,)
            for variant in variants if trial % 2 else reversed(variants):
                specs = (_build_spec(request, method, trial, variant, execution_id) for execution_id in ids)
                yield next(spec for spec in specs if not _is_taken(request, location, spec)), variant


def _is_taken(request: BenchRequest, location: StudyLocation, spec: RunSpec) -> bool:
    """Return whether the run or output of `spec` exists from an earlier call: nothing is overwritten."""
    output = os.path.join(request.output_root, spec.title or "") if request.output_root else None
    return os.path.lexists(os.path.join(location.dir, spec.name)) or (output is not None and os.path.lexists(output))


def _build_ids(fixed: str | None) -> Iterator[str]:
    """Yield ids of executions: `fixed` for the first one, then `fixed` with a number; without `fixed`, the time."""
    if fixed is not None:
        yield fixed
        yield from (f"{fixed}-{number}" for number in count(2))
    now = datetime.now()  # noqa: DTZ005 in local time, as PerfZero's
    while True:
        yield now.strftime(_ID_FORMAT)
        now += timedelta(microseconds=1)


def _build_spec(
    request: BenchRequest, method: BenchMethod, trial: int, variant: BenchVariant | None, execution_id: str
) -> RunSpec:
    output = f"{layout.RUN_DIR_REFERENCE}/{BENCH_OUTPUT_DIR}"
    if request.output_root:
        output = os.path.join(request.output_root, execution_id)
    commands = (Command(COMMAND, _render_command(request, method, variant, output)),)
    label = (variant.label or None) if variant else request.label
    params: dict[str, Any] = {"method": method.name, "kind": method.kind, "trial": trial}
    if label is not None:
        params["label"] = label
    env = {
        **({} if _FAULTHANDLER in os.environ else {_FAULTHANDLER: "1"}),  # after a crash Python prints its stack
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
        name=_name_run(execution_id, method),
        params=params,
        commands=commands,
        title=execution_id,
        tag=label,
        resources=Resources(gpus=0),
        patterns=tuple(Pattern(metric, regex) for metric, regex in request.patterns),
        timeout_s=request.timeout_s or method.timeout_s,
        env=tuple(env.items()),
        code=CodePolicy("live"),
    )


def _name_run(execution_id: str, method: BenchMethod) -> str:
    words = method.name if method.kind == "command" else ".".join(method.name.split(".")[-2:])
    return re.sub(r"[^\w.+-]+", "_", f"{execution_id}_{words}")[:150].rstrip("._")


def _render_command(request: BenchRequest, method: BenchMethod, variant: BenchVariant | None, output: str) -> str:
    quoted = f'"{output}"' if layout.RUN_DIR_REFERENCE in output else shlex.quote(output)
    steps = [f"mkdir -p {quoted}"]
    if variant is not None and variant.folder is not None:
        steps.append(f"cd {shlex.quote(variant.folder)}")
    here, script = shlex.quote(sys.executable), shlex.quote(_COMMAND_SCRIPT)
    if request.farm is not None:  # on a farm: the node's interpreter
        here, script = f'"${layout.ENV_PYTHON}"', f'"${ENV_SOURCE}/assay/bench/command.py"'
    environment = variant.environment if variant else None
    if method.kind == "command":
        # a side without an environment gets the word `env`: then both sides start a program before the command
        own = method.text if environment is None else build_side_command((method.text,), environment or "env")
        words, flags = [here, "-I", "-S", script, shlex.quote(own)], []
        if request.profile:  # the command's wrapper starts the profiler together with the command
            words += [here, "-P", "-m", "assay", "child", "command-profile"]
            flags = _profile_flags(request, output)
    else:
        python = shlex.join(_python(request)) if request.python else f"{here} -m assay child bench"
        if environment:
            python = f"{environment} {shlex.join(_python(replace(request, python='python')))}"
        words, flags = [python, "run", shlex.quote(method.text)], _child_flags(request, output)
    # a reference to the run directory is expanded by the shell
    quoted_flags = (f'"{flag}"' if layout.RUN_DIR_REFERENCE in flag else shlex.quote(flag) for flag in flags)
    text = " && ".join([*steps, " ".join([*words, *quoted_flags])])
    if request.farm is None:
        return text
    wait = "-" if request.slots and len(request.slots) > 1 else f"{request.max_wait_s or _MAX_WAIT_S:g}"
    trial = [NODE_PYTHON, "-P", "-m", "assay", "child", "bench-trial", f'"{layout.RUN_DIR_REFERENCE}"']
    folder = (variant.folder if variant else None) or request.folder or ""
    return " ".join([*trial, shlex.quote(folder), wait, shlex.quote(text)])


def _python(request: BenchRequest) -> list[str]:
    """Return the command of our own interpreter, or of another one with our modules at the end of its sys.path."""
    if request.python is None:
        return [sys.executable, "-m", "assay", "child", "bench"]
    source = repr(_SOURCE) if request.farm is None else f"os.environ[{ENV_SOURCE!r}]"
    code = f"import os, sys; sys.path.append({source}); from assay.bench.child import main; sys.exit(main())"
    return [request.python, "-c", code]


def _child_flags(request: BenchRequest, output: str) -> list[str]:
    given = f"{request.scratch_url}/{os.path.basename(output)}" if request.scratch_url else output
    flags = [f"--output-dir={given}", f"--data-dir={request.data_dir}"]
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


def _profile_flags(request: BenchRequest, output: str) -> list[str]:
    folder = (
        f"{output}/profiler_data" if request.profile_in_output else f"{layout.RUN_DIR_REFERENCE}/{BENCH_PROFILE_DIR}"
    )
    windows, py_spy = render_windows(request.profile), find_py_spy() or ""
    return [f"--profile={windows}", f"--profile-dir={folder}", f"--py-spy={py_spy}"]

"""Executes checks, bisections and reductions as runs of the study `model`; adds times to the benchmark history."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from assay.config.places import choose_asked_farm
from assay.config.settings import load_settings
from assay.errors import AssayError, ExitCode, InfrastructureError
from assay.execute.machine_lease import Use
from assay.follow.api import StudyLocation, record_verdicts
from assay.launch.api import NODE_PYTHON, Report, RunHooks, build_bare_study, find_study_location, run_specs
from assay.models.records import MODEL_ERROR_FILE, MODEL_REQUEST_PREFIX, judge_run, load_report
from assay.models.report.summary import find_fresh
from assay.models.values.flags import RunFlags
from assay.models.values.model import FULL_MODEL, STUDY, CaseReport, ModelReport, ModelRequest, Step
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import parse_json, read_end, write_atomic
from assay.values import layout
from assay.values.plain import build_plain
from assay.values.run import Command, RunSpec, spec_id
from assay.values.state import State
from assay.values.study import LOCAL, CodePolicy, Resources
from assay.values.units import CPU
from assay.values.verdict import VerdictKind

COMMAND = "model"
_TAIL_BYTES = 3000
_LONGEST_ARGUMENT = 100_000  # characters of plain ASCII: Linux allows 128 KiB, and quoting adds some


@dataclass(frozen=True, slots=True)
class Finished:
    """The report of a run; None if the run was interrupted."""

    report: ModelReport | None
    run_dir: str
    interrupted: str | None = None
    notes: tuple[str, ...] = ()


def run_model(
    request: ModelRequest,
    flags: RunFlags,
    hooks: RunHooks | None = None,
    watch_timings: Callable[[], Any] | None = None,
    command_line: tuple[str, ...] = (),
) -> Finished:
    """Run a request and return its report. Raises errors of the run's process: an invalid model, a missing extra."""
    settings = load_settings(os.getcwd(), os.environ)
    location = find_study_location(STUDY, flags.root, settings)
    study = build_bare_study(STUDY, "assay model", os.getcwd())
    farm = choose_asked_farm(study, flags.on, settings)
    request = replace(request, folder=request.folder or os.getcwd())
    if flags.root and request.manner:  # the suggested commands use the same root
        request = replace(request, manner=(*request.manner, ("--root", location.root)))
    if farm is not None:  # the suggested commands run on the same farm
        request = replace(request, origin=(*request.origin, ("--farm", farm.name)))
    spec = build_spec(request, flags, location)
    watch = watch_timings() if watch_timings is not None else None
    given = hooks or RunHooks(tick_s=0.1)
    # profiling is a measurement, for which the machine must run nothing else, as for a benchmark
    is_profiling = request.compile_profile_dir is not None or request.run_profile_dir is not None
    use: Use = "benchmark" if is_profiling else "check"
    watched = run_specs(
        study,
        location,
        [spec],
        replace(given, slots_name="checks", use=use, max_wait_s=flags.max_wait or given.max_wait_s),
        slots=(CPU,) * (flags.jobs or len(os.sched_getaffinity(0))),
        farm=farm,
        settings=settings,
        command_line=command_line,
    )
    finished = conclude(watched)
    if finished.report is None:
        return finished
    verdicts = {os.path.basename(finished.run_dir): finished.report.verdict}
    notes = [*finished.notes, *record_verdicts(location, f"model {request.goal}", verdicts)]
    is_measured = is_whole(request, finished.report)
    if farm is not None and is_measured:
        notes.append(f"the times are not in the benchmark history: they were measured on {farm.name}, not here")
    elif watch is not None and is_measured:
        outcome, folder = watched.entries[0].outcome, request.folder or os.getcwd()
        try:
            cpu_s = (outcome.cpu_s if outcome else 0.0) or 0.0
            timings = build_timings(finished.report)
            watch.add(location.root, flags.label, folder, cpu_s, notes.append, **timings)
        except (AssayError, OSError) as error:  # missing times change no verdict
            notes.append(f"the times are not in the benchmark history: {error}")
    return replace(finished, notes=tuple(dict.fromkeys(notes)))


def render_request(request: ModelRequest, location: StudyLocation) -> str:
    """Return the request for the child's command line. A request that is too long is written to a file in the study, so
    that the run can be started again, and the file's path is returned."""
    text = json.dumps(build_plain(request), allow_nan=False)
    if len(text) <= _LONGEST_ARGUMENT:
        return text
    name = f"{MODEL_REQUEST_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path = os.path.abspath(os.path.join(location.dir, layout.STUDY_META_DIR, name))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise InfrastructureError(f"the request cannot be written to {path}: {error.strerror}") from error
    return path


def build_spec(request: ModelRequest, flags: RunFlags, location: StudyLocation) -> RunSpec:
    stem = os.path.splitext(os.path.basename(request.model))[0]
    now = datetime.now().strftime("%Y-%m-%d-%H-%M-%S-%f")  # noqa: DTZ005 local time, as for benchmarks
    text = render_request(request, location)
    python = shlex.quote(sys.executable) if flags.on in (None, LOCAL) else NODE_PYTHON
    words = [python, "-P", "-m", "assay", "child", "model", f'"{layout.RUN_DIR_REFERENCE}"']
    commands = (Command(COMMAND, " ".join([*words, shlex.quote(text)])),)
    params = {
        "model": request.model,
        "goal": request.goal,
        "reference": request.reference.name,
        "target": request.target.name,
        "id": now,
    }
    return RunSpec(
        id=spec_id(commands, params),
        name=re.sub(r"[^\w.+-]+", "_", f"{stem}_{request.target.name}_{request.goal}_{now}")[:150],
        params=params,
        commands=commands,
        title=stem,
        tag=flags.label,
        resources=Resources(gpus=0),
        timeout_s=flags.timeout,
        code=CodePolicy("live"),
    )


def conclude(report: Report) -> Finished:
    """Return the report of a run. Raises an error with the reason if the run has no report."""
    if not report.entries or report.problem:
        raise InfrastructureError(report.problem or "the check was not started")
    entry = report.entries[0]
    if report.interrupted:
        return Finished(None, entry.dir, report.interrupted, tuple(report.notes))
    found = load_report(entry.dir)
    if found is not None:
        found = judge_run(found, entry.state, entry.outcome.reason if entry.outcome else "")
        return Finished(replace(found, run_dir=entry.dir), entry.dir, None, tuple(report.notes))
    reason = entry.outcome.reason if entry.outcome else ""
    try:
        with open(os.path.join(entry.dir, MODEL_ERROR_FILE), encoding="utf-8") as file:
            content = parse_json(file.read())
        error = AssayError(content["message"], content.get("hint"))
        error.exit_code = ExitCode(content["exit_code"])
    except (OSError, ValueError):
        tail = read_end(os.path.join(entry.dir, f"{COMMAND}.log"), _TAIL_BYTES).strip()
        text = f"the check ended without a report: {reason or 'its process died'}"
        error = InfrastructureError(text, tail or None)
    if entry.state is State.TIMEOUT:
        error.exit_code = ExitCode.FAILED  # the limit that ended the run is the user's
    raise error


# The benchmark history gets only complete measurements: a check of all cases in which nothing came from the cache. The
# history reads an execution without the numbers of a layer as a broken layer. The run time of a simulator is an
# estimate, which the history does not get.


def build_timings(report: ModelReport) -> dict[str, Any]:
    """Return the facts of an execution in the benchmark history, as `timings.watch` takes them."""
    return {
        "id": os.path.basename(report.run_dir)[-26:],
        "method": name_method(report),
        "samples": collect_samples(report),
        "wall_time": "full_model.run_s",
        "succeeded": report.verdict.kind is VerdictKind.PASS,
        "tools": report.tools,
        "extra": {"run": report.run_dir, "model": report.model, "reference": report.reference},
    }


def is_whole(request: ModelRequest, report: ModelReport) -> bool:
    """Return whether this was a check of all cases, of which some passed, and no step of those came from the cache."""
    steps = [step for case in _choose_cases(report) for step in case.steps]
    return request.goal == "check" and not request.only and bool(steps) and not any(step.cached for step in steps)


def _choose_cases(report: ModelReport) -> list[CaseReport]:
    return [case for case in report.cases if case.verdict.kind is VerdictKind.PASS]


def name_method(report: ModelReport) -> str:
    """Return `model.<stem>.<target>`, in characters that need no quotes in a command line."""
    return ".".join(["model", *(re.sub(r"[^\w+-]+", "_", part) for part in (report.stem, report.target))])


def collect_samples(report: ModelReport) -> dict[str, tuple[float, ...]]:
    """Return every time that was measured, as `Conv_3.compile_s` or `full_model.run_s`."""
    samples = {}
    for case in _choose_cases(report):
        label = case.layer.label if case.layer else FULL_MODEL
        for step in Step:
            found = find_fresh(case, step)
            if found and not (step is Step.RUN and report.is_estimate):
                samples[f"{label}.{step}_s"] = found
    return samples

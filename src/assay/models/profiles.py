"""Back ends' own profiles as slices of a trace.

onnxruntime     JSON: an array of Chrome events, cut off where the process died
operators       CSV of our OpenVINO and IREE back ends: name, op, kernel, start_us, duration_us
compile         CSV of an accelerator's compiler: ID, Start, End (cycles), Location, Op Type; IDs are DI#, DO# or S#
runtime         CSV of its runtime: dispatch_name, invocation_id, action_id, timestamp_us, event
annotated       the same, worked up, with semicolons: one line for each action, with its start and end

Which one a file is, its beginning tells. A line that cannot be read is passed over and named: a profile that was cut
off is still worth looking at.

A step's profile is also written to two files whose names do not depend on the tool: `<case>_compile.csv` and `.pb`,
or `_runtime`. The CSV is the tool's own if it wrote one that can be read; the `.pb` opens in Perfetto. For a tool
without a profile they hold the duration of the step.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import InfrastructureError
from assay.models.trace import Profile, Slice, render_perfetto, render_slices_csv
from assay.models.values.model import Job, Step, StepOutcome
from assay.system.files import replacing, write_atomic

_MOST_PROBLEMS = 5
_LARGEST_BYTES = 512 * 1024**2
_BEGIN = {"begin", "start", "started", "enter", "b", "dispatch"}
_END = {"end", "stop", "stopped", "exit", "finish", "finished", "complete", "completed", "done", "e"}
_UNITS = {"DI": "DMA in", "DO": "DMA out", "S": "slice"}
_USED = re.compile(r"(?P<unit>\w+?)_used(?:_(?P<number>\d+))?_in_program")
_NOT_USED = {"", "0", "false", "no", "-", "none"}

Row = Mapping[str, str]


class _LineError(Exception):
    """Why a line cannot be read."""


# ---------------------------------------------------------------- any file


def load_profile(path: str, *, clock_hz: float | None = None) -> Profile | None:
    """None where it is not one of ours to read. A file that cannot be opened is a problem, not an exception."""
    try:
        if os.path.getsize(path) > _LARGEST_BYTES:
            return Profile((), (f"{path}: larger than {_LARGEST_BYTES // 1024**2} MiB, ignored",))
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        return Profile((), (f"{path}: {error.strerror}",))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return parse_profile(text, os.path.basename(path), clock_hz=clock_hz)


def parse_profile(text: str, name: str, *, clock_hz: float | None = None) -> Profile | None:
    """`name` is for messages. `clock_hz` turns cycles into time; without it a cycle counts as a nanosecond."""
    if text.lstrip().startswith(("[", "{")):
        return parse_ort_profile(text, name) if '"ph"' in text else None
    columns = _find_columns(text)
    if {"id", "start", "end"} <= columns:
        return parse_compile_csv(text, name, clock_hz=clock_hz)
    if {"timestamp_us", "event"} <= columns:
        return parse_runtime_csv(text, name)
    if {"timestamp_start", "timestamp_end"} <= columns:
        return parse_annotated_csv(text, name)
    return parse_operator_csv(text, name) if {"name", "start_us", "duration_us"} <= columns else None


def _find_columns(text: str) -> set[str]:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return {cell.strip().strip('"').lower() for cell in re.split("[,;\t]", first)}


# ---------------------------------------------------------------- onnxruntime


def parse_ort_profile(text: str, name: str = "profile") -> Profile:
    """Complete events only; onnxruntime's fences around a kernel are empty and left out."""
    events, problems = _parse_events(text, name)
    slices = []
    for event in events:
        if event.get("ph") == "X" and not str(event.get("name", "")).endswith(("_fence_before", "_fence_after")):
            try:
                slices.append(_build_ort_slice(event))
            except _LineError as trouble:
                problems.append(f"{name}: {trouble}")
    return Profile(tuple(slices), _limit(problems))


def _parse_events(text: str, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return _parse_torn(text), [f"{name}: truncated; the complete part is shown"]
    found = content.get("traceEvents", []) if isinstance(content, dict) else content
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else [], []


def _parse_torn(text: str) -> list[dict[str, Any]]:
    """One event a line, as onnxruntime writes them: those that are whole."""
    found = []
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(",").removeprefix("[") or "null")
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def _build_ort_slice(event: Mapping[str, Any]) -> Slice:
    given = event.get("args")
    args = dict(given) if isinstance(given, Mapping) else {}
    start, length = _number(event.get("ts"), "ts"), _number(event.get("dur"), "dur")
    provider = str(args.get("provider") or "").removesuffix("ExecutionProvider")
    track = provider or str(event.get("cat") or "session").lower()
    kept = {"op": args.get("op_name"), "node": args.get("node_index"), "provider": args.get("provider")}
    kept |= {short: args[long] for short, long in _ORT_ARGS.items() if long in args}
    name = str(event.get("name", "")).removesuffix("_kernel_time")
    return _slice(("onnxruntime", track), name, start * 1e3, length * 1e3, {k: v for k, v in kept.items() if v})


_ORT_ARGS = {"inputs": "input_type_shape", "outputs": "output_type_shape", "output_bytes": "output_size"}


# ---------------------------------------------------------------- CSV


def parse_operator_csv(text: str, name: str = "profile") -> Profile:
    """One line for each operator or dispatch, in microseconds."""
    track = next((word for word in ("openvino", "iree") if word in name.lower()), "operators")

    def build(row: Row) -> Slice:
        args = {"op": row.get("op", ""), "kernel": row.get("kernel", "")}
        start, length = _number(row["start_us"], "start_us"), _number(row["duration_us"], "duration_us")
        return _slice((track,), row["name"], start * 1e3, length * 1e3, {k: v for k, v in args.items() if v})

    return _parse_rows(text, name, build)


def parse_compile_csv(text: str, name: str = "profile", *, clock_hz: float | None = None) -> Profile:
    """A compiler's estimate, in cycles; a track for each kind of unit."""
    tick_ns = 1e9 / clock_hz if clock_hz else 1.0

    def build(row: Row) -> Slice:
        kind = re.match(r"[A-Za-z]*", row["id"])
        unit = _UNITS.get(kind[0].upper(), kind[0]) if kind and kind[0] else "other"
        start, end = _number(row["start"], "Start"), _number(row["end"], "End")
        args = {"id": row["id"], "location": row.get("location", ""), "cycles": _whole(end - start)}
        what = row.get("op type") or row["id"]
        return _slice(("compile estimate", unit), what, start * tick_ns, (end - start) * tick_ns, args)

    return _parse_rows(text, name, build)


def parse_annotated_csv(text: str, name: str = "profile") -> Profile:
    """A runtime's actions: each on the track of every unit that it used, and on that of the model's operators."""
    found: list[Slice] = []

    def build(row: Row) -> Slice:
        start = _number(row["timestamp_start"], "timestamp_start")
        length = _number(row["timestamp_end"], "timestamp_end") - start
        args = {key: row[key] for key in ("action_id", "job_id", "invocation_names", "location") if row.get(key)}
        operators = row.get("original_operators", "")
        what = row.get("operation") or f"action {row.get('action_id', '')}".strip()
        more = args | {"operators": operators}
        found.extend(_slice(("runtime", unit), what, start * 1e3, length * 1e3, more) for unit in _find_units(row))
        return _slice(("runtime", "operators"), operators or what, start * 1e3, length * 1e3, args)

    profile = _parse_rows(text, name, build)
    return Profile((*profile.slices, *found), profile.problems)


def _find_units(row: Row) -> Iterator[str]:
    """`slice_used_0_in_program` → slice 0, where its cell says so."""
    for column, value in row.items():
        match = _USED.fullmatch(column)
        if match and value.strip().lower() not in _NOT_USED:
            yield " ".join(part for part in (match["unit"].replace("_", " "), match["number"]) if part)


def parse_runtime_csv(text: str, name: str = "profile") -> Profile:
    """Events in pairs: what begins and ends with the same dispatch, invocation and action."""
    begun: dict[tuple[str, ...], float] = {}
    slices: list[Slice] = []
    problems: list[str] = []
    for number, row in _read_rows(text):
        key = tuple(row.get(column, "") for column in ("dispatch_name", "invocation_id", "action_id"))
        try:
            time_us = _number(row.get("timestamp_us"), "timestamp_us")
            event = _require_event(row.get("event", ""), key in begun)
            if event in _BEGIN:
                begun[key] = time_us
            else:
                slices.append(_build_action(key, begun.pop(key), time_us))
        except _LineError as trouble:
            problems.append(f"{name}:{number}: {trouble}")
    problems += [f"{name}: action {key[2]} of {key[0]} never ends" for key in begun]
    return Profile(tuple(slices), _limit(problems))


def _require_event(text: str, has_begun: bool) -> str:
    event = text.strip().lower()
    if event not in _BEGIN | _END:
        raise _LineError(f"unknown event {text!r}")
    if event in _END and not has_begun:
        raise _LineError(f"{text!r} without a beginning")
    return event


def _build_action(key: Sequence[str], start_us: float, end_us: float) -> Slice:
    args = {"invocation": key[1], "action": key[2]}
    return _slice(
        ("runtime", key[0] or "dispatch"), f"action {key[2]}", start_us * 1e3, (end_us - start_us) * 1e3, args
    )


# ---------------------------------------------------------------- rows and numbers


def _parse_rows(text: str, name: str, build: Callable[[Row], Slice]) -> Profile:
    slices: list[Slice] = []
    problems: list[str] = []
    for number, row in _read_rows(text):
        try:
            slices.append(build(row))
        except _LineError as trouble:
            problems.append(f"{name}:{number}: {trouble}")
        except KeyError as missing:
            problems.append(f"{name}:{number}: no value for {missing.args[0]!r}")
    return Profile(tuple(slices), _limit(problems))


def _read_rows(text: str) -> Iterator[tuple[int, Row]]:
    """Lines by number; names of columns in lower case, cells that a cut line lacks are left out."""
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    head = lines[first] if first < len(lines) else ""
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO("\n".join(lines[first:])), delimiter=delimiter)
    columns: list[str] = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a NUL, or a cell without end: the next line may be good
            continue
        if not columns:
            columns = [cell.strip().lower() for cell in cells]
        elif any(cell.strip() for cell in cells):
            yield first + reader.line_num, dict(zip(columns, map(str.strip, cells), strict=False))


def _number(value: object, what: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise _LineError(f"{what} is not a number: {value!r}") from None
    if not math.isfinite(number):
        raise _LineError(f"{what} is not a number: {value!r}")
    return number


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _slice(track: tuple[str, ...], name: str, start_ns: float, length_ns: float, args: Mapping[str, Any]) -> Slice:
    if not (math.isfinite(start_ns) and math.isfinite(length_ns)):
        raise _LineError(f"{name!r} is outside the range of times")
    if length_ns < 0:
        raise _LineError(f"{name!r} ends before it begins")
    start = round(start_ns)
    return Slice(track, name, start, start + round(length_ns), args)


def _limit(problems: Sequence[str]) -> tuple[str, ...]:
    if len(problems) <= _MOST_PROBLEMS:
        return tuple(problems)
    return (*problems[:_MOST_PROBLEMS], f"and {len(problems) - _MOST_PROBLEMS} more")


_KINDS = {Step.COMPILE: "compile", Step.RUN: "runtime"}


def finish_profiles(job: Job, outcome: StepOutcome) -> StepOutcome:
    """Write both files into the job's folder of profiles; the outcome names all that are there."""
    if job.profile_dir is None or job.step not in _KINDS:
        return outcome
    base = os.path.join(job.profile_dir, f"{job.case}_{_KINDS[job.step]}")
    slices, tables = _read(_select(job, outcome.profiles))
    try:
        _write_table(f"{base}.csv", tables, slices or _build_slices(outcome))
        write_atomic(f"{base}.pb", render_perfetto(slices or _build_slices(outcome)))
    except OSError as error:
        raise InfrastructureError(f"the profile {base} cannot be written: {error.strerror}") from error
    return replace(outcome, profiles=tuple(dict.fromkeys((*outcome.profiles, f"{base}.csv", f"{base}.pb"))))


def _select(job: Job, paths: Sequence[str]) -> list[str]:
    """Without those of the other step: both may share a folder."""
    others = tuple(f"{job.case}_{kind}" for step, kind in _KINDS.items() if step is not job.step)
    return [path for path in paths if not os.path.basename(path).startswith(others)]


def _read(paths: Sequence[str]) -> tuple[list[Slice], list[str]]:
    """What the tool tells, and its tables."""
    slices: list[Slice] = []
    tables = []
    for path in paths:
        found = load_profile(path)
        if found is not None and found.slices:
            slices += found.slices
            tables += [path] if path.endswith(".csv") else []
    return slices, tables


def _build_slices(outcome: StepOutcome) -> list[Slice]:
    """Of the step's own times."""
    slices, begun_ns = [], 0
    for number, elapsed_s in enumerate(outcome.times_s or (outcome.elapsed_s,)):
        end_ns = begun_ns + round(elapsed_s * 1e9)
        slices.append(Slice(("assay", str(outcome.step)), f"{outcome.step} {number}", begun_ns, end_ns))
        begun_ns = end_ns
    return slices


def _write_table(path: str, tables: Sequence[str], slices: Sequence[Slice]) -> None:
    if path in tables:
        return  # the tool has given it this name itself
    if len(tables) == 1:
        with replacing(path) as aside:
            shutil.copyfile(tables[0], aside)
    else:
        write_atomic(path, render_slices_csv(slices))

"""Reads the profiles that back ends write as slices of a trace.

onnxruntime     JSON: an array of Chrome events, cut off where the process died
operators       CSV of Assay's OpenVINO and IREE back ends: name, op, kernel, start_us, duration_us
compile         CSV of an accelerator's compiler: ID, Start, End (cycles), Location, Op Type; IDs are DI#, DO# or S#
runtime         CSV of an accelerator's runtime: dispatch_name, invocation_id, action_id, timestamp_us, event
annotated       CSV of an accelerator's runtime with semicolons: one line for each action, with its start and end

The beginning of a file shows its format. Lines that cannot be read are skipped: a profile that was cut off is still
useful.

A step's profile is also written to two files whose names do not depend on the tool: `<case>_compile` or
`<case>_runtime`, as .csv and .pb. The CSV is the tool's own if it wrote one that can be read; the `.pb` opens in
Perfetto. For a tool without a profile, both files contain the duration of the step.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from assay.errors import InfrastructureError
from assay.models.backends.base import first_line
from assay.models.trace import Slice, render_perfetto, render_slices_csv
from assay.models.values.model import Job, Step, StepOutcome
from assay.system.fast_dataclasses import replace
from assay.system.files import replacing, write_atomic

_LARGEST_BYTES = 512 * 1024**2
_BEGIN = {"begin", "start", "started", "enter", "b", "dispatch"}
_END = {"end", "stop", "stopped", "exit", "finish", "finished", "complete", "completed", "done", "e"}
_UNITS = {"DI": "DMA in", "DO": "DMA out", "S": "slice"}
_USED = re.compile(r"(?P<unit>\w+?)_used(?:_(?P<number>\d+))?_in_program")
_NOT_USED = {"", "0", "false", "no", "-", "none"}

Row = Mapping[str, str]


class _LineError(Exception):
    """A line that cannot be read."""


def load_profile(path: str) -> list[Slice]:
    """Load the slices of a file; none if it cannot be opened, or its format is unknown."""
    try:
        if os.path.getsize(path) > _LARGEST_BYTES:
            return []
        with open(path, encoding="utf-8-sig") as file:
            return parse_profile(file.read(), os.path.basename(path))
    except (OSError, UnicodeDecodeError):
        return []


def parse_profile(text: str, name: str) -> list[Slice]:
    if text.lstrip().startswith(("[", "{")):
        return parse_ort_profile(text) if '"ph"' in text else []
    columns = {cell.strip().strip('"').lower() for cell in re.split("[,;\t]", first_line(text))}
    if {"id", "start", "end"} <= columns:
        return _parse_rows(text, _build_estimate)
    if {"timestamp_us", "event"} <= columns:
        return parse_runtime_csv(text)
    if {"timestamp_start", "timestamp_end"} <= columns:
        return _parse_rows(text, _build_actions)
    if {"name", "start_us", "duration_us"} <= columns:
        track = next((word for word in ("openvino", "iree") if word in name.lower()), "operators")
        return _parse_rows(text, partial(_build_operator, track))
    return []


def parse_ort_profile(text: str) -> list[Slice]:
    """Parse the slices of complete events; onnxruntime's fences around a kernel are empty and left out."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # the file was cut off: onnxruntime writes one event in each line
        content = []
        for line in text.splitlines():
            with suppress(json.JSONDecodeError, RecursionError):
                content.append(json.loads(line.strip().rstrip(",").removeprefix("[") or "null"))
    events = content.get("traceEvents", []) if isinstance(content, dict) else content
    slices = []
    for event in events if isinstance(events, list) else []:
        is_whole = isinstance(event, dict) and event.get("ph") == "X"
        if is_whole and not str(event.get("name", "")).endswith(("_fence_before", "_fence_after")):
            with suppress(_LineError):
                slices.append(_build_ort_slice(event))
    return slices


def _build_ort_slice(event: Mapping[str, Any]) -> Slice:
    given = event.get("args")
    args = dict(given) if isinstance(given, Mapping) else {}
    start, length = _number(event.get("ts")), _number(event.get("dur"))
    provider = str(args.get("provider") or "").removesuffix("ExecutionProvider")
    track = provider or str(event.get("cat") or "session").lower()
    kept = {"op": args.get("op_name"), "node": args.get("node_index"), "provider": args.get("provider")}
    kept |= {short: args[long] for short, long in _ORT_ARGS.items() if long in args}
    name = str(event.get("name", "")).removesuffix("_kernel_time")
    return _slice(("onnxruntime", track), name, start * 1e3, length * 1e3, {k: v for k, v in kept.items() if v})


_ORT_ARGS = {"inputs": "input_type_shape", "outputs": "output_type_shape", "output_bytes": "output_size"}


def _build_operator(track: str, row: Row) -> Iterator[Slice]:
    """Build the slice of a line about an operator or dispatch, in microseconds."""
    args = {"op": row.get("op", ""), "kernel": row.get("kernel", "")}
    start, length = _number(row["start_us"]), _number(row["duration_us"])
    yield _slice((track,), row["name"], start * 1e3, length * 1e3, {k: v for k, v in args.items() if v})


def _build_estimate(row: Row) -> Iterator[Slice]:
    """Build the slice of a compiler's estimate, on a track for the kind of unit; cycles count as nanoseconds."""
    kind = re.match(r"[A-Za-z]*", row["id"])
    unit = _UNITS.get(kind[0].upper(), kind[0]) if kind and kind[0] else "other"
    start, length = _number(row["start"]), _number(row["end"]) - _number(row["start"])
    cycles = int(length) if length.is_integer() else length
    args = {"id": row["id"], "location": row.get("location", ""), "cycles": cycles}
    yield _slice(("compile estimate", unit), row.get("op type") or row["id"], start, length, args)


def _build_actions(row: Row) -> Iterator[Slice]:
    """Build the slices of a runtime's action: one on the operators' track, and one on the track of each unit in use."""
    start = _number(row["timestamp_start"])
    length = _number(row["timestamp_end"]) - start
    args = {key: row[key] for key in ("action_id", "job_id", "invocation_names", "location") if row.get(key)}
    operators = row.get("original_operators", "")
    what = row.get("operation") or f"action {row.get('action_id', '')}".strip()
    yield _slice(("runtime", "operators"), operators or what, start * 1e3, length * 1e3, args)
    for column, value in row.items():  # `slice_used_0_in_program` → slice 0, if its cell shows a use
        match = _USED.fullmatch(column)
        if match and value.strip().lower() not in _NOT_USED:
            unit = " ".join(part for part in (match["unit"].replace("_", " "), match["number"]) if part)
            yield _slice(("runtime", unit), what, start * 1e3, length * 1e3, args | {"operators": operators})


def parse_runtime_csv(text: str) -> list[Slice]:
    """Build a slice for each pair of events that begin and end the same dispatch, invocation and action."""
    begun: dict[tuple[str, str, str], float] = {}
    slices: list[Slice] = []
    for row in _read_rows(text):
        key = row.get("dispatch_name", ""), row.get("invocation_id", ""), row.get("action_id", "")
        event = row.get("event", "").strip().lower()
        with suppress(_LineError):
            time_us = _number(row.get("timestamp_us"))
            if event in _BEGIN:
                begun[key] = time_us
            elif event in _END and key in begun:
                dispatch, invocation, action = key
                start_us = begun.pop(key)
                track, args = ("runtime", dispatch or "dispatch"), {"invocation": invocation, "action": action}
                slices.append(_slice(track, f"action {action}", start_us * 1e3, (time_us - start_us) * 1e3, args))
    return slices


def _parse_rows(text: str, build: Callable[[Row], Iterator[Slice]]) -> list[Slice]:
    slices: list[Slice] = []
    for row in _read_rows(text):
        with suppress(_LineError, KeyError):  # a line with missing or invalid cells is skipped
            slices += list(build(row))
    return slices


def _read_rows(text: str) -> Iterator[Row]:
    """Read rows as cells by the column's name in lower case; cells that are missing in a cut line are left out."""
    delimiter = max(",;\t", key=first_line(text).count)
    reader = csv.reader(io.StringIO("\n".join(text.splitlines())), delimiter=delimiter)
    columns: list[str] = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a NUL, or an endless cell: the next line may be valid
            continue
        if not any(cell.strip() for cell in cells):
            continue
        if columns:
            yield dict(zip(columns, map(str.strip, cells), strict=False))
        else:
            columns = [cell.strip().lower() for cell in cells]


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise _LineError from None
    if not math.isfinite(number):
        raise _LineError
    return number


def _slice(track: tuple[str, ...], name: str, start_ns: float, length_ns: float, args: Mapping[str, Any]) -> Slice:
    if not (math.isfinite(start_ns) and math.isfinite(length_ns)) or length_ns < 0:
        raise _LineError
    start = round(start_ns)
    return Slice(track, name, start, start + round(length_ns), args)


_KINDS = {Step.COMPILE: "compile", Step.RUN: "runtime"}


def finish_profiles(job: Job, outcome: StepOutcome) -> StepOutcome:
    """Write `<case>_compile` or `<case>_runtime`, as .csv and .pb, to `profile_dir`; add both to the outcome."""
    if job.profile_dir is None or job.step not in _KINDS:
        return outcome
    base = os.path.join(job.profile_dir, f"{job.case}_{_KINDS[job.step]}")
    others = tuple(f"{job.case}_{kind}" for step, kind in _KINDS.items() if step is not job.step)
    slices: list[Slice] = []
    tables = []
    for path in outcome.profiles:
        found = [] if os.path.basename(path).startswith(others) else load_profile(path)  # both steps may share a folder
        slices += found
        tables += [path] if found and path.endswith(".csv") else []
    slices = slices or _build_slices(outcome)
    try:
        if len(tables) == 1 and f"{base}.csv" not in tables:
            with replacing(f"{base}.csv") as aside:
                shutil.copyfile(tables[0], aside)
        elif f"{base}.csv" not in tables:  # else the tool has written a file with this name
            write_atomic(f"{base}.csv", render_slices_csv(slices))
        write_atomic(f"{base}.pb", render_perfetto(slices))
    except OSError as error:
        raise InfrastructureError(f"the profile {base} cannot be written: {error.strerror}") from error
    return replace(outcome, profiles=tuple(dict.fromkeys((*outcome.profiles, f"{base}.csv", f"{base}.pb"))))


def _build_slices(outcome: StepOutcome) -> list[Slice]:
    """Build slices of the step's own times."""
    slices, begun_ns = [], 0
    for number, elapsed_s in enumerate(outcome.times_s or (outcome.elapsed_s,)):
        end_ns = begun_ns + round(elapsed_s * 1e9)
        slices.append(Slice(("assay", str(outcome.step)), f"{outcome.step} {number}", begun_ns, end_ns))
        begun_ns = end_ns
    return slices

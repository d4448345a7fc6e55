"""Reads metrics files that scripts write: JSON lines, CSV with a header, and logx's metrics.csv without a header.

Each reader takes the bytes after an offset and the state that the previous call returned. It returns columns, how many
bytes were consumed (whole lines; the rest is passed again) and the new state. The state is JSON-able; its `damaged`
counts lines that could not be read, and `example` is the first such line; `unread` counts values that should be
numbers, and `unread_example` is the first such value. With `final`, a last line without a line end is read as well.
Points are ordered by metric, then as in the file. A dict `texts` in the state gets the first step and text of each
name whose value is not a number, `""` for the step; a list `empty` gets name and step of each null and empty cell.

The step is the given key, or else the first of STEP_KEYS in a record. The time is `time` or `timestamp`, in seconds
or as ISO text. Every other number is a metric; nested objects become dotted names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from math import isnan
from typing import Any

from assay.observe.columns import NONE, Columns, add_column, add_value, parse_number, parse_numbers

STEP_KEYS = ("step", "global_step", "iteration", "iter", "epoch")
TIME_KEYS = ("time", "timestamp")

State = dict[str, Any]
ParsedColumns = tuple[Columns, int, State]

_NUMBERS = {int, float}
_TENSOR = re.compile(r"tensor\(\[*([^][,()\s]+)\]*(?:, .*)?\)", re.DOTALL)
_EXAMPLE_CHARACTERS = 80
# key of a counter in a state, also the state of a log → what it counts, and the key of its first example
UNREAD = {"skipped": ("value", "example"), "unread": ("value", "unread_example"), "damaged": ("line", "example")}


def parse_jsonl_columns(data: bytes, state: State, *, step: str | None = None, final: bool = False) -> ParsedColumns:
    lines, consumed = _split_lines(data, final=final)
    state = dict(state)
    columns: Columns = {}
    rows = _load_rows(lines)
    if rows is None:
        rows = [row for line in lines if (row := _load_row(line, state)) is not None]
    if rows and not _add_alike(columns, rows, step):
        for row in rows:
            _add_row(columns, row, step, state)
    return columns, consumed, state


def _load_rows(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Parse all lines in one call of the JSON parser; None if a line is not an object."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    is_sound = len(rows) == len(lines) and all(type(row) is dict for row in rows)
    return rows if is_sound else None


def _load_row(line: bytes, state: State) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        if isinstance(row := json.loads(line), dict):
            return row
    _count_damage(state, line)
    return None


def _add_alike(columns: Columns, rows: list[dict[str, Any]], step: str | None) -> bool:
    """Add records column by column and return True; return False if their keys differ or a value is not a number."""
    keys = rows[0].keys()
    if any(row.keys() != keys for row in rows):
        return False
    by_key = {key: [row[key] for row in rows] for key in keys}
    if not all(_NUMBERS.issuperset(map(type, values)) for values in by_key.values()):
        return False
    steps = by_key.pop(_find_key(keys, STEP_KEYS, step) or "", [NONE] * len(rows))
    times = by_key.pop(_find_key(by_key, TIME_KEYS) or "", [NONE] * len(rows))
    try:
        found: Columns = {}
        for key, values in by_key.items():
            add_column(found, key, steps, values, times)
    except OverflowError:  # an integer is too large for a float
        return False
    for key, column in found.items():
        add_column(columns, key, *column)
    return True


def _add_row(columns: Columns, row: dict[str, Any], step: str | None, state: State) -> None:
    flat = dict(_flatten(row))
    stated = flat.pop(_find_key(flat, STEP_KEYS, step) or "", None)
    place = _or_none(_number(stated))
    if stated is not None and isnan(place):
        _note_text(state, "", place, str(stated))
    time = _or_none(_time(flat.pop(_find_key(flat, TIME_KEYS) or "", None)))
    for key, value in flat.items():
        number = _number(value)
        if number is not None:
            add_value(columns, key, place, number, time)
        else:
            _note_text(state, key, place, "" if value is None else str(value))


def _flatten(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _time(value: object) -> float | None:
    if not isinstance(value, str):
        return _number(value)
    number = parse_number(value)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_csv_columns(data: bytes, state: State, *, step: str | None = None, final: bool = False) -> ParsedColumns:
    if state.get("kind") == "logx" or ("header" not in state and is_logx(data)):
        return parse_logx_columns(data, state, final=final)
    lines, consumed = _split_lines(data, final=final)
    state = dict(state)
    if "header" not in state:
        if not lines:
            return {}, consumed, state
        text = lines.pop(0).decode("utf-8-sig", "replace")
        state["delimiter"] = max(",\t;", key=text.count)
        cells = _read_csv_line(text, state["delimiter"]) or text.split(state["delimiter"])
        state["header"] = [name.strip() for name in cells]
    columns: Columns = {}
    header = state["header"]
    rows: list[list[str]] = []
    for line in lines:
        row = _read_csv_line(line.decode("utf-8", "replace"), state["delimiter"])
        if len(row) != len(header):
            _count_damage(state, line)
        elif row != state["header"]:
            rows.append(row)
    if rows:
        _add_csv(columns, header, rows, step, state)
    return columns, consumed, state


def _read_csv_line(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    import csv

    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error:
        return []


def _add_csv(columns: Columns, header: list[str], rows: list[list[str]], step: str | None, state: State) -> None:
    cells = dict(zip(header, zip(*rows, strict=True), strict=True))
    step_cells = cells.pop(_find_key(cells, STEP_KEYS, step) or "", ("",) * len(rows))
    steps = parse_numbers(step_cells) or [_or_none(parse_number(cell)) for cell in step_cells]
    if "texts" in state and any(lost := [cell for cell, place in zip(step_cells, steps, strict=True) if isnan(place)]):
        _note_text(state, "", NONE, next(filter(None, lost)))
    time_cells = cells.pop(_find_key(cells, TIME_KEYS) or "", ("",) * len(rows))
    times = parse_numbers(time_cells) or [_or_none(_time(cell)) for cell in time_cells]
    for metric, texts in cells.items():
        values = parse_numbers(texts)
        if values is not None:
            add_column(columns, metric, steps, values, times)
            continue
        for text, place, time in zip(texts, steps, times, strict=True):
            value = parse_number(text)
            if value is not None:
                add_value(columns, metric, place, value, time)
            else:
                _note_text(state, metric, place, text)


def is_logx(data: bytes) -> bool:
    """Return whether `data` is the beginning of a metrics.csv of logx."""
    return data.startswith((b"start,", b"val,"))


def parse_logx_columns(data: bytes, state: State, *, final: bool = False, brief: bool = False) -> ParsedColumns:
    """Parse logx's metrics.csv. `brief`, for a summary: times may be only the first and last, columns any sequences."""
    return _parse_uniform_logx(data, state, final=final, brief=brief) or _parse_logx_lines(data, state, final=final)


def _parse_uniform_logx(data: bytes, state: State, *, final: bool, brief: bool) -> ParsedColumns | None:
    """Parse a file with lines that all have the same metrics, perhaps after a `start` line; None for other files.
    One split of the whole text is several times faster than parsing each line."""
    consumed = len(data) if final else data.rfind(b"\n") + 1
    try:
        text = data[:consumed].replace(b"\r", b"").removesuffix(b"\n").decode("ascii")
    except UnicodeDecodeError:
        return None
    state = {**state, "kind": "logx"}
    if text.startswith("start,"):
        line, _, text = text.partition("\n")
        _note_start(line.encode(), line.split(","), state)
    columns = _split_uniform(text, brief) if text.startswith("val,") and '"' not in text else None
    return None if columns is None else (columns, consumed, state)


def _split_uniform(text: str, brief: bool) -> Columns | None:
    rows = text.count("\n") + 1
    cells = text.replace("\n", ",").split(",")
    width = len(cells) // rows
    names = cells[1:width:2]
    heads = [("val", 0), *zip(names, range(1, width, 2), strict=True)]
    is_uniform = len(cells) == rows * width and all(cells[at::width].count(name) == rows for name, at in heads)
    if width % 2 == 0 or not is_uniform or "timestamp" not in names or len(set(names)) < len(names):
        return None
    texts = dict(zip(names, (cells[at::width] for at in range(2, width, 2)), strict=True))
    steps = _parse_steps(tuple(texts.pop("epoch"))) if "epoch" in texts else (NONE,) * rows
    times = texts.pop("timestamp")
    moments = parse_numbers([times[0], times[-1]] if brief else times)
    found = {name: values for name, cells in texts.items() if (values := parse_numbers(cells)) is not None}
    if steps is None or moments is None or len(found) < len(texts):
        return None
    if brief and not any(map(isnan, moments)):
        return {name: (steps, values, moments) for name, values in found.items()}  # type: ignore[misc]
    if brief:
        return _split_uniform(text, False)
    columns: Columns = {}
    for name, values in found.items():
        add_column(columns, name, steps, values, moments)
    return columns


@lru_cache(maxsize=4)
def _parse_steps(cells: tuple[str, ...]) -> tuple[float, ...] | None:
    """Parse the cells of the steps. The result is cached: runs of one study often have the same steps."""
    steps = parse_numbers(cells)
    return None if steps is None else tuple(steps)


def _parse_logx_lines(data: bytes, state: State, *, final: bool) -> ParsedColumns:
    lines, consumed = _split_lines(data, final=final)
    state = {**state, "kind": "logx"}
    columns: Columns = {}
    for line in lines:
        row = _read_csv_line(line.decode("utf-8", "replace"), ",")
        if row[:1] == ["val"]:
            _add_logx_row(columns, line, row, state)
        else:
            _note_start(line, row, state)
    return columns, consumed, state


def _note_start(line: bytes, row: list[str], state: State) -> None:
    """Read a `start` line, which each `initialize` of logx writes; the first has the start of the run. It is
    `start,start/step,0,timestamp,T`, or `start,start/step,0` with `no_timestamp=True`: then no line has a time."""
    is_start = row[:1] == ["start"] and len(row) in (3, 5)
    time = parse_number(row[4]) if is_start and len(row) == 5 else None
    if is_start and (time is not None or row[1:] == ["start/step", "0"]):
        state["untimed"] = time is None
    else:
        _count_damage(state, line)
    if time is not None:
        state.setdefault("start", time)


def _add_logx_row(columns: Columns, line: bytes, row: list[str], state: State) -> None:
    names, values = row[1::2], [_parse_cell(cell) for cell in row[2::2]]
    last = "epoch" if state.get("untimed") else "timestamp"  # a line without its last key was cut off
    if len(names) != len(values) or last not in names:
        _count_damage(state, line)
        return
    for name, cell, value in zip(names, row[2::2], values, strict=True):
        if value is None and cell:
            _count_unread(state, f"{name}={cell}")
    found = dict(zip(names, values, strict=True))
    place, time = _or_none(found.pop("epoch", None)), _or_none(found.pop("timestamp", None))
    for name, value in found.items():
        if value is not None:
            add_value(columns, name, place, value, time)
        else:
            _note_text(state, name, place, row[2 * names.index(name) + 2])


def _parse_cell(cell: str) -> float | None:
    """Parse a number, or a tensor of one number: old versions of logx wrote `tensor(0.2000, device='cuda:0')`."""
    number = parse_number(cell)
    if number is None and (match := _TENSOR.fullmatch(cell)):
        number = parse_number(match[1])
    return number


def _split_lines(data: bytes, *, final: bool) -> tuple[list[bytes], int]:
    """Return the complete lines, without blank ones, and how many bytes they take."""
    consumed = len(data) if final else data.rfind(b"\n") + 1
    lines = data[:consumed].replace(b"\r", b"").split(b"\n")
    return [line for line in lines if line and not line.isspace()], consumed


def _find_key(keys: Iterable[str], usual: Sequence[str], asked: str | None = None) -> str | None:
    return next((key for key in (usual if asked is None else (asked,)) if key in keys), None)


def _or_none(value: float | None) -> float:
    return NONE if value is None else value


def _note_text(state: State, name: str, step: float, text: str) -> None:
    if parse_number(text) is not None:  # a number in quotes, or too large for a float
        _count_unread(state, f"{name or 'step'}: {text!r}")
    if text.strip() and "texts" in state:
        state["texts"].setdefault(name, (step, text.strip()[:_EXAMPLE_CHARACTERS]))
    elif "empty" in state:
        state["empty"].append((name, step))


def describe_unread(state: Mapping[str, Any]) -> str:
    """Describe what could not be read, with counts; empty if everything was read."""
    counts = [(state[name], *words) for name, words in UNREAD.items() if state.get(name)]
    return "; ".join(f"{count} {what}{'s'[: count - 1]} not read, such as {state[at]}" for count, what, at in counts)


def _count_unread(state: State, example: str) -> None:
    state["unread"] = state.get("unread", 0) + 1
    state.setdefault("unread_example", example[:_EXAMPLE_CHARACTERS])


def _count_damage(state: State, line: bytes) -> None:
    state["damaged"] = state.get("damaged", 0) + 1
    state.setdefault("example", line.decode("utf-8", "replace")[:_EXAMPLE_CHARACTERS])

"""Reads training curves from files of other tools, as points of metric, step and value.

docs/reference/formats-golden.md shows the formats. In Megatron-LM's files the string "nan" means that a step was not
logged; a NaN or Infinity of JSON is a value that was logged.

A file is recognised by its content. Lines are read in pieces, so that a long file takes no more memory than a short
one; a JSON document is read whole, and refused if it is larger than documents of these formats are.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from assay.errors import FormatError, UsageError
from assay.golden.manifests import parse_manifest
from assay.observe.columns import Columns
from assay.observe.events import masked_crc32c, parse_events_columns
from assay.observe.files import STEP_KEYS, is_logx, parse_csv_columns, parse_jsonl_columns
from assay.values.series import NUMBER

# metric; step, NaN without a step; value, a string if the value is not a number, None for an empty value
Point = tuple[str, float, float | str | None]
Facts = dict[str, Any]  # what a file states about itself: environment, batch size
Parse = Callable[[bytes, dict[str, Any], bool], tuple[Columns, int, dict[str, Any]]]

MEGATRON, TITAN, TRL, TRAINER, MLLOG = "Megatron-LM", "torchtitan", "TRL", "trainer_state.json", ":::MLLOG"
RCP, EVENTS, ROWS, JSON_LINES, CSV, OURS = "RCP", "TensorBoard", "JSON", "JSON lines", "CSV", "golden recording"
CONVERGED = "epochs to converge"
KNOWN = (
    "known: Megatron-LM's and TRL's JSON, torchtitan's `step loss` lines, trainer_state.json, :::MLLOG lines, RCP "
    "files, TensorBoard's event files, JSON lines, CSV with a header and a column `step`, a golden recording of ours"
)
_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 1 << 22
_LONGEST_RECORD = 1 << 26
_LARGEST_DOCUMENT = 1 << 27
_PAIR = re.compile(rf"(\d+)[ \t]+({NUMBER})")
_MLLOG = re.compile(rb":::MLLOG\s+(\{.*\})")
# numbers in quotes, as some loggers write them into JSON; a whole number in quotes is a name, such as a run's
_QUOTED = re.compile(rb':\s*"(?:(-?)(nan|inf)(?:inity)?|(-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)))"', re.IGNORECASE)
_NAMED: dict[bytes, Callable[[bytes], bytes]] = {b"nan": lambda _: b"NaN", b"inf": lambda sign: sign + b"Infinity"}
_POSITIONS = ("step_num", "iteration", "samples_count", "epoch_num")  # keys of positions in MLPerf's entries
_ENDS = ("epoch_num", "samples_count", *_POSITIONS)  # RCP files count epochs, or samples
_NOT_LOGGED = "nan"


def refuse(path: str, why: str, hint: str | None = None) -> NoReturn:
    raise UsageError(f"{path}: {why}", hint)


def read_head(path: str) -> bytes:
    """Return the beginning of a file. Raises UsageError if it cannot be read, or has no end, as a pipe."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            refuse(path, "it is neither a file nor a folder")
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        refuse(path, f"it cannot be read: {error.strerror}")


def find_format(path: str) -> str | None:
    """Return the format of a file; None if its format is not known. Raises UsageError if it cannot be read."""
    head = read_head(path)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_record = len(head) >= 12 and head[8:12] == masked_crc32c(head[:8]).to_bytes(4, "little")
    if is_record or "tfevents" in os.path.basename(path):
        return EVENTS
    if start[:1] in (b"{", b"["):
        return JSON_LINES if _is_json_lines(start) else find_document_format(load_document(path))
    if _MLLOG.search(head):
        return MLLOG
    lines = (line.strip() for line in start.decode("utf-8", "replace").splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if _PAIR.fullmatch(first):
        return TITAN
    names = {name.strip().strip('"') for name in re.split("[,;\t]", first)}
    return CSV if is_logx(start) or (len(names) > 1 and names.intersection(STEP_KEYS)) else None


def _is_json_lines(start: bytes) -> bool:
    """Whether the first line is an object by itself, and another line follows it."""
    first, _, rest = start.partition(b"\n")
    try:
        return isinstance(json.loads(first), dict) and bool(rest.strip())
    except (ValueError, RecursionError):
        return False


def find_document_format(content: Any) -> str | None:
    if isinstance(content, list):
        return ROWS if content and all(map(_is_row, content)) else None
    return next((format_ for format_, is_one in _DOCUMENTS.items() if is_one(content)), None)


def _is_row(content: Any) -> bool:
    return isinstance(content, dict) and bool(content.keys() & {*STEP_KEYS})


def _has_parts(content: Mapping[str, Any], key: str) -> bool:
    return bool(content) and all(isinstance(each, dict) and key in each for each in content.values())


def _is_number(content: Any) -> bool:
    return isinstance(content, int | float) and not isinstance(content, bool)


_DOCUMENTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    OURS: lambda content: "ckpt_logs" in content,
    TRAINER: lambda content: isinstance(content.get("log_history"), list),
    TRL: lambda content: isinstance(content.get("steps"), list),
    RCP: lambda content: _has_parts(content, "Epochs to converge"),
    MEGATRON: lambda content: _has_parts(
        {name: each for name, each in content.items() if not _is_number(each)}, "values"
    ),
    ROWS: _is_row,
}


def load_document(path: str) -> Any:
    """Load a JSON document. Raises UsageError with the position of an error."""
    if os.path.getsize(path) > _LARGEST_DOCUMENT:
        refuse(path, "it is a JSON document of more than 128 MiB", "write JSON lines: one object for each step")
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        return json.loads(text, object_pairs_hook=_build_object)
    except json.JSONDecodeError as error:
        is_cut = not text[error.pos :].strip() or "Unterminated" in error.msg
        what = "it is truncated: the JSON ends in the middle" if is_cut else f"column {error.colno}: {error.msg}"
        refuse(f"{path}:{error.lineno}", what)
    except (ValueError, RecursionError) as error:  # for example text that is not UTF-8, or a key that is there twice
        refuse(path, f"its JSON cannot be read: {error}")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise ValueError for equal keys, of which JSON's parser would silently use the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} is there twice; keep one of them")
    return found


def open_document(path: str, form: str, entry: str, facts: Facts) -> Iterator[Iterator[Point]]:
    """Yield the points of each recording that a document holds; RCP files and Assay's goldens have several."""
    content = load_document(path)
    if form == RCP:
        facts["global_batch_size"] = content[entry].get("BS")
        for value in _parse_numbers(path, entry, content[entry]["Epochs to converge"]):
            yield iter([(CONVERGED, 0.0, value)])
    elif form == OURS:
        try:
            golden = parse_manifest(json.dumps(content), path, os.path.basename(path))
        except FormatError as error:
            raise UsageError(error.message, error.hint) from None
        walked = [found for each in golden.segments for found in each.walk()]
        tracks = [(f"{metric} {label}".strip(), runs) for metric, label, runs in walked]
        for number in range(golden.recordings):
            runs = [(name, run) for name, found in tracks for run in found[number : number + 1]]
            yield ((name, *point) for name, run in runs for point in zip(run.steps, run.values, strict=True))
    elif form == MEGATRON:
        yield (point for metric, part in content.items() for point in _parse_megatron(path, metric, part))
    else:
        yield _parse_rows(path, content, facts)


def _parse_rows(path: str, content: Any, facts: Facts) -> Iterator[Point]:
    rows = content if isinstance(content, list) else content.get("log_history", content.get("steps", [content]))
    if isinstance(content, dict) and isinstance(content.get("env"), dict):
        facts |= content["env"]
    state: dict[str, Any] = {"texts": {}, "empty": []}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            refuse(path, f"entry {number} is not an object with a step and values")
        yield from walk_columns(_parse_json(json.dumps(row).encode(), state, True)[0], state)
    yield from _walk_texts(path, state)


def _parse_megatron(path: str, metric: str, part: Any) -> Iterator[Point]:
    """Read `values` by step. Files from before 2025 have lists of values at equal intervals, and means as numbers."""
    values = part["values"] if isinstance(part, dict) else {"0": part}
    if isinstance(values, list):
        start, interval = part.get("start_step", 0), part.get("step_interval", 1)
        if not isinstance(start, int) or not isinstance(interval, int) or interval < 1:
            why = "`start_step` and `step_interval` of a list of values are not whole numbers above 0"
            refuse(path, f"{metric}: {why}")
        values = {str(start + at * interval): value for at, value in enumerate(values)}
    if not isinstance(values, dict) or not all(step.isascii() and step.isdigit() for step in values):
        refuse(path, f"{metric}: `values` is neither a list nor an object with whole steps as keys")
    for step, value in values.items():
        is_empty = value == _NOT_LOGGED
        yield metric, float(step), None if is_empty else _parse_numbers(path, f"{metric} at step {step}", [value])[0]


def _parse_numbers(path: str, name: str, values: Any) -> list[float]:
    found = []
    for value in values if isinstance(values, list) else [values]:
        found.append(_parse_number(value))
        if found[-1] is None:
            refuse(path, f"{name}: {json.dumps(value)[:60]} is not a number")
    return [number for number in found if number is not None]


def _parse_number(value: Any) -> float | None:
    try:
        return float(value) if _is_number(value) else None
    except OverflowError:
        return None


def parse_lines(path: str, form: str, facts: Facts) -> Iterator[Point]:
    if form in (MLLOG, TITAN):
        return _parse_mllog(path, facts) if form == MLLOG else _parse_titan(path)
    parsers: dict[str, Parse] = {
        EVENTS: lambda data, state, _: parse_events_columns(data, state),
        JSON_LINES: _parse_json,
        CSV: lambda data, state, final: parse_csv_columns(data, state, final=final),
    }
    return _parse_pieces(path, parsers[form])


def _parse_json(data: bytes, state: dict[str, Any], final: bool) -> tuple[Columns, int, dict[str, Any]]:
    """Parse JSON, also numbers, NaN and Infinity in quotes, which would otherwise be left out silently."""
    if _QUOTED.search(data) is None:
        return parse_jsonl_columns(data, state, final=final)
    end = len(data) if final else data.rfind(b"\n") + 1
    plain = _QUOTED.sub(lambda found: b": " + (found[3] or _NAMED[found[2].lower()](found[1])), data[:end])
    columns, _, state = parse_jsonl_columns(plain, state, final=final)
    return columns, end, state


def walk_columns(columns: Columns, state: Mapping[str, Any]) -> Iterator[Point]:
    for metric, (steps, values, _) in columns.items():
        if metric not in STEP_KEYS:  # an epoch next to a step is a position as well, not a metric
            yield from zip((metric,) * len(steps), steps, values, strict=True)
    yield from ((metric, step, None) for metric, step in state["empty"])
    state["empty"].clear()


def _walk_texts(path: str, state: Mapping[str, Any]) -> Iterator[Point]:
    if "" in state["texts"]:
        refuse(path, f"the step {state['texts'][''][1]!r} is not a number", "write steps as in 1000")
    for metric, (step, text) in state["texts"].items():
        yield metric, step, text


def _parse_pieces(path: str, parse: Parse) -> Iterator[Point]:
    """Parse a file in pieces. Bytes that `parse`, a parser of `observe`, does not consume begin the next piece."""
    state: dict[str, Any] = {"texts": {}, "empty": []}
    rest = b""
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            columns, consumed, state = parse(rest + piece, state, False)
            yield from walk_columns(columns, state)
            rest = (rest + piece)[consumed:]
            _refuse_damage(path, state, len(rest) > _LONGEST_RECORD)
    columns, consumed, state = parse(rest, state, True)
    yield from walk_columns(columns, state)
    _refuse_damage(path, state, bool(rest[consumed:].strip()))
    yield from _walk_texts(path, state)


def _refuse_damage(path: str, state: Mapping[str, Any], is_cut: bool) -> None:
    hint = "a run that was killed leaves a part of a record: check one that ended well, or remove that part"
    names = state.get("header", [])
    if len({*names}) < len(names):
        refuse(path, f"the column {max(names, key=names.count)!r} is there twice", "keep one of them")
    if state.get("damaged"):
        example = state.get("example", "its checksum is wrong")
        found = (at for at, line in _walk_lines(path) if line.decode("utf-8", "replace").startswith(example.strip()))
        refuse(next(found, path), f"a record cannot be read: {example}", hint)
    if is_cut or state.get("problem"):
        refuse(path, str(state.get("problem") or "it is truncated: it ends with a part of a record"), hint)


def _walk_lines(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the position and the content of each line."""
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_RECORD), b""), 1):
            yield f"{path}:{number}", line.strip()


def _parse_titan(path: str) -> Iterator[Point]:
    for position, line in _walk_lines(path):
        text = line.decode("utf-8", "replace")
        if (match := _PAIR.fullmatch(text)) is not None:
            yield "loss", float(match[1]), float(match[2])
        elif text and not text.startswith("#"):
            refuse(position, f"{text[:60]!r} is not a step and a loss", "as in: 12 3.4080028533935547")


def _parse_mllog(path: str, facts: Facts) -> Iterator[Point]:
    """Yield every number that has a position, and after a successful run the position of its last evaluation."""
    last: float | None = None
    for position, line in _walk_lines(path):
        if (match := _MLLOG.search(line)) is None:
            continue
        try:
            entry = json.loads(match[1])
            key, value, metadata = str(entry["key"]), entry.get("value"), dict(entry.get("metadata") or {})
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            refuse(position, "this :::MLLOG line is not JSON with a key")
        if key == "global_batch_size":
            facts[key] = value
        if key == "run_stop" and metadata.get("status") == "success" and last is not None:
            yield CONVERGED, 0.0, last
        number = _parse_number(value)
        at = _parse_position(position, metadata)
        if at is not None and (number is not None or value is None or isinstance(value, str)):
            if key.startswith("eval_") and number is not None:
                last = _parse_position(position, metadata, _ENDS)
            yield key, at, value if number is None else number


def _parse_position(line: str, metadata: Mapping[str, Any], names: Sequence[str] = _POSITIONS) -> float | None:
    """Return the first position that an entry states, also a position that a logger has written as a string."""
    stated = next((metadata[name] for name in names if metadata.get(name) is not None), None)
    match = re.fullmatch(NUMBER, stated.strip()) if isinstance(stated, str) else None
    found = float(match[0]) if match else _parse_number(stated)
    if stated is not None and found is None:
        refuse(line, f"the position {stated!r} of this :::MLLOG line is not a number", "as in step_num: 1000")
    return found

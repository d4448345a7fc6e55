"""Finds the recordings of a path (a file, the files of a folder, the entries of an RCP file), groups them by their
environments, and loads their curves: of a golden every value, of a run the values at the golden's steps.

Names that differ in a running number alone are repeats of one environment: `…_h100_1.json` and `…_h100_2.json`. Names
that differ in anything else (`h100` and `a100`, `0.8.0` and `0.9.0`, 8 and 16 GPUs) are never pooled. A running number
follows a word such as run or seed, or is a date, or the names count from 0 or 1 without a gap.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, isinf, isnan
from typing import Any

from assay.errors import UsageError
from assay.golden.files.formats import (
    CSV,
    EVENTS,
    JSON_LINES,
    KNOWN,
    MLLOG,
    RCP,
    TITAN,
    Facts,
    Point,
    find_format,
    load_document,
    open_document,
    parse_lines,
    read_head,
    refuse,
)
from assay.golden.values import Track
from assay.system.fast_dataclasses import dataclass, replace

_WORDS = "run|seed|rep|repeat|replica|night|nightly|job|build|try|trial|attempt"
_COUNTED = re.compile(rf"(?<![a-z])({_WORDS})([-_ ]?)\d+(?![a-z\d]|\.\d)", re.IGNORECASE)
_DATE = re.compile(r"(?<!\d)20\d\d-?[01]\d-?[0-3]\d(?:[-T_ ]?\d{4,6})?(?!\d)")
_NUMBER = re.compile(r"(?<![^-_ /])\d+(?=(?:\.[A-Za-z]\w*)?$|/)|(?<![^/])\d+(?=[-_ ])")  # a last, first or only word
# a number next to one of these words is a size or a kind: 1 and 2 GPUs, or FSDP 1 and 2, are two environments
_SIZES = "gpu|node|rank|device|worker|host|core|tp|pp|dp|cp|ep|sp|fsdp|zero|stage|layer|batch|bs|version|v"
_SIZE = re.compile(f"({_SIZES})s?", re.IGNORECASE)
_MARK = "#"
_FLAG = "--environment"
_MOST_FILES = 20_000
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class GoldenSource:
    """One recording, or several of one file. `paths`: one file, or all TensorBoard event files of one folder."""

    name: str
    key: str  # the key of its environment
    format: str
    paths: tuple[str, ...]
    entry: str = ""  # the entry of an RCP file
    facts: Mapping[str, Any] | None = None


def list_sources(path: str) -> list[GoldenSource]:
    """List the recordings of a path. Raises UsageError if no file has a known format."""
    if os.path.isdir(path):
        unknown: list[str] = []
        if not (found := list(_list_folder(path, unknown))):
            refuse(path, "no file in this folder is of a known format", KNOWN)
        # a file that is not a recording, but differs from one in its number alone, is probably of a run that crashed
        names = {re.sub(r"\d+", _MARK, each) for source in found for each in source.paths}
        for each in unknown:
            if re.search(r"\d", os.path.basename(each)) and re.sub(r"\d+", _MARK, each) in names:
                hint = "did the run crash? Remove the file, or name one file instead of the folder"
                refuse(each, "it has the name of a recording, but contains none", hint)
        return _mark_numbers(found)
    if (format_ := find_format(path)) is None:
        refuse(path, "it is empty" if not read_head(path).strip() else "its format is not known", KNOWN)
    return list(_build_sources(path, os.path.basename(path), format_))


def _list_folder(folder: str, unknown: list[str]) -> Iterator[GoldenSource]:
    """Yield recordings, without hidden files; add files of other kinds (a checkpoint, a configuration) to `unknown`."""
    count = 0
    walk = os.walk(folder, onerror=lambda error: refuse(error.filename, f"it cannot be read: {error.strerror}"))
    for inner, folders, names in walk:
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [os.path.join(inner, name) for name in sorted(names) if not name.startswith(".")]
        count += len(paths)
        if count > _MOST_FILES:
            refuse(folder, f"it holds more than {_MOST_FILES} files", "name the folder of one test, or one file")
        formats = {path: find_format(path) for path in paths if os.path.isfile(path)}
        unknown += [path for path in paths if formats.get(path) is None]
        for path, format_ in formats.items():
            if format_ is not None and format_ != EVENTS:
                yield from _build_sources(path, os.path.relpath(path, folder), format_)
        if events := tuple(path for path, format_ in formats.items() if format_ == EVENTS):
            key = os.path.relpath(inner, folder)
            yield GoldenSource(inner, os.path.basename(os.path.abspath(folder)) if key == "." else key, EVENTS, events)


def _build_sources(path: str, key: str, format_: str) -> Iterator[GoldenSource]:
    if format_ != RCP:
        yield GoldenSource(path, key, format_, (path,))
        return
    for entry, part in load_document(path).items():
        yield GoldenSource(f"{path} {entry}", entry, RCP, (path,), entry, part)


def _mark_numbers(sources: Sequence[GoldenSource]) -> list[GoldenSource]:
    """Replace the running numbers in the keys of sources by `#`."""
    keys = [_DATE.sub(_MARK, _COUNTED.sub(rf"\1\2{_MARK}", each.key)) for each in sources]
    for at in (0, -1):  # the first number of a name, or the last one
        templates = [_replace_number(key, at) for key in keys]
        for template in {template for template, number in templates if number is not None}:
            numbers = sorted(number for each, number in templates if each == template and number is not None)
            if len(numbers) > 1 and numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[-1] + 1)):
                keys = [template if each == template else key for key, (each, _) in zip(keys, templates, strict=True)]
    return [replace(source, key=key) for source, key in zip(sources, keys, strict=True)]


def _replace_number(key: str, at: int) -> tuple[str, int | None]:
    found = list[tuple[str, int]]()
    for match in _NUMBER.finditer(key):
        start, end = key[: match.start()], key[match.end() :]
        neighbours = (*re.split(r"[-_ /]", start)[-2:-1], *re.split(r"[-_ /.]", end)[1:2])
        if not any(map(_SIZE.fullmatch, neighbours)):
            found.append((start + _MARK + end, int(match[0])))
    return found[at] if found else (key, None)


def choose_sources(
    sources: Sequence[GoldenSource],
    where: str,
    environment: str | None = None,
    like: Sequence[str] = (),
    flag: str = _FLAG,
) -> list[GoldenSource]:
    """Choose the environment `environment`, the only one, or one in `like`. Raises UsageError with the choices."""
    keys = list(dict.fromkeys(each.key for each in sources))
    if environment is not None:
        exact = [key for key in keys if environment in (key, _strip(key))]
        keys = exact or [key for key in keys if environment.lower() in key.lower()]
    if len(keys) > 1:
        keys = [key for key in keys if _strip(key) in map(_strip, like)] or keys
    if len(keys) == 1:
        return [each for each in sources if each.key == keys[0]]
    names = {each.key: each.key if flag == _FLAG else each.name for each in reversed(sources)}
    what = f"has recordings of {len(keys)} environments, which are never pooled: name one of them"
    if not keys:
        what, keys = f"has no recording of the environment {environment!r}", list(names)
    shown = [f"{flag} {shlex.quote(names[key])}" for key in keys[:_MOST_SHOWN]]
    more = [f"… and {len(keys) - _MOST_SHOWN} more"] if len(keys) > _MOST_SHOWN else []
    raise UsageError(f"{where} {what}", "\n  ".join(["one of:", *shown, *more]))


def _strip(key: str) -> str:
    """Return a key without its running number and its extension."""
    return re.sub(rf"[-_ ]?{_MARK}", "", os.path.splitext(key)[0])


Wanted = Mapping[str, frozenset[int]]  # metric → the steps that are kept
_LINES = (CSV, EVENTS, JSON_LINES, MLLOG, TITAN)
_MOST_VALUES = 1_000_000  # values of one metric of a golden
_MOST_METRICS = 10_000


@dataclass(slots=True)
class Extent:
    """The extent of all steps of a metric, also of steps that were not kept."""

    first: float = inf
    last: float = -inf
    count: int = 0
    bad: tuple[float, float | str] | None = None  # the first step whose value is not a finite number, and the value
    widest: float = 0.0  # the widest interval between neighbouring steps
    empty: float = -inf  # the last step with null, or an empty cell

    @property
    def interval(self) -> float:
        """The mean distance between two steps; 0 for a single step."""
        return (self.last - self.first) / (self.count - 1) if self.count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class CurveFile:
    """One recording. `name`: its name in messages."""

    name: str
    format: str
    tracks: Mapping[str, Track]
    extents: Mapping[str, Extent]
    facts: Facts
    stepless: Collection[str]  # names of numbers that have no step


def load_curves(source: GoldenSource, wanted: Wanted | None = None) -> list[CurveFile]:
    """Load the recordings of a source; RCP files and Assay's goldens have several. Raises UsageError without values."""
    path, facts, found = source.paths[0], Facts(), list[_Collector]()
    if source.format in _LINES:
        found.append(_Collector(wanted))
        for each in source.paths:
            found[0].add(each, parse_lines(each, source.format, facts))
    else:
        for points in open_document(path, source.format, source.entry, facts):
            found.append(_Collector(wanted))
            found[-1].add(path, points)
    if not any(each.extents for each in found):
        texts = [f"{name} is {text!r} at step {step:g}" for each in found for name, (step, text) in each.texts.items()]
        hint = "each value needs a step: a key or column named step, global_step, iteration, iter or epoch"
        why = f"; {texts[0]}, which is not a number" if texts else ""
        refuse(source.name, f"it contains no value with a step{why}", "write numbers as in 0.5" if texts else hint)
    name, form = source.name, source.format
    return [CurveFile(name, form, each.build_tracks(), each.extents, facts, each.stepless) for each in found]


class _Collector:
    """Collects values by metric and step. `wanted`: steps to keep; other steps are only counted, to save memory."""

    def __init__(self, wanted: Wanted | None) -> None:
        self.wanted = wanted
        self.values: dict[str, dict[int, float]] = {}
        self.extents: dict[str, Extent] = {}
        self.texts: dict[str, tuple[float, str]] = {}
        self.empty: dict[str, float] = {}
        self.stepless: set[str] = set()

    def add(self, path: str, points: Iterable[Point]) -> None:
        for metric, step, value in points:
            if isnan(step):
                self.stepless |= {metric} if isinstance(value, float) else set()
            elif value is None:
                self.empty[metric] = max(step, self.empty.get(metric, step))
            elif isinstance(value, str):
                self.texts.setdefault(metric, (step, value))
            else:
                self._add_value(path, metric, step, value)
        for metric in self.texts.keys() & self.extents.keys():  # a name that never has a number is not a metric
            self.extents[metric].bad = self.texts[metric]
        for metric in self.empty.keys() & self.extents.keys():
            self.extents[metric].empty = self.empty[metric]

    def _add_value(self, path: str, metric: str, step: float, value: float) -> None:
        if isinf(step):
            refuse(path, f"{metric}: the step {step:g} is not a whole number")
        extent = self.extents.setdefault(metric, Extent())
        extent.count += 1
        if extent.count == 1 and len(self.extents) > _MOST_METRICS:
            refuse(path, f"it has more than {_MOST_METRICS} metrics")
        extent.widest = max(extent.widest, step - extent.last if extent.count > 1 else 0.0)
        extent.first, extent.last = min(step, extent.first), max(step, extent.last)
        if extent.bad is None and not isfinite(value):
            extent.bad = step, value
        if self.wanted is None or step in self.wanted.get(metric, ()):
            self._keep(path, metric, step, value)

    def build_tracks(self) -> dict[str, Track]:
        found = {metric: sorted(values.items()) for metric, values in self.values.items()}
        rows = {metric: [(step, value, repr(value)) for step, value in each] for metric, each in found.items()}
        return {metric: Track(*(tuple(column) for column in zip(*each, strict=True))) for metric, each in rows.items()}

    def _keep(self, path: str, metric: str, step: float, value: float) -> None:
        values, at = self.values.setdefault(metric, {}), int(step)
        if at != step:
            refuse(path, f"{metric}: the step {step:g} is not a whole number", "count iterations, not parts of epochs")
        if repr(values.setdefault(at, value)) != repr(value):
            hint = "keep one of them; of a run that was resumed, give the file of one attempt"
            refuse(path, f"{metric} has step {at} twice, {values[at]!r} and {value!r}", hint)
        if len(values) > _MOST_VALUES:
            hint = "keep every tenth step of a golden, or fewer"
            refuse(path, f"{metric} has more than {_MOST_VALUES:,} values", hint)

"""Extracts metrics from a growing log by the study's patterns.

A line ends with a newline or a carriage return (progress bars). The metric `step`, or `epoch` if no pattern gives
`step`, sets the position: a position holds for its whole line and for the following lines until the next position.
Neither `step` nor `epoch` becomes a metric.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from operator import le, lt
from typing import Any, cast

from assay.errors import UsageError
from assay.observe.columns import Columns, add_column, parse_number, parse_numbers
from assay.system.fast_dataclasses import NamedTuple
from assay.values.series import GROUPED_NUMBER
from assay.values.study import Pattern

POSITIONS = ("step", "epoch")  # the metrics that set the position, in order of precedence
SCAN_BYTES = 1 << 16  # length of one scan: its matches should stay in the processor's cache
# The longest partial line that is kept. A longer line is cut every LINE_LIMIT_BYTES, so that the points do not depend
# on the chunks in which the log arrives.
LINE_LIMIT_BYTES = 1 << 20


class _Values(NamedTuple):
    """The values of one group of one pattern in a block."""

    metric: str
    starts: list[int]
    values: list[float]


class _Skip(NamedTuple):
    start: int
    text: str


class _CompiledPattern:
    """A pattern as a regular expression, and the metric of each of its groups."""

    def __init__(self, pattern: Pattern) -> None:
        try:
            self.regex = LineRegex(pattern.regex)
        except (re.error, OverflowError, RecursionError) as error:
            place = f"{pattern.position} " if pattern.position else ""
            message = f"{place}metrics.{pattern.metric}: not a regular expression: {error}"
            raise UsageError(message, f"the pattern is {pattern.regex!r}") from None
        self.groups = _name_groups(pattern, self.regex.regex)

    def scan(self, text: str, skips: list[_Skip]) -> list[_Values]:
        found = self.regex.find(text)
        if not found.matches:
            return []
        starts, texts = found.starts(), found.whole_texts if _COMMA.search(text) else found.texts
        return [_read(metric, starts, texts(group), skips) for group, metric in self.groups]


class Extractor:
    """Extracts points from a log, which may be passed in chunks of any size: the points are those of the whole log."""

    def __init__(self, patterns: Sequence[Pattern], command: str | None = None) -> None:
        """`command` leaves out the patterns for other commands' logs; None keeps all patterns."""
        mine = [pattern for pattern in patterns if None in (command, pattern.command) or pattern.command == command]
        self._rules = [_CompiledPattern(pattern) for pattern in mine]
        names = {metric for rule in self._rules for _, metric in rule.groups}
        self.position_metric = next((name for name in POSITIONS if name in names), None)
        self.position: float | None = None
        self.skipped = 0  # matches that are not numbers
        self.example: str | None = None  # the first skipped match
        self._tail = b""

    @property
    def state(self) -> dict[str, Any]:
        """What a new process needs to continue after the last byte; JSON-able."""
        skipped = {"skipped": self.skipped, "example": self.example} if self.skipped else {}
        return {"tail": self._tail.decode("latin-1"), "position": self.position, **skipped}

    @classmethod
    def restore(cls, patterns: Sequence[Pattern], command: str | None, state: Mapping[str, Any]) -> Extractor:
        extractor = cls(patterns, command)
        extractor._tail = str(state.get("tail", "")).encode("latin-1")
        extractor.position = state.get("position")
        extractor.skipped = int(state.get("skipped", 0))
        extractor.example = state.get("example")
        return extractor

    def feed(self, chunk: bytes) -> Columns:
        """Return the points of every line that `chunk` completes, for each metric in the log's order."""
        columns: Columns = {}
        data, start = self._tail + chunk if self._tail else chunk, 0
        while (end := _block_end(data, start)) > start:
            text = data[start:end].replace(b"\r", b"\n").decode("utf-8", "surrogateescape")
            _add_columns(columns, *self._scan(text))
            start = end
        self._tail = data[start:]
        return columns

    def finish(self) -> Columns:
        """Return the points of a last line that has no line end."""
        return self.feed(b"\n") if self._tail else {}

    def _scan(self, text: str) -> tuple[list[_Values], list[list[float | None]]]:
        """Return the values of a block and their steps."""
        skips: list[_Skip] = []
        found = [values for rule in self._rules for values in rule.scan(text, skips)]
        marks = _merge([values for values in found if values.metric == self.position_metric], skips)
        others = [values for values in found if values.metric not in POSITIONS]
        # a step holds from the start of its line, or from its own position if it is not the first step on the line
        reigns: list[float | None] = [self.position, *marks.values]
        self.position = reigns[-1]
        lines = [text.rfind("\n", 0, start) + 1 for start in marks.starts]
        bounds = [
            start if line == before else line
            for start, line, before in zip(marks.starts, lines, [-1, *lines], strict=False)
        ]
        steps = [_reigning(reigns, bounds, values.starts) for values in others]
        if skips:
            self.skipped += len(skips)
            self.example = min(skips).text if self.example is None else self.example
        return others, steps


def _reigning(reigns: list[float | None], bounds: list[int], starts: list[int]) -> list[float | None]:
    """Return for each start the last step whose bound is not after it; `reigns[0]` is the step before all bounds."""
    if len(starts) == len(bounds) and all(map(le, bounds, starts)) and all(map(lt, starts, bounds[1:])):
        return reigns[1:]  # the usual log has one value for each step
    return [reigns[bisect_right(bounds, start)] for start in starts]


def _name_groups(pattern: Pattern, regex: re.Pattern[str]) -> tuple[tuple[int, str], ...]:
    if regex.groupindex:  # unnamed groups next to named ones have no metric
        return tuple((group, name) for name, group in regex.groupindex.items())
    if regex.groups <= 1 and not pattern.labels:
        return ((regex.groups, pattern.metric),)  # a pattern without groups: the whole match is the number
    numbers = range(1, regex.groups + 1)
    labels = pattern.labels if len(pattern.labels) == regex.groups else [str(number - 1) for number in numbers]
    return tuple((number, f"{pattern.metric}.{label}") for number, label in zip(numbers, labels, strict=True))


def _read(metric: str, starts: list[int], texts: list[str], skips: list[_Skip]) -> _Values:
    if not all(texts):  # a group that did not take part in the match, or matched no characters, has no value
        kept = [(start, text) for start, text in zip(starts, texts, strict=True) if text]
        starts, texts = [start for start, _ in kept], [text for _, text in kept]
    values = parse_numbers(texts)
    if values is not None:
        return _Values(metric, starts, values)
    tried = [(start, text, parse_number(text)) for start, text in zip(starts, texts, strict=True)]
    skips.extend(_Skip(start, f"{metric}: {text!r}") for start, text, value in tried if value is None)
    sound = [(start, value) for start, _, value in tried if value is not None]
    return _Values(metric, [start for start, _ in sound], [value for _, value in sound])


def _merge(found: list[_Values], skips: list[_Skip]) -> _Values:
    """Merge steps of several patterns in the log's order; steps that are not finite are skipped."""
    if len(found) == 1 and all(map(math.isfinite, found[0].values)):
        return found[0]
    metric = found[0].metric if found else ""
    pairs = [pair for values in found for pair in zip(values.starts, values.values, strict=True)]
    pairs.sort(key=lambda pair: pair[0])
    skips.extend(_Skip(start, f"{metric}: '{value}'") for start, value in pairs if not math.isfinite(value))
    pairs = [pair for pair in pairs if math.isfinite(pair[1])]
    return _Values(metric, [start for start, _ in pairs], [value for _, value in pairs])


def _block_end(data: bytes, start: int) -> int:
    """Return the offset after the last line end within the limit; `start` if no line is complete."""
    for reach in (SCAN_BYTES, LINE_LIMIT_BYTES):
        stop = start + reach
        newline = data.rfind(b"\n", start, stop)
        end = max(newline, data.rfind(b"\r", max(start, newline), stop)) + 1
        if end > start:
            return end
    return stop if len(data) >= stop else start


def _add_columns(columns: Columns, found: list[_Values], steps: list[list[float | None]]) -> None:
    metrics = [values.metric for values in found]
    if len(set(metrics)) < len(metrics):  # several patterns have the same metric, so the log's order is restored
        by_metric: dict[str, list[tuple[int, float, float | None]]] = {}
        for values, its_steps in zip(found, steps, strict=True):
            by_metric.setdefault(values.metric, []).extend(zip(values.starts, values.values, its_steps, strict=True))
        for metric, rows in by_metric.items():
            rows.sort(key=lambda row: row[0])
            _add(columns, metric, [step for _, _, step in rows], [value for _, value, _ in rows])
        return
    for values, its_steps in zip(found, steps, strict=True):
        _add(columns, values.metric, its_steps, values.values)


def _add(columns: Columns, metric: str, steps: list[float | None], values: list[float]) -> None:
    if values:
        if steps[0] is None:  # the first step is unknown, so others may be unknown, too
            steps = [math.nan if step is None else step for step in steps]
        add_column(columns, metric, cast("list[float]", steps), values, [math.nan] * len(values))


_COMMA = re.compile(r",\d")
_LINE = re.compile(r"[^\n]+")
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{3}|0[0-7]?|[1-9][0-9]?|.)"
_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*\]"
_OPENING = r"\(\?(?:P[<=>]|<[=!]|[:=!>#(]|[aiLmsux]*-?[aiLmsux]*[:)])?"
_TOKEN = re.compile(f"{_ESCAPE}|{_CLASS}|{_OPENING}|.", re.DOTALL)
_WITHOUT_NEWLINE = {r"\s": r"[^\S\n]", r"\W": r"[^\w\n]", r"\D": r"[^\d\n]", r"\A": "^", r"\Z": "$"}
_PLAIN_OPENINGS = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?P<", "(?P=", "(?(", "(?i:", "(?i)"}
_ANCHORS = {r"\b", r"\B"}


class LogMatches(NamedTuple):
    """Matches in order. `bases`: the starts of their lines in the text if it was searched line by line, else None."""

    matches: list[re.Match[str]]
    bases: list[int] | None

    def starts(self) -> list[int]:
        if self.bases is None:
            return [match.start() for match in self.matches]
        return [base + match.start() for base, match in zip(self.bases, self.matches, strict=True)]

    def texts(self, group: int) -> list[str]:
        return [match[group] for match in self.matches]

    def whole_texts(self, group: int) -> list[str]:
        """Return the texts of a group; for a part of a number with commas, the whole number, which is not parsed."""
        return [
            find_grouped(match, group) or text
            if text and "." not in text and match.string.startswith(",", match.end(group))
            else text
            for match, text in zip(self.matches, self.texts(group), strict=True)
        ]


def find_grouped(match: re.Match[str], group: int) -> str | None:
    """Return the number with commas of which the group matched a part; None if the comma separates two numbers: another
    group begins after it, or the match includes the whole number and is a different match without the comma."""
    text, start = match.string, match.start(group)
    whole = GROUPED_NUMBER.match(text, start) if match[group] else None
    comma = text.find(",", match.end(group), whole.end()) if whole else -1
    if whole is None or comma < 0:
        return None
    if any(comma < match.start(other) < whole.end() for other in range(1, match.re.groups + 1)):
        return None
    if match.end() >= whole.end():
        begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
        line = f"{text[begin:comma]}\0{text[comma + 1 : len(text) if end < 0 else end]}"
        without = match.re.search(line, match.start() - begin)
        if without is None or without.span(group) != (start - begin, match.end(group) - begin):
            return None
    return whole[0]


class LineRegex:
    """A regular expression whose matches never cross lines. `__init__` raises `re.error` if it is invalid."""

    def __init__(self, regex: str) -> None:
        self.regex = re.compile(regex)
        self._bulk = _compile_bulk(regex)

    def find(self, text: str) -> LogMatches:
        """Return every match in `text`, whose lines end with a newline."""
        if self._bulk is not None:
            return LogMatches(list(self._bulk.finditer(text)), None)
        pairs = [(line.start(), match) for line in _LINE.finditer(text) for match in self.regex.finditer(line[0])]
        return LogMatches([match for _, match in pairs], [base for base, _ in pairs])


@lru_cache(maxsize=256)  # the logs of all runs are read with the same few expressions
def _compile_bulk(regex: str) -> re.Pattern[str] | None:
    if None in (pieces := list(_rewrite(regex))):
        return None
    try:
        return re.compile("".join(piece for piece in pieces if piece is not None), re.MULTILINE)
    except re.error:
        return None


def _rewrite(regex: str) -> Iterator[str | None]:
    """Yield the expression in pieces, changed so that it matches no newline; None if a newline could still match."""
    for token in _TOKEN.findall(regex):
        if token in _WITHOUT_NEWLINE:
            yield _WITHOUT_NEWLINE[token]
        elif token.startswith("[^") and token[-2] != "-":
            yield f"{token[:-1]}\\n]"
        elif token.startswith("[^"):  # after a dash, an appended newline would end a range
            yield None if token[2] in "]-" else f"[^\\n{token[2:]}"
        elif token.startswith("(?"):  # a comment or flag changes what follows, so that lines are searched one by one
            yield token if token in _PLAIN_OPENINGS else None
        elif token[0] in "[\\\n":
            yield None if _matches_newline(token) else token
        else:
            yield token


def _matches_newline(token: str) -> bool:
    if token in _ANCHORS or re.fullmatch(r"\\[1-9][0-9]?", token):
        return False  # a back reference repeats a group, which matches no newline
    try:
        return re.compile(token).match("\n") is not None
    except re.error:
        return True

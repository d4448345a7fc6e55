"""report.jsonl: what the child of a benchmark said before it ended, however it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from assay.bench.test_log import parse_benchmark_entries
from assay.bench.values.execution import Story


def parse_story(text: str) -> Story:
    """A line that is cut off or is no JSON is a problem to be named, and the others count."""
    begin: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    reports: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = _parse_line(line)
        if fields is None:
            problems.append(f"line {number} of its report cannot be read")
        elif fields["kind"] == "begin":
            begin = fields
        elif fields["kind"] == "end":
            end = fields
        elif fields["kind"] == "report":
            reports.append(fields)
    return Story(begin, tuple(reports), end, tuple(problems))


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "kind" in fields else None


def load_story(path: str, tf_prefix: str | None = None) -> Story:
    """The child's lines, and where it has none, the file that TensorFlow's own report_benchmark wrote."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            story = parse_story(file.read())
    except OSError:
        story = Story()
    if story.reports or tf_prefix is None:
        return story
    reports, problems = _load_entries(tf_prefix)
    return Story(story.begin, tuple(reports), story.end, (*story.problems, *problems))


def _load_entries(prefix: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """All of them: the first entry of the first file is the benchmark's own, as in PerfZero, and what is wrong with
    another is not passed over."""
    folder, start = os.path.split(prefix)
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(start))
    except OSError:
        return [], []
    reports: list[Mapping[str, Any]] = []
    problems = []
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        try:
            reports += parse_benchmark_entries(data)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return reports, problems

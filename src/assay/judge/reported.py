"""What a benchmark reported, judged by itself: did it come to its end, is every number one, does it keep its bounds?"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.values.benchmark import NOT_REPORTED, BenchMetric, BenchResult, Ending, Story
from assay.values.verdict import Finding, VerdictKind

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')  # of a traceback
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[.\d]*)/|^<")
_PLAIN = ("iters", "cpu_time", "wall_time", "throughput")


def judge_report(name: str, story: Story, ending: Ending, *, is_command: bool = False) -> BenchResult:
    """A benchmark that never reports has `wall_time` -1 and has failed; a command's wall time is its duration."""
    merged = _merge(story.reports)
    if is_command:
        merged.plain = {**_measure_command(story, ending), **merged.plain}
    promoted, extra_findings = _promote_extras(name, merged.extras)
    metrics = tuple({metric.name: metric for metric in (*promoted, *merged.metrics.values())}.values())
    has_exception = _has_exception(story, ending, is_command)
    findings = [
        *_find_end(name, story, ending, is_command),
        *(Finding(VerdictKind.ERROR, name, problem) for problem in story.problems),
        *_find_silence(name, merged, has_exception),
        *_find_bad_numbers(name, merged, metrics),
        *(finding for metric in metrics for finding in _judge_bounds(name, metric)),
        *extra_findings,
    ]
    iters = merged.plain.get("iters")
    return BenchResult(
        name=name,
        succeeded=not has_exception and not findings,
        has_exception=has_exception,
        iters=int(iters) if iters is not None and math.isfinite(iters) else None,
        wall_time=merged.plain.get("wall_time", NOT_REPORTED),
        cpu_time=merged.plain.get("cpu_time"),
        throughput=merged.plain.get("throughput"),
        metrics=metrics,
        extras=merged.extras,
        samples={key: tuple(values) for key, values in merged.samples.items()},
        findings=tuple(findings),
    )


def _measure_command(story: Story, ending: Ending) -> dict[str, float]:
    """Duration and CPU time by our own wrapper; where that was killed, from the shell's start to its end."""
    end = story.end or {}
    found = {"wall_time": end.get("wall_s", ending.elapsed_s), "cpu_time": end.get("cpu_s")}
    return {name: value for name, value in found.items() if value is not None}


# ---------------------------------------------------------------- several reports of one method


@dataclass(slots=True)
class _Merged:
    plain: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, BenchMetric] = field(default_factory=dict)
    extras: dict[str, float | str] = field(default_factory=dict)
    samples: dict[str, Sequence[float]] = field(default_factory=dict)
    is_reported: bool = False


def _merge(reports: Sequence[Mapping[str, Any]]) -> _Merged:
    """Later ones add, or replace what has the same name. Reports under other names stand beside, with that name."""
    merged = _Merged(is_reported=bool(reports))
    main = reports[0].get("name") if reports else None
    for report in reports:
        prefix = "" if report.get("name") in (main, None) else f"{report['name']}."
        _add(merged, report, prefix)
    return merged


def _add(merged: _Merged, report: Mapping[str, Any], prefix: str) -> None:
    for key in _PLAIN:
        if key in report and not prefix:
            merged.plain[key] = report[key]
        elif key in report:
            merged.metrics[prefix + key] = BenchMetric(prefix + key, report[key])
    for fields in report.get("metrics") or ():
        name = prefix + str(fields["name"])
        merged.metrics[name] = BenchMetric(
            name, float(fields["value"]), fields.get("min_value"), fields.get("max_value")
        )
        if fields.get("samples"):
            merged.samples[name] = fields["samples"]
    merged.extras |= {prefix + key: value for key, value in (report.get("extras") or {}).items()}
    merged.samples |= {prefix + key: values for key, values in (report.get("samples") or {}).items()}


def _promote_extras(name: str, extras: Mapping[str, float | str]) -> tuple[list[BenchMetric], list[Finding]]:
    """An extra whose text is JSON with `value` and perhaps `succeeded` is a metric."""
    metrics, findings = [], []
    for key, text in extras.items():
        fields = _parse_extra(text)
        if fields is None:
            continue
        metrics.append(BenchMetric(key, float(fields["value"])))
        if fields.get("succeeded") is False:
            message = f"{key} says that it has not succeeded: {fields.get('description') or fields['value']}"
            findings.append(Finding(VerdictKind.FAIL, name, message, float(fields["value"])))
    return metrics, findings


def _parse_extra(text: float | str) -> dict[str, Any] | None:
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    value = fields.get("value")
    return fields if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ---------------------------------------------------------------- findings


def _has_exception(story: Story, ending: Ending, is_command: bool) -> bool:
    if ending.state != "done":
        return True
    return not is_command and (story.end is None or not story.end.get("ok"))


def _find_end(name: str, story: Story, ending: Ending, is_command: bool) -> Iterator[Finding]:
    error = (story.end or {}).get("error")
    if ending.state not in ("done", "failed"):
        yield Finding(VerdictKind.ERROR, name, _with_words(ending.reason or f"it is {ending.state}", ending))
    elif error and not (story.end or {}).get("ok"):
        kind = error.get("type", "")
        text = (
            error.get("message", "")
            if kind in ("NoSuchBenchmark", "SystemExit")
            else f"{kind}: {error.get('message', '')}{_find_place(error.get('lines') or ())}"
        )
        yield Finding(VerdictKind.ERROR, name, text)
    elif ending.state == "failed" and (story.end is None or is_command):
        yield Finding(VerdictKind.ERROR, name, _with_words(ending.reason or f"exit code {ending.exit_code}", ending))
    elif story.end is None and not is_command:
        yield Finding(VerdictKind.ERROR, name, "its process left before the method had returned (os._exit?)")


def _find_place(lines: Sequence[str]) -> str:
    """` (bench.py:12)`: where in the user's own code it was raised; what a library does inside is in the log."""
    frames = [match for line in lines if (match := _FRAME.match(line))]
    own = [match for match in frames if not _LIBRARY.search(match["file"])] or frames
    return f" ({own[-1]['file'].rpartition('/')[2]}:{own[-1]['line']})" if own else ""


def _with_words(reason: str, ending: Ending) -> str:
    return f"{reason}; its last words: {ending.last_words}" if ending.last_words else reason


def _find_silence(name: str, merged: _Merged, has_exception: bool) -> Iterator[Finding]:
    if not merged.is_reported and not merged.plain and not has_exception:
        yield Finding(VerdictKind.ERROR, name, "it never called report_benchmark")
    elif merged.is_reported and not merged.plain.keys() - {"iters"} and not merged.metrics and not has_exception:
        yield Finding(VerdictKind.ERROR, name, "it reported no number: neither wall_time nor throughput nor a metric")


def _find_bad_numbers(name: str, merged: _Merged, metrics: Sequence[BenchMetric]) -> Iterator[Finding]:
    numbers = [*merged.plain.items(), *((metric.name, metric.value) for metric in metrics)]
    for key, value in numbers:
        if not math.isfinite(value):
            yield Finding(VerdictKind.FAIL, name, f"{key} is {value}", value)
        elif key in ("wall_time", "cpu_time") and value < 0:
            yield Finding(VerdictKind.FAIL, name, f"{key} is negative: {value:g}", value)
    for key, values in merged.samples.items():
        bad = sum(not math.isfinite(value) for value in values)
        if bad:
            yield Finding(VerdictKind.FAIL, name, f"{bad} of {len(values)} samples of {key} are no numbers")


def _judge_bounds(name: str, metric: BenchMetric) -> Iterator[Finding]:
    low, high, value = metric.min_value, metric.max_value, metric.value
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        yield Finding(VerdictKind.ERROR, name, f"{metric.name}: a bound that is no number can never be kept")
    elif low is not None and high is not None and low > high:
        yield Finding(VerdictKind.ERROR, name, f"{metric.name}: its bounds contradict each other, {low:g} to {high:g}")
    elif low is not None and value < low:
        yield Finding(VerdictKind.FAIL, name, f"{metric.name} is {value:g}, below its minimum {low:g}", value, low)
    elif high is not None and value > high:
        yield Finding(VerdictKind.FAIL, name, f"{metric.name} is {value:g}, above its maximum {high:g}", value, high)

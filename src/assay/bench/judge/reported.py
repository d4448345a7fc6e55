"""The verdict on what a benchmark reported: did it finish, is every value finite, is every metric within its bounds?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.bench.values.execution import NOT_REPORTED, BenchMetric, BenchResult, ChildReport, ProcessEnd
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import parse_json
from assay.values.verdict import Finding, VerdictKind

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')  # a frame of a traceback
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3[.\d]*)/|^<")
_OURS = __file__.rpartition("/bench/judge/")[0] + "/"  # the folder of the installed package
_PLAIN_HINT = " (methods of a class without report_benchmark are timed automatically)"
_PLAIN = ("iters", "cpu_time", "wall_time", "throughput")


def judge_report(name: str, reported: ChildReport, ending: ProcessEnd, *, is_command: bool = False) -> BenchResult:
    """Judge the reports of a benchmark. Without any it failed, and `wall_time` is -1; a command's is its duration."""
    merged = _merge(reported.reports)
    measured = {}
    if is_command:  # measured by our wrapper; if that was killed, from the shell's start to its end
        end = reported.end or {}
        times = {"wall_time": end.get("wall_s", ending.elapsed_s), "cpu_time": end.get("cpu_s")}
        measured = {key: value for key, value in times.items() if value is not None and key not in merged.plain}
    merged.plain |= measured
    promoted = _promote_extras(merged.extras)
    metrics = tuple({metric.name: metric for metric in (*promoted, *merged.metrics.values())}.values())
    is_unfinished = not is_command and not (reported.end or {}).get("ok")
    has_exception = ending.state != "done" or is_unfinished
    skipped = "" if has_exception else str((reported.end or {}).get("skipped", ""))
    findings = [
        *_find_end(name, reported, ending, is_command),
        *(Finding(VerdictKind.ERROR, name, problem) for problem in reported.problems),
        *([] if has_exception or skipped else _find_silence(name, merged, reported)),
        *_find_bad_numbers(name, measured.items()),
    ]
    # every report is judged, also one of which a later report has replaced a part
    for number, (prefix, report) in enumerate(_find_prefixes(reported.reports), 1):
        where = f" (report {number} of {len(reported.reports)})" if len(reported.reports) > 1 else ""
        findings += [replace(found, message=found.message + where) for found in _judge_one(name, report, prefix)]
    iters = merged.plain.get("iters")
    return BenchResult(
        name=name,
        succeeded=not has_exception and not findings and not skipped,
        has_exception=has_exception,
        iters=int(iters) if iters is not None and math.isfinite(iters) else None,
        wall_time=merged.plain.get("wall_time", NOT_REPORTED),
        cpu_time=merged.plain.get("cpu_time"),
        throughput=merged.plain.get("throughput"),
        metrics=metrics,
        extras=merged.extras,
        samples={key: tuple(values) for key, values in merged.samples.items()},
        findings=tuple(findings),
        skipped=skipped,
    )


# ---------------------------------------------------------------- several reports of one method


@dataclass(slots=True)
class _Merged:
    plain: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, BenchMetric] = field(default_factory=dict)
    extras: dict[str, float | str] = field(default_factory=dict)
    samples: dict[str, Sequence[float]] = field(default_factory=dict)


def _merge(reports: Sequence[Mapping[str, Any]]) -> _Merged:
    """Merge reports: later ones add metrics, or replace those of the same name. Metrics of reports under other names
    are prefixed with that name; the first report's own name is the benchmark's."""
    merged = _Merged()
    has_others = len({report.get("name") for report in reports} - {None}) > 1
    for prefix, report in _find_prefixes(reports):
        _add(merged, report, prefix)
        if has_others and not prefix and report.get("name") is not None:
            _add(merged, {key: report[key] for key in _PLAIN if key in report}, f"{report['name']}.")
    return merged


def _find_prefixes(reports: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    main = reports[0].get("name") if reports else None
    for report in reports:
        yield "" if report.get("name") in (main, None) else f"{report['name']}.", report


def _add(merged: _Merged, report: Mapping[str, Any], prefix: str) -> None:
    for key in _PLAIN:
        if key in report and not prefix:
            merged.plain[key] = report[key]
        elif key in report:
            merged.metrics[prefix + key] = BenchMetric(prefix + key, report[key])
    for fields in report.get("metrics") or ():
        metric = _build_metric(fields, prefix)
        merged.metrics[metric.name] = metric
        if fields.get("samples"):
            merged.samples[metric.name] = fields["samples"]
    merged.extras |= {prefix + key: value for key, value in (report.get("extras") or {}).items()}
    merged.samples |= {prefix + key: values for key, values in (report.get("samples") or {}).items()}


def _build_metric(fields: Mapping[str, Any], prefix: str) -> BenchMetric:
    name = prefix + str(fields["name"])
    return BenchMetric(name, float(fields["value"]), fields.get("min_value"), fields.get("max_value"))


def _promote_extras(extras: Mapping[str, float | str]) -> list[BenchMetric]:
    """Turn an extra into a metric, if its text is JSON with `value` and perhaps `succeeded`."""
    found = {key: _parse_extra(text) for key, text in extras.items()}
    return [BenchMetric(key, float(fields["value"])) for key, fields in found.items() if fields is not None]


def _parse_extra(text: float | str) -> dict[str, Any] | None:
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return None
    try:
        fields = parse_json(text)
    except ValueError:
        return None
    value = fields.get("value")
    return fields if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ---------------------------------------------------------------- findings


def _find_end(name: str, reported: ChildReport, ending: ProcessEnd, is_command: bool) -> Iterator[Finding]:
    error = (reported.end or {}).get("error")
    if ending.state not in ("done", "failed"):
        yield Finding(VerdictKind.ERROR, name, _add_last_line(ending.reason or f"it is {ending.state}", ending))
    elif error and not (reported.end or {}).get("ok"):
        kind, text = error.get("type", ""), error.get("message", "")
        if kind not in ("NoSuchBenchmark", "SystemExit"):
            text = f"{kind}: {text}{_find_location(error.get('lines') or ())}"
        yield Finding(VerdictKind.ERROR, name, text)
    elif ending.state == "failed" and (reported.end is None or is_command):
        yield Finding(VerdictKind.ERROR, name, _add_last_line(ending.reason or f"exit code {ending.exit_code}", ending))
    elif reported.end is None and not is_command:
        yield Finding(VerdictKind.ERROR, name, "its process exited before the method had returned (os._exit?)")


def _find_location(lines: Sequence[str]) -> str:
    """Return where in the user's own code an error was raised, as in ` (bench.py:12)`; the log has the rest."""
    frames = [match for line in lines if (match := _FRAME.match(line))]
    # for code of a library, or ours, the reported position is the line that called it
    own = [m for m in frames if not _LIBRARY.search(m["file"]) and not m["file"].startswith(_OURS)] or frames
    return f" ({own[-1]['file'].rpartition('/')[2]}:{own[-1]['line']})" if own else ""


def _add_last_line(reason: str, ending: ProcessEnd) -> str:
    return f"{reason}; its last line of output: {ending.last_line}" if ending.last_line else reason


def _find_silence(name: str, merged: _Merged, reported: ChildReport) -> Iterator[Finding]:
    if not reported.reports and not merged.plain:
        left = ((reported.end or {}).get("error") or {}).get("message")  # no error: sys.exit(0)
        what = f"{left} before it reported anything" if left else f"it never called report_benchmark{_PLAIN_HINT}"
        yield Finding(VerdictKind.ERROR, name, what)
    elif reported.reports and not merged.plain.keys() - {"iters"} and not merged.metrics:
        yield Finding(VerdictKind.ERROR, name, "it reported no number: neither wall_time nor throughput nor a metric")


# ---------------------------------------------------------------- every number that was reported


def _judge_one(name: str, report: Mapping[str, Any], prefix: str) -> Iterator[Finding]:
    metrics = [_build_metric(fields, prefix) for fields in report.get("metrics") or ()]
    extras = {prefix + key: value for key, value in (report.get("extras") or {}).items()}
    promoted = [metric for metric in _promote_extras(extras) if metric.name not in {each.name for each in metrics}]
    numbers = [(prefix + key, report[key]) for key in _PLAIN if key in report]
    numbers += [(metric.name, metric.value) for metric in (*promoted, *metrics)]
    yield from _find_bad_numbers(name, numbers, prefix)
    samples = [(fields["name"], fields["samples"]) for fields in report.get("metrics") or () if fields.get("samples")]
    for key, values in (*samples, *(report.get("samples") or {}).items()):
        bad = sum(not math.isfinite(value) for value in values)
        if bad:
            yield Finding(VerdictKind.FAIL, name, f"{bad} of {len(values)} samples of {prefix}{key} are not numbers")
    for metric in metrics:
        yield from judge_bounds(name, metric)
    for key, text in extras.items():
        fields = _parse_extra(text)
        if fields is not None and fields.get("succeeded") is False:
            message = f"{key} reports that it has not succeeded: {fields.get('description') or fields['value']}"
            yield Finding(VerdictKind.FAIL, name, message, float(fields["value"]))


def _find_bad_numbers(name: str, numbers: Iterable[tuple[str, float]], prefix: str = "") -> Iterator[Finding]:
    for key, value in numbers:
        if not math.isfinite(value):
            yield Finding(VerdictKind.FAIL, name, f"{key} is {value}", value)
        elif key.removeprefix(prefix) == "wall_time" and value == 0:
            message = f"{key} is 0, which is not a result: nothing takes no time (too coarse a clock, or nothing ran)"
            yield Finding(VerdictKind.ERROR, name, message, value)
        elif key.removeprefix(prefix) in ("wall_time", "cpu_time") and value < 0:
            yield Finding(VerdictKind.FAIL, name, f"{key} is negative: {value:g}", value)


def judge_bounds(name: str, metric: BenchMetric) -> Iterator[Finding]:
    low, high, value = metric.min_value, metric.max_value, metric.value
    if any(bound is not None and math.isnan(bound) for bound in (low, high)):
        yield Finding(VerdictKind.ERROR, name, f"{metric.name}: a bound that is not a number can never be met")
    elif low is not None and high is not None and low > high:
        yield Finding(VerdictKind.ERROR, name, f"{metric.name}: its bounds contradict each other, {low:g} to {high:g}")
    elif low is not None and value < low:
        yield Finding(VerdictKind.FAIL, name, f"{metric.name} is {value:g}, below its minimum {low:g}", value, low)
    elif high is not None and value > high:
        yield Finding(VerdictKind.FAIL, name, f"{metric.name} is {value:g}, above its maximum {high:g}", value, high)

"""google-benchmark's JSON: repetitions, their aggregates, and counters of the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.bench.importers.result import FieldError, Fields, ImportedResult, Note, parse_moment, parse_number
from assay.bench.values.execution import NOT_REPORTED, WALL_TIME
from assay.values.machine import Machine

MARKS = {"context", "benchmarks"}
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_CENTRES = ("median", "mean")  # which aggregate represents all repetitions, the preferred one first
_SPREADS = ("stddev", "cv")
_OLD_AGGREGATE = re.compile(r"(.+)_(mean|median|stddev|cv)")  # before there was a run_type
_OWN_KEYS = frozenset(  # every other number is a counter
    (
        *("name", "run_name", "run_type", "family_index", "per_family_instance_index", "label", "threads"),
        *("repetitions", "repetition_index", "iterations", "aggregate_name", "aggregate_unit"),
        *("real_time", "cpu_time", "time_unit", "cpu_coefficient", "real_coefficient", "big_o", "rms"),
        *("error_occurred", "error_message", "skipped", "skip_message"),
    )
)


@dataclass(slots=True)
class _Group:
    """All rows of one benchmark."""

    runs: list[Fields] = field(default_factory=list)
    aggregates: dict[str, Fields] = field(default_factory=dict)


def parse_google(content: Mapping[str, Any]) -> Iterator[ImportedResult | Note]:
    """Repetitions of one benchmark are the samples of one execution. Where only their aggregates were kept, the median
    is used, or the mean."""
    file = Fields(content)
    context = file.part("context")
    for name, group in _group_rows(list(file.parts("benchmarks", "benchmark"))).items():
        found = _build_figure(name, group, context)
        if found is not None:
            yield found
        else:
            yield Note(f"{name}: {_describe_left_out(group)}")


def _group_rows(rows: Sequence[Fields]) -> dict[str, _Group]:
    names = {row.text("name") for row in rows if "run_type" not in row}
    groups: dict[str, _Group] = {}
    for row in rows:
        name, aggregate = _parse_name(row, names)
        group = groups.setdefault(name, _Group())
        if aggregate is None:
            group.runs.append(row)
        else:
            group.aggregates[aggregate] = row
    return groups


def _parse_name(row: Fields, names: set[str]) -> tuple[str, str | None]:
    """The benchmark, and which aggregate of it. In old files only the name shows that: mean and stddev must both exist,
    since a benchmark may have such a name itself."""
    name = row.need_text("name")
    kind = row.text("run_type")
    if kind == "aggregate":
        aggregate = row.text("aggregate_name") or name.rpartition("_")[2]
        return row.text("run_name") or name.removesuffix(f"_{aggregate}"), aggregate
    old = _OLD_AGGREGATE.fullmatch(name) if not kind else None
    if old and {f"{old[1]}_mean", f"{old[1]}_stddev"} <= names:
        return old[1], old[2]
    return row.text("run_name") or name, None


def _build_figure(name: str, group: _Group, context: Fields) -> ImportedResult | None:
    failed = next((row.text("error_message") or "it failed" for row in group.runs if _has_failed(row)), None)
    good = [row for row in group.runs if not _has_failed(row) and not row.values.get("skipped")]
    centre = next((kind for kind in _CENTRES if kind in group.aggregates), None)
    if good or failed is not None:
        return _build_of_runs(name, good, failed, context)
    return _build_of_aggregates(name, group.aggregates, centre, context) if centre else None


def _has_failed(row: Fields) -> bool:
    return bool(row.values.get("error_occurred"))


def _build_of_runs(name: str, good: Sequence[Fields], failed: str | None, context: Fields) -> ImportedResult:
    times = [_parse_time(row, "real_time") for row in good]
    cpu = [_parse_time(row, "cpu_time") for row in good if "cpu_time" in row]
    counters: dict[str, list[float]] = {}
    for row in good:
        for key, value in _parse_counters(row).items():
            counters.setdefault(key, []).append(value)
    several = {key: values for key, values in {WALL_TIME: times, **counters}.items() if len(values) > 1}
    return _place(
        ImportedResult(
            source="google-benchmark",
            method=name,
            at=parse_moment(context, "date"),
            wall_time=_median(times) if times else NOT_REPORTED,
            cpu_time=_median(cpu) if cpu else None,
            numbers={key: _median(values) for key, values in sorted(counters.items())},
            samples=several,
            iters=sum(row.whole("iterations") for row in good) or None,
            extras=_find_label(good),
            failure=failed,
        ),
        context,
    )


def _build_of_aggregates(name: str, rows: Mapping[str, Fields], centre: str, context: Fields) -> ImportedResult:
    """The spread of the repetitions is stored as a string: it has no history of its own."""
    row = rows[centre]
    extras = {"aggregate": centre, "repetitions": row.text("repetitions") or row.text("iterations")}
    if "stddev" in rows:
        extras["stddev_s"] = f"{_parse_time(rows['stddev'], 'real_time'):.6g}"
    return _place(
        ImportedResult(
            source="google-benchmark",
            method=name,
            at=parse_moment(context, "date"),
            wall_time=_parse_time(row, "real_time"),
            cpu_time=_parse_time(row, "cpu_time") if "cpu_time" in row else None,
            numbers=dict(sorted(_parse_counters(row).items())),
            extras={key: value for key, value in extras.items() if value} | _find_label([row]),
        ),
        context,
    )


def _place(figure: ImportedResult, context: Fields) -> ImportedResult:
    from dataclasses import replace

    setup = {
        "cpus": context.text("num_cpus"),
        "mhz": context.text("mhz_per_cpu"),
        "build": context.text("library_build_type"),
    }
    return replace(
        figure,
        setup=setup,
        machine=Machine(host=context.text("host_name"), logical_cpus=context.whole("num_cpus")),
    )


def _parse_time(row: Fields, key: str) -> float:
    return row.need_number(key) * row.choose("time_unit", _UNITS, "ns")


def _parse_counters(row: Fields) -> dict[str, float]:
    found = {key: parse_number(value) for key, value in row.values.items() if key not in _OWN_KEYS}
    return {key: value for key, value in found.items() if value is not None}


def _find_label(rows: Sequence[Fields]) -> dict[str, str]:
    """What the benchmark set with SetLabel."""
    label = next((row.text("label") for row in rows if row.text("label")), "")
    return {"label": label} if label else {}


def _describe_left_out(group: _Group) -> str:
    if group.runs:
        words = next((row.text("skip_message") for row in group.runs if "skip_message" in row), "")
        return f"it was skipped{': ' * bool(words)}{words}"
    kinds = ", ".join(group.aggregates)
    if not group.aggregates.keys() - set(_SPREADS):
        raise FieldError(f"{next(iter(group.aggregates.values())).where}: it has neither a median nor a mean")
    return f"{kinds} give its complexity or spread, not its time: there is no result"


def _median(values: Sequence[float]) -> float:
    import statistics

    return float(statistics.median(values))

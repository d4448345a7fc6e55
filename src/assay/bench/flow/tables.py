"""`assay bench table`: compares environments side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from assay.bench.flow.history import advise_all, find_doubt, list_invalid
from assay.bench.records import Triage
from assay.bench.values.comparison import DISTURBED, TAKEN_BY_ALL
from assay.bench.values.execution import BenchExecution, group_by, order_metrics
from assay.errors import NotFoundError, UsageError, check_known, did_you_mean
from assay.system.fast_dataclasses import dataclass, field

BENCHMARK = "benchmark"
_METHODS = (BENCHMARK, "method")
_OWN: Mapping[str, Callable[[BenchExecution], str | None]] = {
    BENCHMARK: lambda each: each.method,
    "label": lambda each: each.label,
    "commit": lambda each: (each.commit or "")[:12],
    "host": lambda each: each.machine.host,
    "method": lambda each: each.method,
    "source": lambda each: each.source,
    "trial": lambda each: str(each.trial),
    "framework_name": lambda each: each.framework.name if each.framework else None,
    "framework_version": lambda each: each.framework.version if each.framework else None,
    "branch": lambda each: each.git.branch if each.git else None,
}
_OTHER_KEYS = (  # keys of the environment, and of PerfZero's results
    *("framework", "cuda", "cudnn", "accelerator_model", "accelerator_driver", "accelerator_count", "cpu_model"),
    *("governor", "python", "platform_name", "system_name", "build_label", "ml_framework_build_label"),
    "execution_label",
)
_OTHER_NAMES = {"build_label": "ml_framework_build_label", "execution_label": "label"}  # flags in PerfZero's summary


@dataclass(frozen=True, slots=True)
class TableRow:
    keys: tuple[str, ...]
    count: int
    values: dict[str, tuple[float, ...]]  # metric → the values of executions that count
    aside: dict[str, tuple[float, ...]]  # values of disturbed executions: they are shown, and do not count


@dataclass(frozen=True, slots=True)
class EnvironmentTable:
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[TableRow, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason → number of executions, of any metric
    disturbed: tuple[str, ...] = ()  # metrics for which some executions do not count


def build_table(
    executions: Sequence[BenchExecution],
    triages: Sequence[Triage],
    method: str | None,
    by: Sequence[str],
    metrics: Sequence[str] | None,
    everything: bool = False,
) -> EnvironmentTable:
    """Build a table. Benchmarks are never mixed: if `method` matches several, each benchmark has its own rows."""
    keys = _check_keys(by, executions)
    measured = [e for e in executions if e.result.is_measured] or executions
    reported = list(dict.fromkeys(name for execution in measured for name in execution.numbers))
    check_known("metric", metrics or (), reported)
    names = list(metrics or order_metrics(reported))
    triaged = list_invalid(executions, triages)
    good: list[_Shown] = []
    left_out: Counter[str] = Counter()
    for execution in executions:
        if execution.void or not execution.result.is_measured:
            left_out[execution.void or "failed"] += 1
            continue
        doubts = {
            name: find_doubt(execution, name, triaged.get((execution.method, name), set()), everything)
            for name in names
            if name in execution.numbers
        }
        left_out.update({reason for reason in doubts.values() if reason})
        if any(reason is None or reason in DISTURBED for reason in doubts.values()):
            good.append((execution, doubts))
    if not good:
        none = "the only execution has not" if len(executions) == 1 else f"none of {len(executions)} executions"
        raise UsageError(
            f"{none} succeeded without disturbance: {describe_left_out(left_out)}",
            advise_all(left_out) or "run it again: assay bench run METHOD",
        )
    several = method is None or len({execution.method for execution in executions}) > 1
    keys = [BENCHMARK, *keys] if several and not set(keys) & set(_METHODS) else keys
    rows = tuple(_build_rows(good, keys, names))
    disturbed = tuple(name for name in names if any(row.aside[name] for row in rows))
    return EnvironmentTable(tuple(keys), tuple(names), rows, left_out, disturbed)


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Describe executions that were left out: `8 failed, 2 contaminated`."""
    return ", ".join(f"{count} {reason}" for reason, count in left_out.items())


def describe_table(table: EnvironmentTable, *, hint: str = "--all") -> str:
    """Describe executions that do not count: `left out: 8 failed, 2 contaminated (for wall_time: in brackets …)`."""
    if not table.left_out:
        return ""
    words = f"left out: {describe_left_out(table.left_out)}"
    if table.disturbed:
        words += f" (for {', '.join(table.disturbed)}: in brackets where none counts)"
    names = " and ".join(reason for reason in TAKEN_BY_ALL if reason in table.left_out)
    return f"{words}; {hint} takes {names} ones" if names and hint else words


_Shown = tuple[BenchExecution, Mapping[str, str | None]]  # an execution, and metric → why it does not count


def _build_rows(good: Sequence[_Shown], keys: Sequence[str], names: Sequence[str]) -> list[TableRow]:
    groups = group_by(good, lambda shown: tuple(value_of(shown[0], key) for key in keys))
    first_seen: dict[str, float] = {}  # commits are sorted by the time of their first execution, other keys by name
    for execution, _ in good:
        commit, at = value_of(execution, "commit"), execution.at or 0.0
        first_seen[commit] = min(at, first_seen.get(commit, at))

    def sort_by(values: tuple[str, ...]) -> list[tuple[float, str]]:
        return [(first_seen[v] if key == "commit" else 0.0, v) for key, v in zip(keys, values, strict=True)]

    return [
        TableRow(
            values,
            len(groups[values]),
            {name: _collect(groups[values], name, (None,)) for name in names},
            {name: _collect(groups[values], name, DISTURBED) for name in names},
        )
        for values in sorted(groups, key=sort_by)
    ]


def _collect(shown: Sequence[_Shown], name: str, reasons: Sequence[str | None]) -> tuple[float, ...]:
    """Collect the values of a metric whose reason not to count is one of `reasons`; None means values that count."""
    found = (execution.numbers[name] for execution, doubts in shown if name in doubts and doubts[name] in reasons)
    return tuple(filter(math.isfinite, found))


def _check_keys(by: Sequence[str], executions: Sequence[BenchExecution]) -> list[str]:
    recorded = [key for execution in executions for key in (*execution.setup, *_list_extra(execution))]
    known = list(dict.fromkeys([*_OWN, *_OTHER_KEYS, *recorded]))
    wanted = [key.strip() for key in by]
    for key in wanted:
        if key not in known:
            close, listed = did_you_mean(key, known), f"known: {', '.join(known)}"
            raise NotFoundError("column", key, known, f"{close}\n  {listed}" if close else listed)
    return wanted


def _list_extra(execution: BenchExecution) -> dict[str, str]:
    """List the strings and numbers that the command stored with the execution."""
    return {key: str(value) for key, value in execution.extra.items() if isinstance(value, str | int | float)}


def value_of(execution: BenchExecution, key: str) -> str:
    key = _OTHER_NAMES.get(key, key)
    if key in _OWN:
        return _OWN[key](execution) or "-"
    return execution.setup.get(key) or _list_extra(execution).get(key) or "-"

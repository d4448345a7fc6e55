"""`assay bench table`: set-ups side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.errors import NotFoundError, UsageError
from assay.flows.bench.archive import Complain, find_place, keep_quiet, load_executions
from assay.values.benchmark import BenchExecution

_OWN_KEYS = (
    "label",
    "commit",
    "host",
    "method",
    "source",
    "trial",
    "framework",
    "framework_name",
    "framework_version",
    "cuda",
    "cudnn",
    "accelerator_model",
    "accelerator_driver",
    "accelerator_count",
    "cpu_model",
    "governor",
    "python",
    "branch",
)


@dataclass(frozen=True, slots=True)
class TableRow:
    keys: tuple[str, ...]
    count: int
    values: dict[str, tuple[float, ...]]  # metric → one for each execution


@dataclass(frozen=True, slots=True)
class SetupTable:
    by: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[TableRow, ...]
    left_out: int  # failed or contaminated


def load_table(
    method: str | None,
    by: Sequence[str],
    metrics: Sequence[str] | None,
    root: str | None,
    everything: bool = False,
    complain: Complain = keep_quiet,
) -> SetupTable:
    executions = load_executions(find_place(root), method, complain)
    good = [
        e for e in executions if not e.result.has_exception and not e.refused and (everything or not e.contaminated)
    ]
    if not good:
        raise UsageError(
            f"none of {len(executions)} executions succeeded undisturbed", "take the disturbed ones as well: --all"
        )
    keys = _check_keys(by, good)
    names = _choose_metrics(metrics, good)
    groups: dict[tuple[str, ...], list[BenchExecution]] = {}
    for execution in good:
        groups.setdefault(tuple(value_of(execution, key) for key in keys), []).append(execution)
    rows = [
        TableRow(values, len(found), {name: _values(found, name) for name in names})
        for values, found in sorted(groups.items())
    ]
    return SetupTable(tuple(keys), tuple(names), tuple(rows), len(executions) - len(good))


def _check_keys(by: Sequence[str], executions: Sequence[BenchExecution]) -> list[str]:
    known = dict.fromkeys([*_OWN_KEYS, *(key for execution in executions for key in execution.setup)])
    for key in by:
        if key not in known:
            raise NotFoundError("column", key, known)
    return list(by)


def value_of(execution: BenchExecution, key: str) -> str:
    framework, machine = execution.framework, execution.machine
    own = {
        "label": execution.label,
        "commit": (execution.commit or "")[:12],
        "branch": execution.git.branch if execution.git else None,
        "host": machine.host,
        "method": execution.method,
        "source": execution.source,
        "trial": str(execution.trial),
        "framework_name": framework.name if framework else None,
        "framework_version": framework.version if framework else None,
    }
    return (own[key] if key in own else execution.setup.get(key)) or "-"


def _choose_metrics(metrics: Sequence[str] | None, executions: Sequence[BenchExecution]) -> list[str]:
    known = list(dict.fromkeys(name for execution in executions for name in execution.result.numbers))
    for name in metrics or ():
        if name not in known:
            raise NotFoundError("metric", name, known)
    first = [name for name in ("wall_time", "throughput") if name in known]
    return list(metrics or [*first, *(name for name in known if name not in first)])


def _values(found: Sequence[BenchExecution], name: str) -> tuple[float, ...]:
    numbers = (execution.result.numbers.get(name) for execution in found)
    return tuple(value for value in numbers if value is not None and math.isfinite(value))

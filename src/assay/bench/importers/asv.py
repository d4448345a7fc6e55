"""Imports asv's results: `results/MACHINE/COMMIT-ENVIRONMENT.json`, with machine.json and benchmarks.json."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import product
from typing import Any

from assay.bench.importers.result import FieldError, ForeignFields, build_imported, build_result, parse_number
from assay.bench.values.execution import NOT_REPORTED, WALL_TIME, BenchExecution, Machine
from assay.record.importers.sample import Sample
from assay.system.files import parse_json, read_text
from assay.values.series import ASV_TRACKED


def is_machine(content: Mapping[str, Any]) -> bool:
    """Return whether an object is machine.json, asv's description of the machine."""
    return content.keys() >= {"machine", "arch", "os"}


def is_benchmark_list(content: Mapping[str, Any]) -> bool:
    """Return whether an object is benchmarks.json, which lists benchmarks and has no result."""
    rest = [value for key, value in content.items() if key != "version"]
    return bool(rest) and all(isinstance(value, dict) and value.keys() >= {"name", "type"} for value in rest)


def parse_asv(sample: Sample) -> Iterator[BenchExecution | str]:
    """Parse asv's results in format 2 (columns) or 1 (values or objects): `null` is a failure, NaN was skipped."""
    file, path = ForeignFields(sample.content), sample.path
    columns = [str(column) for column in file.items("result_columns")]
    facts = load_neighbour(path, "machine.json", is_machine)
    own = {key: value for key, value in file.part("params").values.items() if value is not None}
    params = ForeignFields({**facts, **own}, "params")
    milliseconds = file.finite("date")
    setup = {
        "cpu_model": params.text("cpu"),
        "cpus": params.text("num_cpu"),
        "python": file.text("python") or params.text("python"),
        "environment": file.text("env_name"),
    }
    machine = Machine(host=params.text("machine"), os=params.text("os"), cpu_model=params.text("cpu"))
    kinds = load_neighbour(path, "benchmarks.json", is_benchmark_list)
    at, commit = milliseconds / 1000 if milliseconds else None, file.text("commit_hash") or None
    build = partial(build_imported, "asv", at=at, setup=setup, commit=commit, machine=machine)
    for name, raw in file.part("results").values.items():
        entry = dict(zip(columns, raw, strict=False)) if isinstance(raw, list) else raw
        fields = ForeignFields(entry if isinstance(entry, dict) else {"result": [entry]}, f"benchmark {name!r}")
        yield from _parse_results(name, fields, kinds.get(name) or {}, build)


def load_neighbour(path: str, name: str, is_right: Any) -> Mapping[str, Any]:
    """Load the file `name` from the folder of `path` or the folder above; empty if neither has a valid one."""
    folder = os.path.dirname(os.path.abspath(path))
    for candidate in (os.path.join(folder, name), os.path.join(os.path.dirname(folder), name)):
        try:
            content = _load_object(candidate, os.stat(candidate).st_mtime_ns)
        except (OSError, ValueError, RecursionError):
            continue
        if is_right(content):
            return content
    return {}


@lru_cache(maxsize=4)
def _load_object(path: str, _changed_ns: int) -> Mapping[str, Any]:
    """Load a JSON object from a file; the object is cached, since hundreds of results share one file."""
    content = parse_json(read_text(path, "strict"))
    return content if isinstance(content, dict) else {}


def _parse_results(
    name: str, fields: ForeignFields, kind: Mapping[str, Any], build: Callable[..., BenchExecution]
) -> Iterator[BenchExecution | str]:
    """Parse the results of one benchmark. `kind`: its entry in benchmarks.json."""
    params = fields.items("params")
    if any(not isinstance(each, list) for each in params):
        raise FieldError(f"{fields.where}: params is not a list of lists")
    sets = list(product(*params)) if params else []
    suffixes = [f"({', '.join(map(str, each))})" for each in sets] or [""]
    values = fields.values.get("result")
    values = values if isinstance(values, list) else [values] * (len(suffixes) if values is None else 1)
    if len(values) != len(suffixes):
        raise FieldError(f"{fields.where}: there are {len(values)} results for {len(suffixes)} sets of parameters")
    raw = fields.items("samples")
    metric, names = _name_metric(name, str(kind.get("type") or "")), kind.get("param_names")
    for index, (value, suffix) in enumerate(zip(values, suffixes, strict=True)):
        number = parse_number(value)
        if number is not None and math.isnan(number):
            yield f"{name}{suffix} was skipped by asv: there is no result"
            continue
        extra: dict[str, Any] = {}
        if sets:  # values by the names of their columns in benchmarks.json
            mine = sets[index]
            known = names if isinstance(names, list) and len(names) == len(mine) else range(1, len(mine) + 1)
            extra = {"parameters": {str(each): str(own) for each, own in zip(known, mine, strict=True)}}
        own = ForeignFields({"samples": raw[index] if index < len(raw) else None}, f"benchmark {name!r}")
        samples = own.numbers("samples")
        result = build_result(
            name + suffix,
            {metric: number} if number is not None and metric != WALL_TIME else {},
            wall_time=number if number is not None and metric == WALL_TIME else NOT_REPORTED,
            samples={metric: samples} if samples and number is not None else {},
            extras={"unit": str(kind["unit"])} if kind.get("unit") else {},
        )
        wrong = (
            "it failed when asv ran it" if value is None else f"its result is {value!r}, which is not a number"[:200]
        )
        yield build(result, failure=wrong if number is None else None, extra=extra)


def _name_metric(name: str, kind: str) -> str:
    """Return the metric's name by the kind in benchmarks.json, or else by the prefix of the name, as asv does."""
    own = name.rpartition(".")[2]
    match = re.match(r"(time|peakmem|mem|track)", own, re.IGNORECASE)
    begin = match[1].lower() if match else ""
    word = {"timeraw": "time", "memory": "mem", "peakmemory": "peakmem"}.get(kind, kind) or begin
    if word == "track":  # the name of the tracked value shows which direction is better
        return own if own.startswith(ASV_TRACKED) else f"{ASV_TRACKED}{own}"
    return {"time": WALL_TIME, "peakmem": "peak_memory", "mem": "memory"}.get(word, "value")

"""pytest-benchmark's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from assay.bench.importers.fields import Fields, parse_number
from assay.bench.importers.result import Figure
from assay.bench.importers.time import parse_moment
from assay.bench.values.execution import NOT_REPORTED, WALL_TIME
from assay.values.machine import Machine

MARKS = {"machine_info", "benchmarks"}


def parse_pytest(content: Mapping[str, Any]) -> Iterator[Figure]:
    file = Fields(content)
    machine = file.part("machine_info")
    model, cpus = _parse_cpu(machine)
    setup = {"cpu_model": model, "cpus": cpus, "python": ".".join(machine.text("python_version").split(".")[:2])}
    for bench in file.parts("benchmarks", "benchmark"):
        has_failed = bool(bench.values.get("has_error"))
        stats = bench.part("stats")
        samples = stats.numbers("data")
        yield Figure(
            source="pytest-benchmark",
            method=bench.text("fullname") or bench.need_text("name"),
            at=parse_moment(file, "datetime"),
            wall_time=NOT_REPORTED if has_failed else stats.need_number("median"),
            iters=stats.whole("rounds") * (stats.whole("iterations") or 1) or None,
            samples={WALL_TIME: samples} if samples else {},
            extras=_parse_extras(bench.part("extra_info").values),
            failure="it raised an error" if has_failed else None,
            commit=file.part("commit_info").text("id") or None,
            setup=setup,
            machine=Machine(host=machine.text("node"), cpu_model=model),
        )


def _parse_cpu(machine: Fields) -> tuple[str, str]:
    """An object since version 3.2, a text before."""
    if not isinstance(machine.values.get("cpu"), dict):
        return machine.text("cpu"), ""
    cpu = machine.part("cpu")
    return cpu.text("brand_raw") or cpu.text("brand"), cpu.text("count")


def _parse_extras(extras: Mapping[str, Any]) -> dict[str, float | str]:
    found = {key: (parse_number(value), value) for key, value in extras.items()}
    return {key: str(value) if number is None else number for key, (number, value) in found.items()}

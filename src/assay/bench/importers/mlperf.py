"""MLPerf's `:::MLLOG {"key": …, "value": …, "time_ms": …}` lines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

from assay.bench.importers.fields import FieldError, Fields, parse_number
from assay.bench.importers.result import Figure
from assay.bench.values.execution import NOT_REPORTED

_LINE = re.compile(r":::ML(?:LOG|Log|log|Pv\S*)\s+(\{.*\})")


def has_lines(text: str) -> bool:
    return ":::ML" in text and _LINE.search(text) is not None


def parse_mlperf(text: str, file: str) -> Iterator[Figure]:
    """The time from run_start to run_stop, and every number that was logged."""
    entries = [_parse_entry(number, match[1]) for number, match in enumerate(_LINE.finditer(text), 1)]
    last = {entry.need_text("key"): entry for entry in entries}
    start, stop = (last[key].finite("time_ms") if key in last else None for key in ("run_start", "run_stop"))
    status = last["run_stop"].part("metadata").text("status") if "run_stop" in last else ""
    series: dict[str, list[float]] = {}
    for entry in entries:
        value = parse_number(entry.values.get("value"))
        if value is not None:
            series.setdefault(entry.text("key"), []).append(value)
    benchmark, org, platform = (
        last[key].text("value") if key in last else ""
        for key in ("submission_benchmark", "submission_org", "submission_platform")
    )
    failure = None if status in ("", "success") else f"the run ended with status {status}"
    yield Figure(
        source="mlperf",
        method=f"mlperf.{benchmark or os.path.splitext(file)[0]}",
        at=start / 1000 if start is not None else None,
        wall_time=(stop - start) / 1000 if start is not None and stop is not None else NOT_REPORTED,
        numbers={key: values[-1] for key, values in series.items()},
        samples={key: values for key, values in series.items() if len(values) > 1},
        failure=failure or (None if stop is not None else "the run never stopped: there is no run_stop"),
        label=org or None,
        setup={"accelerator_model": platform},
    )


def _parse_entry(number: int, text: str) -> Fields:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise FieldError(f":::MLLOG line {number} is no JSON") from None
    return Fields(content, f":::MLLOG line {number}")

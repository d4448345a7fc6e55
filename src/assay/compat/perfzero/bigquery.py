"""One row per execution in a BigQuery table; whatever is a dictionary arrives as JSON text.

Columns: execution_timestamp TIMESTAMP and execution_id STRING, both required; ml_framework_info, benchmark_result,
benchmark_info, setup_info, system_info and process_info as STRING.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError

JSON_COLUMNS = (
    "ml_framework_info",
    "benchmark_result",
    "benchmark_info",
    "setup_info",
    "system_info",
    "process_info",
)
_TIMEOUT_S = 60.0
_RETRY_S = 120.0  # the library's own ten minutes would hold up the next benchmark
_EMULATOR = "BIGQUERY_EMULATOR_HOST"


# ---------------------------------------------------------------- the row


def build_row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a summary. Other keys have no column in the documented table and stay out."""
    missing = [name for name in ("execution_id", "execution_timestamp") if summary.get(name) in (None, "")]
    if missing:
        raise UsageError(f"the summary has no {' and no '.join(missing)}, which the table requires")
    row: dict[str, Any] = {
        "execution_id": str(summary["execution_id"]),
        "execution_timestamp": render_timestamp(summary["execution_timestamp"]),
    }
    for name in JSON_COLUMNS:
        row[name] = None if summary.get(name) is None else render_json(summary[name])
    return row


def render_timestamp(moment: object) -> str:
    """Seconds since 1970, or a time as text, in UTC as BigQuery reads it."""
    try:
        if isinstance(moment, str):
            parsed = datetime.fromisoformat(moment)
            stamp = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        elif isinstance(moment, datetime):
            stamp = moment
        else:
            stamp = datetime.fromtimestamp(float(moment), UTC)  # type: ignore[arg-type]  # anything else is refused below
    except (TypeError, ValueError, OverflowError, OSError):
        raise UsageError(f"execution_timestamp {moment!r} is no time") from None
    return stamp.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def render_json(value: object) -> str:
    """JSON as the standard has it. NaN and infinities become the text that CAST(… AS FLOAT64) reads back."""
    try:
        return json.dumps(_make_finite(value), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the summary cannot be written as JSON: {error}") from None


def _make_finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _make_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_make_finite(item) for item in value]
    return value


# ---------------------------------------------------------------- sending it


def insert_row(project: str, table: str, row: Mapping[str, Any]) -> None:
    """Into `dataset.table` of the project. Sending the same execution twice within a minute or so counts once."""
    if not project:
        raise UsageError("a BigQuery table needs the name of its project")
    if not re.fullmatch(r"[^.\s]+\.[^.\s]+", table):
        raise UsageError(f"{table!r} is no BigQuery table", "write DATASET.TABLE")
    place = f"{project}.{table}"
    with _named(place):
        client = _open_client(project)
        try:
            problems = client.insert_rows_json(
                place, [dict(row)], row_ids=[row["execution_id"]], retry=_build_retry(), timeout=_TIMEOUT_S
            )
        finally:
            client.close()
    if problems:
        raise InfrastructureError(f"BigQuery refused the row for {place}: {_render_problems(problems)}")


def _open_client(project: str) -> Any:
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import bigquery
    except ImportError as error:
        raise MissingExtraError("writing to BigQuery", "bigquery") from error
    # An emulator knows no logins. The client reads its address from the same variable.
    anonymous: Any = AnonymousCredentials
    credentials = anonymous() if os.environ.get(_EMULATOR) else None
    return bigquery.Client(project=project, credentials=credentials)


def _build_retry() -> Any:
    from google.cloud.bigquery import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_RETRY_S)


def _render_problems(problems: Sequence[Mapping[str, Any]]) -> str:
    details = [detail for problem in problems for detail in problem.get("errors", [])]
    texts = [
        f"{detail.get('location') or 'row'}: {detail.get('message') or detail.get('reason')}" for detail in details
    ]
    return "; ".join(texts) or str(list(problems))


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Google's errors as one line each: what the user wrote wrong, what is forbidden, what is down."""
    try:
        yield
    except AssayError:
        raise
    except Exception as error:
        cause = getattr(error, "cause", None)  # of the last of several tries
        raise _classify(place, cause if isinstance(cause, Exception) else error) from error


def _classify(place: str, error: Exception) -> AssayError:
    code, said = getattr(error, "code", None), getattr(error, "message", None) or str(error) or type(error).__name__
    first = str(said).strip().splitlines()[0]
    if code == 404:
        return UsageError(f"there is no BigQuery table {place}: {first}", f"make it: {render_make_command(place)}")
    if code in {401, 403} or _is_about_login(error):
        return UsageError(
            f"BigQuery does not let us write to {place}: {first}",
            "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS",
        )
    return InfrastructureError(f"BigQuery did not take the row for {place}: {first}")


def _is_about_login(error: Exception) -> bool:
    kind = type(error)
    return kind.__module__ == "google.auth.exceptions" and kind.__name__ != "TransportError"  # that is the network


def render_make_command(place: str) -> str:
    """What makes the table with its documented columns; `bq` separates the project by a colon."""
    columns = ["execution_timestamp:TIMESTAMP", "execution_id:STRING", *(f"{name}:STRING" for name in JSON_COLUMNS)]
    return f"bq mk --table {place.replace('.', ':', 1)} {','.join(columns)}"

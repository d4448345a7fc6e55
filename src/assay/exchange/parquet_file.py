"""Columns with types as a Parquet file, by pyarrow. Written batch by batch: the file may be larger than the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from assay.errors import InfrastructureError, MissingExtraError
from assay.system.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP_ROWS = 100_000  # small row groups make a large file that is slow to read

ColumnKind = Literal["text", "integer", "number", "flag", "time", "texts"]


def write_parquet(path: str, columns: Mapping[str, ColumnKind], batches: Iterable[Sequence[Sequence[Any]]]) -> None:
    """Each batch holds the values of every column. Times are seconds since the epoch, None is a missing value."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("assay export parquet", "parquet") from error

    types: dict[ColumnKind, pa.DataType] = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("us", tz="UTC"),
        "texts": pa.list_(pa.string()),
    }
    schema = pa.schema([pa.field(name, types[kind]) for name, kind in columns.items()])
    try:
        with replacing(path) as aside, parquet.ParquetWriter(aside, schema) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in batches:
                arrays = [_build_array(pa, column, values) for column, values in zip(schema, batch, strict=True)]
                waiting.append(pa.record_batch(arrays, schema=schema))
                if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting, schema))
                    waiting = []
            writer.write_table(pa.Table.from_batches(waiting, schema))
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror or error}") from error


def _build_array(arrow: Any, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    if arrow.types.is_timestamp(field.type):
        ticks = [None if value is None or value != value else round(value * 1e6) for value in values]  # noqa: PLR0124 NaN
        return arrow.array(ticks, arrow.int64()).cast(field.type)
    if arrow.types.is_string(field.type):  # half of a surrogate pair cannot be encoded
        values = [value if value is None else value.encode("utf-8", "replace").decode() for value in values]
    return arrow.array(values, field.type)

"""Moments in the files of other tools."""

from __future__ import annotations

from datetime import UTC, datetime

from assay.bench.importers.fields import FieldError, Fields


def parse_moment(fields: Fields, key: str) -> float | None:
    """ISO 8601; one without a zone is taken as UTC. None where there is none."""
    text = fields.text(key)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise FieldError(f"{fields.where}: {key} is {text!r}, which is no date".removeprefix(": ")) from None

"""JSON for people's scripts: valid everywhere, and nothing lost on the way."""

from __future__ import annotations

import json
import math
from typing import Any

from assay.show.formatting import escape_json
from assay.values.document import Document


def render_document(document: Document) -> str:
    return render_facts(document.facts)


def render_facts(value: Any) -> str:
    """JSON has no NaN: it becomes the string "NaN", never a silent null."""
    return escape_json(json.dumps(to_json(value), indent=2, ensure_ascii=False, default=str, allow_nan=False)) + "\n"


def to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value

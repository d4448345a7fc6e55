"""JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from assay.show.json_text import render_facts, to_json


def test_what_is_not_finite_becomes_a_word() -> None:
    value = {"a": math.nan, "b": [math.inf, (-math.inf,)], 3: Path("/x")}
    assert json.loads(render_facts(value)) == {"a": "NaN", "b": ["Infinity", ["-Infinity"]], "3": "/x"}


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_everything_else_stays(value: object) -> None:
    assert to_json(value) == value
    assert json.loads(render_facts(value)) == value

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.bench import records as bench_records
from assay.errors import ExitCode, FormatError
from assay.models import records as model_records
from assay.record.formats import FORMATS, VERSION_KEY, Content, Format, read_versioned, render_versioned

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)

ALL = {**FORMATS, **bench_records.FORMATS, **model_records.FORMATS}


THING = {"thing": Format(4, "delete it")}


def read(text: str | bytes) -> Content:
    return read_versioned(text, "thing", "runs/a/thing.json", THING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ('{"format": 4,\n "x": }', "line 2, column 7"),
        ('{"format": 4', "line 1, column 13"),
        (b'{"format": 4, "x": "\xff"}', "it is not text"),
        ("[1, 2]", "does not hold a JSON object"),
        ("null", "does not hold a JSON object"),
        ("{}", 'no version under "format"'),
        ('{"format": "4"}', 'no version under "format"'),
        ('{"format": true}', 'no version under "format"'),
        ('{"format": 4.0}', 'no version under "format"'),
        ('{"format": 0}', 'no version under "format"'),
        ("[" * 200_000, "nested too deeply"),
        ('{"format": 4, "x": ' + "9" * 5000 + "}", "a number with thousands of digits"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(text: str | bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(text)
    assert caught.value.message.startswith("runs/a/thing.json is damaged: ")
    assert message in caught.value.message
    assert caught.value.hint == "delete it"
    assert caught.value.exit_code is ExitCode.INTERNAL


def test_a_file_that_is_too_new_asks_for_an_upgrade() -> None:
    with pytest.raises(
        FormatError, match=r"thing\.json: a newer Assay wrote .*format 5; this one reads up to 4"
    ) as caught:
        read('{"format": 5}')
    assert caught.value.hint == "upgrade: pip install --upgrade assay"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("text", ["", '{"format": 999}'])
def test_every_kind_says_what_to_do(kind: str, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_versioned(text, kind, "some/file", ALL)
    assert "some/file" in caught.value.message
    assert len(caught.value.hint or "") > 10


def test_keys_that_are_not_known_are_left_alone() -> None:
    assert read('{"format": 4, "extra": [1]}') == {"extra": [1]}


@given(st.dictionaries(st.text(max_size=6).filter(lambda key: key != VERSION_KEY), json_like, max_size=4))
def test_what_is_written_is_read(content: dict[str, Any]) -> None:
    text = render_versioned(content, "run")
    assert read_versioned(text, "run", "run.json") == content
    assert read_versioned(text.encode(), "run", "run.json") == content


def test_the_version_stands_first_and_the_text_ends_its_line() -> None:
    assert render_versioned({"id": "a"}, "run") == '{"format": 1, "id": "a"}\n'


def test_a_key_that_hides_the_version_is_refused() -> None:
    with pytest.raises(ValueError, match="taken by the version"):
        render_versioned({"format": 3}, "run")

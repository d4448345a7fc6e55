from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InfrastructureError
from assay.system.json_lines import append_line, load_lines


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    path = str(tmp_path / "log.jsonl")
    assert load_lines(path) == []
    for number in range(3):
        append_line(path, {"number": number})
    assert load_lines(path) == [{"number": 0}, {"number": 1}, {"number": 2}]


@pytest.mark.parametrize("torn", ['{"number": 9', "{", '{"number": "\u00e4', "nonsense"])
def test_a_torn_line_costs_itself_alone(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    append_line(str(path), {"number": 1})
    path.write_bytes(path.read_bytes() + torn.encode()[:-1])
    append_line(str(path), {"number": 2})
    assert load_lines(str(path)) == [{"number": 1}, {"number": 2}]


def test_what_is_no_object_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'[1]\n3\n\n\xff\xfe\n{"a": 1}\nnull\n')
    assert load_lines(str(path)) == [{"a": 1}]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot be written"):
        append_line(str(tmp_path / "nowhere" / "log.jsonl"), {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(InfrastructureError):
        append_line(str(tmp_path / "folder"), {})


@settings(max_examples=15, deadline=None)
@given(facts=st.lists(st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none(), st.booleans()))))
def test_anything_can_be_kept(facts: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "log.jsonl"
    for each in facts:
        append_line(str(path), each)
    assert load_lines(str(path)) == json.loads(json.dumps(facts))

"""YAML with positions: what is broken is reported with its place, and the two flavours read as their users expect."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from assay.config import source
from assay.config.source import Problems, find_duplicates, load_text, parse_documents
from assay.errors import ConfigError, UsageError
from assay.values.study import Position


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_documents(text, "f.yml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "f.yml:1:1", "empty"),
        ("# only a comment\n", "f.yml:1:1", "empty"),
        ("---\n---\n", "f.yml:1:1", "empty"),
        ("- a\n- b\n", "f.yml:1:1", "top level is a list"),
        ("just words\n", "f.yml:1:1", "top level is a single value"),
        ("a: b: c\n", "f.yml:1:5", "broken YAML"),
        ("a:\n\tb: 1\n", "f.yml:2:1", "tab"),
        ("a: 1\n\t\n", "f.yml:2:1", "a tab cannot indent"),
        ("a: [1, 2\nb: 3\n", "f.yml:1:4", "this [ is not closed"),
        ("params: {a: [1, 2", "f.yml:1:13", "bracket is opened and never closed"),
        ("params: {a: [1, 2\n\n\n", "f.yml:1:13", "bracket is opened and never closed"),
        ("a: [1]\nparams: {\n", "f.yml:2:9", "this { is not closed"),
        ("a: x\nparams: {a: [1, 2}\n", "f.yml:2:18", "bracket is opened and never closed"),
        ("a: 'open\n", "f.yml:1:4", "this ' is not closed"),
        ("a: [1]]\n", "f.yml:1:7", "broken YAML"),
        ("a: @home\n", "f.yml:1:4", "into quotes"),
        ("a: *gone\n", "f.yml:1:4", "alias"),
        ("a: x\nb: \x07\n", "f.yml:2:4", "not allowed"),
        ("a: &a [*a]\n", "f.yml:1:4", "contains itself"),
        ("? [1, 2]\n: x\n", "f.yml:1:3", "key must be a single value"),
        ("a: {<<: 3}\n", "f.yml:1:9", "<< takes a mapping"),
    ],
)
def test_broken_files_are_refused_with_their_place(text, place, words):
    message = refusal(text)
    assert message.startswith(place)
    assert words in message


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("b: [1, 2\n", "f.yml:2:4"),
        ("b: *gone\n", "f.yml:2:4"),
        ("b: @home\n", "f.yml:2:4"),
        ("b:\n\t- c\n", "f.yml:3:1"),
        ("b: " + 101 * "[", "f.yml:2:103"),
        ("? [1, 2]\n: x\n", "f.yml:2:3"),
        ("b", "f.yml:2:2"),
    ],
)
def test_lines_are_counted_as_editors_count_them(text, place, character):
    """YAML also ends a line at these characters."""
    start = f'a: "x{character}y"\n'
    assert refusal(start + text).startswith(place)
    (node,) = parse_documents(f"{start}b: [{{c: 1}}]\n", "f.yml")
    (inner,) = node.find("b").elements()[0].items()
    assert inner.position == Position("f.yml", 2, 6)


@given(st.text(alphabet="ab: \n[]{}'\"-,#&*", max_size=40))
def test_no_place_lies_behind_the_end_of_the_file(text):
    try:
        parse_documents(text, "f.yml")
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.position.line <= max(1, len(text.splitlines()))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused_and_does_not_crash_the_parser(opening):
    text = opening * 50_000 + "x" if opening in "- ? " else "a: " + opening * 50_000
    assert "nested too deeply" in refusal(text)


def test_deep_indentation_is_refused():
    assert "nested too deeply" in refusal("".join(" " * level + "a:\n" for level in range(200)))


def test_many_brackets_that_are_not_nested_are_fine():
    text = "\n".join(f"p{number}: [1, {{a: 2}}]" for number in range(500)) + "\nx: '" + "[" * 300 + "'\n"
    assert parse_documents(text, "f.yml")[0].value["x"] == "[" * 300


def test_an_alias_bomb_is_refused_without_being_unfolded():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 30)]
    assert "unfold into" in refusal("\n".join(lines))


def test_aliases_share_one_node():
    node = parse_documents("a: &x [1, 2]\nb: *x\n", "f.yml")[0]
    assert node.find("a") is node.find("b")
    assert node.value == {"a": [1, 2], "b": [1, 2]}


NATIVE = {
    "1e-4": 1e-4, "1E5": 1e5, "5.": 5.0, ".5": 0.5, "-1": -1, "+2": 2, "0": 0, "0x10": 16, "0o17": 15, "1.0": 1.0,
    "true": True, "False": False, "~": None, "null": None, "": None, ".inf": float("inf"), "-.inf": float("-inf"),
    "!!bool yes": True, "!!bool Off": False, "!!bool x": "x", "no": "no", "yes": "yes", "on": "on", "off": "off", "y": "y", "007": "007", "1_000": "1_000", "1:30": "1:30",
    "2020-01-01": "2020-01-01", "None": "None", "'1'": "1", "0b1": "0b1", "-": "-", "1e": "1e", ".": ".",
    "9" * 5000: "9" * 5000, ".nan": float("nan"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NATIVE.items())
def test_native_scalars(text, value):
    if text == "-":
        text, value = "'-'", "-"
    found = parse_documents(f"a: {text}\n", "f.yml")[0].value["a"]
    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize(
    "text",
    [
        *("1e-4", "5e-3", "1.e-4", "no", "on", "007", "1_000", "1:30", "None", "~", "''", "0.10", "true", ".5"),
        *("0x1F", "+1"),
    ],
)
def test_originals_scalars_are_as_pyyaml_reads_them(text):
    found = parse_documents(f"a: {text}\n", "f.yml", flavour="originals")[0].value["a"]
    expected = yaml.safe_load(f"a: {text}\n")["a"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("text", "value"), [("2020-01-02", "2020-01-02"), ("2020-99-99", "2020-99-99"), ("!own x", "x")]
)
def test_originals_scalars_that_json_does_not_know_become_text(text, value):
    assert parse_documents(f"a: {text}\n", "f.yml", flavour="originals")[0].value["a"] == value


def test_originals_keys_are_text():
    assert parse_documents("{5: a, on: b}\n", "f.yml", flavour="originals")[0].value == {"5": "a", "True": "b"}


def test_merge_keys_give_way_to_own_keys_and_to_the_first_named():
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 9}\n"
    assert parse_documents(text, "f.yml")[0].value["c"] == {"x": 9, "y": 1, "z": 2}
    assert parse_documents(text, "f.yml")[0].value["c"] == yaml.safe_load(text)["c"]


def test_the_last_of_two_equal_keys_counts_and_both_are_known():
    node = parse_documents("a: 1\nb: {c: 1, d: [{e: 1, e: 2}], c: 2}\na: 3\n", "f.yml")[0]
    assert node.value == {"a": 3, "b": {"c": 2, "d": [{"e": 2}]}}
    found = dict(find_duplicates(node))
    assert found == {
        "a": Position("f.yml", 3, 1),
        "b.c": Position("f.yml", 2, 30),
        "b.d[0].e": Position("f.yml", 2, 22),
    }


def test_a_key_that_overrides_a_merged_one_is_no_duplicate():
    node = parse_documents("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", "f.yml")[0]
    assert not list(find_duplicates(node))


def test_positions_count_characters_from_one():
    node = parse_documents("ключ: x\nb:\n  - é: 'ö'\n    f: 2\n", "f.yml")[0]
    second = node.items()[1]
    inner = second.node.elements()[0].items()
    assert str(second.position) == "f.yml:2:1"
    assert [str(entry.position) for entry in inner] == ["f.yml:3:5", "f.yml:4:5"]
    assert str(inner[0].node.position) == "f.yml:3:8"


def test_documents_may_be_several_and_some_of_them_empty():
    nodes = parse_documents("---\na: 1\n---\n---\nb: 2\n", "f.yml")
    assert [node.value for node in nodes] == [{"a": 1}, None, {"b": 2}]
    assert nodes[1].is_null


def test_the_reader_works_without_libyaml(monkeypatch):
    source.loader_of.cache_clear()
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    try:
        assert issubclass(source.loader_of("native"), yaml.SafeLoader)
        assert parse_documents("a: [1e-4, no]\n", "f.yml")[0].value == {"a": [1e-4, "no"]}
        assert "tab" in refusal("a:\n\tb: 1\n")
    finally:
        source.loader_of.cache_clear()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4))
def test_what_is_dumped_as_yaml_is_read_back(value):
    text = yaml.safe_dump(value)
    if all(node.is_null for node in _documents(text)):
        return
    assert parse_documents(text, "f.yml", flavour="originals")[0].value == value


def _documents(text):
    return parse_documents(text, "f.yml", flavour="originals")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_position(text):
    try:
        nodes, message = parse_documents(text, "f.yml"), ""
    except ConfigError as error:
        nodes, message = [], str(error)
    assert message.startswith("f.yml:") or any(node.kind == "mapping" for node in nodes)


def test_problems_are_raised_together_in_the_order_of_the_file():
    problems = Problems()
    problems.raise_if_any()
    problems.add("second", "b", Position("f", 2, 1))
    problems.add("first", "a", Position("f", 1, 9), "do this")
    problems.add("second", "b", Position("f", 2, 1))
    with pytest.raises(ConfigError) as caught:
        problems.raise_if_any()
    assert str(caught.value) == "f:1:9 a: first\n    do this\nf:2:1 b: second"


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path):
    (tmp_path / "f.yml").write_bytes("a: 1\nö: ".encode() + b"\xff\n")
    with pytest.raises(ConfigError, match=r"^f.yml:2:4 the byte 0xff is not UTF-8"):
        load_text(str(tmp_path / "f.yml"), "f.yml")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "f.yml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_text(str(tmp_path / "f.yml"), "f.yml") == "a: 1\n"


def test_a_path_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in [
        ("gone", "there is no file"),
        (".", "folder"),
        ("", "an empty text"),
        ("file/x", "there is no file"),
        ("a\0b", "cannot be read"),
    ]:
        with pytest.raises(UsageError, match=words):
            load_text(str(tmp_path / path), path)

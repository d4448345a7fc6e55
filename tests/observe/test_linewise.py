"""The fast search over blocks must find what a search line by line finds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.observe.linewise import LineRegex

BULK = [
    r"step (\d+)",
    r"loss:\s+(\S+)",
    r"loss\W+(\d)",
    r"a\D*(\d)",
    r"\[([^]]+)\]",
    r"a([^,]*),",
    r"^(\d+)$",
    r"\A(\d+)\Z",
    r"(?<!\s)a(\d)",
    r"(?<=\s)a(\d)",
    r"a(\d)(?!\s)",
    r"a(\d)(?=\s|$)",
    r"(?i:LOSS) (\d)",
    r"(a)\1(\d)",
    r"(?P<x>a+)(?P=x)?(\d)",
    r"é+(\d)",
    r"[éa]+(\d)",
    r"[^\sa]+(\d)",
    r"[^a-](\d)",
    r"\bloss\b (\d)",
    r"a{1,2}(\d)",
    r"(?>a+)(\d)",
]
BY_LINE = [
    r"a[\s,]*(\d)",
    r"a[\W](\d)",
    r"(?s)a.*?(\d)",
    r"(?x) a \s (\d)",
    r"a\n(\d)",
    r"a\x0a(\d)",
    r"a[\x00-\x20](\d)",
    r"a(?#[^ignored)\s(\d)",
    r"[^-a-](\d)",
]


def find_by_line(regex: str, text: str) -> list[tuple[int, str]]:
    found = []
    for line in re.finditer(r"[^\n]+", text):
        found += [(line.start() + match.start(), match[match.re.groups]) for match in re.finditer(regex, line[0])]
    return found


def find(regex: str, text: str) -> list[tuple[int, str]]:
    compiled = LineRegex(regex)
    found = compiled.find(text)
    return list(zip(found.starts(), found.texts(compiled.regex.groups), strict=True))


@pytest.mark.parametrize("regex", BULK)
def test_expressions_that_cannot_see_a_newline_run_over_blocks(regex):
    assert LineRegex(regex).is_bulk


@pytest.mark.parametrize("regex", BY_LINE)
def test_expressions_that_might_see_a_newline_run_by_line(regex):
    assert not LineRegex(regex).is_bulk


@given(
    st.sampled_from(BULK + BY_LINE),
    st.lists(
        st.sampled_from(["a", "aa", "é", " ", "\t", "\n", "\n\n", "1", "23", ",", "[", "]", "-", "loss", ":", "step "]),
        max_size=30,
    ).map("".join),
)
def test_blocks_and_lines_give_the_same_matches(regex, text):
    # a newline at the very end makes no line: an empty match there is ignored by the reader
    assert [pair for pair in find(regex, text + "\n") if pair[1]] == [
        pair for pair in find_by_line(regex, text) if pair[1]
    ]


def test_a_match_never_spans_lines():
    assert find(r"loss\s+(\d+)", "loss\n5\nloss 6\n") == [(7, "6")]
    assert find(r"x([^,]*)", "x1\n2,\n") == [(0, "1")]


def test_a_newline_inside_a_negated_class_that_begins_with_a_bracket():
    assert find(r"[^]]+(\d)", "a]b1\nc2\n") == [(2, "1"), (5, "2")]


def test_a_broken_expression_is_refused():
    with pytest.raises(re.error):
        LineRegex("(")

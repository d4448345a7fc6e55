"""Command templates: words, placeholders, and parts that are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import UsageError
from assay.models.backends.template import parse_template

KNOWN = ("model", "artifact", "out", "ir_dir", "profile_dir", "chip", "flags", "case")
VALUES = {
    "model": "m.onnx",
    "artifact": "a b",
    "out": "o",
    "ir_dir": None,
    "profile_dir": None,
    "chip": None,
    "flags": ["-x", "-y z"],
    "case": "",
}


def expand(content, **values):
    return parse_template(content, KNOWN, "target sim: compile").expand({**VALUES, **values})


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ([], "is empty"),
        (3, "must be a text or a list"),
        ([1], "1 is neither a word nor a list of words"),
        ([[]], r"\[\] is neither"),
        ([["a", 1]], "is neither"),
        ("cc 'x", "cannot be split into words"),
        ("cc {modell}", r"{modell} is not known here\n  did you mean 'model'"),
        ("cc {inputs}", r"{inputs} is not known here\n  known: artifact, case"),
        ("cc {", "a lone brace in '{'"),
        ("cc x}", "a lone brace in 'x}'"),
        ("cc '{\"a\": 1}'", "write {{ and }} for braces"),
        ("cc [--a {ir_dir}", "the bracket before '--a' is never closed"),
        ("cc [--fast]", r"\[--fast\] asks for nothing that may be absent"),
        ("cc [1,2]", r"write \[\[ \]\] for brackets"),
    ],
)
def test_a_template_that_is_wrong_says_where_and_what(content, words):
    with pytest.raises(UsageError, match=words) as caught:
        expand(content)
    assert str(caught.value).startswith("target sim: compile")


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize(
    ("content", "argv"),
    [
        ("cc {model} -o {artifact}", ["cc", "m.onnx", "-o", "a b"]),
        (["cc", "{model}", "-o={artifact}"], ["cc", "m.onnx", "-o=a b"]),
        ("cc 'two words' \"{model}\"", ["cc", "two words", "m.onnx"]),
        ("cc {flags} end", ["cc", "-x", "-y z", "end"]),
        ("cc --all={flags}", ["cc", "--all=-x -y z"]),
        ("cc {{model}} {{}}", ["cc", "{model}", "{}"]),
        ("cc --dump={ir_dir} {model}", ["cc", "m.onnx"]),
        ("cc [--dump {ir_dir} --all] {model}", ["cc", "m.onnx"]),
        ("cc [--dump={ir_dir}] [--chip {chip}]", ["cc"]),
        (["cc", ["--dump", "{ir_dir}"], "{model}"], ["cc", "m.onnx"]),
        ("cc [[1,2]] --s=[1,2]", ["cc", "[1,2]", "--s=[1,2]"]),
        ("cc '{case}' x", ["cc", "", "x"]),
    ],
)
def test_words(content, argv):
    assert expand(content) == argv


@pytest.mark.parametrize(
    "content", ["cc [--dump {ir_dir} --all] {model}", ["cc", ["--dump", "{ir_dir}", "--all"], "{model}"]]
)
def test_a_part_is_there_when_its_value_is(content):
    assert expand(content, ir_dir="d") == ["cc", "--dump", "d", "--all", "m.onnx"]


def test_no_flags_are_no_words():
    assert expand("cc {flags} {model}", flags=[]) == ["cc", "m.onnx"]


def test_values_are_never_expanded_again():
    assert expand("cc {model}", model="{artifact} [x] 'y") == ["cc", "{artifact} [x] 'y"]


@given(st.text(), st.lists(st.text(), max_size=4))
def test_any_value_is_one_word_and_any_list_is_its_words(value, flags):
    assert expand(["cc", "{model}", "{flags}"], model=value, flags=flags) == ["cc", value, *flags]


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="{}")), min_size=1, max_size=5))
def test_plain_words_of_a_list_stay_as_they_are(words):
    assert expand(words) == words

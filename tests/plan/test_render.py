"""Commands as bash text: bash itself is asked what arrives."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.plan.render import Reference, render_command
from assay.values.layout import show_command
from assay.values.study import CommandTemplate, Flag, Piece, Placeholder, Position, ShellText, quote_inside

HOSTILE = [
    "", " ", "a b", "it's", 'say "x"', "$HOME", "${HOME}", "`date`", "$(date)", "\\", "a\\", "\\\\'", "a\nb", "\n", "*",
    "~", "!", "!!x", "#x", "-n", "--", ";", "a;b", "&", "|", ">x", "{a,b}", "[a]", "ü", "学習", "\t", "'\"'\"'", "\\$x", "\\`",
    "%s", "\x7f", "a\r\n", "🙂", "LOGDIR", "$'x'", "a'b\"c$d`e\\f",
]  # fmt: skip


def template(*pieces: Piece) -> CommandTemplate:
    return CommandTemplate("train", pieces, position=Position("f.yml", 3, 5))


def render(*pieces: Piece, **params) -> str:
    return render_command(template(*pieces), params)


def received(text: str, **env: str) -> list[str]:
    """The words that a program gets from bash."""
    script = "show() { printf '%s\\0' \"$@\"; }\nshow " + text
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, env={**os.environ, **env})
    assert not done.stderr
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"lr": None}, r"f.yml:3:5 train: lr is null here\n    give lr a value, or use \[lr\] to leave it out"),
        ({}, "lr has no value"),
        ({"lr": "a\0b"}, "NUL"),
    ],
)
def test_a_place_that_cannot_be_filled_is_refused(params, text):
    with pytest.raises(ConfigError, match=text):
        render(Placeholder("lr"), **params)


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_texts_arrive_whole_in_every_kind_of_quotes(value):
    text = render(
        Placeholder("x"), ShellText(" 'a"), Placeholder("x", "single"), ShellText("b' \"c"), Placeholder("x", "double"), ShellText('d" e'), Placeholder("x"),
        ShellText(" "), Flag("x"), x=value,
    )  # fmt: skip
    assert received(text) == [value, f"a{value}b", f"c{value}d", f"e{value}", "--x", value]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_any_texts_arrive_whole(values):
    words = [
        f"{quote_inside(value, 'bare')} '{quote_inside(value, 'single')}' \"{quote_inside(value, 'double')}\""
        for value in values
    ]
    assert received(" ".join(words)) == [value for value in values for _ in range(3)]


@pytest.mark.parametrize("folder", ["/a b/c", "/it's", '/"q"', "/$HOME`x`", "/ü\n", "/a\\"])
@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((Placeholder("run.dir"), ShellText("/x")), ["{}/x"]),
        ((ShellText("'a "), Placeholder("run.dir", "single"), ShellText("'")), ["a {}"]),
        ((ShellText('"a '), Placeholder("run.dir", "double"), ShellText('/y"')), ["a {}/y"]),
    ],
)
def test_the_run_directory_arrives_whole_by_environment_and_as_shown_to_people(folder, pieces, words):
    text = render(*pieces)
    expected = [word.replace("{}", folder) for word in words]
    assert received(text, ASSAY_RUN_DIR=folder) == expected
    assert received(show_command(text, folder)) == expected


def test_the_runs_own_values_come_from_the_environment():
    names = ("run.name", "run.id", "study", "run.time")
    text = render(*(piece for name in names for piece in (Placeholder(name), ShellText(" "))))
    assert text == '"${ASSAY_RUN_NAME}" "${ASSAY_RUN_ID}" "${ASSAY_STUDY}" "${ASSAY_TIME}" '


@pytest.mark.parametrize(
    ("value", "place", "flag"),
    [
        (1, ["1"], ["--x", "1"]),
        (0.1, ["0.1"], ["--x", "0.1"]),
        (1e-5, ["1e-05"], ["--x", "1e-05"]),
        (0, ["0"], ["--x", "0"]),
        (True, ["true"], ["--x"]),
        (False, ["false"], []),
        ("", [""], ["--x", ""]),
        ([1, "a b", True], ["1", "a b", "true"], ["--x", "1", "a b", "true"]),
        ([], [], ["--x"]),
        ([[1, 2], None], ["[1, 2]", "null"], ["--x", "[1, 2]", "null"]),
        ({"a": "it's", "ü": [1]}, ['{"a": "it\'s", "ü": [1]}'], ["--x", '{"a": "it\'s", "ü": [1]}']),
    ],
)
def test_values_of_every_kind(value, place, flag):
    assert received(render(ShellText("! "), Placeholder("x"), x=value)) == ["!", *place]
    assert received(render(ShellText("! "), Flag("x"), x=value)) == ["!", *flag]


def test_flags_that_are_left_out_leave_no_gap():
    flags = [piece for name in "xyz" for piece in (ShellText(" "), Flag(name))]
    assert render(ShellText("a"), *flags, ShellText(" && b"), x=False, y=1, z=None) == "a --y 1 && b"
    assert render(ShellText("a "), Flag("lr")) == "a"


def test_a_list_inside_quotes_is_one_word():
    assert received(render(ShellText('"'), Placeholder("x", "double"), ShellText('"'), x=["a$", 'b"'])) == ['a$ b"']


def test_a_reference_is_filled_by_the_shell_that_takes_the_words_apart():
    """As the path of a checkpoint, which is known when the attempt begins."""
    path, env = Reference("${X}/a b.pt"), {"X": "/it's $1"}
    assert received(render(Placeholder("p"), ShellText(" "), Flag("p"), p=path), **env) == [
        "/it's $1/a b.pt", "--p", "/it's $1/a b.pt"
    ]  # fmt: skip
    for quote, mark in (("double", '"'), ("single", "'")):
        place = render(ShellText(mark), Placeholder("p", quote), ShellText(mark), p=path)
        assert received(place, **env) == ["/it's $1/a b.pt"]
        inner = render(
            ShellText(f"$(bash -c {mark}printf %s,%s "), Flag("p", quote), ShellText(f"{mark})"), p=Reference("${X}.pt")
        )
        assert received(f'"{inner}"', X="/a b") == ["--p,/a b.pt"]


def test_a_flag_inside_quotes_reaches_the_inner_shell():
    text = render(ShellText("\"printf '%s,' a "), Flag("x", "double"), ShellText('"'), x="it's $1")
    (inner,) = received(text)
    done = subprocess.run(["bash", "-c", inner], check=True, capture_output=True, text=True)
    assert done.stdout == "a,--x,it's $1,"


def test_logdir_means_nothing_in_a_native_file():
    assert render(Placeholder("x"), x="LOGDIR") == "LOGDIR"

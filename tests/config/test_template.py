"""Command templates: only what is meant as a parameter is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.template import parse_template, template_names
from assay.errors import ConfigError
from assay.values.study import Flag, Placeholder, Position, ShellText


def names(text: str) -> list[str]:
    return template_names(parse_template(text))


@pytest.mark.parametrize("text", ["echo it's", 'echo "a', "echo `date", 'echo "$(cat \'x)"', "a $'b"])
def test_a_quote_that_is_never_closed_is_refused(text):
    with pytest.raises(ConfigError, match=r"f.yml:3:5 command: the quote .* never closed"):
        parse_template(text, Position("f.yml", 3, 5), "command")


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("train [lr", "[lr"), ("train [lr --x 1", "[lr"), ("train [lr [seed]", "[lr"), ("[early-stop; echo", "[early-stop"),
        ("train --lr {lr", "{lr"), ("train {lr --x {seed}", "{lr"), ("train --lr={lr ", "{lr"), ("$(cat [x)", "[x"),
    ],
)  # fmt: skip
def test_a_parameter_that_is_never_closed_is_refused(text, opened):
    closed = opened + ("]" if opened[0] == "[" else "}")
    with pytest.raises(ConfigError) as caught:
        parse_template(text, Position("f.yml", 3, 5), "command")
    assert caught.value.message.startswith(f"f.yml:3:5 command: {opened} is not closed")
    assert f"write {closed}, or '{opened}' in quotes" in caught.value.message


def test_a_here_document_may_hold_a_lone_quote():
    assert names("cat <<EOF\ndon't {x}\nEOF\n") == ["x"]


@pytest.mark.parametrize(
    "text",
    [
        "${HOME}", "$((1+2))", "l[0]", "[ -f x ]", "[[ -f x ]]", "{1..3}", "{a..c}", "{a,b}", "{}", "'{\"a\": 1}'",
        "awk '{print $1}'", "arr[i]", "${arr[i]}", "file[ab].txt", "*[abc]", "x=[y]", "a/[bc]/d", "[bc]*", "$[x]",
        "[a b]", "{ x; }", "[]", "[1]", "{1a}", "\\{x}", "# {x} [y]", "a # don't {x}", "x]", "x}", "'[x'", '"{x"', "\\[x", "x[y", "$[x", "# [x",
        "{a.}", "{.a}", "{a..b}", "${x:-y}", "{a:b}", "\\[x]",
    ],
)  # fmt: skip
def test_shell_text_is_left_alone(text):
    assert parse_template(text) == (ShellText(text),)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("{{x}}", "{x}"), ("[[x]]", "[x]"), ("a {{x.y-z}} b", "a {x.y-z} b"), ("'[[x]]'", "'[x]'"), ("{{{x}}}", "{{x}}"),
        ("{{1}}", "{{1}}"), ("[[ x ]]", "[[ x ]]"),
    ],
)  # fmt: skip
def test_doubled_brackets_are_literal(text, literal):
    assert parse_template(text) == (ShellText(literal),)


def test_places_and_flags():
    pieces = parse_template("python t.py {data} --out={run.dir}/{name}.pt [lr] [early-stop]")
    assert pieces == (
        ShellText("python t.py "), Placeholder("data"), ShellText(" --out="), Placeholder("run.dir"), ShellText("/"), Placeholder("name"), ShellText(".pt "),
        Flag("lr"), ShellText(" "), Flag("early-stop"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("{x}", "bare"),
        ("'{x}'", "single"),
        ('"{x}"', "double"),
        ("'a' {x}", "bare"),
        ("'\"' {x}", "bare"),
        ('"it\'s" {x}', "bare"),
        ("\\'{x}", "bare"),
        ('\\"{x}', "bare"),
        ('"\\"{x}"', "double"),
        ("'\\' {x}", "bare"),
        ('"$(cat {x})"', "bare"),
        ('"$(cat "{x}")"', "double"),
        ('"$(cat) {x}"', "double"),
        ('"$((1+2)) {x}"', "double"),
        ("$(a (b) {x}) 'c'", "bare"),
        ("\"a'{x}'\"", "double"),
        ("`{x}`", "bare"),
        ("x # it's\n{x}", "bare"),
        ("a#'{x}'", "single"),
        ("'{\"lr\": {x}}'", "single"),
        ("('{x}')", "single"),
    ],
)
def test_the_quotes_around_a_place_are_known(text, quote):
    assert [piece for piece in parse_template(text) if isinstance(piece, Placeholder)] == [Placeholder("x", quote)]


def test_the_quotes_around_a_flag_are_known():
    assert parse_template('bash -c "a [x]"')[1] == Flag("x", "double")


def test_an_ansi_quote_is_closed_around_a_place():
    assert parse_template("$'a\\'{x}\\n'") == (ShellText("$'a\\''"), Placeholder("x"), ShellText("$'\\n'"))


def test_a_variable_may_be_written_with_doubled_braces():
    assert parse_template("echo ${{HOME}} ${HOME}") == (ShellText("echo ${HOME} ${HOME}"),)


def test_names_leave_out_the_runs_own_values():
    assert names("{a} {run.dir} {run.name} {run.id} {study} [b]") == ["a", "b"]


def test_letters_of_any_script_name_a_parameter():
    assert names("{größe} [学習率]") == ["größe", "学習率"]


@given(st.text(alphabet=st.characters(exclude_characters="\"'`<#\\$([{"), max_size=40))
def test_text_without_special_characters_is_one_piece(text):
    assert parse_template(text) == ((ShellText(text),) if text else ())


@given(st.text(alphabet="ab {}[]$()\\\"'`#\n.-", max_size=30))
def test_nothing_of_the_text_is_lost(text):
    try:
        pieces = parse_template(text)
    except ConfigError:
        return
    if "{{" in text or "[[" in text or "$'" in text:
        return
    shown = {ShellText: "{0.text}", Placeholder: "{{{0.name}}}", Flag: "[{0.name}]"}
    assert "".join(shown[type(piece)].format(piece) for piece in pieces) == text

"""Commands without click: what is read here is read as click reads it, and whatever is doubtful is left to click."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import click
import pytest

from assay.cli.main import COMMANDS, GROUP, SERVICES, build_cli, find_call, parse_words
from assay.launch.commands.run import RunRequest
from assay.values.options import Group, Option, Request

VALUES = [
    *("a", "2", "0", "-1", "1.5", "x=y", "a b", "", "-", "--", "done", "failed", "live", "snapshot", "ä"),
    *("1_0", "nan"),
]


def find_commands() -> dict[str, tuple[click.Command, type[Request]]]:
    root = build_cli()
    found = {}
    for name, (where, *_) in COMMANDS.items():
        module, _, attribute = where.partition(":")
        handler = getattr(import_module(module), attribute)
        if isinstance(handler, Group):
            continue
        command = root.get_command(click.Context(root), name)
        assert command is not None
        found[name] = (command, handler.__globals__[handler.__annotations__["request"]])
    return found


FOUND = find_commands()


def parse_by_click(command: click.Command, words: list[str]) -> dict[str, Any] | None:
    try:
        context = command.make_context("x", list(words))
    except (click.ClickException, click.exceptions.Exit):
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in context.params.items()}


def draw_words(options: dict[str, Option], random_: random.Random) -> list[str]:
    names = [name for each in options.values() for name in each.names] + ["--help", "--no-such", "-jx"]
    words: list[str] = []
    for _ in range(random_.randrange(5)):
        name, value = random_.choice(names), random_.choice(VALUES)
        words += random_.choice([[name, value], [f"{name}={value}"], [name], [value], [name + value]])
    return words


@pytest.mark.parametrize("name", sorted(FOUND))
def test_what_is_read_is_what_click_reads(name: str) -> None:
    command, request = FOUND[name]
    random_ = random.Random(name)
    direct = 0
    for _ in range(1500):
        words = draw_words(dict(request.OPTIONS), random_)
        ours = parse_words(words, request.OPTIONS)
        if ours is not None:
            theirs = parse_by_click(command, words)
            assert repr(ours) == repr({field: (theirs or {}).get(field) for field in ours}), words
            direct += 1
    assert direct > 5  # few draws have every option that is required


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s.yml"], {}),
        (["s.yml", "-j", "2", "--quiet"], {"jobs": 2, "quiet": True}),
        (["s.yml", "lr=1", "--quiet", "a=-b"], {"overrides": ["lr=1", "a=-b"], "quiet": True}),
        (["--jobs=3", "--", "-s.yml"], {"jobs": 3}),
        (["-t", "a", "s.yml", "--title=b", "--retry", "failed"], {"titles": ["a", "b"], "retry": ["failed"]}),
    ],
)
def test_plain_words_need_no_click(words: list[str], expected: dict[str, Any]) -> None:
    given = parse_words(words, RunRequest.OPTIONS)
    assert given is not None
    assert {name: given[name] for name in expected} == expected
    assert given["file"] in ("s.yml", "-s.yml")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["s.yml", "--job", "2"],
        ["s.yml", "-j2"],
        ["s.yml", "-j", "two"],
        ["s.yml", "-j", "0"],
        ["s.yml", "-j"],
        ["s.yml", "--quiet=yes"],
        ["s.yml", "--root", "--quiet"],
        ["s.yml", "--code", "dead"],
    ],
)
def test_whatever_is_doubtful_is_for_click(words: list[str]) -> None:
    assert parse_words(words, RunRequest.OPTIONS) is None


@pytest.mark.parametrize("words", [[], ["--version"], ["no-such"], ["run"], ["index"]])
def test_no_call_is_found_for_what_is_for_click(words: list[str]) -> None:
    assert find_call(words, GROUP, SERVICES) is None


def test_a_handler_with_a_parser_of_its_own_gets_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(words: list[str]) -> int:
        return len(words)

    monkeypatch.setattr("assay.plugins.load", lambda _text: handler)
    call = find_call(["own", "--", "-x"], Group("", {"own": ("m:handler", "")}), SERVICES)
    assert call is not None
    assert call() == 2

"""Requests: what they declare, and what becomes of a command line."""

from __future__ import annotations

from typing import Any

import pytest

from assay.errors import UsageError
from assay.values.options import Request, argument, option, root_option, split_commas
from assay.values.units import parse_timeout


class Base(Request):
    file: str = argument()
    names: tuple[str, ...] = option("-n", "--names", multiple=True, parse=split_commas, help="Names.")
    timeout: float | None = option("--timeout", parse=parse_timeout, help="Limit.")
    only: str | None = option("--only", help="Only this.")


class Derived(Base):
    only: None = None
    force: bool = option("--force", default=False, help="Again.")
    root: str | None = root_option()


def test_options_are_inherited_and_a_plain_value_withdraws_one() -> None:
    assert list(Derived.OPTIONS) == ["file", "names", "timeout", "force", "root"]
    assert Derived("a.yml").only is None
    assert "only" in Base.OPTIONS


def test_texts_become_values_and_what_is_not_given_the_default() -> None:
    given: dict[str, Any] = {"file": "a", "names": ["x,y", "z"], "timeout": "2m", "force": True, "root": None}
    assert Derived.from_command_line(given) == Derived("a", names=("x", "y", "z"), timeout=120.0, force=True)


def test_a_parser_names_the_option() -> None:
    with pytest.raises(UsageError, match="--timeout 'soon' is not a duration"):
        Base.from_command_line({"file": "a", "names": [], "timeout": "soon", "only": None})


def test_a_request_is_complete_and_read_only() -> None:
    with pytest.raises(TypeError, match="file"):
        Base()
    with pytest.raises(TypeError, match="nothing"):
        Base("a", nothing=1)  # type: ignore[call-arg]
    request = Base("a")
    with pytest.raises(AttributeError, match="read-only"):
        request.file = "b"  # type: ignore[misc]
    assert request.replace(file="b").file == "b"
    assert repr(request) == "Base(file='a', names=(), timeout=None, only=None)"

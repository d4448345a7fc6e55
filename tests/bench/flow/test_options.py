"""What a benchmark's flags say, and what they may not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.bench.flow.options import check_folders, check_python, parse_arguments, parse_commands, parse_pairs
from assay.errors import UsageError
from assay.values.units import parse_timeout


@pytest.mark.parametrize(
    ("text", "name", "command"),
    [
        ("python train.py", "python train.py", "python train.py"),
        ("train=python train.py", "train", "python train.py"),
        ("A=1 ./run", "A=1 ./run", "A=1 ./run"),  # a shell's way to set a variable
        ("FOO=bar python x.py", "FOO=bar python x.py", "FOO=bar python x.py"),
        ("FOO='a b' _B2=3 python x.py", "FOO='a b' _B2=3 python x.py", "FOO='a b' _B2=3 python x.py"),
        ("CUDA_VISIBLE_DEVICES= python x.py", "CUDA_VISIBLE_DEVICES= python x.py", "CUDA_VISIBLE_DEVICES= python x.py"),
        ("train=FOO=bar python x.py", "train", "FOO=bar python x.py"),
        ("Train=python x.py", "Train", "python x.py"),
        ("TRAIN=./train.sh", "TRAIN", "./train.sh"),  # nothing behind it that a variable could be for
        ("TRAIN='two words'", "TRAIN", "'two words'"),
        ("A-1=python x.py", "A-1", "python x.py"),
        ("FOO=it's one", "FOO=it's one", "FOO=it's one"),
        ("env A=1 ./run", "env A=1 ./run", "env A=1 ./run"),
        ("  echo hi  ", "echo hi", "echo hi"),
        ("many=line one\nline two", "many", "line one\nline two"),
    ],
)
def test_commands(text: str, name: str, command: str) -> None:
    (found,) = parse_commands([text])
    assert (found.name, found.text, found.kind) == (name, command, "command")


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_command(text: str) -> None:
    with pytest.raises(UsageError, match="empty --command"):
        parse_commands([text])


def test_pairs() -> None:
    assert parse_pairs(["A=1", "B=x=y", "C="], "--env") == (("A", "1"), ("B", "x=y"), ("C", ""))
    for bad in ("A", "=1"):
        with pytest.raises(UsageError, match="no NAME=VALUE"):
            parse_pairs([bad], "--env")


@pytest.mark.parametrize(
    ("text", "words"), [("loss=(", "broken regular expression"), ("loss=loss", "has no group"), ("loss", "no NAME=")]
)
def test_patterns_that_find_nothing(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_pairs([text], "--metric")


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("90s", 90.0), ("2h", 7200.0), ("1h30m", 5400.0)])
def test_timeouts(text: str | None, seconds: float | None) -> None:
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "0"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_timeout(text)


def test_arguments() -> None:
    assert parse_arguments(None) == {}
    assert parse_arguments('{"batch": 64, "nested": {"a": [1]}}') == {"batch": 64, "nested": {"a": [1]}}
    for bad in ("{", "[1]", "3", "null"):
        with pytest.raises(UsageError, match="constructor's arguments"):
            parse_arguments(bad)


def test_interpreters_and_folders(tmp_path: Path) -> None:
    assert check_python(None) is None
    assert check_python(sys.executable) == sys.executable
    for bad in ("nosuchpython", str(tmp_path), str(tmp_path / "python")):
        with pytest.raises(UsageError, match="no such program"):
            check_python(bad)
    check_folders([str(tmp_path)])
    with pytest.raises(UsageError, match="no such folder"):
        check_folders([str(tmp_path), str(tmp_path / "nowhere")])

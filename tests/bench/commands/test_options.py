"""What a benchmark's flags say, and what they may not."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
from tests.bench.commands.conftest import Hook

from assay.bench.commands.options import (
    check_address,
    check_folders,
    check_python,
    parse_arguments,
    parse_commands,
    parse_pairs,
    parse_patterns,
    send_alert,
)
from assay.errors import InfrastructureError, UsageError
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
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            parse_pairs([bad], "--env")


@pytest.mark.parametrize(
    ("text", "words"),
    [("loss=(", "broken regular expression"), ("loss=loss", "has no group"), ("loss", "is not NAME=")],
)
def test_patterns_that_find_nothing(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_patterns([text], "--metric")


@pytest.mark.parametrize("text", ["latency=latency ({number})", "latency=latency {number}"])
def test_a_number_is_what_it_is_in_a_study(text: str) -> None:
    ((name, regex),) = parse_patterns([text], "--metric")
    match = re.search(regex, "its latency -9.84e-3 ms")
    assert match is not None
    assert (name, match[1]) == ("latency", "-9.84e-3")


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


def test_an_interpreter_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\necho 3 8\n")
    old.chmod(0o755)
    with pytest.raises(UsageError, match=r"is Python 3\.8; methods need Python 3\.10 or newer"):
        check_python(str(old))
    for odd in ("echo no version", "exit 3", "echo 3"):
        old.write_text(f"#!/bin/sh\n{odd}\n")
        assert check_python(str(old)) == str(old), "its first execution reports what is wrong with it"


# ---------------------------------------------------------------- alerts


def test_it_arrives_as_json(hook: Hook) -> None:
    content = {"title": "it is slower", "cases": [{"verdict": "FAIL", "note": "größer ±5%"}]}
    send_alert(f"{hook.address}/a/hook?token=x", content)
    assert hook.heard == [("/a/hook?token=x", "application/json", content)]


@pytest.mark.parametrize("answer", [400, 404, 500])
def test_an_address_that_refuses_is_reported(hook: Hook, answer: int) -> None:
    hook.answer = answer
    with pytest.raises(InfrastructureError, match=rf"could not be sent to 127\.0\.0\.1: .*{answer}"):
        send_alert(hook.address, {})


def test_the_words_of_an_error_do_not_tell_the_token(hook: Hook) -> None:
    hook.answer = 500
    with pytest.raises(InfrastructureError) as caught:
        send_alert(f"{hook.address}/secret-token", {})
    assert "secret-token" not in caught.value.message


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InfrastructureError, match="could not be sent"):
        send_alert(f"http://127.0.0.1:{port}/", {})


@pytest.mark.parametrize("url", ["", "hook", "ftp://x/y", "file:///etc/passwd", "http://", "https:///path"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a valid address"):
        check_address(url)
    with pytest.raises(UsageError):
        send_alert(url, {})

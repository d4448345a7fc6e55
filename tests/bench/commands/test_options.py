"""What a benchmark's flags say, and what they may not."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
from tests.bad_servers import RecordingServer

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
        ("python train.py", None, "python train.py"),
        ("train=python train.py", "train", "python train.py"),
        ("A=1 ./run", None, "A=1 ./run"),  # a shell's way to set a variable
        ("FOO='a b' _B2=3 python x.py", None, "FOO='a b' _B2=3 python x.py"),
        ("CUDA_VISIBLE_DEVICES= python x.py", None, "CUDA_VISIBLE_DEVICES= python x.py"),
        ("train=FOO=bar python x.py", "train", "FOO=bar python x.py"),
        ("Train=python x.py", "Train", "python x.py"),
        ("TRAIN=./train.sh", "TRAIN", "./train.sh"),  # nothing behind it that a variable could be for
        ("TRAIN='two words'", "TRAIN", "'two words'"),
        ("A-1=python x.py", "A-1", "python x.py"),
        ("FOO=it's one", None, "FOO=it's one"),
        ("env A=1 ./run", None, "env A=1 ./run"),
        ("  echo hi  ", None, "echo hi"),
        ("many=line one\nline two", "many", "line one\nline two"),
    ],
)
def test_commands(text: str, name: str | None, command: str) -> None:
    (found,) = parse_commands([text])
    assert (found.name, found.text, found.kind) == (name or command, command, "command")


def test_what_cannot_be_read_is_refused() -> None:
    for parse, given, words in (
        *((parse_commands, [text], "empty --command") for text in ("", "   ", "\n")),
        *((parse_pairs, [text], "is not NAME=VALUE") for text in ("A", "=1")),
        (parse_patterns, ["loss=("], "broken regular expression"),
        (parse_patterns, ["loss=loss"], "has no group"),
        (parse_patterns, ["loss"], "is not NAME="),
        *((parse_timeout, text, "is not a duration") for text in ("", "soon", "-5s", "0")),
        *((parse_arguments, text, "constructor's arguments") for text in ("{", "[1]", "3", "null")),
    ):
        with pytest.raises(UsageError, match=words):
            parse(given, "--flag")


def test_pairs_durations_arguments_and_numbers() -> None:
    assert parse_pairs(["A=1", "B=x=y", "C="], "--env") == (("A", "1"), ("B", "x=y"), ("C", ""))
    assert [parse_timeout(text) for text in (None, "90s", "2h", "1h30m")] == [None, 90.0, 7200.0, 5400.0]
    assert parse_arguments(None) == {}
    assert parse_arguments('{"batch": 64, "nested": {"a": [1]}}') == {"batch": 64, "nested": {"a": [1]}}
    for text in ("latency=latency ({number})", "latency=latency {number}"):
        ((name, regex),) = parse_patterns([text], "--metric")
        match = re.search(regex, "its latency -9.84e-3 ms")
        assert match is not None
        assert (name, match[1]) == ("latency", "-9.84e-3")


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


def test_it_arrives_as_json(hook: RecordingServer) -> None:
    content = {"title": "it is slower", "cases": [{"verdict": "FAIL", "note": "größer ±5%"}]}
    send_alert(f"{hook.url}/a/hook?token=x", content)
    (got,) = hook.got
    assert (got.path, got.headers["Content-Type"], hook.messages) == ("/a/hook?token=x", "application/json", [content])


def test_an_alert_that_cannot_be_sent_is_reported_without_its_token(hook: RecordingServer) -> None:
    for answer in (400, 500):
        hook.answer = lambda _got, status=answer: (status, b"")
        with pytest.raises(InfrastructureError, match=rf"could not be sent to 127\.0\.0\.1: .*{answer}") as caught:
            send_alert(f"{hook.url}/secret-token", {})
        assert "secret-token" not in caught.value.message
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InfrastructureError, match="could not be sent"):
        send_alert(f"http://127.0.0.1:{port}/", {})
    for url in ("", "hook", "ftp://x/y", "file:///etc/passwd", "http://", "https:///p", "http://[::1/", "http://h:no/"):
        for call in (check_address, lambda url: send_alert(url, {})):
            with pytest.raises(UsageError, match="is not a valid address"):
                call(url)

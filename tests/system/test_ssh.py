"""The system's ssh: the message about a connection that fails, and where its socket is."""

from __future__ import annotations

import os

import pytest

from assay.errors import InfrastructureError, UsageError
from assay.system import ssh
from assay.system.ssh import Address, Connection, explain_connection


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        (
            "ssh: connect to host b port 22: Connection refused",
            "does not answer: connect to host b port 22: Connection refused",
            "ssh -p 22 -- root@b true",
        ),
        ("", "does not answer: no answer within 10 s", "is it on?"),
        ("x\nroot@b: Permission denied (publickey).\n", "refuses the connection", "key ="),
        ("Host key verification failed.", "is not known", "connect once by hand: ssh -p 22 -- root@b"),
    ],
)
def test_connections_that_fail_in_words(said, words, hint):
    message, what = explain_connection(Address("root@b", 22), said)
    assert words in message
    assert hint in what


def test_a_deep_temporary_folder_is_no_place_for_a_socket(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = ssh._make_short_folder()
    assert len(folder) < 80
    assert os.listdir(deep) == []
    os.rmdir(folder)


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "-l", "root@-oProxyCommand=x", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(name):
    with pytest.raises(UsageError, match="is not the name of a board"):
        Address(name)


@pytest.mark.parametrize("name", ["gpu1", "me@gpu-1", "::1", "ssh://me@gpu1:22", "größe"])
def test_names_of_hosts(name):
    assert Address(name).name == name


def test_every_call_of_ssh_ends_its_options_before_the_host(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {calls}\nexit 1\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError):
        Connection(Address("root@b")).connect()
    words = calls.read_text().splitlines()
    assert words[words.index("root@b") - 1] == "--"

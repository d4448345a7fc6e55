"""The system's ssh: what is said of a connection that fails, and where its socket is."""

from __future__ import annotations

import os

import pytest

from assay.system import ssh
from assay.system.ssh import Address, explain_connection


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        (
            "ssh: connect to host b port 22: Connection refused",
            "does not answer: connect to host b port 22: Connection refused",
            "ssh -p 22 root@b true",
        ),
        ("", "does not answer: no answer within 10 s", "is it on?"),
        ("x\nroot@b: Permission denied (publickey).\n", "refuses the connection", "key ="),
        ("Host key verification failed.", "is not known", "connect once by hand: ssh -p 22 root@b"),
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

"""The system's ssh: names of hosts, and the message about a connection that fails."""

from __future__ import annotations

import pytest

from assay.errors import UsageError
from assay.system.ssh import Address, explain_connection


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
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "another key",
            "by hand",
        ),
        ("Host key verification failed.", "is not known", "connect once by hand: ssh -p 22 -- root@b"),
    ],
)
def test_connections_that_fail_in_words(said, words, hint):
    message, what = explain_connection(Address("root@b", 22), said)
    assert words in message
    assert hint in what


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "-l", "root@-oProxyCommand=x", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(name):
    with pytest.raises(UsageError, match="is not the name of a board"):
        Address(name)


@pytest.mark.parametrize("name", ["gpu1", "me@gpu-1", "::1", "ssh://me@gpu1:22", "größe"])
def test_names_of_hosts(name):
    assert Address(name).name == name

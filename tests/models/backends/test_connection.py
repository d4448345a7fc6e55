"""A connection by ssh: where its socket is, and how it calls ssh."""

from __future__ import annotations

import os

import pytest

from assay.errors import InfrastructureError
from assay.models.backends import connection
from assay.models.backends.connection import Connection
from assay.system.ssh import Address


def test_a_deep_temporary_folder_is_no_place_for_a_socket(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = connection._make_short_folder()
    assert len(folder) < 80
    assert os.listdir(deep) == []
    os.rmdir(folder)


def test_every_call_of_ssh_ends_its_options_before_the_host(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done > {calls}\nexit 1\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError):
        Connection(Address("root@b")).connect()
    words = calls.read_text().splitlines()
    assert words[words.index("root@b") - 1] == "--"

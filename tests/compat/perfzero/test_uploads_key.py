"""A key for the time of one call: private, named to children, gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.compat.perfzero.uploads import VARIABLE, google_key
from assay.errors import AssayError

ASK = f"import os; print(open(os.environ['{VARIABLE}']).read())"


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    return f"file://{tmp_path}/key.json"


def test_without_a_key_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/the/user/s/own")
    with google_key(None):
        assert os.environ[VARIABLE] == "/the/user/s/own"


def test_children_are_told_and_nobody_else_may_look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with google_key(url):
        path = Path(os.environ[VARIABLE])
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        said = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout
        assert said.strip() == '{"type": "service_account"}'
    assert VARIABLE not in os.environ
    assert not path.parent.exists()


def test_it_is_gone_after_an_error_and_the_old_one_is_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "before")
    paths = []

    def be_interrupted() -> None:
        with google_key(url):
            paths.append(os.environ[VARIABLE])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert os.environ[VARIABLE] == "before"
    assert [os.path.exists(path) for path in paths] == [False]


@pytest.mark.parametrize("content", [b"<html>log in</html>", b"[]", b"\xff\xfe", b""])
def test_a_page_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "page").write_bytes(content)
    with pytest.raises(AssayError, match="is not a key file"), google_key(f"file://{tmp_path}/page"):
        pytest.fail("it was taken for a key")


def test_a_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="absent"), google_key(f"file://{tmp_path}/absent.json"):
        pytest.fail("there is none")
    assert VARIABLE not in os.environ

"""Where results are sent. BigQuery: the row we build, and Google's own client talking to a table of ours on loopback."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.compat.perfzero.conftest import Warehouse

from assay.bench.values.execution import BenchRequest
from assay.compat.perfzero import uploads
from assay.compat.perfzero.uploads import (
    JSON_COLUMNS,
    VARIABLE,
    build_row,
    call_upload_method,
    check_target,
    check_upload_method,
    google_key,
    insert_row,
    upload_folder,
)
from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError
from assay.exchange.store import object_store

SUMMARY: dict[str, Any] = {
    "execution_id": "2019-02-13-06-45-22-899128",
    "execution_timestamp": 1550040322.8991697,
    "benchmark_result": {"name": "m.C.f", "wall_time": 1.5, "metrics": []},
    "benchmark_info": {"harness_name": "perfzero", "has_exception": False},
    "setup_info": {},
    "ml_framework_info": {"name": "torch", "version": "2"},
    "system_info": {"cpu_model": "Größe"},
    "process_info": {},
}


def test_a_row_has_the_documented_columns() -> None:
    row = build_row({**SUMMARY, "more": 1})
    assert set(row) == {"execution_id", "execution_timestamp", *JSON_COLUMNS}
    assert row["execution_id"] == "2019-02-13-06-45-22-899128"
    assert row["execution_timestamp"] == "2019-02-13T06:45:22.899170Z"
    assert json.loads(row["system_info"]) == {"cpu_model": "Größe"}
    assert row["setup_info"] == "{}"
    with pytest.raises(ValueError, match="JSON"):  # a summary has texts for them
        build_row({**SUMMARY, "system_info": {"x": math.nan}})


def test_a_row_arrives_or_its_faults_are_reported(warehouse: Warehouse) -> None:
    row = build_row(SUMMARY)
    insert_row("p", "d.t", row)
    assert warehouse.rows == [{"json": row, "insertId": SUMMARY["execution_id"]}]
    location = {"reason": "invalid", "location": "process_info", "message": "no such field: process_info."}
    warehouse.errors = [location, {"reason": "stopped"}]
    words = r"refused the row for p\.d\.t: process_info: no such field.*; row: stopped"
    with pytest.raises(InfrastructureError, match=words):
        insert_row("p", "d.t", row)
    assert len(warehouse.rows) == 1
    make = r"bq mk --table p:d\.other execution_timestamp:TIMESTAMP,execution_id:STRING,ml_framework_info:STRING"
    with pytest.raises(UsageError, match=rf"(?s)no BigQuery table p\.d\.other: .*Not found.*{make}"):
        insert_row("p", "d.other", row)


def test_a_refusal_is_named_and_a_service_that_is_down_is_asked_again_and_left(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.api_core import retry

    warehouse.status = 403
    with pytest.raises(UsageError, match=r"does not let us write to p.d.t: .*not today"):
        insert_row("p", "d.t", build_row(SUMMARY))
    warehouse.status = 400
    with pytest.raises(InfrastructureError, match=r"did not take the row for p.d.t: .*not today"):
        insert_row("p", "d.t", build_row(SUMMARY))
    assert warehouse.asked == 2
    monkeypatch.setattr(retry.retry_unary.time, "sleep", lambda _: None)
    monkeypatch.setattr(uploads, "_RETRY_S", 2.5)  # the first pause is two seconds at most
    warehouse.status = 503
    with pytest.raises(InfrastructureError, match=r"did not take the row for p\.d\.t: .*not today"):
        insert_row("p", "d.t", build_row(SUMMARY))
    assert warehouse.asked > 3
    assert warehouse.rows == []


def test_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.cloud.bigquery")
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    words = r"(?s)does not let us write to p.d.t: .*gcloud auth application-default login"
    with pytest.raises(UsageError, match=words):
        insert_row("p", "d.t", build_row(SUMMARY))


@pytest.mark.parametrize("module", ["google.cloud", "google.auth.credentials"])
def test_a_missing_part_names_its_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"pip install 'assay\[bigquery\]'"):
        insert_row("p", "d.t", build_row(SUMMARY))


# ---------------------------------------------------------------- functions of the user's own


MODULE = """
import os, sys, time

def keep(summary): pass
def refuse(summary): raise RuntimeError("the table is full")
def deep(summary):
    refuse(summary)
number = 3
def silent(summary): os._exit(3)
def leave(summary): sys.exit("not today")
class Odd(Exception): name = object()
def odd(summary): raise Odd("no room")
def orphan(summary):
    if os.fork() == 0:
        time.sleep(1000)
"""
INNER = """
import json, os, sys
def keep(summary):
    open("kept.json", "w").write(json.dumps(summary))
    print("in", os.getcwd(), "by", sys.executable)
    print("on stderr", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "up.py").write_text(MODULE)
    (tmp_path / "leaves.py").write_text("import os\nos._exit(7)\n")
    (tmp_path / "late.py").write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "wants.py").write_text("print('on stdout')\nimport no_such_library\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text(INNER)
    return tmp_path


def call(folder: Path, name: str, say: Callable[[str], None] = str, **further: Any) -> str | None:
    bench = BenchRequest((), folder=str(folder), **further)
    return call_upload_method(name, {"execution_id": "e", "wall": 1.5}, bench, say)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("up.deep", "up.deep: RuntimeError: the table is full (up.py:5 in refuse, called from up.py:7 in deep)"),
        ("up.silent", "up.silent: it ended with exit code 3"),
        ("up.leave", "up.leave: not today"),
        ("up.odd", "up.odd: up.Odd: no room (up.py:12 in odd)"),
        ("nowhere.keep", "nowhere.keep: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_what_goes_wrong_is_one_line_and_no_traceback(folder: Path, name: str, words: str) -> None:
    said: list[str] = []
    assert call(folder, name, said.append) == words
    assert said in ([], ["not today"])


def check(folder: Path, name: str, **further: Any) -> None:
    check_upload_method(name, BenchRequest((), folder=str(folder), **further))


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("up.refsue", "up.refsue: module up has no 'refsue'", "did you mean 'refuse'?"),
        ("up.number", "up.number is not a function", "write module.function"),
        ("inner.keep", "cannot be called: ModuleNotFoundError: No module named 'inner'", "--python_path"),
        ("wants.keep", r"No module named 'no_such_library' \(wants.py:2 in <module>\)", None),
        ("leaves.keep", "importing leaves ends the process with exit code 7", None),
    ],
)
def test_what_can_never_be_called_is_reported_before(folder: Path, name: str, words: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check(folder, name)
    assert caught.value.message.startswith(f"--result_upload_methods: {name}")
    assert caught.value.hint == hint if hint is None else hint in (caught.value.hint or "")


def test_it_is_looked_for_and_called_where_the_benchmarks_are_with_their_path_and_interpreter(folder: Path) -> None:
    python = folder / "python"
    os.symlink(sys.executable, python)
    further = {"python_path": (str(folder / "package"),), "python": str(python)}
    check(folder, "inner.keep", **further)
    assert not (folder / "kept.json").exists(), "looking for it does not call it"
    said: list[str] = []
    assert call(folder, "inner.keep", said.append, **further) is None
    assert json.loads((folder / "kept.json").read_text()) == {"execution_id": "e", "wall": 1.5}
    assert sorted(said) == [f"in {folder} by {python}", "on stderr"]


def test_one_that_takes_too_long_is_ended_with_what_it_has_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orphan holds the pipe: without an end we would wait for it."""
    monkeypatch.setattr(uploads, "_CALL_TIMEOUT_S", 0.3)
    assert call(folder, "up.orphan") == "up.orphan took longer than 0.3 s"
    check(folder, "late.keep")  # a module that takes its time is left to the call


# ---------------------------------------------------------------- the key


def test_the_key_is_there_for_one_call_and_no_one_else_may_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "before")
    with google_key(None):
        assert os.environ[VARIABLE] == "before"
    (tmp_path / "key.json").write_text('{"type": "service_account"}')
    paths = []

    def be_interrupted() -> None:
        with google_key(f"file://{tmp_path}/key.json"):
            path = Path(os.environ[VARIABLE])
            paths.append(path)
            assert path.read_text() == '{"type": "service_account"}'
            assert (path.stat().st_mode | path.parent.stat().st_mode) & 0o077 == 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert os.environ[VARIABLE] == "before"
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    assert VARIABLE not in os.environ
    assert [path.parent.exists() for path in paths] == [False, False]


@pytest.mark.parametrize("content", [b"<html>log in</html>", b"[]", b"\xff\xfe", None])
def test_a_page_is_no_key(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "page").write_bytes(content)
    words = "no file or folder" if content is None else "is not a key file"
    with pytest.raises(AssayError, match=words), google_key(f"file://{tmp_path}/page"):
        pytest.fail("it was taken for a key")
    assert VARIABLE not in os.environ


# ---------------------------------------------------------------- folders

TREE = {
    "perfzero.log": b"line\n" * 100,
    "perfzero_summary.json": b"{}",
    "profiler_data/plugins/x.pb": b"\0" * 300,
    "empty": b"",
}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    for name, content in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")  # the libraries'
def test_a_folder_is_sent(store: Any, output: Path, tmp_path: Path) -> None:
    large = os.urandom(9_000_000)
    (output / "large").write_bytes(large)
    store.put(f"r/{store.schemes[0]}/perfzero.log", b"a much longer text than before" * 1000)  # which is replaced
    for scheme, ending in zip(store.schemes, ("", "/", ""), strict=False):
        assert upload_folder(str(output), store.url(f"r/{scheme}{ending}", scheme)) == len(TREE) + 1
        assert {name: store.read(f"r/{scheme}/{name}") for name in TREE} == TREE
        assert store.read(f"r/{scheme}/large") == large
    (tmp_path / "nothing").mkdir()
    assert upload_folder(str(tmp_path / "nothing"), store.url("r")) == 0
    url = f"{store.schemes[0]}://bucket-with-a-typo/r"
    for folder in (output, tmp_path / "nothing"):
        with pytest.raises(UsageError, match=f"there is nothing at {url}"):
            upload_folder(str(folder), url)
    assert not store.filesystem().exists("bucket-with-a-typo"), "a bucket is never made"


class Liar:
    """A store that keeps three bytes of what it is given, and does not let us look at its bucket."""

    def put_file(self, path: str, _place: str) -> None:
        if path.endswith("growing.log"):
            Path(path).write_bytes(b"1234")

    def info(self, place: str) -> dict[str, Any]:
        if "/" not in place:
            raise PermissionError("Forbidden")
        return {"size": 3, "type": "file"}


def test_a_file_that_arrives_short_is_noticed_and_a_log_may_grow(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_open", lambda _url: (Liar(), "b/r"))
    with pytest.raises(InfrastructureError, match=r"b/r/.* has 3 of \d+ bytes"):
        upload_folder(str(output), "s3://b/r")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "growing.log").write_bytes(b"12")
    assert upload_folder(str(tmp_path / "logs"), "s3://b/r") == 1  # 3 lies between 2 and 4


@pytest.mark.parametrize("form", ["{}", "file://{}/"])
def test_a_folder_is_copied(output: Path, hostile_path: Path, form: str) -> None:
    target = hostile_path / "id-1"
    for _ in range(2):  # and again: replaced
        assert upload_folder(str(output), form.format(quote(str(target)) if ":" in form else target)) == len(TREE)
        assert {name: (target / name).read_bytes() for name in TREE} == TREE


def test_what_cannot_be_sent(output: Path, tmp_path: Path) -> None:
    for name in ("nowhere", "output/empty"):
        with pytest.raises(UsageError, match="there is no folder"):
            upload_folder(str(tmp_path / name), str(tmp_path / "r"))
    assert not (tmp_path / "r").exists()
    for target in (output, output / "deeper"):
        with pytest.raises(UsageError, match="into itself"):
            upload_folder(str(output), str(target))
    assert not (output / "deeper").exists()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "profiler_data").write_bytes(b"")
    with pytest.raises(InfrastructureError, match=r"/r cannot be used: "):
        upload_folder(str(output), str(tmp_path / "r"))


def test_a_folder_that_may_not_be_written(forbidden_dir: Path) -> None:
    for target in (forbidden_dir / "r", forbidden_dir):
        with pytest.raises(InfrastructureError, match=f"{target} cannot be used: Permission denied"):
            upload_folder("/etc/default", str(target))
        with pytest.raises(UsageError, match=f"{target} cannot be written: Permission denied"):
            check_target(f"file://{target}")


# ---------------------------------------------------------------- before there is anything to send


def test_what_can_never_be_sent_to() -> None:
    wrong = {"gsx://bucket/x": "gsx:// cannot be used", "gs://": "does not name a bucket", "": "the address is empty"}
    for url, words in (wrong | {"file:///proc/nowhere": "/proc/nowhere cannot be written"}).items():
        with pytest.raises(UsageError, match=words):
            check_target(url)


def test_a_store_is_not_asked_before_there_is_something_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        pytest.fail("it looked for the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(object_store, "_open", refuse)
    check_target("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match="gs://"):
        check_target("gs://bucket/x")

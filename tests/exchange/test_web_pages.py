"""What is sent from elsewhere: stored whole, or not at all."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import socket
import stat
import struct
import threading
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.exchange.store.test_mirror import read_tree
from tests.finished_study import BAD, GOOD, Bench, until
from tests.web_client import READER, UPLOADER, open_client

from assay.compat.torq.dashboard import MANIFEST
from assay.errors import UsageError
from assay.exchange import receive
from assay.exchange import web_pages as uploads
from assay.exchange.receive import PREFIX, UploadLimits, make_aside
from assay.follow import collect
from assay.follow.limited_process import LimitedProcess
from assay.web.app import build_app
from assay.web.command import load_tokens
from assay.web.limited_patterns import LimitedLogParser
from assay.web.security import Limit
from assay.web.site import Site

BOUND = "a-bound-one-of-the-tests-0123456789"
UPLOAD = {"authorization": f"Bearer {UPLOADER}", "content-type": "application/zip"}
Change = Callable[[zipfile.ZipFile], object]


class Place:
    """An empty root, and a server for it."""

    def __init__(self, root: Path, client: TestClient, source: Path) -> None:
        self.root, self.client, self.source = root, client, source

    def send(self, data: bytes, **headers: str) -> Any:
        return self.client.post("/api/uploads", content=data, headers={**UPLOAD, **headers})

    def refuse(self, data: bytes, status: int = 400, **headers: str) -> str:
        """The message of the refusal. Nothing was stored, and no path of the server is in it."""
        answer = self.send(data, **headers)
        assert (answer.status_code, os.listdir(self.root)) == (status, []), answer.text
        assert str(self.root) not in answer.text
        assert "Errno" not in answer.text
        return str(answer.json()["error"])

    def pack(self, *runs: str, study: str = "fit", change: Change | None = None) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that is there twice
            for run in runs:
                for path in sorted((self.source / run).rglob("*")):
                    if path.is_file() and path.name != "secrets.sh":
                        archive.write(path, f"{study}/{run}/{path.relative_to(self.source / run)}")
            if change is not None:
                change(archive)
        return buffer.getvalue()

    def copy_source(self, folder: Path) -> Path:
        """Runs that may be changed before they are sent; the directory of one of them."""
        shutil.copytree(self.source, folder)
        self.source = folder
        return folder / GOOD


class CheckedHere:
    """In the place of `LimitedProcess`, which would start an interpreter for each upload."""

    def call(self, function: str, *arguments: Any, limit_s: float) -> Any:
        assert limit_s == receive.METRICS_S
        module, _, name = function.partition(":")
        with chdir("."):
            return getattr(import_module(module), name)(*arguments)

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with open_client(tmp_path_factory.mktemp("there")) as client:
        yield client


@pytest.fixture
def place(client: TestClient, served: Bench, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(uploads, "RATE", Limit(600))
    monkeypatch.setattr(receive, "LimitedProcess", CheckedHere)
    root = Path(client.app.app.app.state.site.roots[0])  # type: ignore[attr-defined]
    for path in root.iterdir():
        shutil.rmtree(path)
    return Place(root, client, served.root / "fit")


def write_endless(run: Path) -> None:
    """A pattern of the run takes for ever on its log."""
    content = json.loads((run / "run.json").read_text())
    content["spec"]["patterns"][1]["regex"] = "(([a-z]+)+)+([0-9])$"
    (run / "run.json").write_text(json.dumps(content))
    next(run.glob("train*.log")).write_text("a" * 60 + "!\n")


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def add(name: str, content: bytes = b"x", mode: int = 0, packed: int = zipfile.ZIP_DEFLATED) -> Change:
    def change(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.compress_type = packed
        archive.writestr(info, content)

    return change


def put(data: bytes, mark: bytes, offset: int, content: bytes) -> bytes:
    """The archive with these bytes so far behind the last mark."""
    at = data.rindex(mark) + offset
    return data[:at] + content + data[at + len(content) :]


# ---------------------------------------------------------------- good


def test_runs_appear_as_they_were_at_once(place: Place, served: Bench) -> None:
    answer = place.send(place.pack(GOOD, BAD))
    assert answer.status_code == 201, answer.text
    value = answer.json()
    assert value["link"] == "http://127.0.0.1:8666/studies/fit"
    assert [run["is_new"] for run in value["runs"]] == [True, True]
    for link in (value["link"], value["runs"][0]["link"]):
        assert place.client.get(link).status_code == 200
    with open_client(served.root) as here:
        there, original = (each.get(f"/api/studies/fit/runs/{GOOD}").json() for each in (place.client, here))
    for name in ("params", "state", "metrics", "commands", "id"):
        assert there[name] == original[name]
    assert not os.access(place.root / "fit" / GOOD / "job.sh", os.X_OK)  # what was uploaded is never executed
    assert not [name for name in os.listdir(place.root) if name.startswith(PREFIX)]
    later = place.send(place.pack("lr=0.1,n=8"))
    assert later.json()["link"].endswith("/studies/fit/runs/lr%3D0.1%2Cn%3D8")
    assert len(place.client.get("/api/studies/fit/runs").json()) == 3
    (place.root / "fit" / GOOD / "received.json").unlink()  # as if it had been made here
    with open_client(place.root) as again:
        assert again.get("/api/studies/fit/curves").json()["notes"] == ["without 2 uploaded runs, not adopted"]


def test_a_second_root_with_a_study_of_this_name(place: Place, served: Bench) -> None:
    with open_client(place.root, served.root) as client:
        assert len(client.get("/api/studies/fit/runs").json()) == 4
        assert client.post("/api/uploads", content=place.pack(GOOD), headers=UPLOAD).status_code == 201
        assert len(client.get("/api/studies/fit/runs").json()) == 1
        assert len(client.get("/api/studies/fit~2/runs").json()) == 4


def test_the_same_again_changes_nothing_and_another_run_of_the_same_name_is_refused(
    place: Place, tmp_path: Path
) -> None:
    data = place.pack(GOOD)
    place.send(data)
    (place.root / "fit" / GOOD / "tags.json").write_text('{"tags": ["mine"]}')  # written on the server
    before = read_tree(place.root)
    again = place.send(data)
    assert (again.status_code, again.json()["runs"][0]["is_new"]) == (200, False)
    record = place.copy_source(tmp_path / "other") / "run.json"
    record.write_text(record.read_text().replace('"uid": "', '"uid": "0'))
    answer = place.send(place.pack(GOOD, BAD))
    assert answer.status_code == 409
    assert f"fit/{GOOD} is here already" in answer.json()["error"]
    assert read_tree(place.root) == before  # all, or none


# ---------------------------------------------------------------- bad

IN = f"fit/{GOOD}"
BAD_MEMBERS = {
    "leads up": add("../outside"),
    "leads up inside": add(f"{IN}/../../../outside"),
    "absolute": add("/etc/outside"),
    "backslash": add("fit\\run\\file"),
    "drive": add("C:/outside/x"),
    "dot": add(f"{IN}/./x"),
    "empty part": add(f"{IN}//x"),
    "control": add(f"{IN}/a\nb"),
    "long": add(f"{IN}/{'x' * 300}"),
    "deep": add(f"{IN}/" + "d/" * 50 + "x"),
    "longer than paths can be": add(f"{IN}/{'/'.join(['d' * 250] * 30)}"),
    "link": add(f"{IN}/link", b"/etc/passwd", stat.S_IFLNK | 0o777),
    "device": add(f"{IN}/device", b"", stat.S_IFCHR | 0o666),
    "pipe": add(f"{IN}/pipe", b"", stat.S_IFIFO | 0o666),
    "twice": add(f"{IN}/run.json"),
    "file and folder": add(f"{IN}/run.json/x"),
    "secrets": add(f"{IN}/secrets.sh"),
    "a file beside": add("notes.txt"),
    "a file in the study": add("fit/notes.txt"),
    "ours alone": add("fit/.assay/verdicts.jsonl"),
    "hidden study": add(".ssh/run/run.json"),
    "option": add("fit/-rf/run.json"),
    "turned": add("fit/a\u202eb/run.json"),
    "no run.json": add("fit/other/train.log"),
    "damaged run.json": add("fit/other/run.json", b"{"),
    "foreign run.json": add("fit/other/run.json", b'{"a": 1}'),
    "packed otherwise": add(f"{IN}/x", packed=zipfile.ZIP_LZMA),
}


def test_a_bad_member(place: Place) -> None:
    for change in BAD_MEMBERS.values():
        place.refuse(place.pack(GOOD, change=change))
    for name in ("run.json/x", "attempt-1.outcome.json/x", "attempts/x", "tags.json/x"):  # a folder, and no record
        place.refuse(place.pack(change=add(f"{IN}/{name}")))
    place.refuse(place.pack(GOOD, change=add(f"{IN}/aXb")).replace(b"/aXb", b"/a\0b"))
    encrypted = bytearray(place.pack(change=add(f"{IN}/run.json")))
    encrypted[6] |= 1
    encrypted[encrypted.rindex(b"PK\1\2") + 8] |= 1
    place.refuse(bytes(encrypted))


def test_a_damaged_archive(place: Place) -> None:
    data = place.pack(GOOD)
    for part in (0.0, 0.3, 0.7, 0.999):
        place.refuse(data[: int(part * len(data))])
    at = len(data) // 3
    place.refuse(data[:at] + bytes(20) + data[at + 20 :])
    for size in (100_000, 10_000_000):  # its list of members would begin before the archive
        place.refuse(put(data, b"PK\5\6", 12, struct.pack("<I", size)))
    for kind in ("text/plain", "application/json", ""):
        place.refuse(data, 415, **{"content-type": kind})


@pytest.mark.parametrize(("seed", "count"), [(7, 40), pytest.param(8, 400, marks=pytest.mark.long)])
def test_damage_anywhere_is_the_sender_s_and_names_no_path_of_the_server(place: Place, seed: int, count: int) -> None:
    """Also in the list of members, where offsets lead outside of the file."""
    data, chance = place.pack(GOOD), random.Random(seed)
    begin = data.index(b"PK\1\2")
    for number in range(count):
        bad = bytearray(data)
        low = begin if number % 2 else 0
        for at in (chance.randrange(low, len(data)) for _ in range(1 + number % 4)):
            bad[at] = chance.choice((0, 255, bad[at] ^ (1 << chance.randrange(8))))
        answer = place.send(bytes(bad))
        assert answer.status_code in (400, 413, 201, 200, 409), answer.text
        assert str(place.root) not in answer.text


def test_a_run_that_is_not_finished_or_leads_elsewhere(place: Place, tmp_path: Path) -> None:
    run = place.copy_source(tmp_path / "o")
    content = json.loads((run / "run.json").read_text())
    for change in (
        {"patterns": [{"kind": "csv", "path": "../../*.csv"}]},
        {"patterns": [{"kind": "csv", "path": "/etc/**"}]},
        {"log_name": "../../{command}{suffix}.log"},
        {"log_name": "{suffix:/>1}etc/../passwd"},
        {"commands": [["../../x", "true", None]]},
    ):
        (run / "run.json").write_text(json.dumps({**content, "spec": {**content["spec"], **change}}))
        assert "leads elsewhere" in place.refuse(place.pack(GOOD)), change
    (run / "run.json").write_text(json.dumps(content))
    for path in run.iterdir():
        if path.name.startswith(("outcome.", "token.", "lease.", "end.")) or ".exit." in path.name:
            path.unlink()
    assert "is not finished" in place.refuse(place.pack(GOOD))


def test_a_full_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(uploads, "store_archive", fail)
    assert place.refuse(place.pack(GOOD), 507) == "the upload cannot be stored: No space left on device"


def test_patterns_that_take_for_ever(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by the server itself, they would hold up all requests: a process reads them, for some time."""
    write_endless(place.copy_source(tmp_path / "o"))
    monkeypatch.setattr(receive, "LimitedProcess", LimitedProcess)
    monkeypatch.setattr(receive, "METRICS_S", 0.2)
    assert "the metrics cannot be read" in place.refuse(place.pack(GOOD))


def test_patterns_of_a_run_that_is_here_hold_up_no_other_page(
    server: tuple[str, Path], served: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed the check, or was never checked: other pages are answered while its metrics are read."""
    monkeypatch.setattr(LimitedLogParser, "FIRST_S", 0.2)
    monkeypatch.setattr(collect, "log_parser", LimitedLogParser())
    address, root = server
    shutil.copytree(served.root / "fit" / GOOD, root / "fit" / GOOD)
    write_endless(root / "fit" / GOOD)
    answers: list[str] = []
    reading = threading.Thread(target=lambda: answers.append(fetch(f"{address}/studies/fit")))
    reading.start()
    assert "token" in fetch(f"{address}/login")
    reading.join(60)
    assert GOOD in answers[0]
    assert "its metrics are not read, because of its patterns" in answers[0]


def test_a_session_whose_manifest_is_a_folder(place: Place) -> None:
    data = place.pack(change=add(f"{MANIFEST}/x"))
    body = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + data + b"\r\n--b--\r\n"
    headers = {**UPLOAD, "content-type": "multipart/form-data; boundary=b"}
    answer = place.client.post("/api/test-sessions/upload_zip/", content=body, headers=headers)
    assert answer.status_code == 400
    assert str(place.root) not in answer.text


# ---------------------------------------------------------------- limits


def test_archives_that_are_too_large_or_become_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data, size = place.pack(GOOD), 1 << 20
    large = place.pack(GOOD, change=add(f"{IN}/zeros", bytes(size)))
    place.refuse(put(data, b"PK\5\6", 12, b"\xff" * 4), 413)  # a list of members that would fill the memory
    lying = place.send(large.replace(struct.pack("<I", size), struct.pack("<I", 10)))  # before it and in the list
    assert (lying.status_code in (400, 413), os.listdir(place.root)) == (True, [])
    for limits in (
        UploadLimits(body=1000),
        UploadLimits(files=5),
        UploadLimits(total=1000),
        UploadLimits(ratio=2, free=1000),
    ):
        monkeypatch.setattr(uploads, "LIMITS", limits)
        place.refuse(large, 413)
    monkeypatch.setattr(uploads, "LIMITS", UploadLimits(body=1000))
    answer = place.client.post("/api/uploads", content=iter([b"x" * 100] * 100), headers=UPLOAD)  # without a length
    assert (answer.status_code, os.listdir(place.root)) == (413, [])
    monkeypatch.setattr(uploads, "LIMITS", UploadLimits())
    packed = place.pack(GOOD, change=add(f"{IN}/zeros", bytes(70 << 20)))
    assert "would come out" in place.refuse(packed, 413)  # by the limits that hold


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}old"
    left.mkdir()
    with make_aside(str(tmp_path)):
        assert left.exists()
    os.utime(left, (0, 0))
    with make_aside(str(tmp_path)) as aside:
        assert os.listdir(tmp_path) == [os.path.basename(aside)]


# ---------------------------------------------------------------- tokens and other sites


def test_only_with_a_token_for_it_and_not_from_another_site_nor_too_often(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, status in (("", 401), (READER, 403), ("wrong", 401)):
        headers = {"content-type": "application/zip"} | ({"authorization": f"Bearer {token}"} if token else {})
        assert place.client.post("/api/uploads", content=place.pack(GOOD), headers=headers).status_code == status
    assert place.send(place.pack(GOOD), origin="http://evil.example").status_code == 403
    assert os.listdir(place.root) == []
    monkeypatch.setattr(uploads, "RATE", Limit(2))
    assert [place.send(place.pack(GOOD)).status_code for _ in range(3)] == [201, 200, 429]


def test_a_token_for_a_prefix_of_study_names(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"upload {UPLOADER}\nupload:ci- {BOUND}\n")
    path.chmod(0o600)
    tokens = load_tokens(str(path))
    assert [(token.scope, token.prefix) for token in tokens] == [("upload", ""), ("upload", "ci-")]
    with TestClient(build_app(Site((str(place.root),), tokens)), base_url="http://127.0.0.1:8666") as client:
        headers = {**UPLOAD, "authorization": f"Bearer {BOUND}"}
        refused = client.post("/api/uploads", content=place.pack(GOOD), headers=headers)
        assert refused.status_code == 403
        assert refused.json()["error"] == "this token is for studies that begin with ci-, not fit"
        assert not (place.root / "fit").exists()
        taken = client.post("/api/uploads", content=place.pack(GOOD, study="ci-nightly"), headers=headers)
        assert taken.status_code == 201
        facts = client.get(f"/api/studies/ci-nightly/runs/{GOOD}").json()
        assert facts["received"]["by"] == tokens[1].title
        assert BOUND not in json.dumps(facts)
        (listed,) = client.get("/api/studies/ci-nightly/runs").json()
        assert listed["received"]["how"] == "upload"
        for page in ("/studies/ci-nightly", f"/studies/ci-nightly/runs/{GOOD}"):
            assert tokens[1].title in client.get(page).text
    for entry in ("upload: ", "read:ci- ", "write:ci- ", "upload:../x ", "upload:.x ", "uploads "):
        path.write_text(f"{entry}{BOUND}\n")
        with pytest.raises(UsageError, match="entry 1 is not `write"):
            load_tokens(str(path))


def test_a_sender_that_dies(server: tuple[str, Path]) -> None:
    address, root = server
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection:
        head = f"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {UPLOADER}\r\n"
        head += "Content-Type: application/zip\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)
        until(lambda: os.listdir(root), "it has begun")
    until(lambda: not os.listdir(root), "nothing of it is left")

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
import time
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, Bench
from tests.web_client import READER, UPLOADER, open_client

from assay.compat.torq.dashboard import MANIFEST
from assay.errors import UsageError
from assay.exchange import receive
from assay.exchange import web_pages as uploads
from assay.exchange.receive import PREFIX, UploadLimits, make_aside
from assay.follow import collect
from assay.web.app import build_app
from assay.web.command import load_tokens
from assay.web.limited_patterns import LimitedLogParser
from assay.web.security import Limit
from assay.web.site import Site

BOUND = "a-bound-one-of-the-tests-0123456789"
UPLOAD = {"authorization": f"Bearer {UPLOADER}", "content-type": "application/zip"}


class Place:
    """An empty root, and a server for it."""

    def __init__(self, root: Path, client: TestClient, source: Path) -> None:
        self.root, self.client, self.source = root, client, source

    def send(self, data: bytes, **headers: str) -> Any:
        return self.client.post("/api/uploads", content=data, headers={**UPLOAD, **headers})

    def find_files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))

    def pack(self, *runs: str, study: str = "fit", change: Callable[[zipfile.ZipFile], object] | None = None) -> bytes:
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


@pytest.fixture
def place(tmp_path: Path, served: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    root = tmp_path / "there"
    root.mkdir()
    monkeypatch.setattr(uploads, "RATE", Limit(600))
    with open_client(root) as client:
        yield Place(root, client, served.root / "fit")


def write_endless(run: Path, target: Path) -> None:
    """A copy with a pattern that takes for ever on its log."""
    shutil.copytree(run, target)
    content = json.loads((target / "run.json").read_text())
    content["spec"]["patterns"][1]["regex"] = "(([a-z]+)+)+([0-9])$"
    (target / "run.json").write_text(json.dumps(content))
    next(target.glob("train*.log")).write_text("a" * 60 + "!\n")


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


class TestGood:
    def test_runs_appear_as_they_were(self, place: Place, served: Bench) -> None:
        answer = place.send(place.pack(GOOD, BAD))
        assert answer.status_code == 201, answer.text
        value = answer.json()
        assert value["link"] == "http://127.0.0.1:8666/studies/fit"
        assert [run["is_new"] for run in value["runs"]] == [True, True]
        assert place.client.get(value["link"]).status_code == 200
        assert place.client.get(value["runs"][0]["link"]).status_code == 200
        there, here = (
            client.get(f"/api/studies/fit/runs/{GOOD}").json() for client in (place.client, open_client(served.root))
        )
        for name in ("params", "state", "metrics", "commands", "id"):
            assert there[name] == here[name]
        assert not os.access(place.root / "fit" / GOOD / "job.sh", os.X_OK)  # what was uploaded is never executed
        assert not [name for name in os.listdir(place.root) if name.startswith(PREFIX)]

    def test_a_study_that_is_looked_at_shows_it_at_once(self, place: Place) -> None:
        answer = place.send(place.pack(GOOD))
        assert answer.json()["link"].endswith("/studies/fit/runs/lr%3D0.1%2Cn%3D7")
        assert len(place.client.get("/api/studies/fit/runs").json()) == 1
        place.send(place.pack(BAD))
        assert len(place.client.get("/api/studies/fit/runs").json()) == 2

    def test_a_second_root_with_a_study_of_this_name(self, place: Place, served: Bench) -> None:
        with open_client(place.root, served.root) as client:
            assert len(client.get("/api/studies/fit/runs").json()) == 4
            answer = client.post("/api/uploads", content=place.pack(GOOD), headers=UPLOAD)
            assert answer.status_code == 201
            assert len(client.get("/api/studies/fit/runs").json()) == 1
            assert len(client.get("/api/studies/fit~2/runs").json()) == 4

    def test_the_same_again_changes_nothing(self, place: Place) -> None:
        data = place.pack(GOOD)
        place.send(data)
        (place.root / "fit" / GOOD / "tags.json").write_text('{"tags": ["mine"]}')  # written on the server
        before = {path: (place.root / path).stat().st_mtime_ns for path in place.find_files()}
        answer = place.send(data)
        assert answer.status_code == 200
        assert answer.json()["runs"][0]["is_new"] is False
        assert {path: (place.root / path).stat().st_mtime_ns for path in place.find_files()}.keys() == before.keys()

    def test_another_run_of_the_same_name_is_refused(self, place: Place, tmp_path: Path) -> None:
        place.send(place.pack(GOOD))
        kept = {path: (place.root / path).read_bytes() for path in place.find_files() if (place.root / path).is_file()}
        shutil.copytree(place.source, tmp_path / "other")
        place.source = tmp_path / "other"
        record = place.source / GOOD / "run.json"
        record.write_text(record.read_text().replace('"uid": "', '"uid": "0'))
        answer = place.send(place.pack(GOOD, BAD))
        assert answer.status_code == 409
        assert f"fit/{GOOD} is here already" in answer.json()["error"]
        assert not (place.root / "fit" / BAD).exists()  # all, or none
        assert {path: (place.root / path).read_bytes() for path in kept} == kept


def add(name: str, content: bytes = b"x", mode: int = 0, **fields: Any) -> Callable[[zipfile.ZipFile], object]:
    def change(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.compress_type = fields.get("packed", zipfile.ZIP_DEFLATED)
        archive.writestr(info, content)

    return change


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
    "no run.json": add("fit/other/train.log"),
    "damaged run.json": add("fit/other/run.json", b"{"),
    "foreign run.json": add("fit/other/run.json", b'{"a": 1}'),
    "packed otherwise": add(f"{IN}/x", packed=zipfile.ZIP_LZMA),
}


class TestBad:
    def test_a_bad_member(self, place: Place) -> None:
        for name, change in BAD_MEMBERS.items():
            answer = place.send(place.pack(GOOD, change=change))
            assert (answer.status_code, bool(answer.json()["error"])) == (400, True), name
            assert place.find_files() == [], name

    def test_a_name_with_a_zero_byte(self, place: Place) -> None:
        data = place.pack(GOOD, change=add(f"{IN}/aXb")).replace(b"/aXb", b"/a\0b")
        assert place.send(data).status_code == 400
        assert place.find_files() == []

    def test_a_run_that_is_not_finished(self, place: Place, tmp_path: Path) -> None:
        shutil.copytree(place.source / GOOD, tmp_path / "o" / GOOD)
        for path in (tmp_path / "o" / GOOD).iterdir():
            if path.name.startswith(("outcome.", "token.", "lease.", "end.")) or ".exit." in path.name:
                path.unlink()
        place.source = tmp_path / "o"
        answer = place.send(place.pack(GOOD))
        assert answer.status_code == 400
        assert "is not finished" in answer.json()["error"]
        assert place.find_files() == []

    def test_a_record_that_leads_elsewhere(self, place: Place, tmp_path: Path) -> None:
        shutil.copytree(place.source / GOOD, tmp_path / "o" / GOOD)
        place.source = tmp_path / "o"
        record = tmp_path / "o" / GOOD / "run.json"
        content = json.loads(record.read_text())
        for change in (
            {"patterns": [{"kind": "csv", "path": "../../*.csv"}]},
            {"patterns": [{"kind": "csv", "path": "/etc/**"}]},
            {"log_name": "../../{command}{suffix}.log"},
            {"log_name": "{suffix:/>1}etc/../passwd"},
            {"commands": [["../../x", "true", None]]},
        ):
            record.write_text(json.dumps({**content, "spec": {**content["spec"], **change}}))
            answer = place.send(place.pack(GOOD))
            assert (answer.status_code, "leads elsewhere" in answer.json()["error"]) == (400, True), change
            assert place.find_files() == []

    def test_a_full_disk(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(uploads, "store_archive", fail)
        answer = place.send(place.pack(GOOD))
        assert answer.status_code == 507
        assert answer.json()["error"] == "the upload cannot be stored: No space left on device"

    def test_patterns_that_take_for_ever(self, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Read by the server itself, they would hold up all requests."""
        write_endless(place.source / GOOD, tmp_path / "o" / GOOD)
        monkeypatch.setattr(receive, "METRICS_S", 0.5)
        place.source = tmp_path / "o"
        answer = place.send(place.pack(GOOD))
        assert answer.status_code == 400
        assert "the metrics cannot be read" in answer.json()["error"]
        assert place.find_files() == []

    def test_patterns_of_a_run_that_is_here_hold_up_nobody(
        self, server: tuple[str, Path], served: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It passed the check, or was never checked: other pages are answered while its metrics are read."""
        monkeypatch.setattr(LimitedLogParser, "FIRST_S", 0.5)
        monkeypatch.setattr(collect, "log_parser", LimitedLogParser())
        address, root = server
        write_endless(served.root / "fit" / GOOD, root / "fit" / GOOD)
        answers: list[str] = []
        reading = threading.Thread(target=lambda: answers.append(fetch(f"{address}/studies/fit")))
        reading.start()
        assert "token" in fetch(f"{address}/login")
        reading.join(60)
        assert GOOD in answers[0]
        assert "its metrics are not read, because of its patterns" in answers[0]

    def test_half_an_archive(self, place: Place) -> None:
        data = place.pack(GOOD)
        for part in (0.0, 0.3, 0.7, 0.999):
            assert place.send(data[: int(part * len(data))]).status_code == 400
            assert place.find_files() == []

    def test_damage_inside(self, place: Place) -> None:
        data = bytearray(place.pack(GOOD))
        at = len(data) // 3
        data[at : at + 20] = bytes(20)
        assert place.send(bytes(data)).status_code == 400
        assert place.find_files() == []

    @pytest.mark.parametrize(("seed", "count"), [(7, 40), pytest.param(8, 400, marks=pytest.mark.long)])
    def test_damage_anywhere_is_the_sender_s_and_names_no_path_of_the_server(
        self, place: Place, seed: int, count: int
    ) -> None:
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

    @pytest.mark.parametrize("size", [100_000, 10_000_000])
    def test_a_list_of_members_that_would_begin_before_the_archive(self, place: Place, size: int) -> None:
        data = bytearray(place.pack(GOOD))
        at = data.rindex(b"PK\5\6") + 12
        data[at : at + 4] = struct.pack("<I", size)
        answer = place.send(bytes(data))
        assert answer.status_code == 400
        assert str(place.root) not in answer.text
        assert place.find_files() == []

    def test_a_name_that_is_longer_than_paths_can_be(self, place: Place) -> None:
        answer = place.send(place.pack(GOOD, change=add(f"{IN}/{'/'.join(['d' * 250] * 30)}")))
        assert answer.status_code == 400
        assert str(place.root) not in answer.text
        assert place.find_files() == []

    @pytest.mark.parametrize("name", ["run.json/x", "attempt-1.outcome.json/x", "attempts/x", "tags.json/x"])
    def test_a_folder_in_the_place_of_a_file(self, place: Place, name: str) -> None:
        answer = place.send(place.pack(change=add(f"{IN}/{name}")))
        assert answer.status_code == 400
        assert str(place.root) not in answer.text
        assert "Errno" not in answer.text

    def test_a_session_whose_manifest_is_a_folder(self, place: Place) -> None:
        data = place.pack(change=add(f"{MANIFEST}/x"))
        body = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + data + b"\r\n--b--\r\n"
        headers = {**UPLOAD, "content-type": "multipart/form-data; boundary=b"}
        answer = place.client.post("/api/test-sessions/upload_zip/", content=body, headers=headers)
        assert answer.status_code == 400
        assert str(place.root) not in answer.text

    @pytest.mark.parametrize("kind", ["text/plain", "application/json", ""])
    def test_another_kind(self, place: Place, kind: str) -> None:
        assert place.send(place.pack(GOOD), **{"content-type": kind}).status_code == 415

    def test_an_encrypted_one(self, place: Place) -> None:
        data = bytearray(place.pack(change=add(f"{IN}/run.json")))
        data[6] |= 1
        data[data.rindex(b"PK\1\2") + 8] |= 1
        assert place.send(bytes(data)).status_code == 400


class TestLimits:
    def test_bytes(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "LIMITS", UploadLimits(body=1000))
        assert place.send(place.pack(GOOD)).status_code == 413

        def stream() -> Iterator[bytes]:  # without a length
            for _ in range(100):
                yield b"x" * 100

        answer = place.client.post("/api/uploads", content=stream(), headers=UPLOAD)
        assert answer.status_code == 413
        assert place.find_files() == []

    @pytest.mark.parametrize(
        "limits",
        [UploadLimits(files=5), UploadLimits(total=1000), UploadLimits(ratio=2, free=1000)],
        ids=["count", "total", "ratio"],
    )
    def test_a_bomb(self, place: Place, monkeypatch: pytest.MonkeyPatch, limits: UploadLimits) -> None:
        monkeypatch.setattr(uploads, "LIMITS", limits)
        answer = place.send(place.pack(GOOD, change=add(f"{IN}/zeros", bytes(1 << 20))))
        assert answer.status_code == 413, answer.text
        assert place.find_files() == []

    def test_the_limits_that_hold(self, place: Place) -> None:
        answer = place.send(place.pack(GOOD, change=add(f"{IN}/zeros", bytes(100 << 20))))
        assert answer.status_code == 413
        assert "would come out" in answer.json()["error"]

    def test_an_archive_that_says_less_than_it_holds(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The size is written in front of the member, and in the list at the end."""
        size = 1 << 20
        data = place.pack(GOOD, change=add(f"{IN}/zeros", bytes(size)))
        data = data.replace(struct.pack("<I", size), struct.pack("<I", 10))
        assert place.send(data).status_code in (400, 413)
        assert place.find_files() == []

    def test_a_list_of_members_that_would_fill_the_memory(self, place: Place) -> None:
        data = bytearray(place.pack(GOOD))
        at = data.rindex(b"PK\5\6")
        struct.pack_into("<I", data, at + 12, 0xFFFF_FFFF)
        assert place.send(bytes(data)).status_code == 413

    def test_too_many_within_a_minute(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploads, "RATE", Limit(2))
        data = place.pack(GOOD)
        assert [place.send(data).status_code for _ in range(3)] == [201, 200, 429]

    def test_what_a_killed_server_left_is_removed(self, tmp_path: Path) -> None:
        left = tmp_path / f"{PREFIX}old"
        left.mkdir()
        with make_aside(str(tmp_path)):
            assert left.exists()
        os.utime(left, (0, 0))
        with make_aside(str(tmp_path)) as aside:
            assert os.listdir(tmp_path) == [os.path.basename(aside)]


class TestWho:
    @pytest.mark.parametrize(("token", "status"), [("", 401), (READER, 403), ("wrong", 401)])
    def test_only_with_a_token_for_it(self, place: Place, token: str, status: int) -> None:
        headers = {"content-type": "application/zip"} | ({"authorization": f"Bearer {token}"} if token else {})
        assert place.client.post("/api/uploads", content=place.pack(GOOD), headers=headers).status_code == status
        assert place.find_files() == []

    def test_a_token_for_a_prefix_of_study_names(self, place: Place, tmp_path: Path) -> None:
        path = tmp_path / "tokens"
        path.write_text(f"upload {UPLOADER}\nupload:ci- {BOUND}\n")
        path.chmod(0o600)
        tokens = load_tokens(str(path))
        assert [(token.scope, token.prefix) for token in tokens] == [("upload", ""), ("upload", "ci-")]
        site = Site((str(place.root),), tokens)
        with TestClient(build_app(site), base_url="http://127.0.0.1:8666") as client:
            headers = {**UPLOAD, "authorization": f"Bearer {BOUND}"}
            refused = client.post("/api/uploads", content=place.pack(GOOD), headers=headers)
            assert (refused.status_code, refused.json()["error"]) == (
                403,
                "this token is for studies that begin with ci-, not fit",
            )
            assert not (place.root / "fit").exists()
            taken = client.post("/api/uploads", content=place.pack(GOOD, study="ci-nightly"), headers=headers)
            assert taken.status_code == 201
        facts = place.client.get(f"/api/studies/ci-nightly/runs/{GOOD}").json()
        assert facts["received"]["by"] == tokens[1].title
        assert BOUND not in json.dumps(facts)
        (listed,) = place.client.get("/api/studies/ci-nightly/runs").json()
        assert listed["received"]["how"] == "upload"
        for page in ("/studies/ci-nightly", f"/studies/ci-nightly/runs/{GOOD}"):
            assert tokens[1].title in place.client.get(page).text

    @pytest.mark.parametrize("entry", ["upload: ", "read:ci- ", "write:ci- ", "upload:../x ", "upload:.x ", "uploads "])
    def test_an_entry_of_the_tokens_that_is_none(self, tmp_path: Path, entry: str) -> None:
        path = tmp_path / "tokens"
        path.write_text(f"{entry}{BOUND}\n")
        path.chmod(0o600)
        with pytest.raises(UsageError, match="entry 1 is not `write"):
            load_tokens(str(path))

    def test_not_from_another_site(self, place: Place) -> None:
        assert place.send(place.pack(GOOD), origin="http://evil.example").status_code == 403


def test_a_sender_that_dies(server: tuple[str, Path]) -> None:
    address, root = server
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {UPLOADER}\r\n"
        head += "Content-Type: application/zip\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)
        deadline = time.monotonic() + 30
        while not os.listdir(root):  # it has begun
            assert time.monotonic() < deadline
            time.sleep(0.02)
    while os.listdir(root):
        assert time.monotonic() < deadline
        time.sleep(0.02)

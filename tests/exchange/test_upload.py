"""Runs are sent to a server: what goes, and what is reported where it does not."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.bad_servers import RecordingServer, recording
from tests.finished_study import BAD, GOOD, Bench, build_bench
from tests.web_client import READER, TOKEN, UPLOADER, server

from assay.errors import InfrastructureError, UsageError
from assay.exchange import upload
from assay.exchange.upload import OutgoingRun, UploadServer, find_server, upload_runs
from assay.follow.api import StudyLocation
from assay.follow.refresh import refresh_study
from assay.reading.run_description import build_facts, describe_run
from assay.record.index.sqlite import SqliteIndex
from assay.show.console import SILENT
from assay.system.http_post import find_proxy

__all__ = ["server"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return build_bench(tmp_path_factory.mktemp("sent"))


class Fake(NamedTuple):
    """A server with prepared answers."""

    answers: list[tuple[int, bytes]]
    server: RecordingServer

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture
def fake() -> Iterator[Fake]:
    answers: list[tuple[int, bytes]] = []
    with recording(lambda _got: answers.pop(0)) as server:
        yield Fake(answers, server)


def call(bench: Bench, *words: str, **env: str) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        bench.enter(patch)
        for name, value in {"ASSAY_SERVER": "", "ASSAY_TOKEN": "", **env}.items():
            patch.setenv(name, value)
        done = bench.read("upload", *words)
    return done.returncode, done.stdout, done.stderr


def describe(root: Path, run: str) -> dict[str, Any]:
    location = StudyLocation(str(root), "fit")
    with SqliteIndex(":memory:") as index:
        refresh_study(index, location, SILENT)
        return build_facts(describe_run(index, location, str(root / "fit" / run), ()))


class TestCommand:
    def test_there_and_back(self, bench: Bench, server: tuple[str, Path]) -> None:
        url, root = server
        secret = bench.root / "fit" / GOOD / "secrets.sh"
        secret.write_text("export KEY=hidden")
        try:
            code, out, err = call(bench, "fit", ASSAY_SERVER=url + "/", ASSAY_TOKEN=UPLOADER)
        finally:
            secret.unlink()
        assert (code, out) == (0, f"{url}/studies/fit\n"), err
        assert "sent 4 runs" in err
        assert "4 new" in err
        assert not list(root.rglob("secrets.sh"))
        for run in (GOOD, BAD):
            here, there = (describe(each, run) for each in (bench.root, root))
            assert there["files"].pop("received.json")
            assert here["files"].items() >= there["files"].items()  # without an empty folder
            assert there.pop("received")["by"].startswith("upload token ")
            assert here.pop("received") is None
            for attempt in (*here["attempts"], *there["attempts"]):
                attempt["lease"] = attempt["lease"]["host"]  # which processes it had is of no use elsewhere
            assert {**here, "dir": "", "files": ""} == {**there, "dir": "", "files": ""}
        code, out, err = call(bench, f"fit/{GOOD}", "--server", url, "--json", ASSAY_TOKEN=UPLOADER)
        (run_,) = json.loads(out)["runs"]
        assert (code, run_["is_new"]) == (0, False)
        assert UPLOADER not in out + err
        next((root / "fit" / BAD).glob("train*.log")).write_text("other")
        code, _, err = call(bench, "fit", ASSAY_SERVER=url, ASSAY_TOKEN=TOKEN)
        assert (code, f"fit/{BAD} is here already, with other content" in err) == (4, True)
        for token in (READER, "wrong-token-0123456789"):
            code, out, err = call(bench, "fit", ASSAY_SERVER=url, ASSAY_TOKEN=token)
            assert (code, "refuses: 40" in err) == (4, True)
            assert token not in out + err

    def test_mistakes(self, bench: Bench) -> None:
        here = "http://127.0.0.1:1"
        for address, token, said in (
            ("", "", "no server is given"),
            (here, "", "ASSAY_TOKEN is not set"),
            (here, "", "in the file that it named, or in the file of its --tokens"),
            ("localhost:80", "x", "not a plain http"),
            ("http://user:pass@lab", "x", "not a plain http"),
            ("http://[", "x", "not a plain http"),
            (here, "se\ncret", "is not a token"),
        ):
            code, _, err = call(bench, "fit", ASSAY_SERVER=address, ASSAY_TOKEN=token)
            assert (code, said in err) == (2, True), err
            assert "cret" not in err
            assert "pass@" not in err

    def test_a_run_that_goes_on_is_left_out(self, bench: Bench, tmp_path: Path) -> None:
        own = Bench(tmp_path)
        shutil.copytree(bench.root / "fit" / GOOD, own.root / "fit" / GOOD)
        for path in (own.root / "fit" / GOOD).iterdir():
            if path.name.startswith(("outcome.", "token.", "lease.", "end.")) or ".exit." in path.name:
                path.unlink()
        code, _, err = call(own, "fit", ASSAY_SERVER="http://127.0.0.1:1", ASSAY_TOKEN=UPLOADER)
        assert (code, f"fit/{GOOD} is not finished and was left out" in err) == (2, True)
        assert "there is no finished run to send" in err


class TestAway:
    def test_nobody_there(self, bench: Bench) -> None:
        waits: list[float] = []
        target = OutgoingRun("fit", str(bench.root / "fit" / GOOD))
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9: it does not answer") as found:
            upload_runs([target], UploadServer("http://127.0.0.1:9", "secret-token"), waits.append)
        assert waits == [2.0, 4.0]
        assert "secret" not in found.value.render()
        assert "assay serve" in found.value.render()

    def test_trouble_is_tried_again(self, bench: Bench, fake: Fake) -> None:
        good = json.dumps({"runs": [{"is_new": True}], "link": "http://x/studies/fit"}).encode()
        fake.answers.extend([(503, b"busy"), (429, b"too many"), (201, good)])
        target = OutgoingRun("fit", str(bench.root / "fit" / GOOD))
        found = upload_runs([target], UploadServer(fake.url, "t" * 20), lambda _: None)
        assert found.links == ["http://x/studies/fit"]
        assert fake.server.got[0].body == fake.server.got[2].body
        assert fake.server.got[-1].headers["Authorization"] == "Bearer " + "t" * 20

    def test_a_refusal_is_said_once(self, bench: Bench, fake: Fake) -> None:
        """A redirection is not followed: it would take the token elsewhere."""
        target = OutgoingRun("fit", str(bench.root / "fit" / GOOD))
        for answer, said in (
            ((413, b'{"error": "too large", "hint": ""}'), "it refuses: 413 too large"),
            ((404, b"<html>nothing here"), "it refuses: 404"),
            ((307, b"http://127.0.0.1:9/elsewhere"), "it refuses: 307"),
            ((200, b"<html>welcome"), "is not an `assay serve`"),
            ((200, b'{"runs": 1, "link": 2}'), "is not an `assay serve`"),
            ((200, b"[]"), "is not an `assay serve`"),
        ):
            fake.answers[:] = [answer]
            with pytest.raises(InfrastructureError, match=said):
                upload_runs([target], UploadServer(fake.url, "t" * 20), pytest.fail)
        assert len(fake.server.got) == 6


class TestProxy:
    """Variables of the environment lead by a proxy; here it is a server of ours, which answers by itself."""

    def send(self, bench: Bench, url: str) -> None:
        upload_runs([OutgoingRun("fit", str(bench.root / "fit" / GOOD))], UploadServer(url, "t" * 20), attempts=1)

    def test_by_a_proxy_with_its_password(self, bench: Bench, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        """To a server by https it is a tunnel: the proxy sees neither the token nor the runs. This one does not know
        tunnels, and refuses."""
        monkeypatch.setenv("http_proxy", fake.url.replace("://", "://me:a%40b@"))
        monkeypatch.setenv("https_proxy", fake.url)
        fake.answers.append((200, b'{"runs": [], "link": "x"}'))
        self.send(bench, "http://lab.invalid:8666/base")
        (got,) = fake.server.got
        assert got.path == "http://lab.invalid:8666/base/api/uploads"
        assert got.headers["Host"] == "lab.invalid:8666"
        assert got.headers["Proxy-Authorization"] == "Basic bWU6YUBi"
        with pytest.raises(InfrastructureError, match="Tunnel connection failed: 501"):
            self.send(bench, "https://lab.invalid")
        assert len(fake.server.got) == 1

    def test_not_by_a_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
        assert [find_proxy("http", host, 8666) for host in ("localhost", "127.0.0.1")] == [None, None]
        assert find_proxy("http", "lab.invalid", 8666) == "http://proxy.invalid:3128"
        for name in ("lab.invalid", "lab.invalid:8666", ".invalid", "*"):
            monkeypatch.setenv("no_proxy", name)
            assert find_proxy("http", "lab.invalid", 8666) is None

    def test_a_proxy_of_another_kind(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("all_proxy", "socks5://me:secret@proxy.invalid")
        with pytest.raises(InfrastructureError, match="not an http:// address") as found:
            self.send(bench, "http://lab.invalid")
        assert "secret" not in found.value.render()
        assert "export no_proxy=lab.invalid" in found.value.render()


class TestPacking:
    def send(self, fake: Fake, *runs: Path) -> tuple[list[set[str]], list[str]]:
        fake.answers[:] = [(200, b'{"runs": [], "link": "x"}')] * len(runs)
        found = upload_runs([OutgoingRun("fit", str(run)) for run in runs], UploadServer(fake.url, "t" * 20))
        return [set(zipfile.ZipFile(BytesIO(body)).namelist()) for _, _, body in fake.server.got], found.notes

    def test_what_is_left_out(self, bench: Bench, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = tmp_path / "run"
        shutil.copytree(bench.root / "fit" / GOOD, run)
        os.symlink("/etc/passwd", run / "link")
        os.mkfifo(run / "pipe")
        (run / "odd\nname").write_text("x")
        (run / "secrets.sh").write_text("x")
        (run / "code").mkdir(exist_ok=True)
        (run / "code" / "large.bin").write_bytes(bytes(5000))
        (run / "code.py").write_text("x")
        (run / "old").write_text("x")
        os.utime(run / "old", (0, 0))
        ((names,), notes) = self.send(fake, run)
        assert {"fit/run/run.json", "fit/run/code/large.bin", "fit/run/old"} <= names
        assert not {"fit/run/link", "fit/run/pipe", "fit/run/secrets.sh"} & names
        assert [note for note in notes if "odd" in note]
        monkeypatch.setattr(upload, "_MOST_CODE", 4000)
        fake.server.got.clear()
        ((names,), notes) = self.send(fake, run)
        assert "fit/run/code/large.bin" not in names
        assert "fit/run/code.py" in names
        assert any("its copy of the code" in note for note in notes)

        monkeypatch.setattr(upload, "_BATCH_FILES", 1)  # many runs go in several archives
        fake.server.got.clear()
        archives, _ = self.send(fake, bench.root / "fit" / GOOD, bench.root / "fit" / BAD)
        assert len(archives) == 2


def test_a_server_is_not_printed_with_its_token() -> None:
    server = find_server("http://lab:8666/base/", {"ASSAY_TOKEN": "secret"})
    assert server.url == "http://lab:8666/base"
    assert "secret" not in f"{server} {server!r}"
    with pytest.raises(UsageError):
        find_server("ftp://lab", {"ASSAY_TOKEN": "secret"})

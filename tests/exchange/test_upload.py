"""Runs are sent to a server: what goes, and what is reported where it does not."""

from __future__ import annotations

import json
import os
import shutil
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path

import pytest
from tests.finished_study import BAD, GOOD, LONG, Bench, build_bench, until
from tests.web_client import READER, TOKEN, UPLOADER, server

from assay.errors import InfrastructureError, UsageError
from assay.exchange import upload
from assay.exchange.upload import OutgoingRun, UploadServer, find_server, upload_runs
from assay.system.http_post import find_proxy

__all__ = ["server"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return build_bench(tmp_path_factory.mktemp("sent"))


class FakeServer:
    """A server with prepared answers."""

    def __init__(self) -> None:
        fake = self
        self.answers: list[tuple[int, bytes]] = []
        self.headers: dict[str, str] = {}
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake.headers = dict(self.headers)
                fake.paths.append(self.path)
                fake.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                status, body = fake.answers.pop(0)
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    found = FakeServer()
    yield found
    found.close()


def call(bench: Bench, *words: str, **env: str) -> tuple[int, str, str]:
    before = dict(bench.extra)
    bench.extra |= {"ASSAY_SERVER": "", "ASSAY_TOKEN": "", **env}
    try:
        done = bench.assay("upload", *words)
    finally:
        bench.extra = before
    return done.returncode, done.stdout, done.stderr


class TestCommand:
    def test_there_and_back(self, bench: Bench, server: tuple[str, Path]) -> None:
        url, root = server
        secret = bench.root / "fit" / GOOD / "secrets.sh"
        secret.write_text("export KEY=hidden")
        try:
            code, out, err = call(bench, "fit", ASSAY_SERVER=url + "/", ASSAY_TOKEN=UPLOADER)
        finally:
            secret.unlink()
        assert code == 0, err
        assert out == f"{url}/studies/fit\n"
        assert "sent 4 runs" in err
        assert "4 new" in err
        assert not list(root.rglob("secrets.sh"))
        for run in (GOOD, BAD):
            here, there = (
                json.loads(bench.assay("show", f"fit/{run}", "--json", "--root", str(each)).stdout)
                for each in (bench.root, root)
            )
            assert there["files"].pop("received.json")
            assert here["files"].items() >= there["files"].items()  # without an empty folder
            assert there.pop("received")["by"].startswith("upload token ")
            assert here.pop("received") is None
            for attempt in (*here["attempts"], *there["attempts"]):
                attempt["lease"] = attempt["lease"]["host"]  # which processes it had is of no use elsewhere
            assert {**here, "dir": "", "files": ""} == {**there, "dir": "", "files": ""}
        code, out, err = call(bench, f"fit/{GOOD}", "--server", url, "--json", ASSAY_TOKEN=UPLOADER)
        assert code == 0
        (run_,) = json.loads(out)["runs"]
        assert run_["is_new"] is False
        assert UPLOADER not in out + err

    def test_another_run_of_the_same_name(self, bench: Bench, server: tuple[str, Path], tmp_path: Path) -> None:
        url, root = server
        env = {"ASSAY_SERVER": url, "ASSAY_TOKEN": TOKEN}
        call(bench, f"fit/{GOOD}", **env)
        log = next((root / "fit" / GOOD).glob("train*.log"))
        log.write_text("other")
        code, _, err = call(bench, "fit", **env)
        assert code == 4
        assert f"fit/{GOOD} is here already, with other content" in err
        assert sorted(path.name for path in (root / "fit").iterdir()) == [".assay", GOOD]

    @pytest.mark.parametrize("token", [READER, "wrong-token-0123456789"])
    def test_a_token_that_does_not_allow_it(self, bench: Bench, server: tuple[str, Path], token: str) -> None:
        code, out, err = call(bench, "fit", ASSAY_SERVER=server[0], ASSAY_TOKEN=token)
        assert code == 4
        assert "refuses: 40" in err
        assert token not in out + err

    @pytest.mark.parametrize(
        ("env", "said"),
        [
            ({}, "to which server?"),
            ({"ASSAY_SERVER": "http://127.0.0.1:1"}, "ASSAY_TOKEN is not set"),
            ({"ASSAY_SERVER": "http://127.0.0.1:1"}, "in the file that it named, or in the file of its --tokens"),
            ({"ASSAY_SERVER": "localhost:80", "ASSAY_TOKEN": "x"}, "not a plain http"),
            ({"ASSAY_SERVER": "http://user:pass@lab", "ASSAY_TOKEN": "x"}, "not a plain http"),
            ({"ASSAY_SERVER": "http://[", "ASSAY_TOKEN": "x"}, "not a plain http"),
            ({"ASSAY_SERVER": "http://127.0.0.1:1", "ASSAY_TOKEN": "se\ncret"}, "is not a token"),
        ],
    )
    def test_mistakes(self, bench: Bench, env: dict[str, str], said: str) -> None:
        code, _, err = call(bench, "fit", **env)
        assert code == 2
        assert said in err
        assert "cret" not in err
        assert "pass@" not in err

    def test_a_run_that_goes_on_is_left_out(self, tmp_path: Path, server: tuple[str, Path]) -> None:
        bench = Bench(tmp_path)
        started = bench.start("run", bench.write("long.yml", LONG), "-j", "1", "--quiet")
        try:
            until(lambda: list(bench.root.glob("long/x=1/lease.1")), "a run has begun")
            code, _, err = call(bench, "long/x=1", ASSAY_SERVER=server[0], ASSAY_TOKEN=UPLOADER)
            assert code == 2
            assert "is not finished" in err
        finally:
            bench.assay("stop", "long")
            started.communicate(timeout=60)


class TestAway:
    def test_nobody_there(self, bench: Bench) -> None:
        waits: list[float] = []
        target = OutgoingRun("fit", str(bench.root / "fit" / GOOD))
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9: it does not answer") as found:
            upload_runs([target], UploadServer("http://127.0.0.1:9", "secret-token"), waits.append)
        assert waits == [2.0, 4.0]
        assert "secret" not in found.value.render()
        assert "assay serve" in found.value.render()

    def test_trouble_is_tried_again(self, bench: Bench, fake: FakeServer) -> None:
        good = json.dumps({"runs": [{"is_new": True}], "link": "http://x/studies/fit"}).encode()
        fake.answers = [(503, b"busy"), (429, b"too many"), (201, good)]
        target = OutgoingRun("fit", str(bench.root / "fit" / GOOD))
        found = upload_runs([target], UploadServer(fake.url, "t" * 20), lambda _: None)
        assert found.links == ["http://x/studies/fit"]
        assert fake.bodies[0] == fake.bodies[2]
        assert fake.headers["Authorization"] == "Bearer " + "t" * 20

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ((413, b'{"error": "too large", "hint": ""}'), "it refuses: 413 too large"),
            ((404, b"<html>nothing here"), "it refuses: 404"),
            ((307, b"http://127.0.0.1:9/elsewhere"), "it refuses: 307"),
            ((200, b"<html>welcome"), "is not an `assay serve`"),
            ((200, b'{"runs": 1, "link": 2}'), "is not an `assay serve`"),
            ((200, b"[]"), "is not an `assay serve`"),
        ],
    )
    def test_a_refusal_is_said_once(self, bench: Bench, fake: FakeServer, answer: tuple[int, bytes], said: str) -> None:
        """A redirection is not followed: it would take the token elsewhere."""
        fake.answers = [answer]
        with pytest.raises(InfrastructureError, match=said):
            upload_runs(
                [OutgoingRun("fit", str(bench.root / "fit" / GOOD))], UploadServer(fake.url, "t" * 20), pytest.fail
            )
        assert len(fake.bodies) == 1


class TestProxy:
    """Variables of the environment lead by a proxy; here it is a server of ours, which answers by itself."""

    def send(self, bench: Bench, url: str) -> None:
        upload_runs([OutgoingRun("fit", str(bench.root / "fit" / GOOD))], UploadServer(url, "t" * 20), attempts=1)

    def test_by_a_proxy_with_its_password(
        self, bench: Bench, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", fake.url.replace("://", "://me:a%40b@"))
        fake.answers = [(200, b'{"runs": [], "link": "x"}')]
        self.send(bench, "http://lab.invalid:8666/base")
        assert fake.paths == ["http://lab.invalid:8666/base/api/uploads"]
        assert fake.headers["Host"] == "lab.invalid:8666"
        assert fake.headers["Proxy-Authorization"] == "Basic bWU6YUBi"

    def test_a_tunnel_where_the_server_is_https(
        self, bench: Bench, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The proxy sees neither the token nor the runs. This one does not know tunnels, and refuses."""
        monkeypatch.setenv("https_proxy", fake.url)
        with pytest.raises(InfrastructureError, match="Tunnel connection failed: 501"):
            self.send(bench, "https://lab.invalid")
        assert fake.bodies == []

    @pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "lab.invalid", "lab.invalid:8666", ".invalid", "*"])
    def test_not_by_a_proxy(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
        is_here = name in ("localhost", "127.0.0.1")
        host = name if is_here else "lab.invalid"
        if not is_here:
            assert find_proxy("http", host, 8666) == "http://proxy.invalid:3128"
            monkeypatch.setenv("no_proxy", name)
        assert find_proxy("http", host, 8666) is None

    def test_a_proxy_of_another_kind(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("all_proxy", "socks5://me:secret@proxy.invalid")
        with pytest.raises(InfrastructureError, match="not an http:// address") as found:
            self.send(bench, "http://lab.invalid")
        assert "secret" not in found.value.render()
        assert "export no_proxy=lab.invalid" in found.value.render()


class TestPacking:
    def send(self, fake: FakeServer, *runs: Path) -> tuple[list[set[str]], list[str]]:
        fake.answers = [(200, b'{"runs": [], "link": "x"}')] * len(runs)
        found = upload_runs([OutgoingRun("fit", str(run)) for run in runs], UploadServer(fake.url, "t" * 20))
        return [set(zipfile.ZipFile(BytesIO(body)).namelist()) for body in fake.bodies], found.notes

    def test_what_is_left_out(
        self, bench: Bench, fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        fake.bodies.clear()
        ((names,), notes) = self.send(fake, run)
        assert "fit/run/code/large.bin" not in names
        assert "fit/run/code.py" in names
        assert any("its copy of the code" in note for note in notes)

    def test_many_runs_go_in_several_archives(
        self, bench: Bench, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upload, "_BATCH_FILES", 1)
        archives, _ = self.send(fake, bench.root / "fit" / GOOD, bench.root / "fit" / BAD)
        assert len(archives) == 2


def test_a_server_is_not_printed_with_its_token() -> None:
    server = find_server("http://lab:8666/base/", {"ASSAY_TOKEN": "secret"})
    assert server.url == "http://lab:8666/base"
    assert "secret" not in f"{server} {server!r}"
    with pytest.raises(UsageError):
        find_server("ftp://lab", {"ASSAY_TOKEN": "secret"})

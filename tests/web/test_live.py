"""Server-sent events of a study that changes, from a real server."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.finished_study import GOOD, Bench, until
from tests.web_client import TOKEN, copy_bench

from assay.errors import AssayError, UsageError
from assay.show.console import Console
from assay.web import assets, command
from assay.web.command import ServeRequest, load_tokens, serve

TOP = Path(__file__).parent.parent.parent


def test_a_server_from_its_start_to_its_end(served: Bench, tmp_path: Path) -> None:
    """By https, without what comes from npm: where the token is, the events of changes, and Ctrl-C beside listeners."""
    bench = copy_bench(served, tmp_path)
    cert, key = write_certificate(tmp_path)
    code = (
        "import sys, assay.web.assets as a, assay.web.live as l, assay.web.snapshots as s; a.find_missing = list; "
        "s._RESTING_S = s._LISTED_S = l._LISTED_S = l._LOOK_S = 0.2; from assay.cli.main import main; "  # of seconds
        f"sys.argv = ['assay', 'serve', '--port', '0', '--tls-cert', {str(cert)!r}, '--tls-key', {str(key)!r}]; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=bench.folder,
        env=os.environ | bench.extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline() for _ in range(3)]
            assert re.fullmatch(r"open  https://127\.0\.0\.1:\d+/\n", lines[1])
            address, context = lines[1].split()[1], ssl.create_default_context(cafile=str(cert))

            def ask(path: str, **more: Any) -> Any:
                request = urllib.request.Request(address + path, **more)
                return urllib.request.urlopen(request, timeout=30, context=context)

            path = Path(re.findall(r"cat (\S+)", lines[2])[0])  # redirected output has no token, and says where it is
            token = path.read_text().strip()
            assert path.stat().st_mode & 0o077 == 0
            with ask("login", method="POST", headers={"authorization": f"Bearer {token}"}) as answer:
                assert "write" in json.loads(answer.read())["scopes"]
            with ask("events") as events:
                (counts, at) = read_event(events)["studies"]["fit"]
                assert (counts, at is None) == ({"done": 2, "failed": 2}, False)
                shutil.copytree(bench.root / "fit", bench.root / "again")
                until(lambda: "again" in read_event(events)["studies"], "the other study is sent")
                assert b"2 failed" in ask("studies/again/card").read()
            with ask("events?study=fit") as events:
                first = read_event(events)
                assert first["counts"] == {"done": 2, "failed": 2}
                (bench.root / "fit" / GOOD / "tags.json").write_text('{"format": 1, "tags": ["seen"], "notes": []}')
                assert read_event(events)["version"] == first["version"] + 1
                server.send_signal(signal.SIGINT)
                until(lambda: server.poll() is not None, "the server has ended")
        finally:
            server.kill()
        out, err = server.communicate()
    assert server.returncode in (0, 130)
    assert not [word for word in (token, "Traceback") if word in "".join(lines) + out + err]
    assert not path.exists()  # it is not good any more


def read_event(events: Any) -> dict[str, Any]:
    line = next(line for line in events if line.startswith(b"data: "))
    return dict(json.loads(line[6:]))


def test_what_comes_from_npm_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "VENDOR", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        serve(ServeRequest(root=(str(tmp_path),)), Console())
    assert "htmx.min.js" in refused.value.message
    assert refused.value.hint is not None
    assert refused.value.hint.endswith(f"{sys.executable} {TOP / 'hatch_build.py'}")


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


class TestStart:
    """What `assay serve` refuses before it listens."""

    @pytest.fixture(autouse=True)
    def complete(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(assets, "find_missing", list)
        monkeypatch.delenv("ASSAY_TOKEN", raising=False)

    def test_a_port_a_root_and_an_address_that_cannot_be_used(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(UsageError, match=f"port {taken.getsockname()[1]}"):
                serve(ServeRequest(root=(str(tmp_path),), port=taken.getsockname()[1]), Console())
        with pytest.raises(UsageError, match="there is no folder") as refused:
            serve(ServeRequest(root=(str(tmp_path / "run s"),)), Console())
        assert refused.value.hint == f"make it: mkdir -p '{tmp_path / 'run s'}'"
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            with pytest.raises(UsageError, match="needs a token"):
                serve(ServeRequest(root=(str(tmp_path),), host=host), Console())

    @pytest.mark.needs(exchange=True)
    def test_an_index_that_cannot_be_reached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASSAY_INDEX", "")  # it is set by the command
        with pytest.raises(AssayError, match=r"127\.0\.0\.1"):
            serve(ServeRequest(root=(str(tmp_path),), index="postgresql://nobody@127.0.0.1:9/x", port=0), Console())

    def test_tokens_of_a_file_of_a_pipe_and_of_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for text in ("write short", "admin aaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaa", "read ä" * 20):
            write_private(tmp_path / "tokens", text)
            with pytest.raises(UsageError) as refused:
                load_tokens(str(tmp_path / "tokens"))
            assert "a" * 24 not in refused.value.message
        write_private(tmp_path / "tokens", f"# of the lab\nwrite {'a' * 20}\n\nupload {'b' * 20}\n")
        assert [token.scope for token in load_tokens(str(tmp_path / "tokens"))] == ["write", "upload"]
        assert "aaaa" not in repr(load_tokens(str(tmp_path / "tokens")))
        reader, writer = os.pipe()  # `--tokens <(pass show assay)`
        os.write(writer, f"write {'a' * 20}\n".encode())
        os.close(writer)
        assert len(load_tokens(f"/dev/fd/{reader}")) == 1
        os.close(reader)
        monkeypatch.setenv("ASSAY_TOKEN", "c" * 20)
        assert [token.scope for token in load_tokens(None)] == ["write"]
        with pytest.raises(UsageError):
            load_tokens(str(tmp_path / "nothing"))

    def test_tokens_that_others_may_read_are_refused_as_ssh_refuses_keys(self, tmp_path: Path) -> None:
        path = tmp_path / "my tokens"
        for mode in (0o644, 0o640, 0o604, 0o620):
            write_private(path, f"write {'a' * 20}\n", mode)
            with pytest.raises(UsageError, match=f"its mode is {mode:04o}") as refused:
                load_tokens(str(path))
            assert refused.value.hint == f"chmod 600 '{path}'"
        subprocess.run(["bash", "-c", f"chmod 600 '{path}'"], check=True)
        assert len(load_tokens(str(path))) == 1

    def test_certificates_that_cannot_be_used(self, tmp_path: Path) -> None:
        cert, key = write_certificate(tmp_path)
        with pytest.raises(UsageError, match="--tls-key needs"):
            serve(ServeRequest(root=(str(tmp_path),), tls_key=str(key)), Console())
        for bad_cert, bad_key in ((key, key), (tmp_path / "none", key), (cert, None), (cert, cert)):
            request = ServeRequest(
                root=(str(tmp_path),), tls_cert=str(bad_cert), tls_key=str(bad_key) if bad_key else None
            )
            with pytest.raises(UsageError, match="not a certificate and its key"):
                serve(request, Console())
        key.chmod(0o644)
        with pytest.raises(UsageError, match="can be used by others"):
            serve(ServeRequest(root=(str(tmp_path),), tls_cert=str(cert), tls_key=str(key)), Console())

    def test_other_addresses_without_tls_are_warned_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The token does not reach what is started: a run that is repeated from the page may print its environment,
        and every reader of the page sees its log."""
        monkeypatch.setattr(uvicorn.Server, "run", lambda _self, sockets: [each.close() for each in sockets])
        cert, key = write_certificate(tmp_path)
        for tls in ({}, {"tls_cert": str(cert), "tls_key": str(key)}):
            monkeypatch.setenv("ASSAY_TOKEN", "c" * 20)
            serve(ServeRequest(root=(str(tmp_path),), host="0.0.0.0", port=0, **tls), Console())
            assert "ASSAY_TOKEN" not in os.environ
            out, err = capsys.readouterr()
            assert ("--tls-cert" in err) is not bool(tls)
            assert ("open  https://" in out) is bool(tls)
            assert "ccc" not in out + err
        monkeypatch.setattr(command, "is_terminal", lambda _stream: True)  # which gets the address with the token
        serve(ServeRequest(root=(str(tmp_path),), port=0), Console())
        assert re.search(r"open  http://127.0.0.1:\d+/#token=\S{32}\n", capsys.readouterr().out)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, by itself."""
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "assay of the tests")])
    built = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pem = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key, pem.decode())
    return cert, key


def test_handlers_of_this_process_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries such as absl close their stream when logging is configured again, and that may be our output."""
    closed = []
    handler = logging.StreamHandler()
    monkeypatch.setattr(handler, "close", lambda: closed.append(handler))
    monkeypatch.setattr(assets, "find_missing", list)
    monkeypatch.setattr(uvicorn.Server, "run", lambda _self, sockets: [each.close() for each in sockets])
    serve(ServeRequest(root=(str(tmp_path),), port=0), Console())
    assert not closed


@pytest.mark.services("web")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """The upload is given up, and nothing else is printed."""
    monkeypatch.setenv("ASSAY_TOKEN", TOKEN)
    root = tmp_path / "runs"
    root.mkdir()
    words = ["-m", "assay", "serve", "--root", str(root), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdout
        port = next(int(found[1]) for line in serving.stdout if (found := re.search(r"http://[^/]+:(\d+)/", line)))
        with socket.create_connection(("127.0.0.1", port)) as uploading:
            head = f"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
            uploading.sendall(f"{head}Content-Type: application/zip\r\nContent-Length: 100000\r\n\r\nPK".encode())
            until(lambda: any(root.parent.rglob(".upload-*")), "the upload has begun")
            serving.send_signal(number)
            _, said = serving.communicate(timeout=30)
    assert said == "assay: interrupted\n"
    assert serving.returncode in (0, 130)
    assert not list(root.parent.rglob(".upload-*"))

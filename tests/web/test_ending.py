"""The end of `assay serve` by a signal while it is busy."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.finished_study import until
from tests.web_client import TOKEN


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

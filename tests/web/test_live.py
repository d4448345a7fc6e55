"""Server-sent events of a study that changes, from a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import uvicorn
from tests.study.workbench import GOOD, STUDY, build_bench, until

from assay.errors import AssayError, UsageError
from assay.show.console import Console
from assay.web import assets
from assay.web.command import ServeRequest, load_tokens, serve

TOP = Path(__file__).parent.parent.parent


@pytest.fixture
def served_fit(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The address of `assay serve`, without what comes from npm."""
    bench = build_bench(tmp_path)
    code = (
        "import sys, assay.web.assets as a; a.find_missing = list; from assay.cli.main import main; "
        "sys.argv = ['assay', 'serve', '--port', '0']; main()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=bench.folder,
        env=os.environ | bench.extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(2)]
        yield bench, lines[1].split()[1].partition("#")[0], server
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()


def test_a_change_is_told_and_the_server_ends_beside_listeners(served_fit) -> None:  # type: ignore[no-untyped-def]
    bench, address, server = served_fit
    with urllib.request.urlopen(f"{address}events?study=fit", timeout=30) as events:

        def next_value() -> dict[str, object]:
            for line in events:
                if line.startswith(b"data: "):
                    return dict(json.loads(line[6:]))
            raise AssertionError("the stream ended")

        first = next_value()
        assert first["counts"] == {"done": 2, "failed": 2}
        bench.assay("tag", f"fit/{GOOD}", "seen")
        assert next_value()["version"] == int(first["version"]) + 1  # type: ignore[call-overload]
        server.send_signal(signal.SIGINT)
        until(lambda: server.poll() is not None, "the server has ended")
    assert server.returncode in (0, 130)
    assert "Traceback" not in server.stderr.read()


def test_changes_of_any_study_are_told(served_fit) -> None:  # type: ignore[no-untyped-def]
    bench, address, _ = served_fit
    with urllib.request.urlopen(f"{address}events", timeout=30) as events:

        def next_studies() -> dict[str, list[object]]:
            line = next(line for line in events if line.startswith(b"data: "))
            return dict(json.loads(line[6:])["studies"])

        (counts, at) = next_studies()["fit"]
        assert counts == {"done": 2, "failed": 2}
        bench.run(STUDY.replace("study: fit", "study: again"), file="again.yml")
        until(lambda: next_studies().get("again", [{}])[0] == {"done": 2, "failed": 2}, "the other study is told of")
        card = urllib.request.urlopen(f"{address}studies/again/card", timeout=30).read().decode()
    assert "2 failed" in card
    assert at is not None


def test_what_comes_from_npm_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "VENDOR", str(tmp_path))
    with pytest.raises(UsageError) as refused:
        serve(ServeRequest(root=(str(tmp_path),)), Console())
    assert "htmx.min.js" in refused.value.message
    assert refused.value.hint is not None
    assert refused.value.hint.endswith(f"{sys.executable} {TOP / 'hatch_build.py'}")


class TestStart:
    """What `assay serve` refuses before it listens."""

    @pytest.fixture(autouse=True)
    def complete(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(assets, "find_missing", list)
        monkeypatch.delenv("ASSAY_TOKEN", raising=False)

    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(UsageError, match=f"port {taken.getsockname()[1]}"):
                serve(ServeRequest(root=(str(tmp_path),), port=taken.getsockname()[1]), Console())

    def test_a_root_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no folder") as refused:
            serve(ServeRequest(root=(str(tmp_path / "run s"),)), Console())
        assert refused.value.hint == f"make it: mkdir -p '{tmp_path / 'run s'}'"

    def test_an_index_that_cannot_be_reached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASSAY_INDEX", "")  # it is set by the command
        with pytest.raises(AssayError, match=r"127\.0\.0\.1"):
            serve(ServeRequest(root=(str(tmp_path),), index="postgresql://nobody@127.0.0.1:9/x", port=0), Console())

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
    def test_other_addresses_need_a_token(self, tmp_path: Path, host: str) -> None:
        with pytest.raises(UsageError, match="needs a token"):
            serve(ServeRequest(root=(str(tmp_path),), host=host), Console())

    @pytest.mark.parametrize(
        "text",
        ["write short", "admin aaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaaa", "read ä" * 20],
        ids=["short", "scope", "alone", "letters"],
    )
    def test_bad_tokens(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokens").write_text(text)
        with pytest.raises(UsageError) as refused:
            load_tokens(str(tmp_path / "tokens"))
        assert "a" * 24 not in refused.value.message

    def test_good_tokens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tokens").write_text(f"# of the lab\nwrite {'a' * 20}\n\nupload {'b' * 20}\n")
        assert [token.scope for token in load_tokens(str(tmp_path / "tokens"))] == ["write", "upload"]
        assert "aaaa" not in repr(load_tokens(str(tmp_path / "tokens")))
        monkeypatch.setenv("ASSAY_TOKEN", "c" * 20)
        assert [token.scope for token in load_tokens(None)] == ["write"]
        with pytest.raises(UsageError):
            load_tokens(str(tmp_path / "nothing"))

    def test_the_token_does_not_reach_what_is_started(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A run that is repeated from the page may print its environment, and its log can be read by everybody."""
        monkeypatch.setenv("ASSAY_TOKEN", "c" * 20)
        monkeypatch.setattr(uvicorn.Server, "run", lambda _self, sockets: [each.close() for each in sockets])
        serve(ServeRequest(root=(str(tmp_path),), port=0), Console())
        assert "ASSAY_TOKEN" not in os.environ

"""Profiles of runs: which files they are, speedscope from this server with its own policy, and the link to Perfetto."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from starlette.testclient import TestClient
from tests.bench_samples import execution
from tests.web_client import open_client

from assay.bench.flow.archive import write_as_run
from assay.follow.api import StudyLocation
from assay.web.pages import profiles
from assay.web.pages.profiles import VIEWER, ProfileFile, find_profiled, list_profiles
from assay.web.security import CONTENT_POLICY

NEEDS_VIEWER = pytest.mark.services("web")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two executions, one of them with profiles, one of which has a hostile name."""
    root = tmp_path_factory.mktemp("profiles")
    location = StudyLocation(str(root), "bench")
    (root / "bench").mkdir()
    for number in range(2):
        assert write_as_run(location, execution(number, 1.0), None)
    folder = root / "bench" / "e0000_C.f" / "profile"
    folder.mkdir()
    (folder / "python-0.json").write_text(json.dumps({"traceEvents": []}))
    (folder / "a#&'<img src=x>.json").write_text("{}")
    (folder / "window.pb").write_bytes(b"\n\0")
    (folder / "notes.md").write_text("not a profile")
    (root / "bench" / "e0001_C.f" / "output.json").write_text("{}")
    (folder / "link.json").symlink_to("/etc/passwd")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    with open_client(root) as client:
        yield client


def test_runs_with_a_profile_and_its_files(client: TestClient, root: Path) -> None:
    text = client.get("/profiles").text
    assert "/profiles/bench/e0000_C.f" in text
    assert "e0001_C.f" not in text
    location = StudyLocation(str(root), "bench")
    assert [run for run, _ in find_profiled(location)] == ["e0000_C.f"]
    answer = client.get("/profiles/bench/e0000_C.f")
    assert answer.status_code == 200
    assert not [text for text in ("<img src=x>", "notes.md", "link.json") if text in answer.text]
    assert answer.text.count("leaves this machine") == 3
    assert answer.headers["cross-origin-opener-policy"] == "same-origin-allow-popups"
    assert answer.headers["content-security-policy"] == CONTENT_POLICY
    listed = list_profiles(location, "bench", "e0000_C.f")
    names = ["profile/a#&'<img src=x>.json", "profile/python-0.json", "profile/window.pb"]
    assert [profile.name for profile in listed] == names
    for profile in listed:  # the viewer gets an address of this server
        assert bool(profile.viewer) == profile.name.endswith(".json")
        assert client.get(profile.address).content == (root / "bench" / "e0000_C.f" / profile.name).read_bytes()
        if profile.viewer:
            path, _, fragment = profile.viewer.partition("#")
            assert path == VIEWER
            assert parse_qs(fragment) == {"profileURL": [profile.address], "title": [profile.name]}
    assert "has no profile" in client.get("/profiles/bench/e0001_C.f").text
    assert client.get("/profiles/bench/nothing").status_code == 404
    assert client.get("/profiles/nothing/e0001_C.f").status_code == 404


@pytest.mark.parametrize(
    ("name", "here", "perfetto"),
    [
        ("profile/torch-0.json", True, True),
        ("profile/T.JSON.GZ", True, True),
        ("profile/x.folded", True, False),
        ("trace.pb", False, True),
        ("x.pftrace", False, True),
    ],
)
def test_who_can_read_it(name: str, here: bool, perfetto: bool) -> None:
    profile = ProfileFile(name, 1, "/x")
    assert (bool(profile.viewer), profile.fits_perfetto) == (here, perfetto)


@NEEDS_VIEWER
def test_only_the_viewer_has_the_relaxed_policy(client: TestClient) -> None:
    answer = client.get(VIEWER)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "script-src 'self' 'wasm-unsafe-eval'" in policy
    for part in policy.split(";"):
        assert "http" not in part  # nothing of another machine
        assert "*" not in part
    for path in ("/vendor/htmx.min.js", "/profiles", "/vendor/speedscope/nothing"):
        assert client.get(path).headers["content-security-policy"] == CONTENT_POLICY
    for name in ("nothing.js", "..%2f..%2fsecurity.py", "%2e%2e/%2e%2e/security.py", "%00"):  # no other file comes out
        assert client.get(f"/vendor/speedscope/{name}").status_code == 404


def test_nothing(tmp_path: Path) -> None:
    with open_client(tmp_path) as client:
        assert "assay bench run" in client.get("/profiles").text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("whole.json", b'{"traceEvents": []}', ""),
        ("open.json", b'[{"ph": "B"},', ""),  # viewers close it
        ("empty.json", b"", "it is empty"),
        ("cut.json", b'{"traceEvents": [{"ph"', "it is damaged"),
        ("other.json", b"not json", "it is damaged"),
        ("cut.json.gz", gzip.compress(b"{}" * 1000)[:-9], "it is damaged"),
        ("other.json.gz", b"{}", "it is damaged"),
        ("whole.json.gz", gzip.compress(b"{}"), ""),
        ("large.json", 600 << 20, "it is larger"),
    ],
)
def test_what_a_viewer_cannot_show_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | int, said: str
) -> None:
    path = tmp_path / "bench" / "e0000_C.f" / "profile" / name
    location = StudyLocation(str(tmp_path), "bench")
    (tmp_path / "bench").mkdir()
    assert write_as_run(location, execution(0, 1.0), None)
    path.parent.mkdir()
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            file.truncate(content)  # takes no room
    with open_client(tmp_path) as client:
        with monkeypatch.context() as patch:  # the page of the run names them, and unpacks none
            patch.setattr(profiles, "find_problem", lambda *_: pytest.fail("a profile was read"))
            assert "/profiles/bench/e0000_C.f" in client.get("/studies/bench/runs/e0000_C.f").text
        text = client.get("/profiles/bench/e0000_C.f").text
        assert name in text  # it can be saved in any case
        assert said in text
        assert ("open in Perfetto" in text) == (not said)

"""What bad input gets: every page shows what is readable, and says what is not."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from tests.finished_study import GOOD, Bench
from tests.web_client import open_client

from assay.web.pages import run_files

PAGE = "/studies/fit/runs/"
LONG = "n" * 4000
ODD = "line\nbreak\u202ertl\x1b[31m\x07\ttab"


class Root:
    """Copies of a run, each with something wrong."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.study = folder / "runs" / "fit"
        self.study.mkdir(parents=True)
        (self.study / ".assay").mkdir()
        self.source = source

    def add(self, name: str, **changes: object) -> Path:
        run = self.study / name
        shutil.copytree(self.source, run)
        record = json.loads((run / "run.json").read_text())
        record["spec"] |= {"name": name, **changes}
        (run / "run.json").write_text(json.dumps({**record, "uid": f"u{abs(hash(name))}"}))
        return run

    def open(self) -> TestClient:
        return open_client(self.study.parent)


@pytest.fixture
def root(served: Bench, tmp_path: Path) -> Root:
    return Root(tmp_path, served.root / "fit" / GOOD)


@pytest.mark.parametrize(
    ("path", "suggested"),
    [
        ("/studies/fitt", "fit"),
        (PAGE + "lr=0.1,n=77", GOOD),
        (f"/api{PAGE}{GOOD}/curves?metric=los", "loss"),
        (f"/api{PAGE}{GOOD}/series?metric=los", "loss"),
        (f"/api{PAGE}{GOOD}/log?command=trian", "train"),
        (f"/api{PAGE}{GOOD}/log?file=trian.log", "train.log"),
        (f"{PAGE}{GOOD}/files/run.jsn", "run.json"),
        ("/studies/fit/compare?run=lr=0.1,n=7&run=lr=0.1,n=88", GOOD),
    ],
)
def test_an_unknown_name_has_suggestions(client: TestClient, path: str, suggested: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert suggested in unescape(answer.text)
    assert client.get(f"/studies/{LONG}").status_code == 404
    assert client.get(f"{PAGE}{quote(ODD, safe='')}").status_code == 404


# ---------------------------------------------------------------- broken directories


def _fold(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


BREAKS: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "a folder": _fold,
    "cut": lambda path: path.write_text(path.read_text()[: len(path.read_text()) // 2]),
    "other types": lambda path: path.write_text('{"format": 1, "spec": [], "study": 3, "uid": {}, "created_at": "x"}'),
}
FILES = ("run.json", "environment.json", "outcome.1", "lease.1", "train.log", "train.exit.0")


@pytest.fixture(scope="module")
def broken(served: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A good run, and one for each file and each way to break it."""
    root = Root(tmp_path_factory.mktemp("broken"), served.root / "fit" / GOOD)
    root.add("good")
    for name in FILES:
        for how, break_it in BREAKS.items():
            break_it(root.add(f"{name} {how}") / name)
    with root.open() as client:
        assert client.get("/studies/fit").status_code == 200
        assert client.get(PAGE + "good").status_code == 200
        yield client


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("name", FILES)
def test_a_broken_directory_shows_what_is_readable(broken: TestClient, name: str, how: str) -> None:
    run = quote(f"{name} {how}")
    answer = broken.get(PAGE + run)
    assert answer.status_code == 200
    assert "job.sh" in answer.text
    if name == "run.json":
        assert "Not everything can be read" in answer.text or "damaged" in answer.text
        assert broken.get(f"/api{PAGE}{run}/log").json()["text"]
    if name == "environment.json" and how != "other types":
        assert "environment.json is missing or damaged" in answer.text
    assert broken.get(f"/studies/fit/compare?run=good&run={run}").status_code == 200


def test_markers_that_contradict_and_metrics_and_readings_that_are_not_numbers(root: Root) -> None:
    run = root.add("odd")
    (run / "train.exit.7").touch()
    (run / "metrics").mkdir()
    lines = ['{"step": 1, "a": NaN}', '{"step": 2, "a": "inf"}', '{"step": 3, "a": 1}', '{"step": 4, "a": -1e999}',
             '{"step": 1e400, "a": 2}', "not json", '{"step": 5, "a": 3', "\x00\x00"]  # fmt: skip
    (run / "metrics" / "1-1-1.jsonl").write_text("\n".join(lines))
    (run / "readings.jsonl").write_text('{"time": "x"}\n{"time": NaN}\n[]\nhalf')
    with root.open() as client:
        text = client.get(PAGE + "odd").text
        assert "exit markers" in text
        assert '<span class="badge failed">7</span>' in text
        assert "not finite" in text
        curve = client.get(f"/api{PAGE}odd/curves?metric=a").json()["curves"][0]
        assert all(value is None or math.isfinite(value) for value in curve["y"])
        assert client.get(f"{PAGE}odd?x=time").status_code == 200


# ---------------------------------------------------------------- sizes


def test_very_many_points(root: Root) -> None:
    run = root.add("long")
    (run / "metrics").mkdir()
    points = (f'{{"step":{i},"a":{100 if i == 8_210 else math.sin(i / 1e4):.5f}}}\n' for i in range(12_000))
    (run / "metrics" / "1-1-1.jsonl").write_text("".join(points))
    with root.open() as client:
        curve = client.get(f"/api{PAGE}long/curves?metric=a").json()["curves"][0]
        assert curve["points"] == 12_000
        assert len(curve["y"]) < 5000
        assert 100 in curve["y"]  # a spike stays
        part = client.get(f"/api{PAGE}long/curves?metric=a&zoom=8200.5,8215").json()["curves"][0]
        assert (part["x"], part["points"]) == ([*range(8200, 8217)], 12_000)  # every point, and one on each side
        assert client.get(f"/api{PAGE}long/curves?metric=a&zoom=1").status_code == 400


def test_a_log_of_two_gigabytes(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the file system stores a few pages: lines at both ends and in the middle."""
    path = str(root.add("large") / "big.log")
    with open(path, "wb") as file:
        file.write(b"the first line\n")
        file.seek(1 << 30)
        file.write(b"\nin the middle\n")
        file.seek((2 << 30) - 16)
        file.write(b"\nthe last line\n")
    tracemalloc.start()
    end = run_files.load_log(path, None)
    assert end["text"].endswith("the last line\n")
    assert end["size"] == (2 << 30) - 1
    assert run_files.load_log(path, 0)["text"].startswith("the first line\n")
    assert run_files.load_log(path, (1 << 30) + 1)["text"].startswith("in the middle")
    monkeypatch.setattr(run_files, "_LONGEST_SEARCH_S", 0.2)
    found = run_files.search_log(path, "line")
    assert [each["line"] for each in found["matches"]][:1] == ["the first line"]
    assert not found["is_whole"]
    assert 0 < found["searched"] < found["size"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20
    # the part behind is searched by going on from there
    last = run_files.search_log(path, "LAST", (2 << 30) - 4096)
    assert last["matches"][0]["line"] == "the last line"
    assert last["is_whole"]
    with root.open() as client:
        assert client.get(f"/api{PAGE}large/log?file=big.log").json()["text"].endswith("the last line\n")
        assert client.get(PAGE + "large").status_code == 200


def test_binary_output_and_a_line_that_is_not_finished(root: Root) -> None:
    run = root.add("binary")
    (run / "train.log").write_bytes(bytes(range(256)) * 400 + b"\nhalf a li")
    (run / "wide.log").write_bytes("ü".encode() * 200_000)  # one line, longer than a part
    with root.open() as client:
        assert client.get(f"/api{PAGE}binary/log?file=train.log").json()["text"].endswith("\nhalf a li")
        first = client.get(f"/api{PAGE}binary/log?file=wide.log&from=0").json()
        second = client.get(f"/api{PAGE}binary/log?file=wide.log&from={first['end']}").json()
        assert set(first["text"]) == set(second["text"]) == {"ü"}
        found = client.get(f"/api{PAGE}binary/log?file=wide.log&find=üü").json()
        assert len(found["matches"]) == 1
        assert len(found["matches"][0]["line"]) <= 4096


def test_many_parameters_and_odd_names(root: Root) -> None:
    params = {f"param{i}": i for i in range(150)}
    root.add("many", params={**params, LONG: LONG, ODD: ODD, "": ""})
    root.add("other", params={**params, "param7": 8, "only": 1})
    root.add("n" * 250, title=LONG)
    with root.open() as client:
        text = client.get(PAGE + "many").text
        assert "param149" in text
        assert "\u202e" not in text  # shown as what it is
        assert "\\u202e" in text
        assert "param7<" in client.get("/studies/fit/compare?run=many&run=other").text
        assert client.get("/studies/fit/compare?run=many&run=other&all=1&turn=1").status_code == 200
        assert client.get("/studies/fit").status_code == 200
        assert client.get(PAGE + "n" * 250).status_code == 200


def test_runs_without_a_metric_in_common(root: Root) -> None:
    for name in ("one", "two"):
        run = root.add(name)
        (run / "metrics").mkdir()
        (run / "metrics" / "1-1-1.jsonl").write_text(f'{{"step": 1, "{name}": 1}}\n{{"step": 2, "{name}": 2}}\n')
    with root.open() as client:
        text = client.get("/studies/fit/compare?run=one&run=two").text
        assert {"one", "two"} <= set(re.findall(r'<th scope="col"[^>]*>(?:<a [^>]*>)?([^<]+)', text))
        assert len(client.get("/api/studies/fit/compare/curves?run=one&run=two&metric=one").json()["curves"]) == 1


def test_a_name_that_is_not_text(root: Root) -> None:
    root.add("good")
    os.rename(root.add("bad"), os.fsencode(root.study) + b"/b\xffd")
    with root.open() as client:
        for path in ("/studies/fit", "/studies/fit/compare", "/api/studies/fit/runs", PAGE + "good", PAGE + "b%FFd"):
            assert client.get(path).status_code in (200, 400, 404), path


@pytest.mark.parametrize(("error", "status"), [(PermissionError, 503), (FileNotFoundError, 404)])
def test_what_is_removed_or_may_not_be_read_is_named(
    root: Root, monkeypatch: pytest.MonkeyPatch, error: type[OSError], status: int
) -> None:
    """While the answer is made. Nothing is refused to root, so the reading itself is made to fail."""
    log = str(root.add("odd") / "train.log")

    def refuse(path: object, *more: Any, real: Callable[..., Any] = open, **named: Any) -> Any:
        if path == log:
            raise error(1, "refused", path)
        return real(path, *more, **named)

    with root.open() as client:
        monkeypatch.setattr("builtins.open", refuse)
        for address in (f"{PAGE}odd/files/train.log", f"/api{PAGE}odd/log?file=train.log"):
            answer = client.get(address)
            assert (answer.status_code, f"{log} cannot be read: refused" in answer.text) == (status, True), address

"""The page of a run, its logs and its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.study.workbench import BAD, GOOD, STUDY, Bench
from tests.web.conftest import open_client

from assay.errors import NotFoundError
from assay.study.run_page import LOG_BYTES, build_reading_charts, find_file, list_files, load_log, search_log

PAGE = "/studies/fit/runs/"


def test_everything_that_show_tells(client: TestClient, served: Bench) -> None:
    text = client.get(PAGE + GOOD).text
    for said in ("Parameters", "Commands", "Metrics", "Origin", "Environment", "assay rerun fit/lr=0.1,n=7"):
        assert said in text
    assert 'class="badge done"' in text
    assert "exit code" in client.get(PAGE + BAD).text
    shown = served.assay("show", f"fit/{GOOD}").stdout
    assert next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("id")) in text


def test_its_curves_are_its_own(client: TestClient) -> None:
    text = client.get(PAGE + GOOD).text
    address = text.partition('data-curves="')[2].partition('"')[0].replace("&amp;", "&")
    value = client.get(address).json()
    assert len(value["curves"]) == 1


@pytest.mark.parametrize("name", ["nothing", "lr=0.1,n=9", "..", ".assay"])
def test_an_unknown_run(client: TestClient, name: str) -> None:
    answer = client.get(PAGE + name)
    assert answer.status_code in (404, 200 if name == ".." else 404)
    assert "Traceback" not in answer.text


class TestLog:
    def test_its_end_and_a_part(self, client: TestClient) -> None:
        part = client.get(f"/api{PAGE}{GOOD}/log?command=train").json()
        assert part["text"] == "step 1 loss 3.7 lr 0.1\nstep 2 loss 2.7 lr 0.1\nstep 3 loss 1.7 lr 0.1\n"
        assert (part["start"], part["end"]) == (0, part["size"])
        later = client.get(f"/api{PAGE}{GOOD}/log?command=train&from=23").json()
        assert later["text"].startswith("step 2")

    def test_search(self, client: TestClient) -> None:
        found = client.get(f"/api{PAGE}{GOOD}/log?command=train&find=STEP%202").json()
        assert found["matches"] == [{"offset": 23, "line": "step 2 loss 2.7 lr 0.1"}]
        assert found["is_whole"]

    @pytest.mark.parametrize(
        "query", ["command=other", "attempt=7", "from=x", "from=-1", "attempt=99999999999999999999"]
    )
    def test_mistakes(self, client: TestClient, query: str) -> None:
        answer = client.get(f"/api{PAGE}{GOOD}/log?{query}")
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]

    def test_a_large_log_and_one_that_is_not_text(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path)
        bench.run(STUDY)
        run = bench.root / "fit" / GOOD
        log = next(run.glob("train*.log"))
        log.write_bytes(b"\xff\x00binary\r\x1b[31m\n" + b"".join(b"line %d\n" % i for i in range(100_000)))
        part = load_log(str(run), "train", None, None)
        assert part.end == part.size == log.stat().st_size
        assert part.text.startswith("line ")
        assert len(part.text) <= LOG_BYTES
        first = load_log(str(run), "train", None, 0)
        assert first.text.startswith("\ufffd\x00binary")
        assert first.text.endswith("\n")
        assert load_log(str(run), "train", None, first.end).text.startswith("line ")
        assert search_log(str(run), "train", None, "line 99999").items[0].line == "line 99999"
        assert len(search_log(str(run), "train", None, "line").items) == 200


class TestFiles:
    def test_a_file_is_saved_and_not_shown(self, client: TestClient) -> None:
        answer = client.get(f"{PAGE}{GOOD}/files/run.json")
        assert answer.status_code == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-security-policy"] == "sandbox"
        assert answer.headers["content-type"] == "application/octet-stream"

    def test_nothing_else_can_be_had(self, served: Bench, client: TestClient) -> None:
        run = served.root / "fit" / GOOD
        (run / "secrets.sh").write_text("export KEY=abc")
        (run / "sub").mkdir(exist_ok=True)
        (run / "sub" / "a b.txt").write_text("x")
        os.symlink("/etc/passwd", run / "link")
        os.symlink("/etc", run / "folder")
        try:
            names = [file.name for file in list_files(str(run))]
            assert "sub/a b.txt" in names
            assert not {"secrets.sh", "link", "folder/passwd"} & set(names)
            assert client.get(f"{PAGE}{GOOD}/files/sub/a%20b.txt").text == "x"
            for name in (
                "secrets.sh",
                "link",
                "folder/passwd",
                "../../fit/x",
                "/etc/passwd",
                "sub/../link",
                "sub",
                "a\0b",
            ):
                with pytest.raises(NotFoundError):
                    find_file(str(run), name)
            for name in ("secrets.sh", "..%2f..%2f..%2fstudy.yml", "%2fetc%2fpasswd", "link"):
                assert client.get(f"{PAGE}{GOOD}/files/{name}").status_code == 404
        finally:
            for name in ("link", "folder", "secrets.sh"):
                (run / name).unlink()


def test_a_damaged_run_shows_what_is_readable(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(STUDY)
    (bench.root / "fit" / GOOD / "run.json").write_text("{")
    with open_client(bench.root) as client:
        text = client.get(PAGE + GOOD).text
        assert "damaged" in text
        assert "job.sh" in text
        assert client.get("/studies/fit").status_code == 200


def test_readings_are_drawn(tmp_path: Path) -> None:
    lines = [
        f'{{"time":{100 + i},"processes":1,"cpu_s":{i / 2},"rss_bytes":{i << 20},"vms_bytes":0,"peak_rss_bytes":0}}\n'
        for i in range(5)
    ]
    (tmp_path / "readings.jsonl").write_text("".join(lines) + "broken\n")
    (section,) = build_reading_charts(str(tmp_path))
    panels = section.blocks[0].panels  # type: ignore[union-attr]
    assert [panel.label for panel in panels] == ["CPU, percent of one core", "memory, GiB"]
    assert panels[0].curves[0].points[1:] == [(float(i), 50.0) for i in range(1, 5)]

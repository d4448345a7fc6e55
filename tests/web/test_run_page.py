"""The page of a run, its logs and its files."""

from __future__ import annotations

import json
import os
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient
from tests.finished_study import BAD, GOOD, STUDY, Bench
from tests.web_client import call, copy_bench, open_client

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation
from assay.web.pages import run as run_page
from assay.web.pages import run_files
from assay.web.pages.run_files import (
    LOG_BYTES,
    choose_log,
    find_file,
    find_media_kind,
    list_files,
    list_shown,
    load_log,
    search_log,
    split_diff,
)
from assay.web.pages.verdicts import load_run_verdicts, load_verdicts
from assay.web.security import FRAME_POLICY

PAGE = "/studies/fit/runs/"


def test_everything_that_show_tells_and_its_own_curves(client: TestClient, served: Bench) -> None:
    text = client.get(PAGE + GOOD).text
    for said in ("Parameters", "Commands", "Metrics", "Origin", "Environment", "assay rerun "):
        assert said in text
    assert 'class="badge done"' in text
    shown = call(served, "show", f"fit/{GOOD}")
    assert next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("id")) in text
    address = text.partition('data-curves="')[2].partition('"')[0].replace("&amp;", "&")
    assert len(client.get(address).json()["curves"]) == 1
    # a form's first button is what Enter presses; what cannot be taken back is asked for in a dialog of the page
    form = text.partition("data-actions=")[2].partition("</form>")[0]
    assert form.index('value="tag"') < form.index('value="rerun"')
    assert '<dialog id="confirm"' in text


class TestLog:
    def test_its_end_and_a_part(self, client: TestClient) -> None:
        part = client.get(f"/api{PAGE}{GOOD}/log?command=train").json()
        assert part["text"] == "step 1 loss 3.7 lr 0.1\nstep 2 loss 2.7 lr 0.1\nstep 3 loss 1.7 lr 0.1\n"
        assert (part["start"], part["end"]) == (0, part["size"])
        later = client.get(f"/api{PAGE}{GOOD}/log?command=train&from=23").json()
        assert later["text"].startswith("step 2")

    def test_a_search_is_made_by_another_process(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """A large log would hold up every thread of this one. There are so many processes."""
        monkeypatch.setattr(run_files, "search_log", lambda *_: pytest.fail("searched here"))
        found = client.get(f"/api{PAGE}{GOOD}/log?command=train&find=STEP%202").json()
        assert found["matches"] == [{"offset": 23, "line": "step 2 loss 2.7 lr 0.1"}]
        assert found["is_whole"]
        monkeypatch.setattr(run_page, "_searchers", queue.SimpleQueue())
        assert client.get(f"/api{PAGE}{GOOD}/log?command=train&find=step").status_code == 429
        assert client.get(f"/api{PAGE}{GOOD}/log?command=train").status_code == 200

    def test_mistakes(self, client: TestClient) -> None:
        for query in ("command=other", "attempt=7", "from=x", "from=-1", "attempt=99999999999999999999"):
            answer = client.get(f"/api{PAGE}{GOOD}/log?{query}")
            assert answer.status_code in (400, 404)
            assert answer.json()["error"]

    def test_a_large_log_and_one_that_is_not_text(self, served: Bench, tmp_path: Path) -> None:
        run = copy_bench(served, tmp_path).root / "fit" / GOOD
        log = next(run.glob("train*.log"))
        log.write_bytes(b"\xff\x00binary\r\x1b[31m\n" + b"".join(b"line %d\n" % i for i in range(100_000)))
        path = choose_log(str(run), None, "train", None)
        part = load_log(path, None)
        assert part["end"] == part["size"] == log.stat().st_size
        assert part["text"].startswith("line ")
        assert len(part["text"]) <= LOG_BYTES
        first = load_log(path, 0)
        assert first["text"].startswith("\ufffd\x00binary")
        assert first["text"].endswith("\n")
        assert load_log(path, first["end"])["text"].startswith("line ")
        assert search_log(path, "line 99999")["matches"][0]["line"] == "line 99999"
        some = search_log(path, "line")
        assert (len(some["matches"]), some["is_whole"]) == (200, False)
        more = search_log(path, "line", some["searched"])
        assert more["matches"][0]["line"] == "line 200"
        assert load_log(path, more["matches"][0]["offset"])["text"].startswith("line 200\n")


class TestFiles:
    def test_a_file_is_saved_and_not_shown(self, client: TestClient) -> None:
        answer = client.get(f"{PAGE}{GOOD}/files/run.json")
        assert answer.status_code == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-security-policy"].startswith("sandbox")
        assert answer.headers["content-type"] == "application/octet-stream"

    def test_what_a_script_logged_is_shown_with_its_step_the_newest_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "files" / "media").mkdir(parents=True)
        for name in ("2.png", "10.png", "3.wav"):
            head = b"RIFF....WAVE" if name == "3.wav" else b"\x89PNG\r\n\x1a\n"
            (tmp_path / "files" / "media" / name).write_bytes(head)
        (tmp_path / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        lines = [
            {"step": 2, "name": "x", "file": "media/2.png", "caption": None},
            {"step": 3, "name": "y", "file": "media/3.wav", "caption": None},
            {"step": 10, "name": "x", "file": "media/10.png", "caption": "late"},
        ]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (tmp_path / "files" / "media.jsonl").write_text(f'[1]\n{{"step": 1}}\n{"[" * 100_000}\n{text}{{"step": 11, "na')
        shown = list_shown(str(tmp_path), list_files(str(tmp_path)))
        assert [title for _, title in shown] == ["x, step 10: late", "y, step 3", "x, step 2", "plot.png"]
        assert find_media_kind(str(tmp_path / "files" / "media" / "3.wav")) == "audio/wav"
        monkeypatch.setattr(run_files, "_MOST_MEDIA", 150)  # of a list that is too long to be read the end
        titles = [title for _, title in list_shown(str(tmp_path), list_files(str(tmp_path)))]
        assert titles[0] == "x, step 10: late"
        assert "x, step 2" not in titles

    def test_tables_and_pages_that_a_script_logged(self, served: Bench, client: TestClient) -> None:
        media = served.root / "fit" / GOOD / "files" / "media"
        tables = {
            "preds/1": {"columns": ["old"], "data": [["older step"]]},
            "preds/2": {
                "columns": ["input", "seen", "score"],
                "data": [["<b>a</b>", {"file": "media/preds.cells/2-0.png"}, 0.5], *([["b", None, 1234567.25]] * 60)],
            },
        }
        texts = {f"{name}.table.json": json.dumps(table) for name, table in tables.items()}
        texts["note/3.html"] = "<p style='color: red'>red</p><script>alert(1)</script>"
        texts["broken/4.table.json"] = '{"columns": ["x"]'
        texts["preds.cells/2-0.png"] = "a picture"
        lines = [{"step": 2, "name": name, "file": f"media/{name}", "caption": None} for name in texts]
        try:
            for name, text in texts.items():
                (media / name).parent.mkdir(parents=True, exist_ok=True)
                (media / name).write_text(text)
            (media.parent / "media.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            page = client.get(f"{PAGE}{GOOD}").text
            frame = client.get(f"{PAGE}{GOOD}/files/files/media/note/3.html?view=1")
            saved = client.get(f"{PAGE}{GOOD}/files/files/media/note/3.html")
        finally:
            shutil.rmtree(media.parent)
        assert '<td class="num">0.5</td>' in page
        assert '<td class="num">1234567.25</td>' in page
        assert "<td>&lt;b&gt;a&lt;/b&gt;</td>" in page
        assert page.count("files/media/preds.cells/2-0.png?view=1") == 1
        assert "The first 50 of 61 rows" in page
        assert "older step" not in page
        assert f'<iframe sandbox src="{PAGE}{GOOD}/files/files/media/note/3.html?view=1"' in unquote(page)
        assert frame.headers["content-type"].startswith("text/html")
        assert frame.headers["content-security-policy"] == FRAME_POLICY
        assert "script-src" not in FRAME_POLICY
        assert FRAME_POLICY.startswith("sandbox; default-src 'none'")
        assert saved.headers["content-disposition"].startswith("attachment")

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
            bad = ("secrets.sh", "link", "folder/passwd", "../../fit/x", "/etc/passwd", "sub/../link", "sub", "a\0b")
            for name in bad:
                with pytest.raises(NotFoundError):
                    find_file(str(run), name)
            for name in ("secrets.sh", "..%2f..%2f..%2fstudy.yml", "%2fetc%2fpasswd", "link"):
                assert client.get(f"{PAGE}{GOOD}/files/{name}").status_code == 404
        finally:
            for name in ("link", "folder", "secrets.sh"):
                (run / name).unlink()


@pytest.fixture(scope="module")
def timed(served: Bench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    """A run whose script hands over its metrics, with readings that end after them."""
    bench = copy_bench(served, tmp_path_factory.mktemp("timed"))
    run = bench.root / "fit" / GOOD
    start = json.loads((run / "outcome.1").read_text())["started_at"]
    (run / "metrics").mkdir()
    points = [{"time": start + 10 * i, "step": i, "timed": 1 / (i + 1), "epoch": i} for i in range(20)]
    points[7]["timed"] = "nan"
    (run / "metrics" / "1-1-1.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    lines = [
        {"time": start + i, "processes": 1, "cpu_s": i / 2, "rss_bytes": i << 20, "vms_bytes": 0, "peak_rss_bytes": 0}
        | ({"gpu": {"memory_bytes": 1 << 30, "utilisation": i % 100, "sm_clock_mhz": 1, "temperature_c": 40,
                    "power_w": 100.0, "throttle": []}} if i > 5 else {})
        for i in range(400)
    ]  # fmt: skip
    (run / "readings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "half a li")
    with open_client(bench.root) as client:
        yield client, run


class TestCurves:
    def test_readings_and_metrics_share_the_axis_of_time(self, timed: tuple[TestClient, Path]) -> None:
        client, run = timed
        names = [*run_page._find_readings(str(run)).columns]
        assert names[:2] == ["CPU, % of one core", "memory, GiB"]
        assert "GPU, %" in names
        address = f"/api{PAGE}{GOOD}/curves"
        asked = [{"metric": "timed", "x": "time"}, *({"reading": name} for name in names)]
        answers = [client.get(address, params=each).json() for each in asked]
        assert len({(answer["x"], tuple(answer["x_range"])) for answer in answers}) == 1
        assert "(min)" in answers[0]["x"]
        cpu = next(answer for answer in answers if answer["metric"] == names[0])["curves"][0]
        assert cpu["points"] == 400
        assert {y for y in cpu["y"] if y is not None} == {50.0}
        text = client.get(f"{PAGE}{GOOD}?x=time").text
        assert text.count('data-sync="time"') == 1 + len(names) + text.count("metric=loss")
        assert "metric=epoch" not in text  # a counter has no chart

    def test_what_has_no_times_or_is_not_there(
        self, timed: tuple[TestClient, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, _ = timed
        address = f"/api{PAGE}{GOOD}/curves"
        assert client.get(f"{address}?metric=loss&x=time").status_code == 400
        for query in ("metric=los", "reading=memory"):
            answer = client.get(f"{address}?{query}")
            assert answer.status_code == 404
            assert answer.json()["hint"]
        monkeypatch.setattr(run_page, "_find_readings", lambda _path: pytest.fail("readings over steps"))
        assert client.get(f"{address}?metric=loss").status_code == 200


def test_every_attempt_of_a_command_the_curve_of_assay_plot_and_what_was_judged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    study = STUDY.replace("[ {lr} != 0.5 ]", "sleep 0.1; [ $ASSAY_ATTEMPT_NUMBER != 1 ]").replace("[0.1, 0.5]", "0.1")
    study = study.replace("step $i", "step $((i + 3 * ASSAY_ATTEMPT_NUMBER))").replace("[7, 8]", "[7]")
    bench.run(study + "retries: 1\nchecks: [{metric: loss, max: 1}]\n")
    (run,) = (path.parent.name for path in bench.root.glob("fit/*/run.json"))
    with open_client(bench.root) as client:
        text = client.get(PAGE + run).text
        commands = text.partition('id="commands"')[2].partition("</table>")[0]
        assert commands.count('<span class="badge failed">1</span>') == 1
        assert commands.count('<span class="badge done">0</span>') == 2
        assert '<th scope="rowgroup" rowspan="2">train</th>' in commands
        curve = client.get(f"/api{PAGE}{run}/curves?metric=loss").json()["curves"][0]
        assert curve["x"] == [7, 8, 9]  # the newest log counts, as everywhere
    judged = text.partition('id="verdicts"')[2].partition("</ul>")[0]
    assert 'class="badge FAIL"' in judged
    assert "loss" in judged


VERDICT = {
    "run": "x",
    "kind": "PASS",
    "comparisons": 3,
    "findings": [{"kind": "PASS", "subject": "loss", "message": "m"}],
}


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (VERDICT, ["PASS"]),
        ({**VERDICT, "kind": "FAIL", "findings": [{"kind": "FAIL", "subject": "loss", "message": "m"}]}, ["FAIL"]),
        ({**VERDICT, "comparisons": 0}, ["ERROR", "PASS"]),
        ({**VERDICT, "findings": [{"kind": "PASS", "subject": "loss", "message": "m", "effect": "nan"}]}, ["ERROR", "ERROR"]),
        ({**VERDICT, "findings": [{"kind": "FAIL", "subject": "loss", "message": "m"}]}, ["FAIL", "FAIL"]),
        ('{"at": 1700000000.5, "source": "checks", "verdicts": [{"run": "x", "kind": "FA', ["ERROR", "PASS"]),
    ],
)  # fmt: skip
def test_the_last_verdict_is_the_last_line(tmp_path: Path, line: Any, kinds: list[str]) -> None:
    """Whatever became of it, and whatever time it says."""
    location = StudyLocation(str(tmp_path), "fit")
    path = tmp_path / "fit" / ".assay" / "verdicts.jsonl"
    path.parent.mkdir(parents=True)
    first = json.dumps({"at": 9e15, "source": "checks", "verdicts": [VERDICT]})
    last = line if isinstance(line, str) else json.dumps({"at": 1.7e9, "source": "checks", "verdicts": [line]})
    path.write_text(f"{first}\n{last}\n")
    assert [row.kind for row in load_run_verdicts(location, "x")] == kinds
    assert load_verdicts(location)[-1]["kind"] == kinds[0]


def test_lines_of_a_difference() -> None:
    git = "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new\n same\n"
    assert split_diff(git) == [("x.py", [("@", "@@ -1 +1 @@"), ("-", "-old"), ("+", "+new"), ("", " same")])]
    ours = "--- fit/a/train.py\n+++ fit/b/train.py\n@@ -1 +1 @@\n--- odd\n"
    assert split_diff(ours) == [("train.py", [("@", "@@ -1 +1 @@"), ("-", "--- odd")])]
    assert split_diff("") == []


def test_a_failed_run_says_why_at_its_top(client: TestClient, served: Bench) -> None:
    """What `assay run` prints of it: the reason, and the end of the log of the command that failed."""
    page = client.get(PAGE + BAD).text
    assert '<span class="badge failed">1</span>' in page
    top, log, metrics = (page.index(mark) for mark in ('class="card failure"', 'id="log"', 'id="metrics"'))
    assert top < log < metrics
    part = page[top : page.index("</section>", top)]
    assert "exit code 1" in part
    assert (served.root / "fit" / BAD / "train.log").read_text().splitlines()[-1] in part
    assert '<a href="#log">' in part
    good = client.get(PAGE + GOOD).text
    assert "failure" not in good
    assert good.index('id="metrics"') < good.index('id="log"')


def test_why_a_run_failed_is_never_read_through_a_link(served: Bench, tmp_path: Path) -> None:
    shutil.copytree(served.root / "fit", tmp_path / "runs" / "fit")
    (tmp_path / "secret").write_text("nobody reads this")
    log = tmp_path / "runs" / "fit" / BAD / "train.log"
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    with open_client(tmp_path / "runs") as client:
        answer = client.get(PAGE + BAD)
        assert answer.status_code == 200
        assert "exit code 1" in answer.text
        assert "nobody reads this" not in answer.text

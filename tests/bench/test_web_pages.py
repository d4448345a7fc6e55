"""The page of the benchmarks, on an archive with a step, a creep of the environment, and results that are damaged."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.bench_repository import Repository
from tests.bench_samples import execution, history, write_archive
from tests.study_processes import until
from tests.web_client import READER, WRITE, open_client

from assay.bench.page.contents import render_times
from assay.bench.page.overview import JUDGED_FILE, judge_group
from assay.bench.page.report import build_report
from assay.bench.records import BENCH_FILE, load_triage
from assay.bench.values.execution import BenchExecution, BenchMetric
from assay.system.fast_dataclasses import asdict, replace
from assay.system.files import write_atomic, write_new
from assay.values import layout
from assay.values.document import Heading
from assay.values.run import Outcome
from assay.values.state import State
from assay.values.verdict import VerdictKind
from assay.web.snapshots import Snapshots

STEP = [10.0 + 0.01 * (n % 3) for n in range(12)] + [12.0 + 0.01 * (n % 3) for n in range(12)]
HISTORY = "/benchmarks/bench/history?method=m.C.f"
HOSTILE = "m.<script>alert(1)</script>[1]"


def _named(each: BenchExecution, method: str, **fields: Any) -> BenchExecution:
    return replace(each, method=method, result=replace(each.result, name=method), **fields)


def build(root: Path) -> None:
    """`m.C.f` became worse at e0012; `m.C.same` did not change; of a third one there is a single execution."""
    found = history(STEP)
    found += [_named(execution(100 + n, 5.0 + 0.01 * (n % 4)), "m.C.same") for n in range(20)]
    found += [_named(execution(200, 1.0), HOSTILE)]
    found += [_named(execution(300 + n, 1.0 + 0.01 * n + (n >= 8), label="ab"[n >= 8]), "m.C.sides") for n in range(16)]
    found += [_named(execution(400 + n, 2.0, setup={"cpu_model": f"cpu{n % 2}"}), "m.C.moved") for n in range(12)]
    write_archive(root, found)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmarks")
    build(root)
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    with open_client(root) as client:
        yield client


def get_list(client: TestClient, *before: str) -> str:
    """When everything is read and judged, or when the page no longer has the words that it has `before`."""
    words = before or ("is being read", "not judged yet; this page")

    def load() -> str:
        text = client.get("/benchmarks").text
        return "" if any(word in text for word in words) else text

    found: str = until(load, f"none of {words}", 60)
    return found


def find_row(text: str, name: str) -> str:
    rows = text.partition('class="benchmarks"')[2].split("<tr>")
    return next(row for row in rows if name in row)


class TestList:
    def test_verdicts_and_the_largest_change_that_is_not_triaged_first(self, client: TestClient) -> None:
        text = get_list(client)
        assert "badge FAIL" in find_row(text, ">f<")
        assert "badge PASS" in find_row(text, ">same<")
        assert "no history" in find_row(text, "alert")
        assert "PASS" not in find_row(text, "alert")
        assert "<script>alert" not in text
        assert '<polyline points="3.0,' in find_row(text, ">f<")
        assert "2 envs" in find_row(text, ">moved<")
        first, second = text.partition("Became worse")[2].split("<tr>")[2:4]
        assert "m.C.sides" in first, "from label a to label b"
        assert "+104.3%" in first
        assert 'class="badge INCONCLUSIVE">open<' in first
        assert "code, environment or label" in first
        assert "m.C.f" in second
        assert "+20.0%" in second or "+19.9%" in second
        assert 'class="badge FAIL">open<' in second
        assert '<th scope="rowgroup" colspan="8"><a href="/benchmarks?suite=m.C">m.C</a>' in text
        part = client.get("/benchmarks", headers={"hx-request": "true"}).text
        assert part.lstrip().startswith('<div id="benchmarks"')

    def test_it_is_shown_before_it_is_read_and_before_it_is_judged(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Nothing is guessed, and the page asks again."""
        write_archive(tmp_path, history(STEP))
        may_read, may_judge, read = threading.Event(), threading.Event(), Snapshots._read
        waiting_read = lambda *given: may_read.wait(30) and read(*given)  # noqa: E731
        monkeypatch.setattr(Snapshots, "_read", waiting_read)
        waiting = lambda *given: may_judge.wait(30) and judge_group(*given)  # noqa: E731
        monkeypatch.setattr("assay.bench.page.overview.judge_group", waiting)
        monkeypatch.setattr("assay.bench.page.overview._PATIENCE_S", 0.01)
        monkeypatch.setattr("assay.bench.web_pages._PATIENCE_S", 0.01)
        with open_client(tmp_path) as client:
            text = client.get("/benchmarks").text
            assert "is being read for the first time" in text
            assert 'hx-trigger="every 2s"' in text
            assert "There is no benchmark" not in text
            may_read.set()
            text = get_list(client, "is being read")
            assert "1 benchmark not judged yet" in text
            assert 'hx-trigger="every 2s"' in text
            row = find_row(text, ">f<")
            assert "not judged yet" in row
            assert not any(kind in row for kind in ("PASS", "FAIL"))
            may_judge.set()
            assert "badge FAIL" in find_row(get_list(client), ">f<")
            assert "every 2s" not in client.get("/benchmarks").text

    def test_what_is_judged_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the next server, and until there is another execution; a damaged file is made again."""
        location = write_archive(tmp_path, history(STEP))
        for path in sorted(Path(location.dir).rglob("*"), reverse=True):  # written some time ago: they are settled
            os.utime(path, (1e9, 1e9))
        asked: list[str] = []

        def show() -> str:
            """By the next server."""
            monkeypatch.setattr("assay.bench.page.overview._JUDGES", {})
            with open_client(tmp_path) as client:
                return find_row(get_list(client), ">f<")

        def count(*given: Any) -> Any:
            asked.append(given[1].method)
            return judge_group(*given)

        show()
        kept = Path(location.dir) / ".assay" / JUDGED_FILE
        assert "m.C.f" in json.loads(kept.read_text())["judged"]
        monkeypatch.setattr("assay.bench.page.overview.judge_group", count)
        assert "badge FAIL" in show()
        assert not asked
        write_archive(tmp_path, [execution(100, 12.0)])
        show()
        assert asked == ["m.C.f"]
        content = json.loads(kept.read_text())
        content["judged"]["m.C.f"][1]["kinds"] = {"wall_time": "PASS"}
        for damaged in (json.dumps(content).encode(), b"\xff{"):
            kept.write_bytes(damaged)
            assert "badge FAIL" in show()

    def test_find_and_order(self, client: TestClient) -> None:
        get_list(client)
        text = client.get("/benchmarks?q=C+SAM").text
        assert ">same<" in text
        assert ">moved<" not in text
        assert "1 benchmark of 5" in text
        assert "Became worse" not in text
        text = client.get("/benchmarks?kind=FAIL").text
        assert "/history?method=m.C.f" in text
        assert ">same<" not in text
        text = client.get("/benchmarks?sort=change").text.partition('class="benchmarks"')[2]
        assert text.index("m.C.f<") < text.index("m.C.same<")
        assert "None matches" in client.get("/benchmarks?q=nothing").text
        unknown = client.get("/benchmarks?sort=colour")
        assert (unknown.status_code, "known: age, change, executions" in unknown.text) == (404, True)
        assert client.get("/benchmarks?page=x").status_code == 400
        assert client.get("/benchmarks?page=0").status_code == 200

    def test_the_worst_metric_counts(self, tmp_path: Path) -> None:
        """Not the one that comes first; and what is asked for by verdict is found with its changes."""
        latencies = ((n, (BenchMetric("latency", value),)) for n, value in enumerate(STEP))
        found = [replace(one := execution(n, 10.0), result=replace(one.result, metrics=own)) for n, own in latencies]
        found += [_named(each, "m.C.better") for each in history(STEP[::-1], 100)]
        write_archive(tmp_path, found)
        with open_client(tmp_path) as client:
            row = find_row(get_list(client), ">f<")
            assert "badge FAIL" in row
            assert "<td>latency<br>" in row
            assert "others: 1 PASS" in row
            assert "method=m.C.f&amp;metric=latency" in row
            text = client.get("/benchmarks?kind=FAIL").text
            assert "badge FAIL" in find_row(text, ">f<")
            assert "1 benchmark of 2" in text
            assert "Became worse, 1 open" in text
            assert "m.C.better" not in text
            text = client.get("/benchmarks?kind=PASS").text
            assert "badge FAIL" not in text.partition('class="benchmarks"')[2]
            assert "1 open" not in text
            text = client.get("/benchmarks/bench/history?method=m.C.f").text
            assert 'aria-current="page">latency' in text  # what was asked for comes first
            assert 'latency <span class="badge FAIL">' in text

    def test_nothing(self, tmp_path: Path) -> None:
        with open_client(tmp_path) as client:
            assert "assay bench run" in client.get("/benchmarks").text


class TestHistory:
    def test_its_change(self, client: TestClient) -> None:
        text = client.get(HISTORY).text
        assert 'class="badge FAIL"' in text
        assert '<span class="badge FAIL">open</span>' in text
        assert 'class="fail"' in text  # the span of the worse level
        assert "git log --oneline b00000000000..c00000000000" in text
        assert "assay bench triage wall_time m.C.f e0012 ack" in text
        assert text.count('class="c0 point"') == len(STEP)
        assert text.partition('aria-label="Where this page is"')[2].partition("</nav>")[0].count("<a ") == 1
        assert text.partition('aria-label="See also"')[2].partition("</nav>")[0].count("<a ") == 2
        assert "log scale</text>" not in text
        assert "log scale</text>" in client.get(f"{HISTORY}&log=1").text
        hostile = client.get("/benchmarks/bench/history", params={"method": HOSTILE}).text
        assert "<script>alert" not in hostile
        assert "no history" in hostile
        assert "badge PASS" not in hostile

    def test_an_environment_has_its_own_chart(self, client: TestClient) -> None:
        text = client.get("/benchmarks/bench/history?method=m.C.moved").text
        assert "cpu_model cpu0" in text
        assert "cpu_model cpu1" in text
        assert text.count("<svg") == 2

    def test_a_range_of_it(self, client: TestClient) -> None:
        text = client.get(f"{HISTORY}&from=b0000000&to=d0000000").text
        assert 'class="badge FAIL"' in text  # of the whole history
        few = text.count('class="c0 point"')
        assert 1 <= few < len(STEP)
        assert f"{few} of 24 executions" in text
        assert client.get(f"{HISTORY}&from=2001-01-01&to=2101-01-01").text.count('class="c0 point"') == len(STEP)
        assert "is in this range" in client.get(f"{HISTORY}&from=2101-01-01").text

    def test_the_axis_of_a_single_day_has_times(self) -> None:
        noon = time.mktime((2026, 11, 16, 12, 0, 0, 0, 0, -1))
        assert render_times([noon, noon + 3600, noon + 7200]) == ["12:00", "13:00", "14:00"]
        assert render_times([noon, noon + 1, noon + 2]) == ["12:00:00", "12:00:01", "12:00:02"]
        assert render_times([noon, noon + 3600, noon + 86400]) == ["11-16", "13:00", "11-17"]
        assert render_times([None, noon]) == ["", "11-16"]

    def test_unknown_names(self, client: TestClient) -> None:
        for path, said in (
            (f"{HISTORY}&from=nothing", "no date or commit"),
            ("/benchmarks/bench/history?method=m.C.g", "m.C.f"),
            ("/benchmarks/bench/history?method=m.C.f&metric=wall_tim", "wall_time"),
            ("/benchmarks/bench/history", "no benchmark"),
            ("/benchmarks/fit/history?method=m.C.f", "no archive"),
            ("/benchmarks/bench/environments?by=cpu_mode", "cpu_model"),
            ("/benchmarks/bench/environments?method=nothing", "no benchmark"),
            ("/benchmarks/bench/compare?base=aaaa1&head=b", "label or commit"),
        ):
            answer = client.get(path)
            assert (answer.status_code, path) == (404, path)
            assert said in answer.text


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Of `m.C.f` every second wall time was disturbed, of `m.C.g` each; CPU time counts."""
    root = tmp_path_factory.mktemp("busy")
    found = []
    for name in "fg":
        for n, value in enumerate(STEP):
            load = ("others used 90% of the CPUs during the run",) if n % 2 or name == "g" else ()
            each = execution(n + 100 * (name == "g"), value, label="ab"[n >= 12], contaminated=load)
            result = replace(each.result, cpu_time=value / 2)
            found.append(_named(replace(each, result=result), f"m.C.{name}"))
    write_archive(root, found)
    with open_client(root) as client:
        yield client


class TestBusyMachine:
    @pytest.mark.parametrize(("name", "counted"), [("f", 6), ("g", 0)])
    def test_disturbed_executions_are_grey_in_the_chart(self, busy: TestClient, name: str, counted: int) -> None:
        text = busy.get(f"/benchmarks/bench/history?method=m.C.{name}&metric=wall_time").text
        assert f"12 executions, {12 - counted} disturbed" in text
        assert len(re.findall(r'<circle class="c0 point"', text)) == 2 * counted
        assert len(re.findall(r'<circle class="soft point"', text)) == 2 * (12 - counted)
        assert "disturbed by others: it does not count" in text
        assert f"assay bench history cpu_time m.C.{name} --root" in text

    def test_cpu_time_has_the_verdict_where_no_wall_time_counts(self, busy: TestClient) -> None:
        row = find_row(get_list(busy), ">g<")
        assert "cpu_time" in row
        assert "1 without a history" in row
        assert "soft point" not in busy.get("/benchmarks/bench/history?method=m.C.g&metric=cpu_time").text

    def test_tables_and_sides_have_them_in_brackets(self, busy: TestClient) -> None:
        table = busy.get("/benchmarks/bench/environments?method=m.C.g").text
        assert '<span class="soft">(10.01 s ±0.1%)</span>' in table
        assert "24 contaminated (for wall_time: in brackets where none counts)" in table
        sides = busy.get("/benchmarks/bench/compare?base=a&head=b&method=m.C.g").text
        assert '<span class="soft">(10.01 s ±0.1%)</span>' in sides
        assert "smallest worsening that 9 of 10 such comparisons call FAIL: cpu_time 5." in sides
        assert len(re.findall(r'<circle class="soft point"', sides)) == 24


def test_environments(client: TestClient) -> None:
    text = client.get("/benchmarks/bench/environments?method=m.C.moved&by=cpu_model").text
    assert "cpu0" in text.partition("<tbody>")[2]
    assert "cpu1" in text.partition("<tbody>")[2]
    assert client.get("/benchmarks/bench/environments").status_code == 200


def test_two_sides_with_their_distributions(client: TestClient, root: Path) -> None:
    text = client.get("/benchmarks/bench/compare?base=a&head=b&method=m.C.sides").text
    assert "badge FAIL" in text
    shares = text.partition("Distributions")[2]
    assert shares.count('class="c0 point"') == shares.count('class="c1 point"') == 8
    interval = text.partition("Change with its interval")[2].partition("</svg>")[0]
    assert interval.count('class="c1 point"') == 1
    assert 'class="first"' in interval  # no change
    assert "assay bench compare a b --method m.C.sides" in text
    assert not (root / "bench" / ".assay" / "verdicts.jsonl").exists()  # a page that is looked at records nothing
    assert client.get("/benchmarks/bench/compare").status_code == 200


FORM = {"metric": "wall_time", "method": "m.C.f", "change": "e0012", "judgement": "ack", "note": "known; --root=/x"}


class TestTriage:
    PATH = "/api/benchmarks/bench/triage"

    def test_it_is_the_command(self, tmp_path: Path) -> None:
        location = write_archive(tmp_path, history(STEP))
        with open_client(tmp_path) as client:
            assert "badge FAIL" in client.get(HISTORY).text
            answer = client.post(self.PATH, data=FORM, headers=WRITE)
            assert answer.status_code == 200, answer.text
            (said,) = load_triage(location.dir)
            assert (said.execution_id, said.judgement, said.note) == ("e0012", "ack", "known; --root=/x")
            text = client.get(HISTORY).text
            assert "badge FAIL" not in text
            assert "badge FAIL" not in get_list(client)
            assert "known; --root=/x" in text
            again = client.post(self.PATH, data={**FORM, "judgement": "open"}, headers=WRITE)
            assert again.status_code == 200
            assert "badge FAIL" in client.get(HISTORY).text

    def test_requests_that_are_not_allowed_and_mistakes(self, client: TestClient, root: Path) -> None:
        for headers in ({}, {"authorization": f"Bearer {READER}"}, {**WRITE, "origin": "http://other"}):
            assert client.post(self.PATH, data=FORM, headers=headers).status_code in (401, 403)
        assert client.get(self.PATH).status_code in (404, 405)
        for change in (
            {"judgement": "fine"},
            {"method": "m.C.g"},
            {"change": ""},
            {"change": "e9999"},
            {"note": "x" * 3000},
        ):
            assert 400 <= client.post(self.PATH, data={**FORM, **change}, headers=WRITE).status_code < 500
        assert load_triage(str(root / "bench")) == []


def test_damaged_results(tmp_path: Path) -> None:
    """They are named, the others are shown."""
    location = write_archive(tmp_path, history(STEP[:12]))
    names = sorted(Path(location.dir).glob("e*"))
    (names[0] / BENCH_FILE).write_text("{")
    (names[1] / BENCH_FILE).write_bytes(b"\xff\x00")
    with open_client(tmp_path) as client:
        text = get_list(client)
        assert names[0].name in text
        assert "2 executions cannot be read" in text
        assert client.get(HISTORY).status_code == 200


@pytest.mark.parametrize("damage", ["file", "run"])
def test_the_newest_execution_proves_nothing(tmp_path: Path, damage: str) -> None:
    """Its file is damaged, or is that of an attempt before the one that failed: not the PASS of those before it."""
    location = write_archive(tmp_path, [execution(n, 10 + n % 3 / 100) for n in range(40)])
    newest = max(Path(location.dir).glob("e*"))
    with open_client(tmp_path) as client:
        assert "badge PASS" in find_row(get_list(client), ">f<")
    if damage == "file":
        write_atomic(str(newest / BENCH_FILE), "{")
    else:
        outcome = Outcome(State.FAILED, 1, reason="killed", started_at=1e9 + 39, ended_at=1e9 + 40)
        write_new(str(newest / layout.numbered_name("outcome", 1)), json.dumps(asdict(outcome)))
    with open_client(tmp_path) as client:
        for text in (find_row(get_list(client), ">f<"), client.get(HISTORY).text):
            assert "badge PASS" not in text
            assert "badge ERROR" in text
    for wanted in (None, "m.C.f"):
        document = build_report(location, wanted)
        assert document is not None
        (heading,) = [block for block in document.blocks if isinstance(block, Heading) and block.level == 1]
        assert heading.kind is VerdictKind.ERROR


def test_parameters_are_axes(tmp_path: Path) -> None:
    """asv's, with their names: each value is a link, and numbers become a chart."""
    found = []
    for size in (10, 100, 1000):
        for kind in ("'f4'", "'f8'"):
            name = f"m.C.time({size}, {kind})"
            extra = {"parameters": {"size": str(size), "kind": kind}}
            found += [
                _named(execution(len(found) + n, size * (1 + 0.001 * (n % 3))), name, extra=extra) for n in range(8)
            ]
    write_archive(tmp_path, found)
    with open_client(tmp_path) as client:
        get_list(client)
        text = client.get("/benchmarks/bench/history", params={"method": "m.C.time(100, 'f4')"}).text
        size = text.partition('<nav aria-label="size">')[2].partition("</nav>")[0]
        assert [size.count(f">{value}</a>") for value in (10, 100, 1000)] == [1, 1, 1]
        assert 'aria-current="page">100<' in size
        assert "m.C.time%2810%2C%20%27f4%27%29" in size
        chart = text.partition("By parameter</h2>")[2]
        assert chart.count("<svg") == 1  # the other parameter is not a number
        assert chart.count('class="c0 point"') == 3


def test_commits_of_a_change(tmp_path: Path) -> None:
    """Counted where the root lies in their repository, or in that of the folder that it ran in. A repository inside of
    the root may have been uploaded: it is not used."""
    hashes, roots = [], (tmp_path / "runs", tmp_path / "elsewhere")
    (tmp_path / "code").mkdir()
    for folder in (tmp_path, tmp_path / "code"):
        repository = Repository(folder)
        commits = repository.commit_all(*((text, text) for text in (folder.name, "two", "<b>three", "four")))
        hashes.append((commits[0], commits[3]))
    for root, own in zip(roots, hashes, strict=True):
        write_archive(root, [replace(each, commit=own[n >= 12]) for n, each in enumerate(history(STEP))])
    with open_client(roots[0]) as client:
        text = client.get(HISTORY).text
        assert "3 commits: <code>" in text
        assert "&lt;b&gt;three" in text
    first = next((roots[1] / "bench").glob("*e0012*")) / "run.json"
    for folder, is_used in ((tmp_path / "code", True), (roots[1] / "code", False)):
        if not is_used:
            (tmp_path / "code").rename(folder)
        record = json.loads(first.read_text())
        first.write_text(json.dumps(record | {"workdir": str(folder)}))
        with open_client(roots[1]) as client:
            assert ("&lt;b&gt;three" in client.get(HISTORY).text) == is_used

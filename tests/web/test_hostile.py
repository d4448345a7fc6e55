"""A hostile root: every route, every page that a page leads to. Nothing of it becomes markup, nothing outside is read,
nothing hangs, nothing is an error of ours."""

from __future__ import annotations

import inspect
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

import pytest
from httpx import Response
from starlette.routing import Match
from starlette.testclient import TestClient
from tests.finished_study import GOOD, Bench
from tests.golden_training import run_in_process
from tests.web import hostile
from tests.web_client import WRITE, open_client

from assay.web.app import list_entries
from assay.web.pages.page_view import StudyView
from assay.web.routes import RouteEntry, build_route
from assay.web.security import FRAME_POLICY
from assay.web.site import Site

Record = Callable[[str, object], None]
ENTRIES = list_entries(Site(()))
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SLOWEST_S = 20.0  # a hang, not a speed: other work goes on beside the tests
ATTACKS = (
    "../../secret.json", "..%2f..%2fsecret.json", "%2e%2e/%2e%2e/secret.json", "/etc/passwd", "%2fetc%2fpasswd", "link.txt",
    "folder/passwd", "b.log", "loop", "pipe.log", "device.log", "secrets.sh", "a%00b", "x" * 5000, "%ff%fe", "code/train2.py",
    "trace.json", "profile/a.json", "metrics/2-2-2.jsonl", ".", "", "//etc/passwd", "..\\..\\secret.json",
)  # fmt: skip


class Page(HTMLParser):
    """What a browser would do with it. Our own scripts have an address and no content."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.links: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._script = tag == "script"
        if tag == "script" and not values.get("src", "").startswith(("/static/", "/vendor/")):
            self.problems.append(f"script {values}")
        if tag == "iframe" and values.get("sandbox") != "":
            self.problems.append(f"iframe {values}")
        if tag in ("object", "embed", "base", "style", "foreignobject", "use", "animate", "frame", "applet"):
            self.problems.append(f"<{tag}>")
        if tag == "meta" and "http-equiv" in values:
            self.problems.append(f"meta {values}")
        if tag in ("img", "iframe") and not re.fullmatch(
            r"/studies/[^\s]+/files/[^\s]+\?view=1", values.get("src", "")
        ):
            self.problems.append(f"{tag} {values}")
        for name, value in values.items():
            if name.startswith(("on", "hx-on")) or name in ("style", "srcdoc", "ping"):
                self.problems.append(f"{tag} {name}={value[:80]}")
            if name in ("href", "src", "action", "formaction", "data", "poster", "hx-get", "hx-post", "data-curves"):
                self._see(tag, name, value)

    def _see(self, tag: str, name: str, value: str) -> None:
        parts = urlsplit(urljoin("http://here/x", value.strip()))
        if re.sub(r"[\x00-\x20]", "", value).lower().startswith(("javascript:", "data:", "vbscript:")) or (
            parts.netloc not in ("here", "ui.perfetto.dev")
        ):
            self.problems.append(f"{tag} {name}={value[:80]}")
        elif parts.netloc == "here" and name in ("href", "hx-get", "data-curves", "src"):
            self.links.append(value)

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.problems.append(f"script: {data[:80]}")
        if re.search(r"(?<![\d.])49(?![\d.%])", data) and "7*7" not in data and hostile.TEXT[:8] in data:
            self.problems.append(f"an expression was evaluated: {data[:80]}")

    def handle_endtag(self, _tag: str) -> None:
        self._script = False


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Of the whole root, with hundreds of odd files."""
    with open_client(hostile.build(tmp_path_factory.mktemp("hostile"))) as client:
        yield client


class Walk:
    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.routes = [build_route(entry) for entry in ENTRIES if "GET" in entry.methods]
        self.seen: set[str] = set()  # paths of routes that answered something
        self.problems: list[str] = []
        self.asked = 0

    def get(self, address: str) -> list[str]:
        """What the page leads to."""
        if "/events" in address.partition("?")[0]:
            self.seen.add("/events")  # never ends; test_live has it
            return []
        path = unquote(urlsplit(address).path)
        scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
        self.asked += 1
        begun = time.monotonic()
        answer = self.client.get(address, follow_redirects=False)
        took = time.monotonic() - begun
        for route in self.routes:
            if route.matches(scope)[0] is Match.FULL:
                self.seen |= {route.path} if answer.status_code < 400 else set()
                break
        text, kind = answer.text, answer.headers.get("content-type", "")
        self.problems += [f"{address[:200]}: {each}" for each in self._find_problems(address, answer, took)]
        if not kind.startswith("text/html") or address.startswith(("/static/", "/vendor/")) or "/files/" in address:
            return []
        page = Page()
        page.feed(text)
        page.close()
        self.problems += [f"{address[:160]}: {problem}" for problem in page.problems]
        return [urljoin(address, link).partition("#")[0] for link in page.links]

    def _find_problems(self, address: str, answer: Response, took: float) -> Iterator[str]:
        kind, headers = answer.headers.get("content-type", ""), answer.headers
        if answer.status_code >= 500:
            yield f"{answer.status_code} {answer.text[-400:]}"
        if hostile.SECRET in answer.text or "root:x:0" in answer.text:
            yield "the secret is in it"
        if took > SLOWEST_S:
            yield f"{took:.0f} s"
        if headers.get("x-content-type-options") != "nosniff" or "content-security-policy" not in headers:
            yield "without the headers of a safe page"
        if "/files/" in address and answer.status_code == 200:
            is_frame = kind.startswith("text/html") and headers["content-security-policy"] == FRAME_POLICY
            if not (kind in PICTURES or is_frame) and not headers["content-disposition"].startswith("attachment"):
                yield f"shown as {kind}"
            if not headers["content-security-policy"].startswith("sandbox"):
                yield "without a sandbox"
        if kind.startswith("image/svg") and not address.startswith("/static/"):
            yield "a drawing with scripts"

    def check(self, record: Record) -> None:
        record("hostile requests to the page", f"{len(self.problems)} of {self.asked}")
        assert not self.problems, "\n".join(self.problems[:20])


def _shape(address: str) -> str:
    """Pages of one kind: of each some are opened."""
    parts = urlsplit(address)
    path = [part for part in parts.path.split("/") if part]
    if path[-1:] == ["compare"]:  # which has a link for each of its switches
        return f"compare {len(parts.query) > 200}"
    keys = sorted({pair.partition("=")[0] for pair in parts.query.split("&")})
    return "/".join([*path[:1], str(len(path)), path[-1] if len(path) > 2 and len(path[-1]) < 12 else "", *keys])


def test_every_page_that_a_page_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    run_in_process(monkeypatch)
    monkeypatch.setattr("assay.web.pages.run_files._MOST_ROWS", 3)
    with open_client(hostile.build(tmp_path, is_whole=False)) as client:
        check_all_links(Walk(client), record_property)
        check_bodies(client)


def check_all_links(walk: Walk, record_property: Record) -> None:
    waiting, opened, counts = ["/"], set(), {}
    study = quote(hostile.STUDY, safe="")
    runs = [quote(name, safe="") for name in hostile.NAMES]
    for run in runs:
        waiting += [f"/studies/{study}/runs/{run}", f"/studies/{study}/runs/{run}?x=time&all=1"]
    waiting += [f"/studies/{study}/compare?run={runs[0]}&run={run}&all=1" for run in runs[1:3]]
    waiting += [f"/studies/{study}{rest}" for rest in ("/compare?turn=1&best=1", "?tab=scatter", "?tab=parallel")]
    while waiting:
        address = waiting.pop(0)
        if address in opened or address.startswith(("http", "/static", "/vendor")):
            continue
        opened.add(address)
        shape = _shape(address)
        counts[shape] = counts.get(shape, 0) + 1
        if counts[shape] <= 2:
            waiting += walk.get(address)
    walk.check(record_property)
    assert len(opened) > 100


def _list_last(path: str, run: str) -> Sequence[str]:
    """What the last part of an address is replaced by; one empty text where it is not a name."""
    if "{file" in path:
        return ATTACKS if run == hostile.NAMES[0] else ATTACKS[:2]
    if "{path" in path or "{name}" in path:
        return (*ATTACKS, "store/x.json")
    return ("x", *ATTACKS[:3]) if "{session" in path else ("",)


@pytest.mark.services("api")
def test_every_route_with_every_name(client: TestClient, record_property: Record) -> None:
    """All routes, so that a new one cannot be forgotten; each with names that exist and with attacks."""
    walk = Walk(client)
    studies = [each["study"] for each in client.get("/api/studies").json()]
    assert {hostile.STUDY, "bench", "model"} <= set(studies)
    runs = {study: [each["name"] for each in client.get(f"/api/studies/{quote(study, safe='')}/runs").json()] for study in studies}  # fmt: skip
    assert all(runs.values()), runs.keys()
    names = {study: [path.name for path in (Path(client.get(f"/api/studies/{quote(study, safe='')}").json()["root"]) / study).iterdir()] for study in studies}  # fmt: skip
    for entry in ENTRIES:
        if "GET" not in entry.methods:
            continue
        for study in studies if "{study}" in entry.path else [""]:
            chosen = [name for name in names[study] if name != ".assay"] if "{run}" in entry.path else [""]
            if entry.path != "/studies/{study}/runs/{run}":  # which shows all that a run has
                chosen = sorted(chosen, key=lambda name: name != hostile.NAMES[0])[::25]
            for run in [*chosen, *(ATTACKS[:3] if "{run}" in entry.path else ())]:
                for last in _list_last(entry.path, run):
                    filled = entry.path.replace("{study}", quote(study, safe="")).replace("{run}", quote(run, safe=""))
                    filled = re.sub(r"{(file|path)(:path)?}|{name}|{session}", lambda _, last=last: last, filled)
                    query = f"?metric={quote(hostile.TEXT, safe='')}" if entry.path.endswith("/series") else ""
                    walk.get(filled + query)
    walk.check(record_property)


QUERIES = {
    "where": ["(" * 10_000, "not " * 9000 + "n", "n == 1 " + "and n == 1 " * 1500, hostile.TEXT, "n ~ '(a+)+$'", "`" * 999],
    "sort": [hostile.TEXT, ",".join(["n"] * 3000)],
    "group": [hostile.TEXT, ",".join(f"g{i}" for i in range(3000))],
    "metric": [hostile.TEXT, "x" * 50_000],
    "metrics": [hostile.TEXT],
    "tab": [hostile.TEXT],
    "x": [hostile.TEXT],
    "page": ["-1", "99999999999999999999", "nan", hostile.TEXT],
    "smooth": ["nan", "inf", "1e400"],
    "run": [hostile.TEXT, "../../etc", "x" * 20_000],
    "file": list(ATTACKS),
    "find": [hostile.TEXT, "x" * 5000, "\x00"],
    "from": ["-1", "9" * 18, "9" * 400, "x"],
    "attempt": ["0", "9" * 30],
    "check": [hostile.TEXT],
    "method": [hostile.TEXT],
    "base": [hostile.TEXT],
    "case": [hostile.TEXT, "../../secret"],
    "number": ["-1", "9" * 30, "x"],
    "reading": [hostile.TEXT],
    "view": ["1"],
    "q": [hostile.TEXT],
    "next": ["//evil.example", "javascript:alert(1)"],
}  # fmt: skip


def _list_questions(entry: RouteEntry) -> Iterator[str]:
    """All values of the names that the handler's module reads; the other names are ignored."""
    source = inspect.getsource(inspect.getmodule(entry.handler) or hostile)
    for name, values in QUERIES.items():
        if f'"{name}"' in source or ("StudyView.from_query" in source and name in StudyView._fields):
            yield from (f"{name}={quote(value, safe='(', errors='surrogateescape')}" for value in values)


@pytest.mark.services("api")
def test_every_route_with_odd_questions(client: TestClient, record_property: Record) -> None:
    walk = Walk(client)
    study, run, other = (quote(name, safe="") for name in (hostile.STUDY, *hostile.NAMES[:2]))
    for entry in ENTRIES:
        if "GET" not in entry.methods or entry.path == "/events":
            continue
        path = entry.path.replace("{study}", study).replace("{run}", run)
        path = re.sub(r"{\w+(:path)?}", "train.log", path)
        first = f"?run={run}&run={other}&" if "compare" in path else "?"
        for question in _list_questions(entry):
            walk.get(f"{path}{first}{question}")
    walk.check(record_property)


def check_bodies(client: TestClient) -> None:
    for body in (b"", b"{", b"[" * 100_000, b'{"action": "stop", "runs": [{}]}', b"\xff\xfe", b"null"):
        for entry in ENTRIES:
            if "POST" in entry.methods:
                answer = client.post(entry.path.replace("{study}", "bench"), content=body, headers=WRITE)
                assert answer.status_code < 500, (entry.path, answer.text[-300:])


QUESTIONS = ("", "?tab=curves", "?tab=scatter&metric=loss", "?tab=parallel", "?tab=slices", "?tab=importance", "?tab=history",
             "?group=n", "?sort=lr", "?where=lr>0", "?show=n,lr,time,tags,note")  # fmt: skip


@pytest.fixture(scope="module")
def good(served: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every record that is read."""
    good = tmp_path_factory.mktemp("good") / "run"
    shutil.copytree(served.root / "fit" / GOOD, good)
    (good / "tags.json").write_text('{"format": 1, "tags": ["a"], "notes": [{"at": 1e9, "text": "b"}]}')
    (good / "metrics").mkdir(exist_ok=True)
    points = ('{"time": 1e9, "step": 1, "x": 1.5}', '{"time": 1e9, "step": 2, "x": 2}')
    (good / "metrics" / "1-1-1.jsonl").write_text("\n".join(points) + "\n")
    reading = '{"time": 1e9, "processes": 1, "cpu_s": 1.5, "rss_bytes": 1, "vms_bytes": 1, "peak_rss_bytes": 1}'
    (good / "readings.jsonl").write_text(f"{reading}\n{reading.replace('1e9', '1.1e9')}\n")
    return good


@pytest.mark.services("api")
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("half a character", "many digits") else pytest.param(kind, marks=pytest.mark.long)
        for kind in hostile.ODD
    ],
)
def test_odd_values_in_every_place_of_every_record(
    good: Path, tmp_path: Path, kind: str, record_property: Record
) -> None:
    """Each page of the study, and the pages of each run."""
    hostile.build_odd(good, tmp_path, kind)
    with open_client(tmp_path) as client:
        walk = Walk(client)
        study = quote(kind)
        pages = [f"/studies/{study}{question}" for question in QUESTIONS]
        pages += [f"/api/studies/{study}{rest}" for rest in ("", "/table", "/runs", "/verdicts", "/curves?metric=loss")]
        pages += [f"/studies/{study}/compare?all=1", f"/studies/{study}/best"]
        pages += ["/studies", "/api/studies", "/goldens", "/benchmarks", "/models", "/profiles"]
        names = sorted(path.name for path in (tmp_path / kind).iterdir() if path.name != ".assay")
        assert len(names) > 50
        for number, name in enumerate(names):
            run = f"studies/{study}/runs/{quote(name)}"
            pages += [f"/{run}", f"/api/{run}"]
            if number % 5 == 0:
                pages += [f"/api/{run}/curves?metric=loss", f"/api/{run}/curves?metric=x&x=time"]
        for page in pages:
            walk.get(page)
        walk.check(record_property)

"""Which requests may read and which may act."""

from __future__ import annotations

from collections import Counter

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tests.finished_study import GOOD, Bench
from tests.web_client import READER, TOKEN, UPLOADER, WRITE, build_tokens, open_client

from assay.web import live, security
from assay.web.app import list_entries
from assay.web.interface import Alarm
from assay.web.pages.studies import Alarms, FoundAlarms
from assay.web.routes import build_route, get, post
from assay.web.security import COOKIE, Guard, Limit, is_loopback, split_host
from assay.web.site import Site

SAID = []


def _say(request: Request) -> PlainTextResponse:
    SAID.append(request.url.path)
    return PlainTextResponse("done")


def open_guarded(*, is_open: bool = True) -> TestClient:
    """Small, and every scope has a route."""
    from starlette.applications import Starlette

    entries = [
        get("/see", _say),
        post("/act", _say),
        post("/send", _say, scope="upload"),
        get("/all", _say, scope="open"),
    ]
    routes = [build_route(entry) for entry in entries]
    guard = Guard(Starlette(routes=routes), routes, tokens=build_tokens(), hosts=("127.0.0.1", "lab"), is_open=is_open)
    return TestClient(guard, base_url="http://127.0.0.1:8666")


@pytest.fixture
def guarded() -> TestClient:
    SAID.clear()
    return open_guarded()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ---------------------------------------------------------------- names and scopes


def test_only_own_names_of_the_server_are_taken(guarded: TestClient) -> None:
    """A page whose name was made to lead here (rebinding) has its own name in Host."""
    for host in ("evil.example", "127.0.0.1.evil.example:8666", "", "[", "localhost.evil"):
        assert guarded.get("/see", headers={"host": host}).status_code == 421
    assert guarded.get("/see", headers=[("host", "127.0.0.1"), ("host", "evil.example")]).status_code == 421
    assert SAID == []
    for host in ("127.0.0.1", "127.0.0.1:1", "LAB:8666"):
        assert guarded.get("/see", headers={"host": host}).status_code == 200
    assert split_host("[::1]:80") == "::1"
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "lab", "")] == [False] * 3


def test_reading_elsewhere_needs_a_token(guarded: TestClient) -> None:
    assert guarded.get("/see").status_code == 200
    other = open_guarded(is_open=False)
    for path, headers, status in (
        ("/see", {}, 401),
        ("/all", {}, 200),
        ("/see", bearer(READER), 200),
        ("/see", bearer(UPLOADER), 403),
        ("/see", {"cookie": f"{COOKIE}={build_tokens()[1].build_cookie()}"}, 200),
        ("/see", {"cookie": f"{COOKIE}=x"}, 401),
    ):
        assert other.get(path, headers=headers).status_code == status, headers


def test_actions_need_a_token_that_allows_them(guarded: TestClient) -> None:
    """A cookie does not: so a form of another site, with which a browser sends cookies, gets nowhere."""
    for path, token, status in (
        ("/act", "", 401),
        ("/act", READER, 403),
        ("/act", UPLOADER, 403),
        ("/act", TOKEN, 200),
        ("/send", UPLOADER, 200),
        ("/send", READER, 403),
        ("/send", TOKEN, 200),
        ("/missing", "", 401),
    ):
        SAID.clear()
        assert guarded.post(path, headers=bearer(token) if token else {}).status_code == status
        assert ([path] if status == 200 else []) == SAID
    SAID.clear()
    for cookie in (build_tokens()[0].build_cookie(), TOKEN):
        assert guarded.post("/act", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 401
    for given in ("Basic abc", "Bearer", "Bearer ", "Bearer \xff", TOKEN, f"Bearer {TOKEN}x"):
        assert guarded.post("/act", headers={"authorization": given.encode("latin-1")}).status_code == 401
    assert SAID == []


def test_after_ten_wrong_tokens_an_address_waits(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of addresses does not grow without end."""
    codes = [guarded.post("/act", headers=bearer("wrong")).status_code for _ in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert guarded.post("/act", headers=WRITE).status_code != 429, "others have the same address"
    limit = Limit(2)
    for is_reached in (False, True):
        limit.note("a")
        assert (limit.is_reached("a"), limit.is_reached("b")) == (is_reached, False)
    monkeypatch.setattr(security, "_MOST_ADDRESSES", 10)
    for number in range(100):
        limit.note(str(number))
    assert len(limit._times) <= 11


# ---------------------------------------------------------------- other sites


def test_actions_of_another_site_are_refused(guarded: TestClient) -> None:
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8666"},
    ):
        assert guarded.post("/act", headers={**WRITE, **headers}).status_code == 403
    assert SAID == []
    own = {"origin": "http://127.0.0.1:8666", "sec-fetch-site": "same-origin"}
    for headers in ({**WRITE, **own}, WRITE):  # an own page, and a program
        assert guarded.post("/act", headers=headers).status_code == 200


def test_another_site_cannot_use_an_answer_nor_hold_a_stream_open(guarded: TestClient, client: TestClient) -> None:
    """Nor can another port of this machine; a link is followed."""
    for site in ("cross-site", "same-site"):
        for mode, dest in (("no-cors", "image"), ("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe")):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
            assert guarded.get("/see", headers=headers).status_code == 403
        for path in ("/events", "/events?study=fit", "/api/studies"):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
            assert client.get(path, headers=headers).status_code == 403
    assert SAID == []
    for site in ("cross-site", "same-origin", "none"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert guarded.get("/see", headers=headers).status_code == 200


# ---------------------------------------------------------------- odd requests


def test_odd_headers_and_other_methods_do_nothing(
    guarded: TestClient, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEAD has no body and holds no stream; many ranges of a file are answered; an address cannot take all streams."""
    for headers in ({"origin": "http://["}, {"content-length": "9" * 5000}, {"content-length": "-1"}):
        assert 400 <= guarded.post("/act", headers={**WRITE, **headers}).status_code < 500
    for method in ("OPTIONS", "TRACE", "PUT", "DELETE", "PATCH"):
        for path in ("/studies", "/studies/fit", "/api/studies", "/static/page.js"):
            assert client.request(method, path).status_code in (401, 405)
            assert client.request(method, path, headers=WRITE).status_code == 405
    for path in ("/studies/fit", "/events?study=fit", "/events"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    path = f"/studies/fit/runs/{GOOD}/files/run.json"
    assert client.get(path, headers={"range": "bytes=0-3"}).content == b'{"fo'
    ranges = ",".join(f"{i}-{i}" for i in range(6000))
    assert client.get(path, headers={"range": f"bytes={ranges}"}).status_code in (200, 206, 400, 416)
    monkeypatch.setattr(live, "_open", Counter({"testclient": live._MOST_OF_ONE}))
    assert client.get("/events?study=fit").status_code == 503


def test_a_large_body_is_refused_also_one_of_unknown_length(guarded: TestClient, client: TestClient) -> None:
    for size, status in ((1 << 20, 200), ((1 << 20) + 1, 413)):
        assert guarded.post("/act", headers=WRITE, content=b"x" * size).status_code == status
    parts = (b"x" * 65536 for _ in range(20))
    assert client.post("/api/studies/fit/actions", headers=WRITE, content=parts).status_code == 413


def test_every_answer_has_the_headers_of_a_safe_page(client: TestClient) -> None:
    for path in ("/studies", "/studies/nope", "/assay.css", "/static/page.js", "/api/studies/fit/curves"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_nothing_is_changed_by_get() -> None:
    entries = list_entries(Site(()))
    assert [entry for entry in entries if "GET" in entry.methods and entry.scope in ("write", "upload")] == []
    assert [entry for entry in entries if "GET" not in entry.methods and entry.scope == "open"] == []


class TestLogin:
    def test_a_page_leads_to_the_login_and_back(self, served: Bench) -> None:
        with open_client(served.root, is_open=False) as client:
            answer = client.get("/studies?q=a%20b", headers={"accept": "text/html"}, follow_redirects=False)
            assert answer.status_code == 303
            assert answer.headers["location"] == "/login?next=/studies%3Fq%3Da%2520b"
            odd = client.get("/studies?q=\xff%ff", headers={"accept": "text/html"}, follow_redirects=False)
            assert odd.status_code == 303  # not text
            assert client.get("/login").status_code == 200
            assert client.get("/assay.css").status_code == 200
            assert client.post("/login", headers=bearer("wrong")).status_code == 401
            answer = client.post("/login", headers=bearer(READER))
            assert answer.json() == {"scopes": ["read"]}
            assert "HttpOnly" in answer.headers["set-cookie"]
            assert READER not in answer.headers["set-cookie"]
            assert client.get("/studies").status_code == 200
            assert client.post("/login").status_code == 401  # the cookie is not a token

    def test_without_a_token_no_page_shows_how_many_checks_failed(
        self, served: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alarm = Alarm("/studies", 7, "seven", "FAIL", "/studies/fit")
        monkeypatch.setattr(Alarms, "find", lambda *_: FoundAlarms((alarm,), is_known=True))
        with open_client(served.root, is_open=False) as client:
            for path in ("/login", "/static/missing"):
                assert "not passed" not in client.get(path).text
            assert "not passed" in client.get("/studies", headers=bearer(READER)).text

    def test_here_no_cookie_is_set_and_the_link_to_the_login_leads_back(self, client: TestClient) -> None:
        answer = client.post("/login", headers=WRITE)
        assert answer.json() == {"scopes": ["read", "upload", "write"]}
        assert "set-cookie" not in answer.headers
        page = client.get("/studies/fit?sort=lr&where=lr<1").text.replace("%253C", "%3C")  # also without script
        assert 'href="/login?next=/studies/fit%3Fsort%3Dlr%26where%3Dlr%3C1" id="access"' in page

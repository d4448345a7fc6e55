"""Chromium, a real `assay serve`, and pages that are watched: what goes wrong in the browser fails the test."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)
from tests.web.browser import exhibits
from tests.web.browser.exhibits import Exhibits

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
PICTURES = os.environ.get("ASSAY_SCREENSHOTS")  # read before the tests get surroundings of their own
LIMIT_MS = 60_000.0  # for what is waited for: a busy machine takes many times as long as an idle one
expect.set_options(timeout=LIMIT_MS)
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Exhibits:
    """The root is made once, by the worker that comes first; no test changes it."""
    top = tmp_path_factory.getbasetemp()
    folder = (top.parent if "PYTEST_XDIST_WORKER" in os.environ else top) / "exhibits"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            aside = folder.with_name("exhibits.new")
            aside.mkdir()
            folder.symlink_to(aside.name)
            exhibits.build(folder)
    return Exhibits(folder)


@dataclass(frozen=True)
class Server:
    address: str
    token: str

    def at(self, path: str) -> str:
        return self.address + path


class Serving:
    """`assay serve`, as a user starts it."""

    def __init__(self, made: Exhibits, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay", "serve", "--root", str(made.root), "--port", str(port)],
            cwd=made.folder,
            env=made.environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Server:
        assert self.process.stdout
        address = ""
        for line in self.process.stdout:
            if found := re.search(r"open +(http://[^/]+)/", line):
                address = found[1]
            elif found := re.search(r"cat (\S+)", line):  # a pipe does not get the token itself
                return Server(address, Path(found[1]).read_text().strip())
        pytest.fail("assay serve ended before it said its address")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) in (0, 130)
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(scope="session")
def server(shown: Exhibits) -> Iterator[Server]:
    with Serving(shown) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of a module, not of the session: while it lives, no other test of this process can use asyncio."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Watch:
    """What a browser complains about, and which servers it asks."""

    address: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # parts of complaints that a test provokes

    def follow(self, context: BrowserContext) -> None:
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.problems.append(f"error: {error.error}"))
        context.on("request", self._see)
        context.on("requestfailed", self._see_failure)
        context.on("response", self._see_answer)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"console: {message.text}")

    def _see(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.address:
            self.problems.append(f"a request leaves the server: {request.url}")

    def _see_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left during the request
            self.problems.append(f"failed: {request.url}: {request.failure}")

    def _see_answer(self, answer: Response) -> None:
        if answer.status >= 400:
            self.problems.append(f"{answer.status}: {answer.url}")

    def check(self) -> None:
        left = [each for each in self.problems if not any(part in each for part in self.expected)]
        assert not left, "\n".join(left)


Opener = Callable[..., Page]


@pytest.fixture
def watch(server: Server) -> Watch:
    return Watch(server.address)


@pytest.fixture
def open_page(chromium: Browser, server: Server, watch: Watch) -> Iterator[Opener]:
    """`open_page(path, …settings of a browser context)`; the test fails when one of its pages complained."""
    contexts = []

    def open_page(path: str, *, is_allowed: bool = False, **settings: Any) -> Page:
        context = chromium.new_context(**{"viewport": WIDE, "base_url": server.address, **settings})
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        watch.follow(context)
        if is_allowed:  # as if it had been opened by the address with the token
            context.add_init_script(f"origin === 'null' || sessionStorage.setItem('assay-token', {server.token!r})")
        page = context.new_page()
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    watch.check()


def wait_until_drawn(page: Page) -> None:
    """Playwright's own wait for a function evaluates a string in the page, which our policy forbids."""
    expect(page.locator("[data-curves]:not([data-drawn])")).to_have_count(0)
    expect(page.locator(".htmx-request")).to_have_count(0)


def log_in(page: Page, server: Server) -> None:
    """By the address that the command prints."""
    page.goto(f"/#token={server.token}")
    expect(page.locator("html")).to_have_attribute("data-access", "write")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(PICTURES) if PICTURES else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder

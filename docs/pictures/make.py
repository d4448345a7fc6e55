"""Makes the pictures of the README from the real product: `python docs/pictures/make.py` (minutes; needs Chromium).

`assay demo` is executed in an empty folder, its page is served, and both are photographed: `story.gif` shows a sweep,
its page and a failing check; `curves-*.png`, `study-*.png` and `golden-*.png` are pages in both themes. So are
`benchmark-*.png`, of twelve commits one of which does 40% more work, and `model-*.png`, of a model of examples/models
on a compiler with a fault. `sources.json` holds the hash of what they are made from; a test compares, so that no
picture is older than the page that it shows.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parent
TOP = PICTURES.parent.parent
ASSAY = (sys.executable, "-m", "assay")
SOURCES = (
    "docs/pictures/make.py",
    "examples/charlm/*.*",
    "examples/models/*.*",
    "examples/models/sim/*",
    "src/assay/show/page/*",
    "src/assay/web/static/*",
    "src/assay/web/templates/**/*.html",
    "src/assay/golden/templates/**/*.html",
    "src/assay/bench/templates/**/*.html",
    "src/assay/models/templates/**/*.html",
)
SIZE = {"width": 1060, "height": 640}
FRAME_MS = 3500
TERMINAL = """<style>
body {{ margin: 0; background: #14171c; color: #d7dde5; font: 14.5px/1.42 monospace; padding: 18px 22px }}
b {{ color: #7fd1c7 }} i {{ color: #ff8f8f; font-style: normal }}</style><pre style="margin:0">{}</pre>"""


def hash_sources() -> str:
    files = sorted(path for pattern in SOURCES for path in TOP.glob(pattern) if path.is_file())
    whole = hashlib.sha256()
    for path in files:
        whole.update(path.relative_to(TOP).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, sync_playwright() as playwright:
        folder = Path(name)
        os.environ.update({"ASSAY_SLOTS_DIR": f"{folder}/slots", "ASSAY_CACHE_DIR": f"{folder}/cache"})
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        printed = call(folder, *ASSAY, "demo")
        with serving(folder / "assay-demo" / "charlm") as address:
            take_pages(browser, address, PAGES)
            write_story(list(take_frames(browser, address, printed)))
        with serving(run_benchmarks(folder / "bench")) as address:
            take_pages(browser, address, {"benchmark": BENCHMARK})
        with serving(check_model(folder / "models")) as address:
            (check,) = (folder / "models" / "runs" / "model").glob("*_check_*")
            take_pages(browser, address, {"model": f"/models/model/checks/{check.name}"}, top="text=Error by layer")
    (PICTURES / "sources.json").write_text(json.dumps({"sha256": hash_sources()}) + "\n")


def call(folder: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_benchmarks(folder: Path) -> Path:
    """A commit for each of twelve days; from the eighth on there is more to do."""
    folder.mkdir()
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    call(folder, *git, "init", "-q")
    (folder / ".gitignore").write_text("runs/\n__pycache__/\n")
    for day in range(1, 13):
        text = f"# day {day}\ndef tokens():\n    sum(i * i for i in range({28_000 if day > 7 else 20_000}))\n"
        (folder / "bench_data.py").write_text(text)
        call(folder, *git, "add", "-A")
        os.environ["GIT_COMMITTER_DATE"] = f"2026-01-{day:02}T12:00:00Z"
        call(folder, *git, "commit", "-q", "-m", f"day {day}")
    first = call(folder, "git", "rev-list", "--max-parents=0", "HEAD").strip()
    words = ("bench_data.tokens", "--commits", f"{first}..HEAD", "--trials", "2", "--quiet")
    call(folder, *ASSAY, "bench", "run", *words)
    call(folder, *ASSAY, "bench", "history", "cpu_time", "bench_data.tokens", code=1)
    return folder


def check_model(folder: Path) -> Path:
    """The example's compiler makes every MatMul two percent too large."""
    shutil.copytree(TOP / "examples" / "models", folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "*.onnx"))
    call(folder, sys.executable, "build_models.py")
    model = "tests/testdata/onnx_models/example-attention.onnx"
    call(folder, *ASSAY, "model", "check", model, "--target", "sim-faulty", code=1)
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a page of this folder."""
    server = subprocess.Popen([*ASSAY, "serve", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield find_address(server)
    finally:
        server.terminate()
        server.wait()


def find_address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://[\w.:]+", line):
            return found[0]
    raise SystemExit("assay serve printed no address")


PAGES = {
    "study": "/studies/charlm",
    "curves": "/studies/charlm?tab=curves&metric=loss",
    "golden": "/goldens/golden-charlm",
}
BENCHMARK = "/benchmarks/bench/history?method=bench_data.tokens&metric=cpu_time"


def take_pages(browser: Browser, address: str, pages: Mapping[str, str], top: str = "") -> None:
    """In both themes; `top` is what the picture begins with, where that is not the top of the page."""
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1200, "height": 720})
        for name, path in pages.items():
            open_page(page, address + path)
            if top:
                page.evaluate("element => element.scrollIntoView()", page.locator(top).first.element_handle())
            page.screenshot(path=PICTURES / f"{name}-{scheme}.png")
        page.close()


def open_page(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_function("!document.querySelector('[data-curves]:not([data-drawn])')")


def take_frames(browser: Browser, address: str, printed: str) -> Iterator[bytes]:
    yield take_terminal(browser, cut(printed, "$ assay sum", "$ assay plot"))
    yield take_page(browser, address + PAGES["curves"], "[role=tablist], nav.tabs, .tabs")
    yield take_terminal(browser, cut(printed, "Somebody else", "differs from"))
    yield take_page(browser, address + PAGES["golden"], "h1")


def take_terminal(browser: Browser, text: str) -> bytes:
    page = browser.new_page(viewport=SIZE)  # a new one: the pages of the server forbid styles like this
    page.set_content(TERMINAL.format(colour(text)))
    return page.screenshot()


def take_page(browser: Browser, address: str, top: str) -> bytes:
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    open_page(page, address)
    if page.locator(top).count():
        page.evaluate("element => element.scrollIntoView()", page.locator(top).first.element_handle())
    return page.screenshot()


def cut(printed: str, begin: str, end: str) -> str:
    """The part of what the demo printed between two words, as many lines as a frame has."""
    part = begin + printed.partition(begin)[2].partition(end)[0]
    return "\n".join(part.splitlines()[:26])


def colour(text: str) -> str:
    escaped = re.sub(r"^(\$ .*)$", r"<b>\1</b>", html.escape(text), flags=re.MULTILINE)
    return re.sub(r"^(.*FAIL.*)$", r"<i>\1</i>", escaped, flags=re.MULTILINE)


def write_story(frames: list[bytes]) -> None:
    from PIL import Image

    images = [Image.open(io.BytesIO(frame)).convert("RGB").quantize(96) for frame in frames]
    images[0].save(
        PICTURES / "story.gif", save_all=True, append_images=images[1:], duration=FRAME_MS, loop=0, optimize=True
    )


if __name__ == "__main__":
    main()

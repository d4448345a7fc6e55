"""The page with very many runs, beside those of MLflow, Aim and TensorBoard: the same data, real servers on loopback.

A study of 10,000 runs x 20 parameters x 10 metrics, a run with a curve of 1,000,000 points, and 50 runs of 10,000
points. Times of the browser are those of headless Chromium: from the click, or from the begin of the navigation, to
the frame in which the rows or the curves are there. Times over HTTP are those of a new connection. Peers do what comes
nearest: the page that lists runs, and the requests that it makes for sorted and filtered runs and for curves. Servers
that are not measured at the moment are paused.

    python benchmarks/web.py                     # everything: most of the time fills the peers' stores
    python benchmarks/web.py --no-peers
    python benchmarks/web.py --quick             # small, to see whether it works

It needs the extras `web` and `dev`, chromium, and the files of `make web`; peers are in `.venv-peers` (`make bench`).
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from _web_peers import SERVE, Peer, Question, why_missing
from _web_servers import (
    FILL_ASSAY,
    METRICS,
    QUICK,
    Memory,
    Server,
    Size,
    fill,
    load_curve,
    serve_assay,
    write_data,
)
from measuring import ASSAY, build_env, quick_folder, render_ratio, render_spread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CLIENTS = 8
RATES = (25, 50, 100, 150, 200, 250, 300)
LOAD_S = 5.0
WAIT_S = 60.0
Seen = list[tuple[str, float]]  # what was on the page, and since when

# Looks at every frame whether what is waited for (`READ`) has changed, and notes when. Survives a navigation.
_WATCH = """
(() => {
  const read = () => { try { return READ; } catch { return null; } };
  window.seen = [];
  let before = null;
  const look = () => {
    const now = read();
    if (now && now !== before) { before = now; window.seen.push([now, performance.timeOrigin + performance.now()]); }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()
"""


class Asked(NamedTuple):
    """One answer over HTTP, in seconds."""

    first_s: float
    whole_s: float
    status: int
    body: bytes


def ask(server: Server, path: str, question: Question | None = None) -> Asked:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    headers, body = {"accept-encoding": "gzip"}, None
    if question is not None and question.body is not None:
        headers["content-type"], body = "application/json", json.dumps(question.body)
    elif question is not None and question.form:
        headers["content-type"], body = "application/x-www-form-urlencoded", question.form
    began = time.perf_counter()
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    first = answer.read(1)
    first_s = time.perf_counter() - began
    content = first + answer.read()
    whole_s = time.perf_counter() - began
    if answer.headers.get("content-encoding") == "gzip":
        import gzip

        content = gzip.decompress(content)
    connection.close()
    return Asked(first_s, whole_s, answer.status, content)


def need(asked: Asked) -> Asked:
    if asked.status != 200:
        raise SystemExit(f"answered with {asked.status}: {asked.body[:500]!r}")
    return asked


# ---------------------------------------------------------------- figures


class Figures:
    """Times by what was measured and whose they are, in the order of measuring."""

    def __init__(self) -> None:
        self._times: dict[str, dict[str, list[float]]] = {}
        self.goals: dict[str, float] = {}
        self.memories: dict[str, Memory] = {}
        self.ratios: list[str] = []
        self.notes: list[str] = []

    def add(self, what: str, who: str, seconds: float, goal_ms: float | None = None) -> None:
        self._times.setdefault(what, {}).setdefault(who, []).append(seconds)
        if goal_ms is not None:
            self.goals[what] = goal_ms

    def show_all(self) -> None:
        self.show()
        print("\nmemory of all processes of the server")
        for name, each in self.memories.items():
            print(f"  {name:<24}{each.rss:6.0f} MB resident {each.pss:6.0f} MB proportional")
        print()
        self.show_ratios()
        print("\n".join(self.ratios), flush=True)

    def show(self) -> None:
        for what, by_whom in self._times.items():
            print(f"\n{what}")
            for who, times in by_whom.items():
                print(f"  {who:<14}{render_spread(times)}  of {len(times)}")
        for note in self.notes:
            print(note)

    def show_ratios(self) -> None:
        for what, by_whom in self._times.items():
            ours = statistics.median(by_whom["assay"]) if "assay" in by_whom else None
            if ours is not None and what in self.goals:
                print(render_ratio(f"{what}, ms", ours * 1e3, at_most=self.goals[what]))
            for who, times in by_whom.items():
                if ours is not None and who != "assay":
                    print(render_ratio(f"{what}: {who} / assay", statistics.median(times) / ours))


# ---------------------------------------------------------------- in the browser


@contextmanager
def open_page(browser: Browser, read: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_S * 1e3)
    page.add_init_script(_WATCH.replace("READ", read))
    try:
        yield page
    finally:
        context.close()


def open_address(page: Page, address: str) -> float:
    """Seconds from the begin of the navigation to the frame that shows something."""
    page.goto(address, wait_until="commit")
    _wait(page, bool, address)
    return float(page.evaluate("seen[0][1] - performance.timeOrigin")) / 1e3


def click(page: Page, script: str) -> float:
    """Seconds from the click to the frame that shows something else, on this page or the next."""
    before, _ = page.evaluate("seen[seen.length - 1]")
    began = page.evaluate(
        f"(() => {{ const at = performance.timeOrigin + performance.now(); {script}; return at; }})()"
    )

    def find(seen: Seen) -> list[float]:
        return [at for text, at in seen if text != before and at > began]

    return (find(_wait(page, lambda seen: bool(find(seen)), script))[0] - began) / 1e3


def _wait(page: Page, is_done: Callable[[Seen], bool], what: str) -> Seen:
    """Asked for from here, since the page's policy does not let it evaluate a text."""
    from playwright.sync_api import Error

    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            seen = page.evaluate("window.seen") or []
        except Error:  # the next page is being loaded
            seen = []
        if is_done(seen):
            found: Seen = seen
            return found
        time.sleep(0.01)
    raise SystemExit(f"nothing changed after {what}: {page.inner_text('body')[:1000]}")


# ---------------------------------------------------------------- our page

_ROWS = "document.querySelectorAll('tbody tr').length > 1 && window.htmx && document.querySelector('tbody').textContent"
_DRAWN = "document.querySelector('[data-drawn] canvas') && 'drawn'"
_TYPE = "document.querySelector('#filter [name=where]').value = '{}'; document.querySelector('#filter').requestSubmit()"
_SORT = "[...document.querySelectorAll('th a')].find((link) => link.innerText.trim().startsWith('{}')).click()"


def measure_table(browser: Browser, server: Server, figures: Figures, number: int) -> None:
    path = "/studies/table"
    figures.add("study page, first byte", server.name, need(ask(server, path)).first_s, 100)
    with open_page(browser, _ROWS) as page:
        figures.add("study page, interactive", server.name, open_address(page, server.address + path), 500)
        figures.add("sort by a click", server.name, click(page, _SORT.format("lr" if number % 2 else "width")), 150)
        figures.add("filter by a form", server.name, click(page, _TYPE.format(f"acc < {0.5 + number / 1e3}")), 150)


def measure_request(server: Server, figures: Figures, number: int) -> None:
    """The same over HTTP: another order and another filter each time."""
    query = urlencode({"sort": f"{METRICS[number % 10]}:max", "where": f"lr < {0.05 - number / 1e5}"})
    figures.add("sorted and filtered runs, HTTP", server.name, need(ask(server, f"/studies/table?{query}")).whole_s)


def measure_curves(
    browser: Browser, server: Server, figures: Figures, long: Sequence[float], curves: int, number: int
) -> None:
    """With another number of rows each time, which does not change them: no answer to it has been kept."""
    for study, goal, what in (("long", 150.0, "1 long curve"), ("overlay", 400.0, f"{curves} curves")):
        query = f"tab=curves&best={curves}&rows={100 + number}"
        for times in ("", ", asked for again"):
            asked = need(ask(server, f"/api/studies/{study}/curves?{query}"))
            figures.add(f"{what}, answer over HTTP{times}", server.name, asked.whole_s, None if times else goal)
        found = json.loads(asked.body)["curves"]
        if study == "long" and max(filter(None, found[0]["y"])) < max(long) * (1 - 1e-9):
            figures.notes.append("assay: the answer has lost the highest point of the long curve")
        with open_page(browser, _DRAWN) as page:
            open_address(page, f"{server.address}/studies/{study}?{query}&metric=loss")
            began, ended, drawn = page.evaluate(_TIMES)
        is_long = study == "long"
        figures.add(f"{what}, drawn after the answer", server.name, (drawn - ended) / 1e3, 150 if is_long else None)
        figures.add(f"{what}, asked for and drawn", server.name, (drawn - began) / 1e3, None if is_long else 400)


# when the curves were asked for, when they had been sent, and when they were on the page
_TIMES = """(() => {
  const asked = performance.getEntriesByType('resource').find((entry) => entry.name.includes('/curves?'));
  return [asked.requestStart, asked.responseEnd, seen[0][1] - performance.timeOrigin];
})()"""


# ---------------------------------------------------------------- the pages of others


def measure_peers(
    browser: Browser, peers: list[Peer], figures: Figures, number: int, size: Size, used: dict[str, float]
) -> None:
    """One round of each that has time left. One that fails is asked no more; what it did until then counts."""
    for peer in list(peers):
        name, began = peer.server.name, time.perf_counter()
        try:
            with peer.server.run_alone():
                measure_peer(browser, peer, figures, number, size.curves)
        except (SystemExit, OSError, http.client.HTTPException) as error:
            figures.notes.append(f"({name} in round {number}: {str(error)[:500]})")
            peers.remove(peer)
            continue
        used[name] = used.get(name, 0.0) + time.perf_counter() - began
        if used[name] > size.measure_s:
            figures.notes.append(f"({name}: its time of {size.measure_s:.0f} s is over in round {number})")
            peers.remove(peer)


def measure_peer(browser: Browser, peer: Peer, figures: Figures, number: int, curves: int) -> None:
    server = peer.server
    if peer.page:
        with open_page(browser, peer.rows) as page:
            figures.add("study page, interactive", server.name, open_address(page, server.address + peer.page))
    for what, question in (
        ("sorted and filtered runs, HTTP", peer.sorted_runs(number)),
        ("1 long curve, answer over HTTP", peer.long_curve),
        (f"{curves} curves, answer over HTTP", peer.curves),
    ):
        figures.add(what, server.name, need(ask(server, question.path, question)).whole_s)


def wait_for_all(peer: Peer) -> None:
    """Until it has read what there is, and an answer does not grow any more."""
    sizes: list[int] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (len(sizes) < 3 or len(set(sizes[-3:])) > 1):
        sizes.append(sum(len(ask(peer.server, each.path, each).body) for each in (peer.sorted_runs(0), peer.curves)))
        time.sleep(2)


# ---------------------------------------------------------------- many clients


class Load(NamedTuple):
    rate: int
    latencies: list[float]
    errors: int
    reached: float


def offer(server: Server, rate: int, seed: int) -> Load:
    """So many requests a second, each by the clock and not by the answer before it; a late one counts from its time."""
    rng, lock = random.Random(seed), threading.Lock()
    paths = [build_distinct(rng) for _ in range(int(rate * LOAD_S))]
    waiting = iter(enumerate(paths))
    latencies: list[float] = []
    errors = 0
    began = time.perf_counter() + 0.1

    def work() -> None:
        nonlocal errors
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while True:
            with lock:
                number, path = next(waiting, (None, ""))
            if number is None:
                break
            due = began + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                connection.request("GET", path, headers={"accept-encoding": "gzip"})
                answer = connection.getresponse()
                answer.read()
                is_good = answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                is_good = False
            with lock:
                latencies.append(time.perf_counter() - due)
                errors += not is_good
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(rate, latencies, errors, len(paths) / (time.perf_counter() - began))


def build_distinct(rng: random.Random) -> str:
    """No two are alike: what was answered before does not help."""
    key = rng.choice([*METRICS, "lr", "width", "opt", *(f"p{each}" for each in range(4, 20))])
    limit = rng.choice([f"loss < {rng.uniform(0.2, 1):.9f}", f"lr > {rng.uniform(0, 0.05):.9f} and opt == adam"])
    sort = f"{key}:{rng.choice(['min', 'max'])}"
    return f"/studies/table?{urlencode({'sort': sort, 'where': limit, 'page': rng.randint(1, 3)}, quote_via=quote)}"


def measure_load(server: Server, repeats: int) -> list[str]:
    print(f"\n{CLIENTS} clients on the study page, distinct orders and filters, {LOAD_S:g} s for each rate")
    best = 0
    for rate in RATES:
        tries = [offer(server, rate, seed=rate * 100 + number) for number in range(repeats)]
        times = sorted(itertools.chain.from_iterable(each.latencies for each in tries))
        errors, reached = sum(each.errors for each in tries), statistics.median(each.reached for each in tries)
        p50, p95 = times[len(times) // 2] * 1e3, times[int(len(times) * 0.95)] * 1e3
        latency = f"p50 {p50:8.1f} ms   p95 {p95:8.1f} ms"
        print(f"  offered {rate:>4}/s   answered {reached:6.1f}/s   {latency}   errors {errors}")
        if errors or reached < 0.95 * rate:
            break
        best = rate
    return [render_ratio("requests/s on the study page without a queue or an error", best, at_least=200)]


# ---------------------------------------------------------------- all


def measure_start(root: Path, env: Mapping[str, str], stored: Mapping[str, int], figures: Figures, what: str) -> None:
    began = time.perf_counter()
    with serve_assay(root, env, stored) as server:
        figures.add(f"assay serve accepts connections, {what}", "assay", time.perf_counter() - began)
        figures.add(f"first study page after the start, {what}", "assay", need(ask(server, "/studies/table")).whole_s)
        for study in ("long", "overlay"):
            path = f"/api/studies/{study}/curves?tab=curves&best=50"
            figures.add(f"first curves of {study}, {what}", "assay", need(ask(server, path)).whole_s)


def open_peers(
    chosen: Sequence[str], stack: ExitStack, folder: Path, env: Mapping[str, str], size: Size, figures: Figures
) -> Iterator[Peer]:
    """Those that are installed. They read their bytecode from where it was installed."""
    own = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    for module in chosen:
        if missing := why_missing(module):
            figures.notes.append(f"({missing})")
            continue
        began = time.perf_counter()
        try:
            peer = stack.enter_context(SERVE[module](folder, own, size))
            wait_for_all(peer)
            peer.server.pause()
        except (SystemExit, OSError) as error:
            figures.notes.append(f"(without {module}: {error})")
            continue
        amounts = ", ".join(f"{count:,} {what}" for what, count in peer.server.stored.items())
        figures.notes.append(f"({peer.server.name} has {amounts}; filled within {time.perf_counter() - began:.0f} s)")
        yield peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small data")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--peer", choices=SERVE, action="append", help="this one; may be given again")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by `timeout`: the servers are stopped all the same
    from playwright.sync_api import sync_playwright

    size, figures = QUICK if options.quick else Size(), Figures()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, {size}")
    with quick_folder() as folder, sync_playwright() as playwright, ExitStack() as stack:
        stack.callback(figures.show_all)  # also of a run that is cut short
        env, data, root = build_env(folder), folder / "data", folder / "runs"
        data.mkdir()
        write_data(data, size)
        long = load_curve(data / "long.bin")
        stored = fill(ASSAY[0], FILL_ASSAY, data, root, env, size.fill_s)
        measure_start(root, env, stored, figures, "nothing indexed")
        for _ in range(3):
            measure_start(root, env, stored, figures, "indexed")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        stack.callback(browser.close)
        server = stack.enter_context(serve_assay(root, env, stored))
        chosen = [] if options.no_peers else options.peer or list(SERVE)
        every = list(open_peers(chosen, stack, folder, env, size, figures))
        peers, used = list(every), dict[str, float]()
        for number in range(options.repeats + 1):
            kept = figures if number else Figures()  # the first round fills caches
            with server.run_alone():
                measure_table(browser, server, kept, number)
                measure_request(server, kept, number)
                measure_curves(browser, server, kept, long, size.curves, number)
            measure_peers(browser, peers, kept, number, size, used)
            figures.notes += () if number else kept.notes
        for each in (server, *(peer.server for peer in every)):
            figures.memories[each.name] = each.measure_memory()
        with server.run_alone():
            figures.ratios += measure_load(server, 1 if options.quick else 2)
        figures.memories["assay, after the load"] = memory = server.measure_memory()
        figures.ratios.append(render_ratio("memory of the server, MB resident", memory.rss, at_most=300))


if __name__ == "__main__":
    main()

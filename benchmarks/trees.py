"""This tree in turns with another one: launching, logging, tables, the index and the page, as whole processes.

    python benchmarks/trees.py OLD/src [--repeats 20] [--only launch]

CPU time is compared, since others may use the machine: user and system time of the process and of all that it waited
for; for the page, of the server while it answers. The ratios of the medians (new to old) are printed last.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from _web_servers import Server, serve_assay
from measuring import (
    ASSAY,
    ROOT,
    Contestant,
    Taken,
    build_env,
    cpu,
    quick_folder,
    render_ratio,
    render_spread,
    run_process,
    take_turns,
)

MOST_OF_OLD = 1.03
STORED_RUNS = 400
_LAUNCHED = 60
_ANSWERS = 200
_LOG = """import assay
for step in range(40_000):
    assay.log(loss=step * 0.37, step=step)
"""
_STUDY = """study: {name}
command: {command}
params: {{x: [{values}]}}
metrics: {{loss: "loss ({{number}})", accuracy: "accuracy ({{number}})"}}
resources: {{gpus: 0}}
"""


class Tree:
    """One of the two trees with a folder of its own, in which a study of many runs is stored."""

    def __init__(self, source: Path, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.env = {**env, "PYTHONPATH": str(source), "ASSAY_SLOTS_DIR": str(folder / "slots")}
        (folder / "slots").mkdir(parents=True)
        (folder / "log.py").write_text(_LOG)
        for name, runs in (("stored", STORED_RUNS), ("launched", _LAUNCHED)):
            values = ", ".join(map(str, range(runs)))
            text = _STUDY.format(name=name, command="'echo loss {x} accuracy 0.{x}'", values=values)
            (folder / f"{name}.yml").write_text(text)
        self.call("run", "stored.yml", "-j", "2", "--quiet")

    def call(self, *words: str) -> Taken:
        return run_process([*ASSAY, *words], self.folder, self.env)

    def launch(self) -> Taken:
        shutil.rmtree(self.folder / "runs" / "launched", ignore_errors=True)
        return self.call("run", "launched.yml", "-j", "2", "--quiet")

    def log(self) -> Taken:
        run = self.folder / "logging"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        return run_process([ASSAY[0], "log.py"], self.folder, {**self.env, "ASSAY_RUN_DIR": str(run)})

    def sum(self) -> Taken:
        return self.call("sum", "stored")

    def list(self) -> Taken:
        return self.call("ls", "stored", "--json")

    def rebuild(self) -> Taken:
        return self.call("index", "rebuild")


OPERATIONS = {
    "launch": Tree.launch,
    "logging": Tree.log,
    "sum": Tree.sum,
    "ls": Tree.list,
    "index": Tree.rebuild,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", metavar="SRC", type=Path, help="the folder that holds the other tree's package")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", choices=(*OPERATIONS, "page"), action="append")
    options = parser.parse_args()
    wanted = options.only or (*OPERATIONS, "page")
    with quick_folder() as folder:
        sources = {"new": ROOT / "src", "old": options.other.resolve()}
        trees = {name: Tree(source, folder / name, build_env(folder)) for name, source in sources.items()}
        with _serve(trees) as servers:
            taken = take_turns(_build_contestants(wanted, trees, servers), options.repeats)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, the trees in turns")
    for name, times in taken.items():
        print(f"  {name:<14} CPU {render_spread([one.cpu_s for one in times])}")
    for name in wanted:
        ratio = cpu(taken[f"{name} new"]) / cpu(taken[f"{name} old"])
        print(render_ratio(f"CPU of the old tree's, {name}", ratio, at_most=MOST_OF_OLD))


@contextmanager
def _serve(trees: Mapping[str, Tree]) -> Iterator[dict[str, Server]]:
    new, old = trees["new"], trees["old"]
    with (
        serve_assay(new.folder / "runs", new.env, {}) as new_server,
        serve_assay(old.folder / "runs", old.env, {}) as old_server,
    ):
        yield {"new": new_server, "old": old_server}


def _build_contestants(
    wanted: tuple[str, ...], trees: Mapping[str, Tree], servers: Mapping[str, Server]
) -> dict[str, Contestant]:
    contestants: dict[str, Contestant] = {}
    for operation in wanted:
        for name, tree in trees.items():
            if operation == "page":
                contestants[f"page {name}"] = lambda server=servers[name]: _answer(server)
            else:
                contestants[f"{operation} {name}"] = lambda tree=tree, call=OPERATIONS[operation]: call(tree)
    return contestants


def _answer(server: Server) -> Taken:
    """The CPU time of the server for a study's page, sorted in different ways so that it cannot answer from memory."""
    process = psutil.Process(server.process.pid)
    before, start = process.cpu_times(), time.perf_counter()
    for number in range(_ANSWERS):
        address = f"{server.address}/studies/stored?sort={('loss', 'accuracy')[number % 2]}&n={number + 1}"
        with urllib.request.urlopen(address) as answer:
            answer.read()
    after = process.cpu_times()
    return Taken(time.perf_counter() - start, after.user + after.system - before.user - before.system)


if __name__ == "__main__":
    main()

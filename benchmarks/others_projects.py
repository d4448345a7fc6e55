"""Suites of other projects, as they are on PyPI: asv's of lmfit, tests with pytest-benchmark's fixture of pint.

    python benchmarks/others_projects.py [--in FOLDER] [NAME...]

Each source distribution is downloaded and unpacked below FOLDER (a temporary one by default), and the project is
installed into a virtual environment there with the other tool. `assay bench run` and that tool execute the suite with
this interpreter; the tool's results are imported, and the medians of each benchmark are compared. Nothing of the
projects is kept in this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import ASSAY, render_ratio, render_share


@dataclass(frozen=True)
class Project:
    name: str  # with its version
    needs: tuple[str, ...]  # besides it
    suite: str  # what is run
    tool: str


PROJECTS = (
    Project("lmfit==1.3.4", ("emcee", "asv==0.6.5"), "asv_benchmarking/asv.conf.json", "asv"),
    Project("pint==0.25.3", ("pytest", "pytest-benchmark==5.3.1"), "pint/testsuite/benchmarks", "pytest"),
)
OPTIONS = ("--label", "assay", "--json", "--quiet", "--foreign-limit", "1", "--timeout", "5m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in", dest="folder", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for project in PROJECTS:
            if not given.names or project.name.partition("==")[0] in given.names:
                run_project(project, (given.folder or Path(temporary)).absolute())


def run_project(project: Project, folder: Path) -> None:
    source, python = unpack(project.name, folder), install(project, folder)
    call([*ASSAY, "bench", "run", project.suite, "--python", str(python), *OPTIONS], source, "ours.json")
    ours = json.loads((source / "ours.json").read_text())["executions"]
    ends = Counter("skipped" if each["result"]["skipped"] else each["succeeded"] for each in ours)
    counts = f"{ends[True]} ok, {ends['skipped']} skipped, {ends[False]} failed"
    print(f"{render_share(f'{project.name}: benchmarks that fail here', ends[False], len(ours))}; {counts}", flush=True)
    for each in ours:
        if not each["succeeded"] and each["result"]["findings"]:
            print(f"  {each['method']}: {each['result']['findings'][0]['message']}")
    results = (run_asv if project.tool == "asv" else run_pytest)(project, source, python)
    call([*ASSAY, "bench", "import", *map(str, results), "--label", project.tool], source, "imported.txt")
    report_ratios(project, source)


def unpack(name: str, folder: Path) -> Path:
    target = folder / name.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", str(target), name]
    subprocess.run(pip, check=True)
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")
    return next(path for path in target.iterdir() if path.is_dir())


def install(project: Project, folder: Path) -> Path:
    """The interpreter of a virtual environment that has the project and the other tool."""
    home = folder / f"env-{project.name.partition('==')[0]}"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", project.name, *project.needs], check=True)
    return python


def run_asv(project: Project, source: Path, python: Path) -> list[Path]:
    """asv wants a repository, here instead of the project's own, and the machine described in the home folder."""
    suite = {"project": project.name, "repo": ".", "environment_type": "virtualenv", "results_dir": "results"}
    folder = os.path.join(os.path.dirname(project.suite), "benchmarks")
    (source / "asv.conf.json").write_text(json.dumps({"version": 1, "benchmark_dir": folder, **suite}))
    me = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    for words in (["init", "-q"], ["add", "-A"], [*me, "commit", "-q", "-m", project.name]):
        subprocess.run(["git", *words], cwd=source, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=source, stdout=subprocess.PIPE, text=True, check=True)
    asv, env = str(python.parent / "asv"), {**os.environ, "HOME": str(source.parent)}
    subprocess.run([asv, "machine", "--yes"], cwd=source, env=env, stdout=subprocess.DEVNULL, check=True)
    words = [asv, "run", "-E", f"existing:{python}", "--set-commit-hash", commit.stdout.strip()]
    subprocess.run(words, cwd=source, env=env, stdout=subprocess.DEVNULL, check=False)
    return [path for path in source.glob("results/*/*.json") if path.name != "machine.json"]


def run_pytest(project: Project, source: Path, python: Path) -> list[Path]:
    words = [str(python), "-m", "pytest", "-q", "-o", "addopts=", project.suite, "--benchmark-json=theirs.json"]
    subprocess.run(words, cwd=source, stdout=subprocess.DEVNULL, check=False)
    return [source / "theirs.json"]


def call(words: list[str], folder: Path, output: str) -> None:
    with open(folder / output, "wb") as file:
        subprocess.run(words, cwd=folder, stdout=file, check=False)


def report_ratios(project: Project, source: Path) -> None:
    """Of the medians of the benchmarks that both have run."""
    words = [*ASSAY, "bench", "table", "--by", "benchmark,label", "-m", "wall_time", "--all", "--json"]
    call(words, source, "table.json")
    rows: list[dict[str, Any]] = json.loads((source / "table.json").read_text())
    medians = {(row["benchmark"], row["label"]): row["wall_time.median"] for row in rows}
    both = {name for name, label in medians if label == "assay"} & {n for n, label in medians if label == project.tool}
    ratios = sorted((medians[name, "assay"] / medians[name, project.tool], name) for name in both)
    values = [ratio for ratio, _ in ratios]
    low, middle, high = statistics.quantiles(values, n=4)
    what = f"{project.name}, {len(both)} benchmarks: time by assay / by {project.tool}"
    print(f"{render_ratio(what, middle, of_each=values)}, quartiles {low:.2f} and {high:.2f}")
    for ratio, name in (ratios[0], ratios[-1]):
        print(f"  {ratio:.2f} {name}")


if __name__ == "__main__":
    main()

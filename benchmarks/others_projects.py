"""Suites of other projects, as they are on PyPI: asv's of pydicom, tests with pytest's `benchmark` of pytest-benchmark.

    python benchmarks/others_projects.py [FOLDER]

Each source distribution is downloaded and unpacked below FOLDER (a temporary one by default), the project is installed
into a virtual environment there, and `assay bench run` executes the suite with that interpreter. Nothing of them is
kept in this repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

_TESTS = ("test_normal", "test_sample", "test_with_testcase", "test_skip")
PROJECTS = {  # name and version: what is installed besides it, and what is run
    "pydicom==3.0.2": (("numpy",), ("asv.conf.json",)),
    "pytest-benchmark==5.3.1": (("pytest",), tuple(f"tests/{name}.py" for name in _TESTS)),
}
_OPTIONS = ("--json", "--foreign-limit", "1", "--timeout", "5m")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in PROJECTS:
            report(name, run_project(name, Path(sys.argv[1] if len(sys.argv) > 1 else folder)))


def run_project(name: str, folder: Path) -> dict[str, object]:
    source, python = unpack(name, folder), install(name, folder)
    words = [sys.executable, "-m", "assay", "bench", "run", *PROJECTS[name][1], "--python", str(python), *_OPTIONS]
    done = subprocess.run(words, cwd=source, stdout=subprocess.PIPE, check=False)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def unpack(name: str, folder: Path) -> Path:
    target = folder / name.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-binary", ":all:", "--no-deps", "-d", str(target), name]
    subprocess.run(pip, check=True)
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")
    return next(path for path in target.iterdir() if path.is_dir())


def install(name: str, folder: Path) -> Path:
    """The project itself and what its suite needs; the interpreter that has them."""
    home = folder / f"env-{name.partition('==')[0]}"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", name, *PROJECTS[name][0]], check=True)
    return python


def report(name: str, found: dict[str, object]) -> None:
    """How many benchmarks succeeded, were skipped, or failed, and why."""
    executions = found["executions"]
    assert isinstance(executions, list)
    ends = Counter(
        "skipped" if each["result"]["skipped"] else "ok" if each["succeeded"] else "failed" for each in executions
    )
    print(f"{name}: {len(executions)} benchmarks: {ends['ok']} ok, {ends['skipped']} skipped, {ends['failed']} failed")
    for each in executions:
        if not each["succeeded"] and each["result"]["findings"]:
            print(f"  {each['method']}: {each['result']['findings'][0]['message']}")


if __name__ == "__main__":
    main()

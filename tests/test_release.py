"""A release: one version, the same bytes from every clone, nothing in it that does not belong there, and an install
that works in a clean environment on every Python that is here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from tests.test_build import HOOK, NEEDED, TOP, build, read_wheel
from tests.test_project import PROJECT

import assay

CLASSIFIER = "Programming Language :: Python :: "
TRIED = [name.removeprefix(CLASSIFIER) for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
VENDOR = "src/assay/web/vendor"


# ---------------------------------------------------------------- one version


def test_the_version_is_the_newest_of_the_changes_and_that_of_the_install() -> None:
    newest = re.search(r"^## (\S+)$", (TOP / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == assay.__version__ == metadata.version("assay")


def test_no_file_of_a_user_says_another_version() -> None:
    """`src/assay/__init__.py` is the source; commands, JSON and the page read it there."""
    said = re.compile(r"\bassay(?:[ =>~-]+|, version )v?(\d+\.\d+\.\d+)\b", re.IGNORECASE)
    paths = [
        TOP / name for name in list_tracked("src", "docs", "examples", "README.md", "SECURITY.md", "pyproject.toml")
    ]
    found = {
        f"{path.relative_to(TOP)}: {each}"
        for path in paths
        for each in said.findall(path.read_text("utf-8", "replace"))
    }
    assert {each for each in found if not each.endswith(f" {assay.__version__}")} == set()


def test_the_documents_name_the_pythons_of_the_classifiers() -> None:
    line = next(line for line in (TOP / "docs/limits.md").read_text().splitlines() if "Python 3.11.4 or newer" in line)
    assert re.findall(r"(?<![\d.])3\.\d+(?!\.?\d)", line) == TRIED


# ---------------------------------------------------------------- what is in it


def list_tracked(*names: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *names], cwd=TOP, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (TOP / name).exists()]


def copy_clone(to: Path, *, mask: int, time_s: int) -> Path:
    """The files that git knows, as they are now, and those of the page, which a build would fetch."""
    before = os.umask(mask)
    try:
        for name in [*list_tracked(), *(f"{VENDOR}/{name}" for name in NEEDED)]:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TOP / name, to / name)
            (to / name).chmod((0o777 if os.access(TOP / name, os.X_OK) else 0o666) & ~mask)
            os.utime(to / name, (time_s, time_s))
    finally:
        os.umask(before)
    return to


DIRT = ("examples/charlm/runs/fit/log.txt", "examples/models/out.onnx", "src/assay/__pycache__/api.cpython-311.pyc")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("release")
    build(copy_clone(folder / "clone", mask=0o022, time_s=1_600_000_000), "sdist", folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as file:
        file.extractall(folder / "unpacked", filter="data")
    build(folder / "unpacked" / f"assay-{assay.__version__}", "wheel", folder)
    return folder


@pytest.mark.services("web")
def test_two_clones_give_the_same_bytes_also_one_that_was_used(release: Path, tmp_path: Path) -> None:
    used = copy_clone(tmp_path / "used", mask=0o077, time_s=1_700_000_000)
    for name in DIRT:
        (used / name).parent.mkdir(parents=True, exist_ok=True)
        (used / name).write_text("dirt")
    for target in ("sdist", "wheel"):
        build(used, target, tmp_path)
    for first in (*release.glob("*.tar.gz"), *release.glob("*.whl")):
        assert (tmp_path / first.name).read_bytes() == first.read_bytes(), first.name


@pytest.mark.services("web")
def test_a_wheel_has_the_package_its_examples_and_the_licence_of_all_that_is_bundled(release: Path) -> None:
    wheel = read_wheel(release)
    package = {name.removeprefix("src/") for name in list_tracked("src/assay")}
    bundled = {f"{VENDOR.removeprefix('src/')}/{name}" for name in NEEDED}
    stem = f"assay-{assay.__version__}"
    examples = {f"{stem}.data/data/share/assay/{name}" for name in list_tracked("examples")}
    info = {
        f"{stem}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert wheel.keys() == package | bundled | examples | info
    assert "assay/py.typed" in wheel
    licences = {f"assay/web/vendor/{package.partition('@')[0]}.LICENSE" for package in HOOK.PACKAGES}
    assert licences <= wheel.keys()
    told = re.search(r"^License-Expression: (.*)$", wheel[f"{stem}.dist-info/METADATA"].decode(), re.MULTILINE)
    assert told is not None
    assert told[1] == PROJECT["license"]


@pytest.mark.services("web")
def test_an_sdist_has_what_the_readme_leads_to_and_no_tests(release: Path) -> None:
    with tarfile.open(next(release.glob("*.tar.gz"))) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", (TOP / "README.md").read_text())
    assert set(links) <= names
    ours = {*list_tracked("src", "examples", "docs", "*.md"), *(f"{VENDOR}/{name}" for name in NEEDED)}
    ours = {name for name in ours if not name.startswith("tests/")}
    assert names == ours | {".gitignore", "LICENSE", "PKG-INFO", "hatch_build.py", "pyproject.toml"}


# ---------------------------------------------------------------- clean environments


def find_pythons() -> dict[str, str]:
    """Those on PATH and beside the one that runs this (pyenv, uv), by their minor version."""
    beside = sorted(map(str, Path(sys.base_prefix).parent.glob("*3.*/bin/python3")))
    found = {}
    for program in [*(f"python3.{minor}" for minor in range(11, 20)), *beside]:
        asked = "import sys, venv; sys.version_info >= (3, 11, 4) and print('%d.%d' % sys.version_info[:2])"
        if path := shutil.which(program):
            done = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
            found.setdefault(done.stdout.strip(), path)
    return {version: path for version, path in found.items() if version}


STUDY = """
study: small
command: python -c "print('loss', {x} * 0.5)"
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
"""
# What needs none but the light dependencies imports, without a warning; the others name a library that is not there.
IMPORTS = """
import importlib, json, pkgutil, assay
missing, count = {}, 0
for module in pkgutil.walk_packages(assay.__path__, "assay."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
print(json.dumps([count, missing]))
"""
TYPED = """
import assay
import assay.wandb as wandb
from assay.bench import Benchmark
from assay.convergence import do_convergence_test
from assay.examine import Examiner
from assay.lightning import AssayLogger
from assay.logx import logx
from assay.models import test_onnx_model
from assay.trace import record
from assay.transformers import AssayCallback

assay.log(loss=0.5, step=1)
names: list[str] = [run.name for run in assay.load_study("study.yml").runs]
handle = assay.run("study.yml", jobs=2)
handle.best("loss").nothing
"""


class Clean:
    """A virtual environment of a Python, with nothing but what was installed into it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.bin = folder / "env" / "bin"
        subprocess.run([python, "-m", "venv", folder / "env"], check=True, timeout=120)

    def call(self, *words: str, exit_code: int = 0) -> str:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=self.folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == exit_code, (words, done.stdout, done.stderr)
        return done.stdout

    def install(self, *what: str) -> None:
        self.call("pip", "install", "--quiet", "--disable-pip-version-check", *what)


@pytest.fixture
def clean(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clean]:
    pythons = find_pythons()
    if request.param not in pythons:
        pytest.skip(f"no Python {request.param} here (there is {', '.join(pythons)})")
    yield Clean(pythons[request.param], tmp_path)
    shutil.rmtree(tmp_path / "env")


@pytest.mark.long
@pytest.mark.services("web")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("clean", TRIED, indirect=True)
def test_an_install_works_in_a_clean_environment(clean: Clean, release: Path) -> None:
    (wheel,), (sdist,) = release.glob("*.whl"), release.glob("*.tar.gz")
    clean.install(str(wheel))  # the light dependencies alone
    assert clean.call("assay", "--version") == f"assay, version {assay.__version__}\n"
    words = ["python", "-W", "error", "-m", "compileall", "-q", "-f"]
    clean.call(*words, str(clean.bin.parent / "lib"), "-x", "site-packages/(?!assay)")
    count, missing = json.loads(clean.call("python", "-W", "error", "-c", IMPORTS))
    assert count > 500
    assert not {name for name, library in missing.items() if library.startswith("assay")}
    (clean.folder / "study.yml").write_text(STUDY)
    clean.call("assay", "run", "study.yml")
    assert [row["loss"] for row in json.loads(clean.call("assay", "sum", "small", "--json"))] == [0.5, 1.0]
    check_products(clean, wheel)
    check_types(clean)
    clean.install("--force-reinstall", "--no-deps", str(sdist))
    assert clean.call("assay", "--version") == f"assay, version {assay.__version__}\n"


def check_products(clean: Clean, wheel: Path) -> None:
    """The demo gathers a golden and checks it twice: it passes, and with a planted bug it fails."""
    clean.install(f"{wheel}[demo,web,stats]")
    assert re.search(r"^charlm: FAIL", clean.call("assay", "demo"), re.MULTILINE)
    (clean.folder / "sorting.py").write_text("def reverse():\n    sorted(range(10_000, 0, -1))\n")
    assert "2/2" in clean.call("assay", "bench", "run", "sorting.reverse", "--trials", "2")
    assert "everything that is needed works" in clean.call("assay", "doctor")
    clean.call("pip", "check")


def check_types(clean: Clean) -> None:
    """A user's strict check sees our types: it finds the one mistake of the script, and no other."""
    clean.install("mypy")
    (clean.folder / "typed.py").write_text(TYPED)
    answer = clean.call("mypy", "--strict", "typed.py", exit_code=1)
    assert re.fullmatch(r'typed\.py:\d+: error: "\w+" has no attribute "nothing".*\nFound 1 error.*\n', answer)

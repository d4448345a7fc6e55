"""What an install has of the page, all of it or nothing, and a release: one version, the same bytes from every clone, and
an install that works in a clean environment on every Python that is here."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from tests.test_project import PROJECT

import assay
from assay.web import assets

TOP = Path(__file__).parent.parent
NEEDED = {
    name: digest
    for digest, name in (line.split() for line in (TOP / "src/assay/web/vendor.sha256").read_text().splitlines())
}
BUILD = [sys.executable, "-m", "hatchling", "build"]


def load_script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, TOP / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load_script("hatch_build.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small one that is built as ours is; its page needs two files."""
    tree = tmp_path / "tree"
    (tree / "src/assay/web").mkdir(parents=True)
    (tree / "examples").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(TOP / name, tree)
    (tree / "examples/one.txt").write_text("one")
    (tree / "src/assay/__init__.py").write_text('__version__ = "1"\n')
    (tree / "src/assay/web/__init__.py").touch()
    hashes = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items()]
    (tree / "src/assay/web/vendor.sha256").write_text("".join(hashes))
    return tree


FILES = {"a.min.js": b"let a", "view/index.html": b"<p>"}
PACKED = {"package/dist/a.min.js": b"let a", "package/release/index.html": b"<p>", "package/README": b"more"}


def put_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: dict[str, bytes] | None) -> Path:
    """An npm that packs these members, or fails without any; what it was called with is in a file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    archive, calls = folder / "packed.tgz", folder / "calls"
    if packed is not None:
        with tarfile.open(archive, "w:gz") as file:
            for name, data in packed.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    npm = folder / "npm"
    npm.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "$@" >> {calls}\n'
        f'cp {archive} . || {{ echo "npm error network" >&2; exit 1; }}\n'
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return calls


def build(tree: Path, target: str, folder: Path) -> str:
    argv = [*BUILD, "-t", target, "-d", str(folder)]
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def read_wheel(folder: Path) -> dict[str, bytes]:
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_a_wheel_has_the_files_of_the_page_and_they_are_fetched_once(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = put_npm(tmp_path, monkeypatch, PACKED)
    build(tree, "wheel", tmp_path / "first")
    build(tree, "wheel", tmp_path / "second")
    for folder in ("first", "second"):
        wheel = read_wheel(tmp_path / folder)
        assert {name: wheel.get(f"assay/web/vendor/{name}") for name in FILES} == FILES
        assert not [name for name in wheel if "README" in name]
    (call,) = calls.read_text().splitlines()
    assert call.split()[-3:] == list(HOOK.PACKAGES)
    assert sorted(os.listdir(tree / "src/assay/web")) == ["__init__.py", "vendor", "vendor.sha256"]


def test_a_wheel_of_an_sdist_needs_no_npm(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = put_npm(tmp_path, monkeypatch, PACKED)
    build(tree, "sdist", tmp_path / "sdist")
    (archive,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    calls.unlink()
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    build(unpacked, "wheel", tmp_path / "wheel")
    assert {f"assay/web/vendor/{name}" for name in FILES} <= read_wheel(tmp_path / "wheel").keys()
    assert not calls.exists()


def test_offline_the_package_is_built_without_the_page_and_the_build_says_why(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_npm(tmp_path, monkeypatch, None)
    text = build(tree, "wheel", tmp_path / "wheel")
    assert "built without the page of `assay serve`" in text
    assert "npm error network" in text
    wheel = read_wheel(tmp_path / "wheel")
    assert "assay/__init__.py" in wheel
    assert not [name for name in wheel if "/vendor/" in name]
    assert sorted(os.listdir(tree / "src/assay/web")) == ["__init__.py", "vendor.sha256"]


def test_a_file_with_another_hash_is_never_packed(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_npm(tmp_path, monkeypatch, PACKED | {"package/dist/a.min.js": b"let evil"})
    assert "a.min.js" in build(tree, "wheel", tmp_path / "fetched")
    vendor = tree / "src/assay/web/vendor"
    assert not vendor.exists()
    for name, data in (FILES | {"a.min.js": b"let evil"}).items():  # nor one that was there
        (vendor / name).parent.mkdir(parents=True, exist_ok=True)
        (vendor / name).write_bytes(data)
    build(tree, "wheel", tmp_path / "present")
    for folder in ("fetched", "present"):
        assert not [name for name in read_wheel(tmp_path / folder) if "/vendor/" in name]


def test_files_of_an_older_version_are_replaced(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_npm(tmp_path, monkeypatch, PACKED)
    vendor = tree / "src/assay/web/vendor"
    vendor.mkdir()
    (vendor / "old.js").write_text("old")
    HOOK.complete(str(tree))
    assert sorted(os.listdir(vendor)) == ["a.min.js", "view"]


def test_a_tree_without_the_page_fetches_nothing(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = put_npm(tmp_path, monkeypatch, PACKED)
    shutil.rmtree(tree / "src/assay/web")
    build(tree, "wheel", tmp_path / "wheel")
    assert not calls.exists()


def test_an_npm_that_does_not_work_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HOOK.find_npm() is None  # hidden from the tests
    put_npm(tmp_path, monkeypatch, PACKED)
    assert HOOK.find_npm() == [str(tmp_path / "bin/npm")]
    (tmp_path / "bin/npm").write_text("#!/bin/sh\nexit 127\n")
    assert HOOK.find_npm() is None


def test_a_copy_without_the_page_names_the_folder_that_it_was_installed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, installed = tmp_path / "a clone", tmp_path / "installed"
    clone.mkdir()
    shutil.copy(TOP / "hatch_build.py", clone)
    info = installed / "assay-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: assay\nVersion: 1\n")
    (info / "direct_url.json").write_text(f'{{"url": "{clone.as_uri()}", "dir_info": {{}}}}')
    monkeypatch.setattr(assets, "FOLDER", str(installed / "assay" / "web"))
    monkeypatch.syspath_prepend(str(installed))
    assert assets.build_remedy() == f"{sys.executable} -m pip install --force-reinstall --no-deps '{clone}'"
    (info / "direct_url.json").unlink()  # from a registry
    assert "clone" in assets.build_remedy()


@pytest.mark.services("web")
def test_the_page_is_there_after_an_install_from_a_wheel_of_our_sdist(tmp_path: Path) -> None:
    """Ours, whole; the wheel is made of the sdist, without npm."""
    build(TOP, "sdist", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    build(unpacked, "wheel", tmp_path)
    wheel = read_wheel(tmp_path)
    found = {name: hashlib.sha256(wheel[f"assay/web/vendor/{name}"]).hexdigest() for name in NEEDED}
    assert found == NEEDED
    site = tmp_path / "site"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as file:
        file.extractall(site)
    (tmp_path / "root").mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", "from assay.cli.main import main; main()", "serve", "--root", "root", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        _, line = server.stdout.readline(), server.stdout.readline()
        address = line.split()[1].partition("#")[0]
        for name, digest in NEEDED.items():
            with urllib.request.urlopen(f"{address}vendor/{name}", timeout=30) as answer:
                assert hashlib.sha256(answer.read()).hexdigest() == digest, name
        for name in ("assay.css", "static/page.js", "studies"):
            with urllib.request.urlopen(f"{address}{name}", timeout=30) as answer:
                assert answer.status == 200, name
    finally:
        server.kill()
        server.communicate()


# ---------------------------------------------------------------- a release: one version, and the same bytes from every clone


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
    names = list_tracked("src", "docs", "examples", "README.md", "SECURITY.md", "pyproject.toml")
    texts = {name: (TOP / name).read_text("utf-8", "replace") for name in names}
    found = {f"{name}: {each}" for name, text in texts.items() for each in said.findall(text)}
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

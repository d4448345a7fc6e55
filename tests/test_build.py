"""What an install has of the page: `hatch_build.py` fetches it, and a wheel or an sdist has all of it or nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

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
    done = subprocess.run(
        [*BUILD, "-t", target, "-d", str(folder)], cwd=tree, capture_output=True, text=True, check=False, timeout=120
    )
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

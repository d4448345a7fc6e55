"""Assay packed as a wheel: whole, installable, and the same every time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import assay
from assay.compat.perfzero import wheel
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import UsageError

PACKAGE = Path(assay.__file__).parent


def test_every_file_is_in_it_and_its_record_is_true(packed: Path) -> None:
    assert packed.name == build_wheel_name() == f"assay-{metadata.version('assay')}-py3-none-any.whl"
    assert os.listdir(packed.parent) == [packed.name], "nothing else is left behind"
    with zipfile.ZipFile(packed) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "equal files, equal wheels"
        contents = {name: archive.read(name) for name in archive.namelist()}
    modules = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.py")}
    docker = {f"assay/compat/perfzero/docker/Dockerfile_ubuntu_1804_tf_v{number}" for number in (1, 2)}
    assert {*modules, *docker, "assay/py.typed"} <= set(contents)
    assert not [name for name in contents if name.endswith(".pyc") or "__pycache__" in name]
    (record,) = (name for name in contents if name.endswith("/RECORD"))
    rows = {name: rest for name, *rest in csv.reader(io.StringIO(contents[record].decode()))}
    assert rows.pop(record) == ["", ""]
    assert {*rows, record} == set(contents)
    for name, (digest, size) in rows.items():
        expected = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={expected}", str(len(contents[name])))


def test_a_failure_leaves_the_old_wheel_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / build_wheel_name()).write_text("old")
    monkeypatch.setattr(wheel, "_shared_files", lambda _found: {"assay/gone.py": str(tmp_path / "gone.py")})
    with pytest.raises(FileNotFoundError):
        write_wheel(str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {build_wheel_name(): "old"}
    monkeypatch.undo()
    assert zipfile.is_zipfile(write_wheel(str(tmp_path))), "the old one is replaced as a whole"


@pytest.mark.long
def test_pip_installs_it_and_it_runs_and_packs_itself_again(packed: Path, tmp_path: Path) -> None:
    """As on another machine: no index, no source tree; the dependencies are this environment's. An image made by Assay
    makes the next image."""
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--isolated", "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    subprocess.run([*pip, *options, str(packed)], check=True, timeout=120)
    assert (target / "bin" / "assay").exists(), "the command is installed as well"
    code = (
        "import assay, sys; from assay.cli.main import run; from assay.compat.perfzero.wheel import write_wheel;"
        "print(assay.__file__); print(write_wheel(sys.argv[1])); sys.exit(run(['--version']))"
    )
    env = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    where, again, version = done.stdout.splitlines()
    assert Path(where) == target / "assay" / "__init__.py"
    assert version == f"assay, version {assay.__version__}"
    with zipfile.ZipFile(packed) as one, zipfile.ZipFile(again) as other:
        modules = {name: one.read(name) for name in one.namelist() if name.startswith("assay/")}
        assert {name: other.read(name) for name in other.namelist() if name.startswith("assay/")} == modules


def test_without_an_installation_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "_PACKAGE", "no-such-distribution")
    with pytest.raises(UsageError, match="without being installed") as caught:
        write_wheel(str(tmp_path))
    assert "pip install" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []

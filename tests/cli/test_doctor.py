"""`assay doctor`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from tests.finished_study import Bench

from assay.cli import doctor
from assay.plugins import Folder, Part, Program, find_plugins

NEEDS = [need for plugin in find_plugins().values() for need in plugin.doctor]
PARTS = [*doctor._EXTRAS, *(need for need in NEEDS if isinstance(need, Part))]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("git version 2.39.5", (2, 39, 5)),
        ("GNU bash, version 5.2.15(1)-release", (5, 2, 15)),
        ("nothing", None),
        ("", None),
    ],
)
def test_versions(text: str, version: tuple[int, ...] | None) -> None:
    assert doctor.parse_version(text) == version


@pytest.mark.needs(models=True)
@pytest.mark.needs(exchange=True)
def test_missing_extras_come_with_their_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", nothing)
    found = {each.name: each for each in map(doctor._examine_part, PARTS)}
    assert {each.grade for each in found.values()} == {"missing"}
    assert found["pandas"].hint == "pip install 'assay[frames]'"
    assert found["iree-base-compiler"].hint == "pip install 'assay[iree]'"
    assert found["gcsfs"].hint == "pip install 'assay[gcs]'"
    assert doctor.is_well({"Optional parts": tuple(found.values())})


def test_every_part_is_brought_by_the_extra_that_is_named() -> None:
    """The install command would not help otherwise."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = project["optional-dependencies"]
    wrong = [
        part
        for part in PARTS
        if not any(re.split(r"[<>=~! \[]", need)[0] == part.package for need in brought[part.extra])
    ]
    assert wrong == []


def test_looking_for_the_parts_loads_none_of_them() -> None:
    """They are large, and one that is installed may still crash while it loads."""
    heavy = {"numpy", "onnx", "onnxruntime", "openvino", "iree", "s3fs", "gcsfs", "adlfs", "google", "pandas", "scipy"}
    program = "import sys; from assay.cli import doctor; doctor._get_output = lambda words: '9.9'; doctor.examine(); "
    program += f"print(*({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.needs(farms=True)
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ('[ "$1" = -V ] && echo "OpenSSH_9.2p1 Debian" >&2', "9.2"),
        ("exit 255", ""),
    ],
)
@pytest.mark.needs(exchange=True, compat=True, bench=True, plots=True)
def test_ssh_is_asked_as_it_wants_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {need.name: doctor._examine_need(need) for need in NEEDS if isinstance(need, Program)}
    assert found["ssh"].grade == "ok"
    assert found["ssh"].text == ", ".join(word for word in (text, str(tmp_path / "ssh")) if word)
    assert {found[name].grade for name in ("docker", "gcloud")} == {"missing"}, "they are optional"
    assert "https://" in found["docker"].hint


@pytest.mark.needs(models=True)
@pytest.mark.parametrize("value", ["cache of mine", "/nowhere/at/all"])
def test_the_place_of_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_CACHE", value)
    found = {need.name: doctor._examine_need(need) for need in NEEDS if isinstance(need, Folder)}
    assert found["artifacts"].text.startswith(str(tmp_path / value))
    assert found["artifacts"].grade in ("ok", "note"), "who checks no models needs none"


@pytest.mark.needs(models=True)
def test_a_place_of_artifacts_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, forbidden_dir: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(forbidden_dir / "x"))
    found = {need.name: doctor._examine_need(need) for need in NEEDS if isinstance(need, Folder)}
    assert found["artifacts"].grade == "note"
    assert "ASSAY_CACHE" in found["artifacts"].hint


def return_relative(_environment: object, _folder: str) -> str:
    return "nope/x"


def return_nothing(_environment: object, _folder: str) -> None: ...


def end_all(_environment: object, _folder: str) -> None:
    raise SystemExit(3)


def test_a_folder_of_a_plug_in_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctor._examine_need(Folder("f", f"{__name__}:return_relative", "h"))
    assert found == doctor.Diagnostic("f", "ok", f"{tmp_path}/nope/x (will be created)")


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (Part("", "", ""), "ValueError"),
        (Part(None, "x", "x"), "TypeError"),
        (Program(None, "", ""), "TypeError"),
        (Program("sh", "", "", question=None), "TypeError"),
        (Folder("f", None, "h"), "TypeError"),
        (Folder("f", f"{__name__}:return_nothing", 5), "TypeError"),
        (Folder("f", f"{__name__}:return_nothing", "h"), "TypeError"),
        (Folder("f", f"{__name__}:end_all", "h"), "SystemExit: 3"),
        (Folder("f", f"{__name__}:nothing", "h"), "nothing cannot be loaded: AttributeError"),
    ],
)
def test_a_need_that_cannot_be_examined_is_a_note(need: Part | Program | Folder, text: str) -> None:
    found = doctor._examine_need(need)
    assert (found.grade, text in found.text) == ("note", True), found
    assert {type(each) for each in (found.name, found.text, found.hint)} == {str}


def test_a_folder_without_permission(forbidden_dir: Path) -> None:
    assert doctor._examine_folder("output root", str(forbidden_dir / "x"), "").grade == "broken"


def test_the_nearest_parent(tmp_path: Path) -> None:
    assert doctor.nearest_parent(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert doctor.nearest_parent(str(tmp_path)) == str(tmp_path)


def findings(cli, *arguments: str) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(cli("doctor", "--json", *arguments).out)["findings"]}


def test_all_is_well_here(cli, own_bench: Bench) -> None:
    result = cli("doctor")
    assert result.code == 0, result.out
    assert "✗" not in result.out
    assert result.out.endswith("everything that is needed works\n")
    found = findings(cli)
    assert {"python", "bash", "timeout", "git", "/proc", "pidfd", "clock", "output root", "slots"} <= set(found)
    assert found["output root"]["text"] == f"{own_bench.root} (will be created)"
    assert not own_bench.root.exists()


def test_a_missing_program(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_bench.folder / "bin"
    folder.mkdir()
    bash = shutil.which("bash")
    assert bash
    (folder / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(folder))
    cli("doctor").ended(1).printed("✗ timeout", "install GNU coreutils")
    assert findings(cli)["git"]["grade"] == "missing"  # useful, not needed


@pytest.mark.parametrize(
    ("version", "grade"), [("4.3.30", "broken"), ("4.4.0", "ok"), ("5.2.15", "ok"), ("", "broken")]
)
def test_the_version_of_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, grade: str) -> None:
    (tmp_path / "bash").write_text(f"#!/bin/sh\necho 'GNU bash, version {version}(1)-release'\n")
    (tmp_path / "bash").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert next(each for each in doctor._examine_needed() if each.name == "bash").grade == grade


def test_a_root_that_is_no_folder(cli, own_bench: Bench) -> None:
    own_bench.write("file", "")
    assert cli("doctor", "--root", "file/inside").code == 1
    assert findings(cli, "--root", "file")["output root"]["grade"] == "broken"


def test_gpus(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "Great GPU", "memory_bytes": 16 << 30, "free_bytes": 8 << 30}
    own_bench.write("gpus.json", json.dumps({"driver": "555.1", "gpus": [gpu]}))
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(own_bench.folder / "gpus.json"))
    found = findings(cli)
    assert "Great GPU" in found["GPU 0"]["text"]
    assert found["driver"]["text"] == "555.1"


def test_a_broken_settings_file(cli, own_bench: Bench) -> None:
    own_bench.write("assay.toml", "root = 3\n")
    cli("doctor").ended(1).printed("✗ settings")

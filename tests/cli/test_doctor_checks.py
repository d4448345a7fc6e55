"""The parts of the examination that answer to something other than this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from assay.cli import doctor_checks


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
    assert doctor_checks.parse_version(text) == version


def test_missing_extras_come_with_their_install_command() -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    parts = (*doctor_checks._EXTRAS, *doctor_checks._MODEL_PARTS, *doctor_checks._STORE_PARTS)
    found = {each.name: each for each in doctor_checks._examine_extras(parts, nothing)}
    assert {each.grade for each in found.values()} == {"missing"}
    assert found["pandas"].hint == "pip install 'assay[frames]'"
    assert found["iree-base-compiler"].hint == "pip install 'assay[iree]'"
    assert found["gcsfs"].hint == "pip install 'assay[gcs]'"
    assert doctor_checks.Diagnosis((("Optional parts", tuple(found.values())),)).is_well


@pytest.mark.parametrize(
    "parts", [doctor_checks._EXTRAS, doctor_checks._MODEL_PARTS, doctor_checks._STORE_PARTS], ids=len
)
def test_every_part_is_brought_by_the_extra_that_is_named(parts: tuple[tuple[str, str, str], ...]) -> None:
    """The install command would not help otherwise."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = project["optional-dependencies"]
    wrong = [
        (package, extra)
        for package, extra, _ in parts
        if not any(re.split(r"[<>=~! \[]", need)[0] == package for need in brought[extra])
    ]
    assert wrong == []


def test_looking_for_the_parts_loads_none_of_them() -> None:
    """They are large, and one that is installed may still crash while it loads."""
    heavy = {"numpy", "onnx", "onnxruntime", "openvino", "iree", "s3fs", "gcsfs", "adlfs", "google", "pandas", "scipy"}
    program = (
        f"import sys; from assay.cli.doctor_checks import examine; examine(); print(*({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ('[ "$1" = -V ] && echo "OpenSSH_9.2p1 Debian" >&2', "9.2"),
        ("exit 255", ""),
    ],
)
def test_ssh_is_asked_as_it_wants_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {each.name: each for each in doctor_checks._examine_others()}
    assert found["ssh"].grade == "ok"
    assert found["ssh"].text == ", ".join(word for word in (text, str(tmp_path / "ssh")) if word)
    assert {found[name].grade for name in ("docker", "gcloud")} == {"missing"}, "they are optional"
    assert "https://" in found["docker"].hint


@pytest.mark.parametrize("value", ["cache of mine", "/nowhere/at/all"])
def test_the_place_of_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_CACHE", value)
    found = {each.name: each for each in doctor_checks._examine_places(str(tmp_path / "runs"))}
    assert found["artifacts"].text.startswith(str(tmp_path / value))
    assert found["artifacts"].grade in ("ok", "note"), "who checks no models needs none"


def test_a_place_of_artifacts_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, forbidden_dir: Path) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(forbidden_dir / "x"))
    found = {each.name: each for each in doctor_checks._examine_places(str(forbidden_dir.parent))}
    assert found["artifacts"].grade == "note"
    assert "ASSAY_CACHE" in found["artifacts"].hint


def test_a_folder_without_permission(forbidden_dir: Path) -> None:
    assert doctor_checks._examine_folder("output root", str(forbidden_dir / "x"), "").grade == "broken"


def test_the_nearest_parent(tmp_path: Path) -> None:
    assert doctor_checks.nearest_parent(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert doctor_checks.nearest_parent(str(tmp_path)) == str(tmp_path)

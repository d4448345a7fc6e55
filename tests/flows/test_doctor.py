"""The parts of the examination that answer to something other than this machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from assay.flows import doctor

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:5 / /data rw - nfs4 server:/x rw
24 22 0:6 / /data/with\\040space rw - xfs /dev/sdb rw
25 22 0:7 / /database rw - btrfs /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home", "ext4"),
        ("/data", "nfs4"),
        ("/data/deep/er", "nfs4"),
        ("/data/with space/x", "xfs"),
        ("/database/x", "btrfs"),
    ],
)
def test_the_file_system_of_a_folder(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    assert doctor.load_file_system(folder, str(tmp_path / "mounts")) == kind


def test_an_unreadable_table(tmp_path: Path) -> None:
    assert doctor.load_file_system("/", str(tmp_path / "none")) is None


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


def test_missing_extras_come_with_their_install_command() -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    found = {each.name: each for each in doctor._examine_extras(nothing)}
    assert {each.grade for each in found.values()} == {"missing"}
    assert found["pandas"].hint == "pip install 'assay[frames]'"
    assert doctor.Diagnosis((("Optional parts", tuple(found.values())),)).is_well


def test_a_folder_without_permission(forbidden_dir: Path) -> None:
    assert doctor._examine_folder("output root", str(forbidden_dir / "x"), "").grade == "broken"


def test_the_nearest_parent(tmp_path: Path) -> None:
    assert doctor.nearest_parent(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert doctor.nearest_parent(str(tmp_path)) == str(tmp_path)

"""A mistake in a target's table is told with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.flow.targets import load_checked_target

TABLES = """# targets
[targets.npu]
run = "runner {artifact}"
compile = "cp {modl} {artifact}"
[targets.near]
like = "npu"
artifact = "model.bin"
[targets.mended]
like = "npu"
compile = "cp {model} {artifact}"
[targets.lost]
compile = "cp {model} {artifact}"
[targets.fast]
backend = "ort"
optimize = "most"
[targets.mine]
backend = "nowhere:Mine"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assay.toml").write_text(TABLES)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("npu", "4:1 targets.npu.compile", "{modl} is not known here\n    did you mean 'model'?"),
        ("near", "4:1 targets.npu.compile", "{modl} is not known here"),
        ("lost", "11:1 targets.lost", "there is no run"),
        ("fast", "15:1 targets.fast.optimize", "optimize = 'most' is not known"),
    ],
)
def test_the_place_is_told(folder: Path, name: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checked_target(name, str(folder))
    assert str(caught.value).startswith(f"{folder}/assay.toml:{place}: {said}")


def test_what_is_right_is_the_target(folder: Path) -> None:
    assert load_checked_target("mended", str(folder)).options["compile"] == "cp {model} {artifact}"
    assert load_checked_target("ort", str(folder)).backend == "ort"


def test_somebody_s_own_is_loaded_where_it_runs(folder: Path) -> None:
    assert load_checked_target("mine", str(folder)).backend == "nowhere:Mine"


def test_other_mistakes_stay_what_they_are(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="'npuu'"):
        load_checked_target("npuu", str(folder))
    with pytest.raises(UsageError, match="no variant"):
        load_checked_target("iree:metal", str(folder))

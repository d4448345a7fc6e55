"""Names of farms where no installed plug-in knows farms: refused where one is used, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config.load import LoadOptions, load_study
from assay.config.places import choose_asked_farm, choose_farm
from assay.config.settings import load_settings
from assay.errors import ConfigError, UsageError
from assay.values.study import Study

MISSING = "no installed plug-in submits runs to farms"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("assay.config.places.load_all", lambda _hook: [])
    return tmp_path


def write(folder: Path, more: str = "") -> Study:
    (folder / "study.yml").write_text(f"command: echo 1\n{more}")
    return load_study("study.yml")


def test_runs_that_need_no_farm_are_not_refused(folder: Path) -> None:
    settings = load_settings(str(folder), {"ASSAY_FARM": "local"})
    for study in (write(folder), write(folder, "on: local\n"), write(folder, "on: slurm\n")):
        assert choose_farm(study, None, settings) is None
        assert choose_asked_farm(study, None, settings) is None
        assert choose_asked_farm(study, "local", settings) is None


@pytest.mark.parametrize(
    ("asked", "env", "project"),
    [("slurm", {}, ""), (None, {"ASSAY_FARM": "ssh:gpu1"}, ""), (None, {}, "farm = 'slurm'\n")],
)
def test_a_name_of_a_call_or_of_settings(folder: Path, asked: str | None, env: dict[str, str], project: str) -> None:
    (folder / "assay.toml").write_text(project)
    with pytest.raises(UsageError, match=MISSING) as caught:
        choose_farm(write(folder), asked, load_settings(str(folder), env))
    assert "assay doctor" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("more", "asked", "place"),
    [("on: slurm\n", None, "2:5 on"), ("farms:\n  big: {kind: slurm}\n", "big", "3:3 farms.big")],
)
def test_a_name_and_a_section_of_the_file_have_positions(
    folder: Path, more: str, asked: str | None, place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_farm(write(folder, more), asked, load_settings(str(folder), {}))
    assert caught.value.render().startswith(f"study.yml:{place}: {MISSING}")


@pytest.mark.needs(compat=True)
def test_a_section_of_another_tool_matters_to_those_who_use_it(folder: Path) -> None:
    (folder / ".runx").write_text("LOGROOT: runs\nbig: {kind: slurm}\nold: {SUBMIT_CMD: qsub, RESOURCES: {gpu: 1}}\n")
    (folder / "sweep.yml").write_text("CMD: echo\nHPARAMS: [{lr: [1]}]\n")
    study, settings = load_study("sweep.yml", LoadOptions(dialect="runx")), load_settings(str(folder), {})
    assert choose_farm(study, None, settings) is None
    for name, position in (("big", ":2:1 big: "), ("old", ":3:1 old: ")):
        with pytest.raises(ConfigError) as caught:
            choose_farm(study, name, settings)
        assert f"{position}{MISSING}" in caught.value.render()

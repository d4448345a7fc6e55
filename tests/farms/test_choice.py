"""Which farm is meant by a name: the study's, the settings', or an engine itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench

from assay.config.load import load_study
from assay.config.places import choose_asked_farm, choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, NotFoundError
from assay.values.study import Farm, Study

FILE = "command: echo {a}\nparams: {a: [1]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, study: str = "", project: str = "", user: str = "", **env: str) -> tuple[Study, Settings]:
    (folder / "study.yml").write_text(FILE + study)
    if project:
        (folder / "assay.toml").write_text(project)
    if user:
        (folder / "home/.config/assay").mkdir(parents=True)
        (folder / "home/.config/assay/config.toml").write_text(user)
    return load_study("study.yml"), load_settings(str(folder), {"HOME": str(folder / "home"), **env})


def choose(study: Study, settings: Settings, name: str | None = None) -> Farm:
    farm = choose_farm(study, name, settings)
    assert farm is not None
    return farm


def test_an_engine_needs_no_section(folder: Path) -> None:
    study, settings = write(folder)
    slurm, ssh = (choose(study, settings, name) for name in ("slurm", "ssh:user@host"))
    assert (slurm.kind, slurm.options) == ("slurm", {})
    assert (ssh.kind, ssh.options) == ("ssh", {"hosts": ("user@host",)})
    assert choose_farm(study, "local", settings) is None
    assert choose_farm(study, None, settings) is None


def test_values_are_read_with_their_units(folder: Path) -> None:
    keys = "{kind: slurm, partition: gpu, time: 1h30m, memory: 2GiB, gpus: 2, flags: [--exclusive, --nice=5]}"
    study, settings = write(folder, f"on: cluster\nfarms: {{cluster: {keys}}}\n")
    assert choose(study, settings).options == {
        "partition": "gpu",
        "time": 5400.0,
        "memory": 2 * 2**30,
        "gpus": 2,
        "flags": ("--exclusive", "--nice=5"),
    }


def test_the_study_before_the_project_before_the_user_before_the_engine(folder: Path) -> None:
    user = "[farms.slurm]\nkind = 'slurm'\nqos = 'user'\n[farms.b]\nkind = 'slurm'\nqos = 'user'\n"
    project = "[farms.b]\nkind = 'slurm'\nqos = 'project'\n[farms.c]\nkind = 'ray'\naddress = 'auto'\n"
    study, settings = write(folder, "farms: {c: {kind: ssh, hosts: [a, b], slots: 2}}\n", project, user)
    chosen = [choose(study, settings, name) for name in ("slurm", "b", "c")]
    assert [(farm.kind, dict(farm.options)) for farm in chosen] == [
        ("slurm", {"qos": "user"}),
        ("slurm", {"qos": "project"}),
        ("ssh", {"hosts": ("a", "b"), "slots": 2}),
    ]


def test_a_farm_of_the_settings_that_the_study_names_or_that_is_usual(folder: Path) -> None:
    assert choose(*write(folder, "on: big\n", "[farms.big]\nkind = 'slurm'\n")).name == "big"
    assert choose(*write(folder, "", "farm = 'slurm'\n")).kind == "slurm"


@pytest.mark.parametrize(
    ("study", "project", "words", "is_reported"),
    [
        ("", "farm = 'slrum'\n", [], True),
        ("", "farm = 'slrum'\n", ["--on", "local"], False),
        ("on: local\n", "farm = 'slrum'\n", [], False),
        ("", "farm = 'local'\n", [], False),
    ],
)
def test_an_unknown_farm_of_the_settings_is_named(
    own_bench: Bench, cli: Cli, study: str, project: str, words: list[str], is_reported: bool
) -> None:
    """It may be one that another study's file defines."""
    own_bench.write("study.yml", FILE + study)
    own_bench.write("assay.toml", project)
    result = cli("run", "study.yml", "-n", *words)
    assert (result.code, result.out) == (0, "echo 1\n")
    warning = (
        f"warning: the farm 'slrum' of {own_bench.folder}/assay.toml is not known here: the runs stay on this machine"
    )
    assert result.err.startswith(warning) is is_reported


def test_what_one_run_needs_is_asked_of_the_engine(folder: Path) -> None:
    study, settings = write(folder, "resources: {gpus: 2, cpus: 4}\nfarms: {a: {kind: slurm, cpus: 8}}\n")
    assert choose(study, settings, "slurm").options == {"gpus": 2, "cpus": 4}
    assert choose(study, settings, "a").options == {"gpus": 2, "cpus": 8}


def test_hosts_without_an_element_are_one_problem(folder: Path) -> None:
    study, _ = write(folder, "farms: {a: {kind: ssh, hosts: [], slots: {b: 1}}}\n")
    assert [problem.message for problem in study.farms["a"].problems] == ["does not name a host"]


def test_an_unknown_name_is_told_what_there_is_and_where(folder: Path) -> None:
    study, settings = write(folder, "farms: {pool: {kind: ray}}\n", "[farms.cluster]\nkind = 'slurm'\n")
    with pytest.raises(NotFoundError) as caught:
        choose_farm(study, "clustr", settings)
    hint = str(caught.value.hint)
    assert hint.startswith("did you mean 'cluster'?")
    assert "pool (study.yml:3)" in hint
    assert "assay.toml:1)" in hint
    assert all(name in hint for name in ("slurm", "ray", "ssh:HOST", "local"))
    for name in ("ssh", "ssh:"):  # without a host
        with pytest.raises(NotFoundError) as caught:
            choose_farm(study, name, settings)
        assert str(caught.value.hint).startswith("did you mean 'ssh:HOST'")


def test_an_unknown_name_in_the_file_has_its_place(folder: Path) -> None:
    study, settings = write(folder, "on: slrm\n")
    with pytest.raises(ConfigError) as caught:
        choose_farm(study, None, settings)
    assert "study.yml:3:5 on: no farm 'slrm'" in str(caught.value.render())
    assert "did you mean 'slurm'?" in str(caught.value.render())
    assert choose_farm(study, "local", settings) is None


def test_a_bad_section_of_the_settings_matters_to_those_who_use_it(folder: Path) -> None:
    study, settings = write(folder, "", "[farms.big]\nkind = 'slurm'\ntime = 'soon'\n")
    assert choose_farm(study, None, settings) is None
    with pytest.raises(ConfigError) as caught:
        choose_farm(study, "big", settings)
    assert "assay.toml:3" in str(caught.value.render())
    assert "farms.big.time: must be a duration" in str(caught.value.render())


def test_a_measurement_moves_only_when_its_call_says_so(folder: Path) -> None:
    study, settings = write(folder, project="[farms.cluster]\nkind = 'slurm'\n", ASSAY_FARM="cluster")
    assert choose_farm(study, None, settings) is not None
    assert choose_asked_farm(study, None, settings) is None
    assert choose_asked_farm(study, "local", settings) is None
    assert choose_asked_farm(study, "cluster", settings).kind == "slurm"
    with pytest.raises(NotFoundError, match="clustre"):
        choose_asked_farm(study, "clustre", settings)

"""Settings: the environment beats the project's file, which beats the user's."""

from __future__ import annotations

import pytest

from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError


@pytest.fixture
def place(tmp_path):
    (tmp_path / "home/.config/assay").mkdir(parents=True)
    (tmp_path / "project/sub").mkdir(parents=True)
    return tmp_path


def load(place, folder="project", **env):
    return load_settings(str(place / folder), {"HOME": str(place / "home"), **env})


def user_file(place, text):
    (place / "home/.config/assay/config.toml").write_text(text)


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("root = [", "1:", "broken TOML"),
        ("\nroot = runs", "2:8", "strings need quotes"),
        ('\n rot = "x"', "2:2 rot:", "did you mean 'root'"),
        ("root = 3", "1:8 root:", "must be a string"),
        ('farm = ""', "1:8 farm:", "must be a string"),
        ("slots = 3", "1:9 slots:", "must be a list"),
        ("slots = []", "1:9 slots:", "is an empty list"),
        ("slots = [0, true]", "1:13 slots:", "must be a device"),
        ("slots = [0, ' ']", "1:13 slots:", "must be a device"),
        ("[more]\nx = 1", "1:2 more:", "unknown setting"),
    ],
)
def test_a_settings_file_that_is_wrong_is_refused(place, text, where, words):
    (place / "project/assay.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(place)
    assert f"assay.toml:{where}" in str(caught.value)
    assert words in str(caught.value)


def test_all_problems_of_a_settings_file_come_at_once(place):
    (place / "project/assay.toml").write_text("root = 3\nslots = 4\nx = 5\n")
    with pytest.raises(ConfigError) as caught:
        load(place)
    assert len(caught.value.problems) == 3


def test_a_position_in_pyproject_is_that_of_our_table(place):
    (place / "project/pyproject.toml").write_text('[project]\nroott = "a"\n[tool.assay]\nroott = "b"\n')
    with pytest.raises(ConfigError, match=r"pyproject.toml:4:1 roott: unknown setting"):
        load(place)


def test_without_files_the_root_is_runs_and_nobody_asked_for_it(place):
    assert load(place) == Settings(str(place / "project/runs"))


def test_environment_beats_project_beats_user(place):
    user_file(place, 'root = "u"\nfarm = "u"\nslots = ["u"]\n')
    (place / "project/assay.toml").write_text('root = "p"\nslots = [0, "1,2"]\n')
    found = load(place, ASSAY_ROOT="e")
    assert (found.root, found.root_from) == (str(place / "project/e"), "ASSAY_ROOT")
    assert (found.slots, found.farm) == (("0", "1,2"), "u")
    assert len(found.files) == 2


def test_a_relative_root_is_relative_to_the_file_that_names_it(place):
    (place / "project/assay.toml").write_text('root = "../out"\n')
    assert load(place, "project/sub").root == str(place / "out")


def test_the_nearest_file_counts_and_a_pyproject_without_us_is_passed_over(place):
    (place / "assay.toml").write_text('farm = "far"\n')
    (place / "project/pyproject.toml").write_text('[tool.assay]\nfarm = "near"\n')
    (place / "project/sub/pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load(place, "project/sub").farm == "near"
    (place / "project/assay.toml").write_text('farm = "own"\n')
    assert load(place, "project/sub").farm == "own"


def test_the_users_file_is_found_by_xdg(place):
    (place / "xdg/assay").mkdir(parents=True)
    (place / "xdg/assay/config.toml").write_text('farm = "x"\n')
    assert load(place, XDG_CONFIG_HOME=str(place / "xdg")).farm == "x"


def test_a_variable_set_to_nothing_is_not_set(place):
    assert load(place, ASSAY_ROOT="", ASSAY_SLOTS=" ") == load(place)


def test_slots_from_the_environment(place):
    assert load(place, ASSAY_SLOTS="0+1,2+3").slots == ("0,1", "2,3")


def test_tables_of_products_are_handed_on_from_both_files_with_their_positions(place):
    user_file(place, "[models]\nsamples = 1\n")
    (place / "project/pyproject.toml").write_text("[tool.assay.models]\nsamples = 2\n")
    tables = load(place).tables
    assert [table.value for table in tables["models"]] == [{"samples": 1}, {"samples": 2}]
    assert str(tables["models"][1].find("samples").position).endswith("pyproject.toml:2:11")
    assert "targets" not in tables


def test_a_table_of_ours_that_is_none_is_refused(place):
    (place / "project/pyproject.toml").write_text("[tool.assay.models]\n[tool.other]\n")
    assert load(place).tables["models"][0].value == {}
    (place / "project/assay.toml").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="unknown setting"):
        load(place)

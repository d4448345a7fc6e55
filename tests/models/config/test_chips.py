"""Chips and groups of them, from files as Torq's tests have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import NotFoundError, UsageError
from assay.models.config.chips import choose_chips, load_chip, name_chip, read_flags


@pytest.fixture
def chips(tmp_path: Path) -> Path:
    folder = tmp_path / "chips"
    folder.mkdir()
    (folder / "sl2610-v1.json").write_text('{"target": "SL2610"}')
    (folder / "sl2610-v2.json").write_text('{"target": "SL2610", "compile_flags": ["--wide"]}')
    (folder / "abc.json").write_text('{"target": "ABC"}')
    (folder / "sl2610-latest.json").symlink_to("sl2610-v2.json")
    (folder / "both.group").write_text("# two of them\nsl2610-v1\n\nabc  # the other\n")
    (folder / "README.md").write_text("not a chip")
    return folder


def test_nothing_said_and_nothing_there_is_the_default(tmp_path):
    assert choose_chips(None, str(tmp_path / "missing")) == ("default",)


def test_the_default_group_holds_where_nothing_is_said(chips):
    assert choose_chips(None, str(chips)) == ("default",)
    (chips / "default.group").write_text("sl2610-v1\n")
    assert choose_chips(None, str(chips)) == ("sl2610-v1",)
    assert choose_chips("default", str(chips)) == ("sl2610-v1",)


def test_several_chips_come_in_the_order_they_were_given_and_once(chips):
    assert choose_chips("sl2610-v2, abc,sl2610-v2", str(chips)) == ("sl2610-v2", "abc")


@pytest.mark.parametrize("text", ["both", "both.group"])
def test_a_group_is_its_chips(chips, text):
    assert choose_chips(text, str(chips)) == ("sl2610-v1", "abc")


def test_all_are_the_newest_of_each_kind_by_their_own_names(chips):
    assert choose_chips("all", str(chips)) == ("sl2610-v2",)
    (chips / "sl2610-latest.json").unlink()
    assert choose_chips("all", str(chips)) == ("abc", "sl2610-v1", "sl2610-v2")


def test_an_unknown_chip_gets_a_suggestion(chips):
    with pytest.raises(NotFoundError, match=r"no chip named 'sl2610-v3'") as caught:
        choose_chips("abc,sl2610-v3", str(chips))
    assert "did you mean 'sl2610-v2'" in caught.value.render()


def test_an_unknown_chip_in_a_group_names_the_group(chips):
    (chips / "odd.group").write_text("abd\n")
    with pytest.raises(NotFoundError, match=r"chip \(of odd.group\) named 'abd'") as caught:
        choose_chips("odd", str(chips))
    assert "did you mean 'abc'" in caught.value.render()


@pytest.mark.parametrize("text", ["", " , ", ","])
def test_an_empty_list_is_refused(chips, text):
    with pytest.raises(UsageError, match="which chips"):
        choose_chips(text, str(chips))


def test_empty_groups_and_folders_are_refused(chips, tmp_path):
    (chips / "none.group").write_text("# nobody\n")
    with pytest.raises(UsageError, match="does not name a chip"):
        choose_chips("none", str(chips))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there are no chips in"):
        choose_chips("all", str(tmp_path / "empty"))
    with pytest.raises(NotFoundError, match="no chip named 'x'") as caught:
        choose_chips("x", str(tmp_path / "empty"))
    assert "there are no chips in" in caught.value.render()


def test_a_chip_is_what_its_file_says(chips):
    assert load_chip("abc", str(chips)) == {"target": "ABC"}
    assert load_chip("default", str(chips)) == {}
    (chips / "default.json").write_text('{"target": "D"}')
    assert name_chip(load_chip("default", str(chips))) == "D"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", "broken JSON"), ("[]", "is not a chip"), ('{"target": 3}', "is not a chip"), ("\xff", "broken JSON")],
)
def test_a_broken_chip_is_refused(chips, content, complaint):
    (chips / "abc.json").write_text(content)
    with pytest.raises(UsageError, match=complaint):
        load_chip("abc", str(chips))


def test_a_chip_that_cannot_be_decoded_is_refused(chips):
    (chips / "abc.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        load_chip("abc", str(chips))


def test_a_custom_chip_is_one_text_in_the_compilers_order():
    content = {
        "target": "custom",
        "slice_count": 2,
        "lram_size": 512,
        "hw_id": 7,
        "nss_features": "a",
        "css_features": "b",
    }
    assert name_chip(content) == "7:512:2:b:a"
    assert name_chip({"target": "custom", "hw_id": 1, "cpu": "x"}) == "1::::::::x"


@given(st.dictionaries(st.sampled_from(["hw_id", "lram", "cpu", "features"]), st.integers(0, 9)))
def test_a_custom_chips_values_stand_at_their_places(values):
    places = {"hw_id": 0, "lram": 1, "cpu": 8, "features": 9}
    parts = (name_chip({"target": "custom", **values}) or "").split(":")
    for key, value in values.items():
        assert parts[places[key]] == str(value)


def test_the_default_chip_tells_the_compiler_nothing():
    assert name_chip({}) is None


def test_flags_of_a_chip():
    assert read_flags({"compile_flags": ["-a", "b"]}, "compile_flags") == ("-a", "b")
    assert read_flags({}, "run_flags") == ()
    for wrong in ("-a", [1]):
        with pytest.raises(UsageError, match="list of texts"):
            read_flags({"run_flags": wrong}, "run_flags")

"""Targets by name: built in, from settings files, and one like another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.settings import load_settings
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.backends.command import OPTIONS as COMMAND_OPTIONS
from assay.models.backends.registry import build_backend
from assay.models.backends.ssh import BOARD_OPTIONS
from assay.models.config.targets import (
    KEYS,
    build_board_target,
    choose_chips,
    load_chip,
    name_chip,
    parse_target,
    read_flags,
)
from assay.models.values.model import Step, Target
from assay.values.plain import build_plain, parse_plain


@pytest.fixture
def place(tmp_path):
    (tmp_path / "home/.config/assay").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path


def load(place, text):
    return parse_target(text, load_settings(str(place / "project"), {"HOME": str(place / "home")}))


def write(place, text, name="pyproject.toml"):
    (place / "project" / name).write_text(text)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ortt", "did you mean 'ort'"),
        ("open-vino", "did you mean 'openvino'"),
        ("iree:vmx", "did you mean 'vmvx'"),
        ("ort:fast", "known: unoptimized"),
        ("", "known"),
    ],
)
def test_an_unknown_target_gets_a_suggestion(place, name, hint):
    with pytest.raises(UsageError) as caught:
        load(place, name)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ('runn = "x"', "3:1 targets.sim.runn:", "did you mean 'run'"),
        ("  port = true", "3:10 targets.sim.port:", "must be a whole number, not True"),
        ('port = "22"', "3:8 targets.sim.port:", "must be a whole number"),
        ("run = 3", "3:7 targets.sim.run:", "must be a string or a list"),
        ('env = "A=1"', "3:7 targets.sim.env:", "must be a table"),
        ("compile_flags = [1]", "3:17 targets.sim.compile_flags:", "a string or a list of strings"),
        ("backend = 3", "3:11 targets.sim.backend:", "must be a string"),
        ('like = "nobody"', "3:8 targets.sim.like:", "there is no target 'nobody'"),
        ('like = "sim"', "3:8 targets.sim.like:", "like each other"),
        ('backend = "ort"\nchip = "x"', "4:8 targets.sim.chip:", "the ort back end has no such option"),
        ('backend = "reference"\nthreads = 2', "4:11 targets.sim.threads:", "it has no options"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_place(place, line, where, words):
    write(place, f"[project]\n[tool.assay.targets.sim]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load(place, "sim")
    assert f"pyproject.toml:{where}" in str(caught.value)
    assert words in str(caught.value)


def test_all_problems_of_a_table_come_at_once(place):
    write(place, '[tool.assay.targets.sim]\nrun = 1\nfoo = 2\nchip = "x"\nport = "y"\n')
    with pytest.raises(ConfigError) as caught:
        load(place, "sim")
    assert len(caught.value.problems) == 3


def test_an_unknown_key_a_wrong_base_and_a_strange_option_come_at_once(place):
    write(place, '[tool.assay.targets.sim]\nbackend = "ort"\nlike = "nobody"\nrunn = 1\nchip = "x"\n')
    with pytest.raises(ConfigError) as caught:
        load(place, "sim")
    assert [problem.position.line for problem in caught.value.problems] == [3, 4, 5]


def test_targets_that_are_like_each_other(place):
    write(place, '[tool.assay.targets.a]\nlike = "b"\n[tool.assay.targets.b]\nlike = "a"\n')
    with pytest.raises(ConfigError, match="a and b are like each other"):
        load(place, "a")


def test_targets_that_are_no_table(place):
    write(place, "[tool.assay]\ntargets = 3\n")
    with pytest.raises(ConfigError, match=r"2:11 targets: must be a table"):
        load(place, "ort")
    write(place, '[tool.assay.targets]\nsim = "x"\n')
    with pytest.raises(ConfigError, match="must be a table"):
        load(place, "sim")


# ---------------------------------------------------------------- built in


@pytest.mark.parametrize(
    ("name", "backend", "option"),
    [
        ("ort", "ort", None),
        ("ort:unoptimized", "ort", ("optimize", "none")),
        ("reference", "reference", None),
        ("openvino", "openvino", None),
        ("iree", "iree", ("device", "llvm-cpu")),
        ("iree:llvm-cpu", "iree", ("device", "llvm-cpu")),
        ("iree:vmvx", "iree", ("device", "vmvx")),
        ("torq", "command", ("hardware", "sim")),
    ],
)
def test_built_in_targets(place, name, backend, option):
    target = load(place, name)
    assert (target.name, target.backend) == (name, backend)
    assert option is None or target.options[option[0]] == option[1]
    build_backend(target)


@pytest.mark.parametrize("name", ["ort", "iree:vmvx", "torq"])
def test_targets_travel(place, name):
    target = load(place, name)
    assert (
        build_backend(parse_plain(Target, json.loads(json.dumps(build_plain(target))))).steps
        == build_backend(target).steps
    )


def test_torq_is_imported_by_iree(place):
    assert build_backend(load(place, "torq")).steps == (Step.IMPORT, Step.COMPILE, Step.RUN)


# ---------------------------------------------------------------- from files


def test_a_command_of_a_project(place):
    write(
        place,
        '[tool.assay.targets.sim]\ncompile = "cc {model} -o {artifact}"\nrun = ["run", "{artifact}"]\nchip = "x1"\n',
    )
    target = load(place, "sim")
    assert (target.name, target.backend) == ("sim", "command")
    assert target.options == {
        "compile": "cc {model} -o {artifact}",
        "run": ["run", "{artifact}"],
        "chip": "x1",
        "folder": str(place / "project"),
    }
    assert build_backend(target).steps == (Step.COMPILE, Step.RUN)


def test_an_address_makes_it_a_board(place):
    write(place, '[tool.assay.targets.board]\nlike = "torq"\naddress = "root@10.0.0.1"\nport = 2222\n')
    target = load(place, "board")
    assert target.backend == "ssh"
    assert (target.options["address"], target.options["port"], target.options["hardware"]) == (
        "root@10.0.0.1",
        2222,
        "sim",
    )
    build_backend(target)


def test_a_table_of_a_built_in_name_changes_it(place):
    write(place, '[tool.assay.targets.torq]\nchip = "SL2610"\ncompile_flags = "--a \'b c\'"\nrun_flags = ["--d"]\n')
    target = load(place, "torq")
    assert (target.options["chip"], target.options["input"]) == ("SL2610", "mlir")
    assert (target.compile_flags, target.run_flags) == (("--a", "b c"), ("--d",))


def test_like_adds_to_the_flags_of_the_other(place):
    write(
        place,
        '[tool.assay.targets.a]\nbackend = "iree"\ncompile_flags = ["--x"]\n'
        '[tool.assay.targets.b]\nlike = "a"\ndevice = "vmvx"\ncompile_flags = ["--y"]\n',
    )
    target = load(place, "b")
    assert (target.name, target.backend, target.options) == ("b", "iree", {"device": "vmvx"})
    assert target.compile_flags == ("--x", "--y")


def test_a_project_adds_to_the_users_targets(place):
    (place / "home/.config/assay/config.toml").write_text('[targets.mine]\nrun = "u"\n[targets.both]\nrun = "u"\n')
    write(place, '[targets.both]\nrun = "p"\n', "assay.toml")
    assert load(place, "mine").options["run"] == "u"
    assert load(place, "mine").options["folder"] == str(place / "home/.config/assay")
    assert load(place, "both").options["run"] == "p"


def test_a_pyproject_that_only_names_targets_is_ours(place):
    write(place, '[project]\nname = "x"\n[tool.assay.targets.sim]\nrun = "x"\n')
    assert load(place, "sim").options["run"] == "x"


def test_values_are_json_like(place):
    write(place, '[tool.assay.targets.sim]\nrun = "x"\nenv = {DAY = 2020-01-02, N = 3}\n')
    assert load(place, "sim").options["env"] == {"DAY": "2020-01-02", "N": 3}


def test_every_option_of_a_back_end_can_be_given():
    assert set(COMMAND_OPTIONS) | set(BOARD_OPTIONS) <= {*KEYS, "folder"}


# ---------------------------------------------------------------- boards


def test_a_target_on_a_board(place):
    target = build_board_target(load(place, "torq"), "root@b", port=2222)
    assert (target.name, target.backend) == ("torq", "ssh")
    assert (target.options["address"], target.options["port"], "key" in target.options) == ("root@b", 2222, False)


def test_what_runs_in_process_has_no_board(place):
    with pytest.raises(UsageError, match="the target ort runs in this machine"):
        build_board_target(load(place, "ort"), "root@b")


def test_not_found_is_a_usage_error(place):
    with pytest.raises(NotFoundError):
        load(place, "nothing-like-it")


# ---------------------------------------------------------------- chips


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


def test_without_an_option_and_files_it_is_the_default(tmp_path):
    assert choose_chips(None, str(tmp_path / "missing")) == ("default",)


def test_the_default_group_holds_where_nothing_is_requested(chips):
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


def test_the_default_chip_gives_the_compiler_nothing():
    assert name_chip({}) is None


def test_flags_of_a_chip():
    assert read_flags({"compile_flags": ["-a", "b"]}, "compile_flags") == ("-a", "b")
    assert read_flags({}, "run_flags") == ()
    for wrong in ("-a", [1]):
        with pytest.raises(UsageError, match="list of texts"):
            read_flags({"run_flags": wrong}, "run_flags")

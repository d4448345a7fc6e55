"""Targets by name: built in, from settings files, and one like another."""

from __future__ import annotations

import json

import pytest

from assay.config.settings import load_settings
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.backends.command import OPTIONS as COMMAND_OPTIONS
from assay.models.backends.registry import build_backend
from assay.models.backends.ssh import BOARD_OPTIONS
from assay.models.config.targets import KEYS, build_board_target, list_targets, load_target
from assay.models.values.model import Step, Target
from assay.values.plain import build_plain, parse_plain


@pytest.fixture
def place(tmp_path):
    (tmp_path / "home/.config/assay").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path


def load(place, text):
    return load_target(text, str(place / "project"), {"HOME": str(place / "home")})


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
    settings = load_settings(str(place / "project"), {"HOME": str(place / "home")})
    assert {"mine", "both", "ort", "torq"} <= set(list_targets(settings))


def test_a_pyproject_that_only_names_targets_is_ours(place):
    write(place, '[project]\nname = "x"\n[tool.assay.targets.sim]\nrun = "x"\n')
    assert load(place, "sim").options["run"] == "x"


def test_values_are_json_like(place):
    write(place, '[tool.assay.targets.sim]\nrun = "x"\nenv = {DAY = 2020-01-02, N = 3}\n')
    assert load(place, "sim").options["env"] == {"DAY": "2020-01-02", "N": 3}


def test_every_option_of_a_back_end_can_be_said():
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

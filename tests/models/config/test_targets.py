"""Targets by name: built in, from settings files, and one like another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.config.settings import load_settings
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.models.backends.registry import build_backend
from assay.models.config.targets import choose_chips, load_chip, name_chip, parse_target, read_flags
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


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ortt", "did you mean 'ort'"),
        ("iree:vmx", "did you mean 'vmvx'"),
        ("ort:fast", "known: unoptimized"),
        ("", "known"),
    ],
)
def test_an_unknown_target_gets_a_suggestion(place, name, hint):
    with pytest.raises(UsageError) as caught:
        load(place, name)
    assert isinstance(caught.value, NotFoundError) or ":" in name
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('runn = "x"', ["3:1 targets.sim.runn: unknown setting\n    did you mean 'run'"]),
        ('address = "b"\n  port = true', ["4:10 targets.sim.port: must be a whole number, not True"]),
        ("run = 3", ["3:7 targets.sim.run: must be a string or a list"]),
        ('env = "A=1"', ["3:7 targets.sim.env: must be a table"]),
        ("compile_flags = [1]", ["3:17 targets.sim.compile_flags: must be a string or a list of strings"]),
        ("backend = 3", ["3:11 targets.sim.backend: must be a string"]),
        ('like = "nobody"', ["3:8 targets.sim.like: there is no target 'nobody'"]),
        ('like = "sim"', ["3:8 targets.sim.like: the targets sim are like each other"]),
        ('like = "b"\n[tool.assay.targets.b]\nlike = "sim"', ["5:8 targets.b.like: the targets sim and b are like"]),
        ('backend = "reference"\nthreads = 2', ["4:11 targets.sim.threads: the reference back end has no such option"]),
        ('run = "x"\noptimize = "all"', ["4:12 targets.sim.optimize: the command back end has no such option"]),
        (  # all at once: an unknown key, a wrong base and an option of another back end
            'backend = "ort"\nlike = "nobody"\nrunn = 1\nchip = "x"',
            ["4:8 targets.sim.like", "5:1 targets.sim.runn", "6:8 targets.sim.chip: the ort back end has no such"],
        ),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_place(place, lines, found):
    write(place, f"[project]\n[tool.assay.targets.sim]\n{lines}\n")
    with pytest.raises(ConfigError) as caught:
        load(place, "sim")
    assert len(caught.value.problems) == len(found)
    assert all(f"pyproject.toml:{each}" in str(caught.value) for each in found)


@pytest.mark.parametrize("text", ["[tool.assay]\ntargets = 3\n", '[tool.assay.targets]\nsim = "x"\n'])
def test_targets_that_are_no_table(place, text):
    write(place, text)
    with pytest.raises(ConfigError, match=r"pyproject.toml:2:\d+ targets.*: must be a table"):
        load(place, "sim")


@pytest.mark.parametrize(
    ("name", "backend", "option"),
    [
        ("ort", "ort", None),
        ("ort:unoptimized", "ort", ("optimize", "none")),
        ("reference", "reference", None),
        ("openvino", "openvino", None),
        ("iree", "iree", ("device", "llvm-cpu")),
        ("iree:vmvx", "iree", ("device", "vmvx")),
        ("torq", "command", ("hardware", "sim")),
    ],
)
def test_built_in_targets_travel(place, name, backend, option):
    target = load(place, name)
    assert (target.name, target.backend) == (name, backend)
    assert option is None or target.options[option[0]] == option[1]
    again = parse_plain(Target, json.loads(json.dumps(build_plain(target))))
    assert build_backend(again).steps == build_backend(target).steps
    if name == "torq":
        assert build_backend(target).steps == (Step.IMPORT, Step.COMPILE, Step.RUN)


def test_a_command_of_a_project(place):
    """In a pyproject.toml that has nothing else of ours."""
    table = 'compile = "cc {model} -o {artifact}"\nrun = ["run", "{artifact}"]\nchip = "x1"\nenv = {DAY = 2020-01-02}\n'
    write(place, f'[project]\nname = "x"\n[tool.assay.targets.sim]\n{table}')
    target = load(place, "sim")
    assert (target.name, target.backend) == ("sim", "command")
    assert target.options == {
        "compile": "cc {model} -o {artifact}",
        "run": ["run", "{artifact}"],
        "chip": "x1",
        "env": {"DAY": "2020-01-02"},
        "folder": str(place / "project"),
    }
    assert build_backend(target).steps == (Step.COMPILE, Step.RUN)


def test_a_target_like_another_changes_what_it_says_and_adds_to_its_flags(place):
    write(
        place,
        '[tool.assay.targets.torq]\nchip = "SL2610"\ncompile_flags = "--a \'b c\'"\nrun_flags = ["--d"]\n'
        '[tool.assay.targets.board]\nlike = "torq"\naddress = "root@10.0.0.1"\nport = 2222\ncompile_flags = ["--y"]\n',
    )
    target = load(place, "torq")
    assert (target.options["chip"], target.options["input"]) == ("SL2610", "mlir")
    assert (target.compile_flags, target.run_flags) == (("--a", "b c"), ("--d",))
    board = load(place, "board")
    assert (board.name, board.backend, board.compile_flags) == ("board", "ssh", ("--a", "b c", "--y"))
    assert [board.options[name] for name in ("address", "port", "hardware")] == ["root@10.0.0.1", 2222, "sim"]
    build_backend(board)


def test_a_project_adds_to_the_users_targets(place):
    (place / "home/.config/assay/config.toml").write_text('[targets.mine]\nrun = "u"\n[targets.both]\nrun = "u"\n')
    write(place, '[targets.both]\nrun = "p"\n', "assay.toml")
    assert load(place, "mine").options == {"run": "u", "folder": str(place / "home/.config/assay")}
    assert load(place, "both").options["run"] == "p"


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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, ("default",)),
        ("sl2610-v2, abc,sl2610-v2", ("sl2610-v2", "abc")),
        ("both", ("sl2610-v1", "abc")),
        ("both.group", ("sl2610-v1", "abc")),
        ("all", ("sl2610-v2",)),  # the newest of each kind, by its own name
    ],
)
def test_chips_are_chosen_by_name_and_group(chips, text, names):
    assert choose_chips(text, str(chips)) == names


def test_chips_without_a_newest_and_with_a_default_group(chips):
    (chips / "sl2610-latest.json").unlink()
    assert choose_chips("all", str(chips)) == ("abc", "sl2610-v1", "sl2610-v2")
    (chips / "default.group").write_text("sl2610-v1\n")
    assert choose_chips(None, str(chips)) == choose_chips("default", str(chips)) == ("sl2610-v1",)
    assert choose_chips(None, str(chips / "missing")) == ("default",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc,sl2610-v3", "no chip named 'sl2610-v3'\n  did you mean 'sl2610-v2'"),
        ("odd", "chip (of odd.group) named 'abd'\n  did you mean 'abc'"),
        ("none", "does not name a chip"),
        (" , ", "which chips"),
    ],
)
def test_chips_that_are_not_there_are_refused(chips, text, message):
    (chips / "odd.group").write_text("abd\n")
    (chips / "none.group").write_text("# nobody\n")
    with pytest.raises(UsageError) as caught:
        choose_chips(text, str(chips))
    assert message in caught.value.render()


@pytest.mark.parametrize("text", ["all", "x"])
def test_a_folder_without_chips_is_named(tmp_path, text):
    with pytest.raises(UsageError) as caught:
        choose_chips(text, str(tmp_path))
    assert f"there are no chips in {tmp_path}" in caught.value.render()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"{", "broken JSON"), (b"[]", "is not a chip"), (b'{"target": 3}', "is not a chip"), (b"\xff", "cannot be read")],
)
def test_a_broken_chip_is_refused(chips, content, complaint):
    (chips / "abc.json").write_bytes(content)
    with pytest.raises(UsageError, match=complaint):
        load_chip("abc", str(chips))


def test_a_chip_is_what_its_file_says(chips):
    assert load_chip("abc", str(chips)) == {"target": "ABC"}
    assert load_chip("default", str(chips)) == {}
    (chips / "default.json").write_text('{"target": "D"}')
    assert name_chip(load_chip("default", str(chips))) == "D"
    assert name_chip({}) is None, "the compiler gets nothing"
    custom = {"slice_count": 2, "lram_size": 512, "hw_id": 7, "nss_features": "a", "css_features": "b"}
    assert name_chip({"target": "custom", **custom}) == "7:512:2:b:a", "in the compiler's order"
    assert name_chip({"target": "custom", "hw_id": 1, "cpu": "x"}) == "1::::::::x"


def test_flags_of_a_chip():
    assert read_flags({"compile_flags": ["-a", "b"]}, "compile_flags") == ("-a", "b")
    assert read_flags({}, "run_flags") == ()
    for wrong in ("-a", [1]):
        with pytest.raises(UsageError, match="list of texts"):
            read_flags({"run_flags": wrong}, "run_flags")

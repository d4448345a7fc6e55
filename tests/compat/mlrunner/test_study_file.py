"""mlrunner's params.yaml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compat.mlrunner.test_command import PARAMS, TASKS

from assay.config.load import LoadOptions, load_study
from assay.errors import ConfigError, ExitCode
from assay.plan.expand import build_plan, select
from assay.values.layout import fill_reference
from assay.values.run import Plan
from assay.values.study import OUTPUT_REFERENCE, Study, UnusedParameter


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, text: str, file: str = "params.yaml") -> Study:
        (self.folder / file).write_text(text)
        return load_study(file, LoadOptions(cwd=str(self.folder), home=str(self.folder)))

    def plan(self, text: str, **selection: object) -> Plan:
        return build_plan(select(self.load(text), **selection))

    def commands(self, text: str, **selection: object) -> list[str]:
        """What would run this time."""
        runs = self.plan(text, **selection).runs
        return [c.text for run in runs for c in run.commands if run.chosen is None or c.name in run.chosen]

    def problems(self, text: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(text)
        assert caught.value.exit_code is ExitCode.USAGE
        return caught.value.message


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def one(template: str, params: str = "", head: str = "") -> str:
    """A file with a single command."""
    return f"template:\n  train: {template}\nresource: [0]\n{head}\n---\n{params}\n"


README = f"\n{PARAMS}\n"


def test_the_documents_example(project):
    plan = project.plan(README)
    assert [run.name for run in plan.runs] == TASKS
    assert plan.links == (("Norm_batch-EaStop_F", "Norm_batch-Moment_0.1"),)
    assert sum(len(run.commands) for run in plan.runs) == 15
    train, avg, _ = plan.runs[0].commands
    assert [command.name for command in plan.runs[0].commands] == ["train", "avg", "test"]
    assert fill_reference(train.text, OUTPUT_REFERENCE, "output/Norm_new-Moment_0.1") == (
        "python train.py data-bin/iwslt14 --seed 1 --save-dir output/Norm_new-Moment_0.1 "
        "--tensorboard-logdir output/Norm_new-Moment_0.1 --max-epochs 80 --normalization new --moment 0.1"
    )
    assert fill_reference(avg.text, OUTPUT_REFERENCE, "o").endswith("--output o/averaged_model.pt")
    assert "--early-stop" in plan.runs[4].commands[0].text
    assert plan.runs[4].params == {"data": "iwslt14", "norm": "batch", "moment": 0.1, "early-stop": True}
    assert plan.warnings == ()
    assert {run.log_name for run in plan.runs} == {"log.{command}.{time}"}
    study = project.load(README)
    assert (study.name, study.dialect, study.root, study.slots) == ("params", "mlrunner", None, ("0", "1", "2", "3"))
    assert study.code.kind == "live"
    assert study.folder == str(project.folder)
    assert study.defaults == {"data": "iwslt14", "norm": "batch", "moment": 0.1, "early-stop": False}
    assert [sweep.named for sweep in study.sweeps] == [("norm", "moment"), ("norm", "early-stop")]


def test_resources(project):
    study = project.load("template: {a: b}\nresource: [0, '1,2', 0, [3, 4], '5, 6']\n")
    assert study.slots == ("0", "1,2", "0", "3,4", "5,6"), "numbers or lists, which may repeat"
    study = project.load("template: {a: b}\n")
    assert study.slots is None
    assert "there is no resource" in str(study.warnings[0])


# ---------------------------------------------------------------- templates


def test_values_in_places_and_flags(project):
    values = {
        "1": ("1", "--p 1"),
        "0.5": ("0.5", "--p 0.5"),
        "1e-4": ("1e-4", "--p 1e-4"),
        "0.00001": ("1e-05", "--p 1e-05"),
        "abc": ("abc", "--p abc"),
        "'a b'": ("'a b'", "--p 'a b'"),
        '"it\'s"': ("'it'\"'\"'s'", "--p 'it'\"'\"'s'"),
        "'$HOME'": ("'$HOME'", "--p '$HOME'"),
        "''": ("''", "--p ''"),
        "true": ("True", "--p"),
        "false": ("False", ""),
        "[[1, 2]]": ("1 2", "--p 1 2"),
    }
    for value, (place, flag) in values.items():
        assert project.commands(one("run {p} end", f"p: {value}")) == [f"run {place} end"]
        assert project.commands(one("run [p] end", f"p: {value}")) == [f"run {flag} end".replace("  ", " ")]


LINES = "template:\n  train: |\n    cd x &&\n      python a.py\n\n        {p}\nresource: [0]\n---\np: 1\n"
COMMANDS = {
    "null leaves the flag out": (one("run [p]", "p: [null, 1]"), ["run", "run --p 1"]),
    "lists as values, B27": (one("run [p]", "p: [[1, 2], [3, 4]]"), ["run --p 1 2", "run --p 3 4"]),
    "shell variables and indices are left to the shell, B26": (
        one("'echo ${HOME} ${X:-none} ${l[0]} x[0] [0] {1..3} [ -f {p} ] $(( a[1] ))'", "p: 1"),
        ["echo ${HOME} ${X:-none} ${l[0]} x[0] [0] {1..3} [ -f 1 ] $(( a[1] ))"],
    ),
    "a literal can be said": (one("'echo {{p}} [[p]] {p}'", "p: 1"), ["echo {p} [p] 1"]),
    "a dotted name is no place": (one("'echo {a.b} [a.b] {p}'", "p: 1"), ["echo {a.b} [a.b] 1"]),
    "line breaks become spaces": (LINES, ["cd x && python a.py 1"]),
    "both forms": ("template:\n  a: run {p}\n  b: run [p]\nresource: [0]\n---\np: 1\n", ["run 1", "run --p 1"]),
    "a command that no document runs may lack values": (
        "template:\n  train: run {p}\n  test: run {ckpt}\nresource: [0]\n---\n_cmd: train\np: 1\n",
        ["run 1"],
    ),
    "no choice is all": ("template: {a: x, b: y}\nresource: [0]\n---\n_cmd: []\n---\n_cmd: null\n", ["x", "y"]),
    "numbers may be cases": (
        one("run [x]", "size: [1, 2]", "alias: {size: {1: {x: 10}, 2: {x: 20}}}"),
        ["run --x 10", "run --x 20"],
    ),
    "a file without documents": ("template: {a: 'x {p}'}\nresource: [0]\ndefault: {p: 7}\n", ["x 7"]),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_file_becomes_these_commands(project, case):
    text, expected = COMMANDS[case]
    assert project.commands(text) == expected


def test_the_runs_own_values(project):
    """A place inside quotes stays one word."""
    own = {"ASSAY_OUTPUT": "/o/a b", "ASSAY_RUN_NAME": "P_1", "ASSAY_TIME": "20220316.030151"}
    texts = {
        one("printf '<%s>' {_output}/x {_name} {_time} '{p}'", "p: 1"): "</o/a b/x><P_1><20220316.030151><1>",
        one("\"printf '<%s>' 'x {p}' \\\"y {p}\\\"\"", 'p: "it\'s $HOME"'): "<x it's $HOME><y it's $HOME>",
    }
    for text, shown in texts.items():
        (command,) = project.commands(text)
        done = subprocess.run(["bash", "-c", command], env=own, capture_output=True, text=True, check=True)
        assert done.stdout == shown


ALIAS = """
template:
  train: run [enc] [dec] [lr]
resource: [0]
alias:
  arch:
    pre: {enc: true, dec: 1}
    post: {enc: false, dec: 2}
default: {enc: false, dec: 0, lr: 1}
---
arch: [pre, post]
lr: 3
---
lr: 4
"""

# of another shape than expected
RESERVED = ("_output", "_name", "_time", "_scripts")
TEMPLATES = ("3", "[a]", "text", "{}", "{train: [a]}", "{train: null}", "{train: ''}")
ALIASES = ("3", "{}", "{a: {}}", "{a: [x, y]}", "{a: {b: 1}}", "{a: {b: {}}}")
RESOURCES = ("[]", "3", "[null]", "[true]")
REFUSED = {
    "both forms": (one("run {p} [p]", "p: 1"), "params.yaml:2:10 template.train: p is here as {p} and as [p]"),
    "an alias in a template": (
        one("run {arch} [x]", "arch: a", "alias: {arch: {a: {x: 1}}}"),
        "template.train: arch is an alias",
        "use x here",
    ),
    "a place without a value": (
        one("run {data} [moment]", "dat: 1\nx: 2"),
        "params.yaml:2:10 template.train: data has no value",
        "did you mean 'dat'?\n    give it a value",
        "moment has no value",
    ),
    "an unclosed quote": (one('"run \'{p}"', "p: 1"), "never closed"),
    "a name for no log": ("template: {'a/b': run}\nresource: [0]\n", "cannot name a command"),
    "an unknown command": (
        "template: {train: t}\nresource: [0]\n---\n_cmd: trian\np: 1\n",
        "_cmd: there is no command 'trian'",
        "did you mean 'train'?",
    ),
    "an empty list": (one("x [p]", "p: []"), "params.yaml:6:4 p: the list of values is empty"),
    "an unknown key": (
        "template: {a: x}\nresource: [0]\ndefaults: {p: 1}\n",
        "defaults: unknown key",
        "did you mean 'default'?",
    ),
    "a reserved default": (one("x", "p: 1", "default: {_output: x}"), "default._output"),
    "cases of an alias that set different parameters": (
        ALIAS.replace("post: {enc: false, dec: 2}", "post: {enc: false}"),
        "alias.arch.post: this case sets other parameters than the first",
        "every case sets enc, dec",
    ),
    "a case that an alias does not have": (
        ALIAS.replace("arch: [pre, post]", "arch: [pre, pos]"),
        "arch: the alias has no case 'pos'",
        "did you mean 'post'?",
    ),
    **{f"{name} as a parameter": (one("x", f"{name}: 1"), f"{name}: this name is taken") for name in RESERVED},
    **{f"template: {text}": (f"template: {text}\nresource: [0]\n", "template") for text in TEMPLATES},
    **{f"alias: {text}": (f"template: {{a: x}}\nresource: [0]\nalias: {text}\n", "alias") for text in ALIASES},
    **{f"resource: {text}": (f"template: {{a: b}}\nresource: {text}\n", "resource") for text in RESOURCES},
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_its_position_and_a_hint(project, case):
    text, *expected = REFUSED[case]
    message = project.problems(text)
    assert all(words in message for words in expected), message


@pytest.mark.parametrize(("form", "text"), [("{p}", "run 1"), ("[p]", "run --p 1")])
def test_a_document_that_lacks_a_value_is_refused_when_it_runs(project, form, text):
    file = f"template:\n  train: run {form}\nresource: [0]\n---\n_title: a\np: 1\n---\n_title: b\nq: 1\n"
    assert project.commands(file, titles=["a"]) == [text]
    with pytest.raises(ConfigError, match=r"params\.yaml:2:10 .*p has no value"):
        project.plan(file)


# ---------------------------------------------------------------- documents


def test_titles_and_commands(project):
    text = """
template: {train: 't {p}', avg: a, test: 'e {p}'}
resource: [0]
---
_title: one
_cmd: [test, train]
p: [1, 2]
---
_title: one
_cmd: avg
p: 3
---
_title: two
p: 4
"""
    study = project.load(text)
    assert [sweep.title for sweep in study.sweeps] == ["one", "one", "two"]
    assert [sweep.commands for sweep in study.sweeps] == [("train", "test"), ("avg",), None]
    assert project.commands(text, titles=["one"]) == ["t 1", "e 1", "t 2", "e 2", "a"]
    assert [run.name for run in project.plan(text).runs] == ["P_1", "P_2", "P_3", "P_4"]
    # documents that share their parameters share their directory
    text = "template: {train: 't {p}', test: 'e {p}'}\nresource: [0]\n---\n_cmd: train\np: 1\n---\n_cmd: test\np: 1\n"
    plan = project.plan(text)
    assert [(run.name, [command.name for command in run.commands]) for run in plan.runs] == [("P_1", ["train", "test"])]
    assert plan.links == ()


def test_empty_documents_and_duplicate_keys_are_warnings(project):
    """B29"""
    study = project.load("---\n---\ntemplate: {a: 'x {p}'}\nresource: [0]\n---\n---\np: 1\n---\n")
    assert len(study.sweeps) == 1
    said = [str(warning) for warning in study.warnings]
    assert len(said) == 3
    assert all("this document is empty" in text for text in said)
    (warning,) = project.load(one("x [p]", "p: 1\np: 2")).warnings
    assert "this key is here twice" in str(warning)


def test_what_names_a_directory(project):
    without = "template: {a: x, b: y}\nresource: [0]\n---\n_title: t\n---\n_title: u\n"
    texts = {without: ["default"], one("x [p]", "p: [1, 1]"): ["P_1"], one("x {p}", "p: 1\nseed: 5"): ["P_1-Seed_5"]}
    assert {text: [run.name for run in project.plan(text).runs] for text in texts} == texts
    assert [warning.key for warning in project.plan(one("x {p}", "p: 1\nseed: 5")).warnings] == ["seed"], "an orphan"


def test_a_sample_of_mixed_types_works(project):
    """B28"""
    assert len(project.plan(one("x [p] [q]", "p: [1, a, 2.5, null]\nq: [true, 3]"), sample=3, seed=1).runs) == 3


# ---------------------------------------------------------------- aliases


def test_an_alias_names_the_directory_and_gives_way_to_what_it_stands_for(project):
    plan = project.plan(ALIAS)
    assert [(run.name, run.commands[0].text) for run in plan.runs] == [
        ("Arch_pre-Lr_3", "run --enc --dec 1 --lr 3"),
        ("Arch_post-Lr_3", "run --dec 2 --lr 3"),
        ("Lr_4", "run --dec 0 --lr 4"),
    ]
    assert "arch" not in plan.runs[0].params


def test_an_alias_among_the_defaults_changes_no_command(project):
    """As in mlrunner: defaults fill what is missing after aliases have given way."""
    head = "template: {a: 'run [enc] [dec]'}\nresource: [0]\nalias: {arch: {pre: {enc: 1, dec: 1}}}\n"
    text = f"{head}default: {{arch: pre, enc: 0, dec: 0}}\n---\nenc: [9, 8]\n"
    assert project.commands(text) == ["run --enc 9 --dec 0", "run --enc 8 --dec 0"]
    plan = project.plan(text)
    assert plan.runs[0].params["arch"] == "pre"
    assert [problem.key for problem in plan.warnings if isinstance(problem, UnusedParameter)] == ["arch"]
    with pytest.raises(ConfigError, match="dec"):  # nothing else gives it a value
        project.plan(text.replace(", dec: 0", ""))


def test_defaults_that_no_command_uses_are_orphans(project):
    text = "template: {a: 'run [x]', b: 'test [y]'}\nresource: [0]\ndefault: {x: 1, y: 2, z: 3}\n"
    plan = project.plan(f"{text}---\n_cmd: a\nx: [1, 2]\n---\n_cmd: b\ny: [5]\n")
    assert [problem.key for problem in plan.warnings if isinstance(problem, UnusedParameter)] == ["z"]


def test_every_problem_is_said_at_once(project):
    message = project.problems("template: {a: 'x {p} [p]'}\nresource: []\nalias: {q: 1}\n---\n_cmd: b\nz: []\n")
    assert len([line for line in message.splitlines() if line.startswith("params.yaml:")]) == 6

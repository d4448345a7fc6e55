"""runx's experiment files and their .runx."""

from __future__ import annotations

import itertools
import random
import re
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from assay.config.load import LoadOptions, load_study
from assay.errors import ConfigError, ExitCode, UsageError
from assay.plan.expand import NameSource, build_plan
from assay.values.layout import show_command
from assay.values.run import Plan
from assay.values.study import Study


class Project:
    """A folder in which runx would be called, and a home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        (self.home / ".config").mkdir(parents=True)
        self.folder.mkdir()

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def load(self, text: str, runx: str | None = None, file: str = "sweep.yml", **options: str) -> Study:
        if runx is not None:
            self.write(".runx", runx)
        self.write(file, text)
        return load_study(file, LoadOptions(cwd=str(self.folder), home=str(self.home), **options))

    def plan(self, text: str, runx: str | None = None, **options: str) -> Plan:
        names = NameSource(random.Random(1), datetime(2020, 2, 6, 14, 19))  # noqa: DTZ001
        return build_plan(self.load(text, runx, **options), names)

    def commands(self, text: str, runx: str | None = None) -> list[str]:
        """What runx would print, with /logs/NAME for the directories."""
        return [show_command(run.commands[0].text, "/logs/run") for run in self.plan(text, runx).runs]

    def problems(self, text: str, runx: str | None = None, **options: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(text, runx, **options)
        assert caught.value.exit_code is ExitCode.USAGE
        return caught.value.message

    def farm_problems(self, text: str, runx: str, **options: str) -> str:
        """What is wrong with the farm that would be submitted to; the file itself is read."""
        study = self.load(text, runx, **options)
        assert study.farm is not None
        return "\n".join(map(str, study.farms[study.farm].problems))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def tags(plan: Plan) -> list[str | None]:
    return [run.tag for run in plan.runs]


# ---------------------------------------------------------------- the document's examples

INTRO = """
CMD: 'python train.py'

HPARAMS:
  lr: [0.01, 0.02]
  solver: ['sgd', 'adam']
"""


def test_the_intro_works_without_a_runx_file(project):
    assert project.commands(INTRO) == [
        "python train.py --lr 0.01 --solver sgd",
        "python train.py --lr 0.01 --solver adam",
        "python train.py --lr 0.02 --solver sgd",
        "python train.py --lr 0.02 --solver adam",
    ]
    study = project.load(INTRO)
    assert (study.name, study.dialect, study.root, study.farm) == ("sweep", "runx", None, None)
    assert study.folder == str(project.folder)
    assert [command.name for command in study.commands] == ["train"]
    assert study.warnings == ()


BIGFARM = """
LOGROOT: /home/logs
CODE_IGNORE_PATTERNS: '.git,*.pyc,docs*,test*'
FARM: bigfarm

# Farm resource needs
bigfarm:
    SUBMIT_CMD: 'submit_job'
    RESOURCES:
        image: mydocker-image-big:1.0
        gpu: 8
        cpu: 64
        mem: 450

smallfarm:
    SUBMIT_CMD: 'submit_small'
    RESOURCES:
        image: mydocker-image-small:1.2
        gpu: 4
"""


def test_the_documents_own_bigfarm_is_a_farm(project):
    """B2"""
    study = project.load(INTRO, BIGFARM)
    assert study.farm == "bigfarm"
    assert study.root == "/home/logs"
    assert list(study.farms) == ["bigfarm", "smallfarm"]
    farm = study.farms["bigfarm"]
    assert (farm.kind, farm.submit) == ("generic", "submit_job")
    assert farm.resources == (("image", "mydocker-image-big:1.0"), ("gpu", 8), ("cpu", 64), ("mem", 450))
    assert project.load(INTRO, BIGFARM, farm="smallfarm").farm == "smallfarm", "the command line wins"
    study = project.load(INTRO, "logroot: /old\nFARM: farm\nfarm: {SUBMIT_CMD: bash, RESOURCES: {}}\n")
    assert (study.farm, study.root) == ("farm", "/old"), "a farm may be called farm"
    assert (study.farms["farm"].submit, study.farms["farm"].resources) == ("bash", ())


NGC = """
LOGROOT: /path/to/logroot

FARM: ngc

ngc:
    NGC_LOGROOT: /path/to/ngc_logroot
    WORKSPACE: my_workspace
    SUBMIT_CMD: 'ngc batch run'
    RESOURCES:
       image: nvidian/pytorch:19.10-py3
       instance: dgx1v.16g.1.norm
       ace: nv-us-west-2
       result: /result
"""


def test_the_documents_ngc_file(project):
    farm = project.load(INTRO, NGC).farms["ngc"]
    assert (farm.kind, farm.submit, farm.workspace) == ("ngc", "ngc batch run", "my_workspace")
    assert farm.remote_root == "/path/to/ngc_logroot"
    assert farm.resources[0] == ("image", "nvidian/pytorch:19.10-py3")


INHERITANCE = """
PYTHONPATH: LOGDIR/code:LOGDIR/code/lib
CMD: "python train.py"

HPARAMS: [
  {
   logdir: LOGDIR,
   adam: true,
   arch: alexnet,
   lr: [0.01, 0.02],
   epochs: 10,
   RUNX.TAG: 'alexnet',
  },
  {
   arch: resnet50,
   lr: [0.002, 0.005],
   RUNX.TAG: 'resnet50',
  },
  {
   RUNX.SKIP: true,
   arch: resnet50,
   lr: [0.002, 0.005],
   RUNX.TAG: 'resnet50',
  }
]
"""


def test_the_documents_list_inherits_from_its_first_item(project):
    assert project.commands(INHERITANCE) == [
        "python train.py --logdir /logs/run --adam --arch alexnet --lr 0.01 --epochs 10",
        "python train.py --logdir /logs/run --adam --arch alexnet --lr 0.02 --epochs 10",
        "python train.py --logdir /logs/run --adam --arch resnet50 --lr 0.002 --epochs 10",
        "python train.py --logdir /logs/run --adam --arch resnet50 --lr 0.005 --epochs 10",
    ]
    plan = project.plan(INHERITANCE)
    assert tags(plan) == ["alexnet", "alexnet", "resnet50", "resnet50"]
    assert [run.name.split("_")[0] for run in plan.runs] == tags(plan)
    assert plan.study.pythonpath == "${ASSAY_RUN_DIR}/code:${ASSAY_RUN_DIR}/code/lib"


# ---------------------------------------------------------------- values


VALUES = {
    "true": " --k",
    "false": "",
    "[true, false]": " --k",
    "'True'": " --k True",
    "None": "",
    "'None'": "",
    "null": "",
    "~": "",
    "": "",
    "1e-4": " --k 1e-4",
    "1.0e-4": " --k 0.0001",
    "0.00001": " --k 1e-05",
    "1_000": " --k 1000",
    "010": " --k 8",
    "yes": " --k",
    "off": "",
    "2020-02-06": " --k 2020-02-06",
    "a b": " --k a b",
    "''": " --k",
    "[[1, 2]]": " --k [1, 2]",
    "[['a', 'b']]": " --k ['a', 'b']",
    "{a: 1}": " --k {'a': 1}",
    "0": " --k 0",
    "0.0": " --k 0.0",
    "[[]]": " --k []",
    ".5": " --k 0.5",
    "1.50": " --k 1.5",
    "0x1F": " --k 31",
    "1:30": " --k 90",
}


def test_values_reach_the_command_as_runx_writes_them(project):
    found = {value: project.commands(f"CMD: run\nHPARAMS:\n  k: {value}\n  z: 1\n")[0] for value in VALUES}
    assert {value: re.sub(" +", " ", each) for value, each in found.items()} == {
        value: f"run{flag} --z 1" for value, flag in VALUES.items()
    }


A_124 = ["run --a 1", "run --a 2", "run --a 4"]
COMMANDS = {
    "a tag that does not fit": (
        "CMD: run\nHPARAMS: {a: !!int '', b: !!bool x, c: !!binary é}\n",
        ["run --a --b x --c é"],
    ),
    "null leaves the flag out, B11": ("CMD: run\nHPARAMS: {a: null, b: [null, 1]}\n", ["run", "run --b 1"]),
    "a block text does not cut the command": (
        "CMD: >\n  python train.py\nHPARAMS:\n  k: |\n    a\n    b\n  z: 1\n",
        ["python train.py --k a b --z 1"],
    ),
    "inner lists are swept whole": ("CMD: run\nHPARAMS: {k: [[1, 2], [3, 4]]}\n", ["run --k [1, 2]", "run --k [3, 4]"]),
    "a command that ends in a quote stays apart from its flags": (
        "CMD: python 'my train.py'\nHPARAMS: {lr: 1}\n",
        ["python 'my train.py' --lr 1"],
    ),
    "a list of one item": ("CMD: run\nHPARAMS: [{lr: [1, 2], RUNX.TAG: x}]\n", ["run --lr 1", "run --lr 2"]),
    "comma joined texts stay whole": ("CMD: run\nHPARAMS: {scales: '0.5,1.0,2.0'}\n", ["run --scales 0.5,1.0,2.0"]),
    "a command with an environment in front": (
        "CMD: CUDA_VISIBLE_DEVICES=0 python main.py\nHPARAMS: {lr: 0.1}\n",
        ["CUDA_VISIBLE_DEVICES=0 python main.py --lr 0.1"],
    ),
    "values that carry further flags": (
        "CMD: run\nHPARAMS: {config: 'a.py --config.x --config.y v'}\n",
        ["run --config a.py --config.x --config.y v"],
    ),
    "dotted keys are flags like others": ("CMD: run\nHPARAMS: {model.depth: 2}\n", ["run --model.depth 2"]),
    "none inside a list": ("CMD: run\nHPARAMS: {k: [None], j: [None, 3]}\n", ["run", "run --j 3"]),
    "the older lower case spelling, B13": (
        "cmd: python main.py\nhparams:\n  lr: [1, 2]\n",
        ["python main.py --lr 1", "python main.py --lr 2"],
    ),
    "upper case wins over the older spelling": ("cmd: old\nCMD: new\nHPARAMS: {}\n", ["new"]),
    "no hparams": ("CMD: run\nHPARAMS:\n", ["run"]),
    "inherited keys keep their place and new ones follow": (
        "CMD: run\nHPARAMS: [{a: 1, b: 2}, {c: 3, a: 9}]\n",
        ["run --a 1 --b 2", "run --a 9 --b 2 --c 3"],
    ),
    "a list in an item replaces the inherited one": ("CMD: run\nHPARAMS: [{a: [1, 2]}, {a: [4]}]\n", A_124),
    "anchors and merge keys": ("base: &b {lr: 1, bs: 2}\nCMD: run\nHPARAMS: {<<: *b, lr: 3}\n", ["run --lr 3 --bs 2"]),
    "a skip that says no": (
        "CMD: run\nHPARAMS: [{a: 1, RUNX.SKIP: 0}, {RUNX.SKIP: None}, {RUNX.SKIP: null}, {RUNX.SKIP: ''}]\n",
        ["run --a 1"] * 4,
    ),
    "a skipped first item is a template for the others, B9": (
        "CMD: run\nHPARAMS: [{a: 1, b: 2, RUNX.SKIP: true}, {a: 3}, {a: 4, RUNX.SKIP: yes}, {a: 5, RUNX.SKIP: false}]\n",
        ["run --a 3 --b 2", "run --a 5 --b 2"],
    ),
    "a list of what is skipped is swept like any other": (
        "CMD: run\nHPARAMS: [{a: 1, RUNX.SKIP: [false, false]}, {a: 2, RUNX.SKIP: [true, false]}]\n",
        ["run --a 1", "run --a 1", "run --a 2"],
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_file_becomes_these_commands(project, case):
    text, expected = COMMANDS[case]
    assert project.commands(text) == expected


# ---------------------------------------------------------------- configurations as they are found in the wild


def test_a_value_listed_twice_is_two_runs(project):
    plan = project.plan("CMD: run\nHPARAMS: [{bs: [48, 48, 64]}, {bs: 48}]\n")
    assert [run.commands[0].text for run in plan.runs] == [f"run --bs {bs}" for bs in (48, 48, 64, 48)]
    assert [run.ordinal for run in plan.runs] == [0, 1, 0, 2]
    assert len({run.id for run in plan.runs}) == len({run.name for run in plan.runs}) == 4
    assert not plan.links
    assert not plan.warnings, "a script may want any parameter"


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["None", "a b", "1e-4", "x.y", "", "no"])
)
GRIDS = st.dictionaries(
    st.sampled_from(["lr", "bs", "model.depth", "a-b"]),
    st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), min_size=1, max_size=3)),
)


def expected_commands(hparams: dict) -> list[str]:
    """The rules of the reference page in their plainest form."""
    axes = [value if isinstance(value, list) else [value] for value in hparams.values()]
    rows = [dict(zip(hparams, row, strict=True)) for row in itertools.product(*axes)]
    kept = [{k: v for k, v in row.items() if v is not None and v is not False and v != "None"} for row in rows]
    return [" ".join(["run", *(f"--{k}" if v is True else f"--{k} {v}" for k, v in row.items())]) for row in kept]


@given(GRIDS)
def test_any_grid_expands_as_runx_expands_it(tmp_path_factory, hparams):
    text = yaml.safe_dump({"CMD": "run", "HPARAMS": hparams}, sort_keys=False)
    project = Project(tmp_path_factory.mktemp("grid"))
    expected = expected_commands(yaml.safe_load(text)["HPARAMS"])
    assert [command.split() for command in project.commands(text)] == [command.split() for command in expected]


# ---------------------------------------------------------------- inheritance, tags, skips


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        ("[{a: 1}, {a: 2, RUNX.TAG: two}, {a: 3}]", [None, "two", None]),
        ("[{a: 1, RUNX.TAG: base}, {a: 2, RUNX.TAG: two}, {a: 3}]", ["base", "two", "base"]),
        ("[{a: 1, RUNX.TAG: base}, {a: 2, RUNX.TAG: None}, {a: 3, RUNX.TAG: null}]", ["base", None, None]),
        ("{a: 1, RUNX.TAG: [x, y]}", ["x", "y"]),
        ("{'a.b': ['x\\1', '(y'], RUNX.TAG: '<{a.b}>'}", ["<x\\1>", "<(y>"]),
        ("{RUNX.TAG: 7}", ["7"]),
        ("{arch: [network.ocrnet.HRNet], RUNX.TAG: '{arch}'}", ["network.ocrnet.HRNet"]),
    ],
)
def test_tags_are_inherited_swept_and_filled_and_not_passed_on(project, hparams, expected):
    """B12: filled literally. B9: of the item that names it alone."""
    plan = project.plan(f"CMD: run\nHPARAMS: {hparams}\n")
    assert tags(plan) == expected
    assert not any("RUNX" in run.commands[0].text for run in plan.runs)
    assert all(run.name.startswith(f"{tag}_") for run, tag in zip(plan.runs, expected, strict=True) if tag)


def test_nodes_and_partition_are_for_the_farm(project):
    plan = project.plan("CMD: run\nHPARAMS: {lr: 1, SUBMIT_JOB.NODES: [1, 2], SUBMIT_JOB.PARTITION: batch}\n")
    assert [run.commands[0].text for run in plan.runs] == ["run --lr 1", "run --lr 1"]
    assert [dict(run.farm_resources) for run in plan.runs] == [{"nodes": n, "partition": "batch"} for n in (1, 2)]
    assert [dict(run.params) for run in plan.runs] == [{"lr": 1}] * 2


def test_logdir_is_the_run_directory_wherever_a_string_stands(project):
    text = "CMD: python LOGDIR/code/train.py\nHPARAMS: {out: LOGDIR/out, deep: [[LOGDIR, 1]], n: 3}\n"
    run = project.plan(text).runs[0]
    assert "LOGDIR" not in run.commands[0].text
    assert show_command(run.commands[0].text, "/l/r").startswith("python /l/r/code/train.py --out /l/r/out --deep [")
    assert run.params["out"] == "LOGDIR/out"


# ---------------------------------------------------------------- .runx


def test_which_file_counts(project):
    project.write("other.yml", "LOGROOT: /other\n")
    (project.home / ".config" / "runx.yml").write_text("LOGROOT: /from/home\n")
    assert project.load(INTRO).root == "/from/home"
    assert project.load(INTRO, "LOGROOT: /here\n").root == "/here"
    assert project.load(INTRO, "LOGROOT: /here\n", config_file="other.yml").root == "/other"
    assert project.load(f"LOGROOT: /mine\n{INTRO}", BIGFARM).root == "/mine"
    with pytest.raises(UsageError, match=r"there is no configuration file 'nofile'") as caught:
        project.load(INTRO, "LOGROOT: /here\n", config_file="nofile")
    assert caught.value.exit_code is ExitCode.USAGE
    for text in ("", "# nothing\n", "---\n", "\n\n"):
        assert project.load(INTRO, text).root is None
    assert project.problems(INTRO, "LOGROOT: [\n").startswith(".runx:1:10")


def test_a_relative_logroot_is_relative_to_the_file_that_names_it(project, monkeypatch):
    assert project.load(INTRO, "LOGROOT: logs\n").root == str(project.folder / "logs")
    assert project.load(INTRO, "LOGROOT: .\n").root == str(project.folder), "it may be inside the source tree"
    monkeypatch.setenv("SCRATCH", "/scratch")
    assert project.load(INTRO, "LOGROOT: ~/logs\n").root == str(project.home / "logs")
    assert project.load(INTRO, "LOGROOT: $SCRATCH/logs\n").root == "/scratch/logs"
    (project.folder / ".runx").unlink()
    study = project.load(f"LOGROOT: ../out\n{INTRO}", file="exps/sub/a.yml")
    assert (study.root, study.name) == (str(project.folder / "exps" / "out"), "a")
    (project.home / ".config" / "runx.yml").write_text("LOGROOT: logs\n")
    assert project.load(INTRO, exp_name="better").root == str(project.home / ".config" / "logs")
    assert project.load(INTRO, exp_name="better").name == "better"


def test_an_experiment_may_override_farm_resources_and_submit_command(project):
    study = project.load(f"RESOURCES: {{gpu: 1, exclusive: true}}\n{INTRO}", BIGFARM)
    assert study.farms["bigfarm"].resources == (("gpu", 1), ("exclusive", True))
    assert study.farms["bigfarm"].submit == "submit_job"
    study = project.load(f"FARM: smallfarm\nSUBMIT_CMD: other\n{INTRO}", BIGFARM)
    assert (study.farm, study.farms["smallfarm"].submit) == ("smallfarm", "other")
    study = project.load(f"FARM: here\nhere: {{SUBMIT_CMD: bash}}\n{INTRO}")
    assert study.farms["here"].submit == "bash", "a section of its own"


# ---------------------------------------------------------------- farms


def test_without_a_farm_runs_are_local(project):
    for text in ("LOGROOT: /l\n", "LOGROOT: /l\nFARM: null\n", "FARM: None\n", "FARM: ''\n"):
        study = project.load(INTRO, text)
        assert (study.farm, study.farms) == (None, {})
    study = project.load(INTRO, "SUBMIT_CMD: submit_job\nRESOURCES: {gpu: 1}\n")
    assert study.farm is None
    assert "nothing is submitted" in str(study.warnings[0])


def test_a_farm_that_names_no_section_is_an_error_with_a_suggestion(project):
    message = project.farm_problems(INTRO, BIGFARM.replace("FARM: bigfarm", "FARM: bigfram"))
    assert message.startswith(".runx:4:7 FARM: there is no farm 'bigfram'")
    assert "did you mean 'bigfarm'?" in message
    assert "--farm: there is no farm 'smalfarm'" in project.farm_problems(INTRO, BIGFARM, farm="smalfarm")
    assert "add a section `x:`" in project.farm_problems(INTRO, "FARM: x\n")


def test_the_kind_of_a_farm(project):
    names = {"ngc": "myngc2", "draco": "draco-rno", "generic": "cluster", "template": "cluster"}
    more = {"ngc": "NGC_LOGROOT: /n, WORKSPACE: w,", "template": "SUBMIT_TEMPLATE: 'qsub {script}',"}
    for kind, name in names.items():
        study = project.load(INTRO, f"FARM: {name}\n{name}: {{ {more.get(kind, '')} SUBMIT_CMD: submit_job }}\n")
        farm = study.farms[name]
        assert (farm.kind, farm.submit) == (kind, "qsub {script}" if kind == "template" else "submit_job")


def test_a_farm_without_a_submit_command_is_refused_where_it_is_used(project):
    runx = "FARM: {}\na: {{SUBMIT_CMD: x}}\nb: {{RESOURCES: {{gpu: 1}}}}\n"
    assert "the farm lacks SUBMIT_CMD" in project.farm_problems(INTRO, runx.format("b"))
    study = project.load(INTRO, runx.format("a"))
    assert study.farms["a"].problems == ()
    assert study.warnings == (), "nothing uses the other"
    message = project.farm_problems(INTRO, "FARM: ngc\nngc: {SUBMIT_CMD: ngc batch run}\n")
    assert "the farm lacks NGC_LOGROOT and WORKSPACE" in message
    pbs = "FARM: pbs\npbs: {SUBMIT_TEMPLATE: 'qsub {script}', CANCEL_CMD: 'qdel {id}'}\n"
    farm = project.load(INTRO, pbs).farms["pbs"]
    assert (farm.kind, farm.cancel, farm.problems) == ("template", "qdel {id}", ())


@pytest.mark.parametrize(
    "section", ["{SUBMIT_CMD: ''}", "{SUBMIT_CMD: [a, b]}", "{SUBMIT_CMD: x, RESOURCES: 3}", "{WORKSPACE: {}}"]
)
@pytest.mark.parametrize("name", ["f", "ngc", "draco"])
def test_a_farm_section_that_cannot_be_used_is_in_nobodys_way(project, section, name):
    runx = f"LOGROOT: logs\nFARM: {name}\n{name}: {section}\n"
    assert project.load(INTRO, runx).root == str(project.folder / "logs")
    problems = project.farm_problems(INTRO, runx)
    assert problems.startswith(".runx:"), "it is refused where it is submitted to"
    assert "RESOURCES" not in section or f"{name}.RESOURCES: must be a mapping" in problems


# ---------------------------------------------------------------- code and PYTHONPATH


def test_the_pythonpath_comes_from_the_nearest_place(project):
    assert project.load(INTRO).pythonpath == "${ASSAY_RUN_DIR}/code"
    assert project.load(INTRO, BIGFARM).pythonpath == "${ASSAY_RUN_DIR}/code"
    runx = "PYTHONPATH: /top\nFARM: f\nf: {SUBMIT_CMD: x, PYTHONPATH: /farm}\ng: {SUBMIT_CMD: y}\n"
    assert project.load(INTRO, runx).pythonpath == "/farm"
    assert project.load(INTRO, runx, farm="g").pythonpath == "/top"
    assert project.load(f"PYTHONPATH: LOGDIR/code:/lib\n{INTRO}", runx).pythonpath == "${ASSAY_RUN_DIR}/code:/lib"


def test_the_code_is_copied_without_checkpoints_and_ignored_patterns(project):
    code = project.load(INTRO).code
    assert (code.kind, code.link_ignored) == ("snapshot", False)
    assert code.ignore == (".git", "*.pyc", "docs*", "test*", "*.pth")
    assert project.load(INTRO, "CODE_IGNORE_PATTERNS: 'a*, b*'\n").code.ignore == ("a*", "b*", "*.pth")
    text = f"CODE_IGNORE_PATTERNS: [c, '*.pth']\n{INTRO}"
    assert project.load(text, "CODE_IGNORE_PATTERNS: 'a*, b*'\n").code.ignore == ("c", "*.pth")


# ---------------------------------------------------------------- what is refused


def test_every_problem_is_said_at_once_with_its_place(project):
    message = project.problems("CMD: [a]\nHPARAMS: {lr: [], x: 1}\nLOGROOT: {}\n")
    assert [line.split(":")[:3] for line in message.splitlines() if not line.startswith(" ")] == [
        ["sweep.yml", "1", "6 CMD"],
        ["sweep.yml", "2", "15 HPARAMS.lr"],
        ["sweep.yml", "3", "10 LOGROOT"],
    ]


TAGS_MUST_BE = "HPARAMS.RUNX.TAG: must be a text, or a list of texts"
REFUSED = {
    "CMD: x\nHPARAM: {lr: 1}\n": "'HPARAM' is not known; did you mean 'HPARAMS'?",
    "CMD: x\n": "there are no HPARAMS",
    "HPARAMS: {lr: 1}\n": "there is no CMD",
    f"{INTRO}---\nCMD: y\n": "holds one document",
    **dict.fromkeys(
        [f"CMD: x\nHPARAMS: {text}\n" for text in ("3", "text", "[]", "[1]", "[{a: 1}, null]", "[[a]]")], "HPARAMS"
    ),
    **dict.fromkeys(
        [f"CMD: x\nHPARAMS: {text}\n" for text in ("{a: 1, RUNX.SKIP: true}", "[{RUNX.SKIP: 1}, {RUNX.SKIP: 1}]")],
        "every item is skipped",
    ),
    **dict.fromkeys(
        [f"CMD: x\nHPARAMS: {{RUNX.TAG: {text}}}\n" for text in ("{arch: x}", "[a, {b: c}]", "[[a, b]]")], TAGS_MUST_BE
    ),
    **dict.fromkeys(
        [f"LOGROOT: {text}\n{INTRO}" for text in ("5", "true", "{a: b}", "[logs]")],
        "LOGROOT: must be the path of a folder",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(project, text):
    assert REFUSED[text] in project.problems(text)


def test_taken_though_it_looks_like_what_is_refused(project):
    assert project.load(INTRO, "LOGROOT: '5'\n").root == str(project.folder / "5")
    for tag in ("a", "5", "null", "None", "[a, 5]", "'{lr}'"):
        project.load(f"CMD: x\nHPARAMS:\n  lr: 1\n  RUNX.TAG: {tag}\n")


def test_unknown_keys_are_ignored_and_a_mistyped_magic_word_is_passed_on_with_a_warning(project):
    text = "CMD: run\nHPARAMS: {RUNX.TAGS: x}\n"
    assert project.commands(text) == ["run --RUNX.TAGS x"]
    (warning,) = project.load(text).warnings
    assert "RUNX.TAG" in (warning.hint or "")
    study = project.load(f"NOTES: mine\nbase: &base {{lr: 1}}\nPYTHONPAHT: x\n{INTRO}", "LOGROOTS: /x\n")
    said = {warning.key: warning.hint for warning in study.warnings}
    assert said == {
        "NOTES": None,
        "base": None,
        "PYTHONPAHT": "did you mean 'PYTHONPATH'?",
        "LOGROOTS": "did you mean 'LOGROOT'?",
    }

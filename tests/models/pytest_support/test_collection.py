"""Which tests there are: collected from graphs alone, named as Torq's tests name them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.commands.test_torch_models import NET
from tests.models.pytest_support.nested_project import GENERIC, RELU, RELU_NEG, TORQ, Project, build_project
from tests.models.pytest_support.test_options import configure

from assay.errors import UsageError
from assay.models.pytest_support.collection import ExpectedFailure, Lists, load_entries, refuse_options
from assay.models.pytest_support.options import ModelTestPlan, get_plan

RELU_IDS = ["net_layer_Relu_0", "net_full_model"]
OTHER = "def test_it():\n    pass\n"


def plan_of(project: Project, *arguments: str) -> ModelTestPlan:
    """What a pytest in the project's folder reads, without one."""
    config = configure(*arguments)
    config.rootpath = project.folder
    refuse_options(config)
    return get_plan(config)


def add_chips(project):
    for chip in ("a", "b"):
        project.write(f"tests/testdata/chips/{chip}.json", f'{{"target": "{chip.upper()}"}}')


def test_cases_are_listed_from_the_graphs_and_nothing_runs(project):
    project.write("tests/test_onnx_model.py", GENERIC + TORQ)
    project.model("net", RELU_NEG)
    project.model("another", RELU)
    project.model("disable_this", RELU)
    project.write("tests/testdata/onnx_models/broken.onnx", "no model")
    project.write("tests/test_other.py", OTHER)
    output = project.pytest("--collect-only", "-p", "no:cacheprovider")
    cases = ["another_layer_Relu_0", "another_full_model", "broken_full_model", "net_layer_Relu_0", "net_layer_Neg_1"]
    functions = ("test_onnx_model", "test_onnx_model_llvmcpu_torq")
    named = [f"{name}[{case}-sim-default]" for name in functions for case in [*cases, "net_full_model"]]
    assert output.ids == [*named, "test_it"]
    assert project.calls == []
    assert not (project.folder / ".artifacts").exists()
    assert output.code == 0


def test_targets_or_hardware_types_and_chips_multiply_the_cases(project):
    project.model("net", RELU)
    add_chips(project)
    project.write("tests/testdata/chips/pair.group", "a\nb\n")
    for plan, known in (
        (plan_of(project, "--assay-target", "sim", "--assay-target", "ort", "--chips=pair"), "targets"),
        (plan_of(project, "--torq-runtime-hw-type=sim, ort", "--torq-chips", "a,b"), "hardware"),
    ):
        rows = plan.build_rows(getattr(plan, known))
        assert [row.label for row in rows] == [
            f"{case}-{middle}-{chip}" for case in RELU_IDS for middle in ("sim", "ort") for chip in ("a", "b")
        ]


def test_a_test_about_chips_alone_runs_once_for_each(project):
    own = "def test_it(chip_config, runtime_hw_type):\n    assert (chip_config['target'], runtime_hw_type) in {}\n"
    pairs = [(chip.upper(), kind) for chip in "ab" for kind in ("astra", "sim")]
    project.write("tests/test_onnx_model.py", own.format(pairs))
    add_chips(project)
    output = project.pytest("-v", "--torq-runtime-hw-type=astra,sim", "--torq-chips", "a,b")
    assert output.verdicts == {f"test_it[{kind}-{chip.lower()}]": "PASSED" for chip, kind in pairs}


def test_no_model_is_no_pass(project):
    output = project.pytest("-v")
    assert output.verdicts == {"test_onnx_model[no_model-sim-default]": "ERROR"}
    assert "there is no model in " in output.out
    assert output.code == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--assay-target", "simm", "no target named 'simm'\n.*did you mean 'sim'"),
        ("--assay-reference", "orx", "no target named 'orx'\n.*did you mean 'ort'"),
    ],
)
def test_a_mistyped_name_is_refused(project, option, value, message):
    with pytest.raises(pytest.UsageError, match=message):
        plan_of(project, option, value)


def test_a_mistyped_option_is_a_usage_error(project):
    project.write("tests/testdata/chips/sl2610.json", '{"target": "SL2610"}')
    output = project.pytest("--torq-chips", "sl2611")
    assert output.code == 4
    assert re.search(r"no chip named 'sl2611'\n.*did you mean 'sl2610'", output.out)
    assert "Traceback" not in output.out


def test_wrong_settings_are_reported_at_collection_and_other_tests_go_on(project):
    project.write("pyproject.toml", "[tool.pytest.ini_options]\n[tool.assay.models]\nfoldr = 'x'\n")
    project.write("tests/test_other.py", OTHER)
    output = project.pytest("--continue-on-collection-errors", "-v")
    assert "models.foldr: unknown key" in output.out
    assert "did you mean 'folder'" in output.out
    assert output.verdicts == {"test_it": "PASSED"}
    assert "Traceback" not in output.out
    assert "CollectError" not in output.out


def test_without_a_target_it_reports_how_to_name_one(project):
    project.write("pyproject.toml", "")
    with pytest.raises(UsageError, match="there is no target to test the models on") as caught:
        _ = plan_of(project).targets
    assert "--assay-target" in caught.value.hint


def test_settings_for_all_models_are_for_those_of_this_folder(project):
    project.model("net", RELU)
    path = project.folder / "pyproject.toml"
    path.write_text(
        path.read_text() + "[tool.assay.models.tensors.t]\nrel = 1\n[tool.assay.models.ops.LSTM]\nrel = 1\n"
    )
    with pytest.raises(UsageError, match=r"models\.tensors: no layer of any model makes 't'"):
        _ = plan_of(project).models
    folder = str(project.folder / "tests" / "testdata" / "onnx_models")
    assert [model.stem for model in plan_of(project, "--model-folder", folder).models] == ["net"]
    project.model("other", RELU_NEG)
    assert [model.stem for model in plan_of(project).models] == ["net", "other"]


def test_options_of_others_stay_theirs(project):
    """A conftest.py and a plugin have registered names of ours; ours are left out, the rest is there."""
    project.write(
        "conftest.py",
        'def pytest_addoption(parser):\n    parser.addoption("--samples")\n    parser.addoption("--debug-ir")\n',
    )
    project.write(
        "other_plugin.py", 'def pytest_addoption(parser):\n    parser.getgroup("x").addoption("--torq-chips")\n'
    )
    project.write(
        "tests/test_it.py",
        "def test_it(pytestconfig):\n    assert pytestconfig.getoption('--samples') == 'many'\n"
        "    assert pytestconfig.getoption('--recompute-cache')\n",
    )
    arguments = ("-p", "other_plugin", "--samples", "many", "--torq-chips", "theirs", "--recompute-cache")
    assert project.pytest(*arguments, "tests/test_it.py", "-v").verdicts == {"test_it": "PASSED"}


def test_fixtures_of_others_stay_theirs(project):
    """A project that knows nothing of us has fixtures of these names: tests and ids are what they were."""
    project.write(
        "tests/conftest.py",
        "import pytest\n@pytest.fixture(params=[1, 2])\ndef chip_config(request):\n    return request.param\n",
    )
    project.write("their_plugin.py", "import pytest\n@pytest.fixture\ndef torq_results():\n    return 'theirs'\n")
    project.write(
        "tests/test_onnx_model.py",
        "def test_it(chip_config, torq_results):\n    assert chip_config in (1, 2)\n    assert torq_results == 'theirs'\n",
    )
    output = project.pytest("-p", "their_plugin", "-v", as_installed=True)
    assert output.verdicts == {"test_it[1]": "PASSED", "test_it[2]": "PASSED"}


def test_importing_assay_models_is_light_and_names_pytest_where_it_is_missing():
    """In a Python that does not find pytest."""
    code = (
        "import sys, importlib.util as u\nu.find_spec = lambda name: None\nimport assay.models\n"
        "print(sorted(n for n in sys.modules if n.split('.')[0] in ('onnx', 'numpy', '_pytest')))\n"
        "from assay.models import test_onnx_model"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert "assay.models, which is for test files of pytest, needs pytest" in done.stderr
    assert "pip install pytest" in done.stderr


LIST = """\
# known troubles
test_onnx_model[net_layer_Neg_1-sim-default] owner/repo#12

net_full_model-sim-default [owner/repo#13]   # the whole
"""


@pytest.mark.parametrize(
    ("line", "name", "issue"),
    [
        ("test_a[x-sim-default]", "test_a[x-sim-default]", None),
        ("test_a[x-sim-default] [own-er/re.po#12]", "test_a[x-sim-default]", "own-er/re.po#12"),
        ("  tests/a.py::test_a[my model-sim-default]  #7 ", "tests/a.py::test_a[my model-sim-default]", "#7"),
        ("x-sim-default  # because", "x-sim-default", None),
        ("x-sim-default owner/repo#3 # because #4", "x-sim-default", "owner/repo#3"),
        ("x https://host/owner/repo/issues/9", "x", "https://host/owner/repo/issues/9"),
        ("x#1-sim-default", "x#1-sim-default", None),
    ],
)
def test_a_line(tmp_path, line, name, issue):
    path = tmp_path / "xfails.txt"
    path.write_text(f"# a comment\n\n{line}")
    assert load_entries(str(path)) == (ExpectedFailure(name, issue, str(path), 3),)


@pytest.mark.parametrize(
    ("issue", "asked", "linked"),
    [
        ("owner/repo#12", ("12", "#12", "owner/repo#12"), True),
        ("owner/repo#12", ("other/repo#12", "2"), False),
        ("https://host/o/r/issues/12", ("12",), True),
        (None, ("12",), False),
    ],
)
def test_links(issue, asked, linked):
    assert {ExpectedFailure("x", issue, "f", 1).is_linked(each) for each in asked} == {linked}


def test_a_list_that_cannot_be_read_is_not_passed_over(tmp_path):
    assert load_entries(str(tmp_path / "missing")) == ()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_entries(str(tmp_path / "binary"))
    with pytest.raises(UsageError, match=r"known\.txt does not exist"):
        Lists("known.txt", str(tmp_path))


def test_expected_failures_are_not_run_and_loud_when_they_pass(project):
    def short(verdicts):
        return {name.split("[net_")[1].removesuffix("-sim-default]"): verdict for name, verdict in verdicts.items()}

    project.model("net", RELU_NEG)
    project.write("tests/test_onnx_model-xfails.txt", LIST)
    output = project.pytest("-v", "-rx", "--issue", "13")
    assert short(output.verdicts) == {"layer_Relu_0": "PASSED", "layer_Neg_1": "XFAIL", "full_model": "FAILED"}
    assert "expected to fail (test_onnx_model-xfails.txt:2): owner/repo#12" in output.out
    assert "XPASS(strict)" in output.out
    assert "owner/repo#13" in output.out
    assert output.code == 1
    compiled = [call.split()[1] for call in project.calls if call.startswith("compile")]
    assert compiled == ["net_layer_Relu_0.onnx", "net.onnx"], "the case of the issue runs, and the other one does not"

    # a compiler that refuses fails in a fixture: that counts as an expected failure as well
    output = project.pytest("-v", "--try-xfails", "--extra-compiler-options", "--lacks Neg")
    assert short(output.verdicts) == {"layer_Relu_0": "PASSED", "layer_Neg_1": "XFAIL", "full_model": "XFAIL"}
    assert len([call for call in project.calls if call.startswith("compile")]) == 3
    assert output.code == 0


def test_names_of_nothing_are_warnings_and_the_settings_may_name_the_list(project):
    """Entries of a list, and tables of models."""
    project.model("net", RELU_NEG)
    path = project.folder / "pyproject.toml"
    text = path.read_text().replace('targets = ["sim"]', 'targets = ["sim"]\nexpected_failures = "known.txt"')
    path.write_text(f"{text}\n[tool.assay.models.models.nett]\nseed = 1\n")
    project.write("known.txt", "net_layer_Neg_1-sim-default\nnet_layer_Nge_1-sim-default\nnet_full_model-other-chip\n")
    output = project.pytest("-v", "-W", "default", "-k", "Neg")
    assert output.verdicts == {"test_onnx_model[net_layer_Neg_1-sim-default]": "XFAIL"}
    assert "models.models.nett: there is no such model; did you mean 'net'?" in output.out
    assert "known.txt:2: there is no such case: net_layer_Nge_1-sim-default" in output.out
    assert "known.txt:3" not in output.out
    assert re.search(r"^ *\S.*known\.txt:2: PytestWarning: ", output.out, re.MULTILINE), "it points at the list"
    assert "models.py" not in output.out


def test_letters_beyond_ascii_in_names(project):
    """pytest spells them otherwise; a list may use either."""
    project.model("net [1] é", "g (float[4] x) => (float[4] y) { t = Relu(x) u = Neg(t) y = Abs(u) }")
    lines = [
        "net [1] é_layer_Relu_0-sim-default",
        "test_onnx_model[net [1] é_layer_Neg_1-sim-default] owner/repo#12",
        "tests/test_onnx_model.py::test_onnx_model[net [1] \\xe9_full_model-sim-default]",
    ]
    lines.append(lines[2].replace("\\xe9", "é").replace("_full_model", "_layer_Abs_2"))
    project.write("tests/test_onnx_model-xfails.txt", "\n".join(lines))
    output = project.pytest("-rx", "-W", "default")
    assert "4 xfailed" in output.out, output.out


TARGETS = "targets = ['torch-bf16', 'net.py:wrong', 'torch-compile']\n"
MODULES = "[tool.assay.models]\nmodules = ['net.py:build']\n"


@pytest.fixture
def torch_project(tmp_path: Path) -> Project:
    found = build_project(tmp_path, "from assay.models import test_torch_module\n", MODULES + TARGETS)
    found.write("net.py", NET)
    return found


def test_each_module_is_a_test_for_each_target_and_a_wrong_one_names_its_layer(torch_project: Project) -> None:
    """The one that is expected to fail is not run."""
    names = [f"test_torch_module[net.py:build-{target}]" for target in ("torch-bf16", "net.py:wrong", "torch-compile")]
    torch_project.write("tests/test_onnx_model-xfails.txt", f"{names[2]} #12\n")
    found = torch_project.pytest("-v", env={"TESTS_PRELOAD": "torch"})
    assert found.verdicts == dict(zip(names, ("PASSED", "FAILED", "XFAIL"), strict=True))
    assert "the first wrong layer is b" in found.section(names[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (f"[tool.assay.models]\n{TARGETS}", "there is no torch module to test"),
        (MODULES, "there is no torch target to test"),
        (MODULES.replace("net", "ent") + TARGETS, "there is no file"),
    ],
)
def test_what_is_missing_is_refused(torch_project: Project, settings: str, message: str) -> None:
    torch_project.write("pyproject.toml", settings)
    with pytest.raises(UsageError, match=message):
        _ = plan_of(torch_project).modules

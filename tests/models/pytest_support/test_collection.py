"""Which tests there are: collected from graphs alone, named as Torq's tests name them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.models.pytest_support.nested_project import GENERIC, RELU, RELU_NEG, TORQ
from tests.models.pytest_support.test_options import configure

from assay.errors import UsageError
from assay.models.pytest_support.collection import ExpectedFailure, load_entries, parse_entries, refuse_options
from assay.models.pytest_support.options import set_plan

RELU_IDS = ["net_layer_Relu_0", "net_full_model"]


def named(function: str, cases: list[str], middle: str = "sim", chip: str = "default") -> list[str]:
    return [f"{function}[{case}-{middle}-{chip}]" for case in cases]


def add_chips(project):
    for chip in ("a", "b"):
        project.write(f"tests/testdata/chips/{chip}.json", f'{{"target": "{chip.upper()}"}}')


def test_cases_are_listed_from_the_graphs_and_nothing_runs(project):
    project.write("tests/test_onnx_model.py", GENERIC + TORQ)
    project.model("net", RELU_NEG)
    project.model("another", RELU)
    project.model("disable_this", RELU)
    project.write("tests/testdata/onnx_models/broken.onnx", "no model")
    project.write("tests/test_other.py", "def test_it():\n    pass\n")
    output = project.pytest("--collect-only", "-p", "no:cacheprovider")
    cases = ["another_layer_Relu_0", "another_full_model", "broken_full_model", "net_layer_Relu_0", "net_layer_Neg_1"]
    cases.append("net_full_model")
    assert output.ids == [*named("test_onnx_model", cases), *named("test_onnx_model_llvmcpu_torq", cases), "test_it"]
    assert project.calls == []
    assert not (project.folder / ".artifacts").exists()
    assert output.code == 0
    path = "tests/test_onnx_model.py::test_onnx_model[net_full_model-sim-default]"
    chosen = project.pytest("--collect-only", "-k", "Neg_1-sim-default or full", path)
    assert chosen.ids == named("test_onnx_model", ["net_full_model"])


def test_targets_and_chips_multiply_the_cases(project):
    project.model("net", RELU)
    add_chips(project)
    project.write("tests/testdata/chips/pair.group", "a\nb\n")
    ids = [
        f"test_onnx_model[{case}-{target}-{chip}]"
        for case in RELU_IDS
        for target in ("sim", "ort")
        for chip in ("a", "b")
    ]
    chosen = ("--assay-target", "sim", "--assay-target", "ort")
    assert project.pytest("--collect-only", *chosen, "--chips=pair").ids == ids


def test_the_hardware_type_is_the_middle_part_and_a_test_about_chips_alone_runs_once_for_each(project):
    project.write(
        "tests/test_onnx_model.py",
        TORQ + "def test_it(chip_config, runtime_hw_type):\n"
        "    assert chip_config['target'] in 'AB'\n    assert runtime_hw_type in ('astra', 'sim')\n",
    )
    project.model("net", RELU)
    add_chips(project)
    options = ("--torq-runtime-hw-type=astra,sim", "--torq-chips", "a,b")
    pairs = [(kind, chip) for kind in ("astra", "sim") for chip in ("a", "b")]
    assert project.pytest("--collect-only", "-k", "torq", *options).ids == [
        f"test_onnx_model_llvmcpu_torq[{case}-{kind}-{chip}]" for case in RELU_IDS for kind, chip in pairs
    ]
    output = project.pytest("-v", "-k", "test_it", *options)
    assert output.verdicts == {f"test_it[{kind}-{chip}]": "PASSED" for kind, chip in pairs}


def test_a_mistyped_option_is_a_usage_error(project):
    project.write("tests/testdata/chips/sl2610.json", '{"target": "SL2610"}')
    for arguments, complaint in (
        (("--torq-chips", "sl2611"), "no chip named 'sl2611'\n  did you mean 'sl2610'"),
        (("--torq-compiler-timeout", "-3"), "'-3' is not a duration"),
    ):
        output = project.pytest(*arguments)
        assert output.code == 4
        assert complaint in output.out
        assert "Traceback" not in output.out


@pytest.mark.parametrize(
    ("option", "value", "hint"), [("--assay-target", "simm", "sim"), ("--assay-reference", "orx", "ort")]
)
def test_a_mistyped_name_of_a_target_is_refused(project, option, value, hint):
    config = configure(option, value)
    config.rootpath = project.folder
    set_plan(config)
    with pytest.raises(pytest.UsageError, match=f"no target named '{value}'\n.*did you mean '{hint}'"):
        refuse_options(config)


def test_wrong_settings_are_reported_at_collection_and_other_tests_go_on(project):
    project.write("pyproject.toml", "[tool.pytest.ini_options]\n[tool.assay.models]\nfoldr = 'x'\n")
    project.write("tests/test_other.py", "def test_it():\n    pass\n")
    output = project.pytest("--continue-on-collection-errors", "-v")
    assert "models.foldr: unknown key" in output.out
    assert "did you mean 'folder'" in output.out
    assert output.verdicts == {"test_it": "PASSED"}
    assert "Traceback" not in output.out
    assert "CollectError" not in output.out


def test_without_a_target_it_reports_how_to_name_one(project):
    project.write("pyproject.toml", "[tool.pytest.ini_options]\n")
    project.model("net", RELU)
    output = project.pytest()
    assert output.code == 2
    assert "there is no target to test the models on" in output.out
    assert "--assay-target" in output.out


def test_no_model_is_no_pass(project):
    output = project.pytest("-v")
    assert output.verdicts == {"test_onnx_model[no_model-sim-default]": "ERROR"}
    assert "there is no model in " in output.out
    assert output.code == 1


def test_a_folder_on_the_command_line(project):
    project.model("net", RELU).rename(project.folder / "here.onnx")
    output = project.pytest("--collect-only", "--model-folder", ".")
    assert output.ids == named("test_onnx_model", ["here_layer_Relu_0", "here_full_model"])


def test_options_of_others_stay_theirs(project):
    """A conftest.py and a plugin have registered names of ours; ours are left out, the rest is there."""
    project.model("net", RELU)
    project.write(
        "conftest.py",
        'def pytest_addoption(parser):\n    parser.addoption("--samples")\n    parser.addoption("--debug-ir")\n',
    )
    project.write(
        "other_plugin.py", 'def pytest_addoption(parser):\n    parser.getgroup("x").addoption("--torq-chips")\n'
    )
    project.write(
        "tests/test_it.py", 'def test_it(pytestconfig):\n    assert pytestconfig.getoption("--samples") == "many"\n'
    )
    arguments = ("-p", "other_plugin", "--samples", "many", "--torq-chips", "theirs", "tests/test_it.py")
    output = project.pytest(*arguments, "-v", env={"PYTHONPATH": str(project.folder)})
    assert output.verdicts == {"test_it": "PASSED"}
    assert "--recompute-cache" in project.pytest("--help").out


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
    output = project.pytest("-p", "their_plugin", "-v", env={"PYTHONPATH": str(project.folder)}, as_installed=True)
    assert output.verdicts == {"test_it[1]": "PASSED", "test_it[2]": "PASSED"}


def test_without_pytest_the_import_names_what_is_missing():
    """In a Python that does not find pytest."""
    code = "import sys, importlib.util as u\nu.find_spec = lambda name: None\nfrom assay.models import test_onnx_model"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "assay.models, which is for test files of pytest, needs pytest" in done.stderr
    assert "pip install pytest" in done.stderr


def test_importing_assay_models_is_light():
    code = "import sys, assay.models\nprint(sorted(n for n in sys.modules if n.split('.')[0] in ('onnx', 'numpy', '_pytest')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------- settings for what is not there


def add_settings(project, text):
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text() + text)


def test_settings_for_all_models_are_for_those_of_this_folder(project):
    project.model("net", RELU)
    (project.folder / "elsewhere").mkdir()
    add_settings(project, "[tool.assay.models.tensors.t]\nrel = 1\n[tool.assay.models.ops.LSTM]\nrel = 1\n")
    add_settings(project, "[tool.assay.models.models.nett]\nseed = 1\n")
    refused = project.pytest("--collect-only")
    assert refused.code != 0
    assert "models.tensors: no layer of any model makes 't'" in refused.out
    assert "Traceback" not in refused.out
    folder = str(project.folder / "tests" / "testdata" / "onnx_models")
    assert project.pytest("--collect-only", "--model-folder", folder).ids == named("test_onnx_model", RELU_IDS)
    project.model("other", RELU_NEG)
    listed = project.pytest("--collect-only", "-W", "default")
    assert listed.code == 0
    assert "models.models.nett: there is no such model; did you mean 'net'?" in listed.out


LIST = """\
# known troubles
test_onnx_model[net_layer_Neg_1-sim-default] owner/repo#12

net_full_model-sim-default [owner/repo#13]   # the whole
"""


@pytest.mark.parametrize(
    ("line", "name", "issue"),
    [
        ("test_a[x-sim-default]", "test_a[x-sim-default]", None),
        ("test_a[x-sim-default] owner/repo#12", "test_a[x-sim-default]", "owner/repo#12"),
        ("test_a[x-sim-default] [own-er/re.po#12]", "test_a[x-sim-default]", "own-er/re.po#12"),
        ("  tests/a.py::test_a[my model-sim-default]  #7 ", "tests/a.py::test_a[my model-sim-default]", "#7"),
        ("x-sim-default  # because", "x-sim-default", None),
        ("x-sim-default owner/repo#3 # because #4", "x-sim-default", "owner/repo#3"),
        ("x https://host/owner/repo/issues/9", "x", "https://host/owner/repo/issues/9"),
        ("x#1-sim-default", "x#1-sim-default", None),
    ],
)
def test_a_line(line, name, issue):
    assert list(parse_entries(line, "f")) == [ExpectedFailure(name, issue, "f", 1)]


def test_comments_and_empty_lines_are_no_entries():
    assert [entry.where for entry in parse_entries(LIST, "list.txt")] == ["list.txt:2", "list.txt:4"]


@pytest.mark.parametrize(
    ("issue", "asked", "linked"),
    [
        ("owner/repo#12", "12", True),
        ("owner/repo#12", "#12", True),
        ("owner/repo#12", "owner/repo#12", True),
        ("owner/repo#12", "other/repo#12", False),
        ("owner/repo#12", "2", False),
        ("https://host/o/r/issues/12", "12", True),
        (None, "12", False),
    ],
)
def test_links(issue, asked, linked):
    assert ExpectedFailure("x", issue, "f", 1).is_linked(asked) is linked


def test_a_list_that_cannot_be_read_is_not_passed_over(tmp_path):
    assert load_entries(str(tmp_path / "missing")) == ()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_entries(str(tmp_path / "binary"))


def short(verdicts: dict[str, str]) -> dict[str, str]:
    return {name.split("[")[1].removesuffix("-sim-default]"): verdict for name, verdict in verdicts.items()}


def test_expected_failures_are_not_run_and_loud_when_they_pass(project):
    project.model("net", RELU_NEG)
    project.write("tests/test_onnx_model-xfails.txt", LIST)
    output = project.pytest("-v", "-rx")
    assert short(output.verdicts) == {
        "net_layer_Relu_0": "PASSED",
        "net_layer_Neg_1": "XFAIL",
        "net_full_model": "XFAIL",
    }
    assert "expected to fail (test_onnx_model-xfails.txt:2): owner/repo#12" in output.out
    assert output.code == 0
    assert [call for call in project.calls if call.startswith("compile")] == [
        "compile net_layer_Relu_0.onnx chip=None hw=None"
    ]

    output = project.pytest("-v", "--try-xfails")
    assert short(output.verdicts) == {
        "net_layer_Relu_0": "PASSED",
        "net_layer_Neg_1": "FAILED",
        "net_full_model": "FAILED",
    }
    assert "XPASS(strict)" in output.out
    assert "owner/repo#12" in output.out
    assert output.code == 1
    _ = project.calls

    # a compiler that refuses fails in a fixture: that counts as an expected failure as well
    output = project.pytest("-v", "--issue", "13", "--extra-compiler-options", "--lacks Neg")
    assert short(output.verdicts) == {
        "net_layer_Relu_0": "PASSED",
        "net_layer_Neg_1": "XFAIL",
        "net_full_model": "XFAIL",
    }
    compiled = [call.split()[1] for call in project.calls if call.startswith("compile")]
    assert "net.onnx" in compiled, "the case of the issue runs"
    assert "net_layer_Neg_1.onnx" not in compiled
    assert output.code == 0


def test_the_settings_may_name_the_list_and_an_entry_of_no_case_is_a_warning(project):
    project.model("net", RELU_NEG)
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text().replace('targets = ["sim"]', 'targets = ["sim"]\nexpected_failures = "known.txt"'))
    output = project.pytest("--collect-only")
    assert "known.txt does not exist" in output.out
    assert output.code == 4
    project.write("known.txt", "net_layer_Neg_1-sim-default\nnet_layer_Nge_1-sim-default\nnet_full_model-other-chip\n")
    output = project.pytest("-v", "-W", "default", "-k", "Neg")
    assert short(output.verdicts) == {"net_layer_Neg_1": "XFAIL"}
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

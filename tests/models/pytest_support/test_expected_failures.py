"""Expected failures: read from a list, not run, and loud when they pass."""

from __future__ import annotations

import re

import pytest
from tests.models.pytest_support.lab import RELU_NEG

from assay.errors import UsageError
from assay.models.pytest_support.expected_failures import Entry, load_entries, parse_entries

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
    assert list(parse_entries(line, "f")) == [Entry(name, issue, "f", 1)]


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
    assert Entry("x", issue, "f", 1).is_linked(asked) is linked


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
    said = project.pytest("-v", "-rx")
    assert short(said.verdicts) == {"net_layer_Relu_0": "PASSED", "net_layer_Neg_1": "XFAIL", "net_full_model": "XFAIL"}
    assert "expected to fail (test_onnx_model-xfails.txt:2): owner/repo#12" in said.out
    assert said.code == 0
    assert [call for call in project.calls if call.startswith("compile")] == [
        "compile net_layer_Relu_0.onnx chip=None hw=None"
    ]

    said = project.pytest("-v", "--try-xfails")
    assert short(said.verdicts) == {
        "net_layer_Relu_0": "PASSED",
        "net_layer_Neg_1": "FAILED",
        "net_full_model": "FAILED",
    }
    assert "XPASS(strict)" in said.out
    assert "owner/repo#12" in said.out
    assert said.code == 1

    said = project.pytest("-v", "--issue", "13")
    assert short(said.verdicts) == {
        "net_layer_Relu_0": "PASSED",
        "net_layer_Neg_1": "XFAIL",
        "net_full_model": "FAILED",
    }


def test_a_failure_that_is_expected_is_one_whatever_fails(project):
    """A compiler that refuses fails in a fixture: that counts as well."""
    project.model("net", RELU_NEG)
    project.write("tests/test_onnx_model-xfails.txt", LIST)
    said = project.pytest("-v", "--try-xfails", "--extra-compiler-options", "--lacks Neg")
    assert short(said.verdicts) == {"net_layer_Relu_0": "PASSED", "net_layer_Neg_1": "XFAIL", "net_full_model": "XFAIL"}
    assert said.code == 0


def test_the_settings_may_name_the_list_and_an_entry_of_no_case_is_said(project):
    project.model("net", RELU_NEG)
    path = project.folder / "pyproject.toml"
    path.write_text(path.read_text().replace('targets = ["sim"]', 'targets = ["sim"]\nexpected_failures = "known.txt"'))
    said = project.pytest("--collect-only")
    assert "known.txt does not exist" in said.out
    assert said.code == 4
    project.write("known.txt", "net_layer_Neg_1-sim-default\nnet_layer_Nge_1-sim-default\nnet_full_model-other-chip\n")
    said = project.pytest("-v", "-W", "default", "-k", "Neg")
    assert short(said.verdicts) == {"net_layer_Neg_1": "XFAIL"}
    assert "known.txt:2: there is no such case: net_layer_Nge_1-sim-default" in said.out
    assert "known.txt:3" not in said.out
    assert re.search(r"^ *\S.*known\.txt:2: PytestWarning: ", said.out, re.MULTILINE), "it points at the list"
    assert "models.py" not in said.out


def test_letters_beyond_ascii_in_names(project):
    """pytest spells them otherwise; a list may use either."""
    project.model("net [1] é", RELU_NEG)
    lines = [
        "net [1] é_layer_Relu_0-sim-default",
        "test_onnx_model[net [1] é_layer_Neg_1-sim-default] owner/repo#12",
        "tests/test_onnx_model.py::test_onnx_model[net [1] \\xe9_full_model-sim-default]",
    ]
    for line in (*lines, lines[2].replace("\\xe9", "é")):
        project.write("tests/test_onnx_model-xfails.txt", f"{line}\n")
        said = project.pytest("-rx", "-W", "default")
        assert "2 passed, 1 xfailed" in said.out, said.out

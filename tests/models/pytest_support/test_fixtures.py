"""The fixtures of Torq's tests, by name: for tests of a project's own, and replaced in its conftest.py.

Each folder of the project replaces one of them; one pytest runs them all.
"""

from __future__ import annotations

import re
import socket

import onnx
import pytest
from tests.example_models import parse
from tests.models.pytest_support.nested_project import GENERIC, RELU, SETTINGS, TORQ, Project, PytestRun, build_project

OWN = """
import numpy as np
import pytest
from pathlib import Path

def test_all_of_them(
    assay_case, onnx_mlir_model_file, torq_compiled_model_dir, llvmcpu_compiled_model, tweaked_random_input_data,
    llvmcpu_reference_results, torq_results, chip_config, runtime_hw_type,
):
    assert isinstance(onnx_mlir_model_file, Path) and "torch.onnx" in onnx_mlir_model_file.read_text()
    assert (torq_compiled_model_dir / "model.onnx").is_file()
    assert llvmcpu_compiled_model.read_bytes()
    (x,), (expected,), (actual,) = tweaked_random_input_data, llvmcpu_reference_results, torq_results
    assert x.shape == (4,) and x.any()
    assert np.array_equal(expected, np.maximum(x, 0)) and np.array_equal(actual, expected)
    assert chip_config == {} and runtime_hw_type == "sim"

@pytest.mark.assay_models("net_layer_*")
def test_layers_only(tweaked_random_input_data):
    assert len(tweaked_random_input_data) == 1

@pytest.mark.assay_models("no-such-model")
def test_of_nothing(torq_results):
    pass

def test_one_piece_only(tweaked_random_input_data):
    assert len(tweaked_random_input_data) == 1
"""

REPLACED = {
    "inputs": """
@pytest.fixture
def tweaked_random_input_data():
    return [np.array([-1, 2, -3, 4], np.float32)]
""",
    "inputs_changed": """
@pytest.fixture
def tweaked_random_input_data(tweaked_random_input_data):
    tweaked_random_input_data[0][:] = [5, -6, 7, -8]
    return tweaked_random_input_data
""",
    "results": """
@pytest.fixture
def torq_results(torq_results):
    return [torq_results[0] + 1]
""",
    "reference": """
@pytest.fixture
def llvmcpu_reference_results(tweaked_random_input_data):
    return {"y": np.maximum(tweaked_random_input_data[0], 0) * 3}
""",
    "mlir": """
@pytest.fixture
def onnx_mlir_model_file(onnx_mlir_model_file, tmp_path):
    (tmp_path / "other.mlir").write_text(onnx_mlir_model_file.read_text().replace("onnx.Relu", "onnx.Abs"))
    return tmp_path / "other.mlir"
""",
    "compiled_reference": """
@pytest.fixture
def llvmcpu_compiled_model(tmp_path):
    return tmp_path / "missing.vmfb"
""",
    "compiled": """
@pytest.fixture
def torq_compiled_model_dir(tmp_path):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }')
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path
""",
    "chip": """
@pytest.fixture
def chip_config():
    return {"target": "XYZ", "compile_flags": ["--lacks", "Relu"]}
""",
    "hardware": """
@pytest.fixture
def runtime_hw_type():
    return "wrong"
""",
    "wrong_inputs": """
@pytest.fixture
def tweaked_random_input_data():
    return {"x": np.zeros(4, np.float32), "z": np.zeros(4, np.float32)}
""",
    "plain": """
@pytest.fixture
def tweaked_random_input_data():
    return [np.array([1, -2, 3, -4], np.float32)]

@pytest.fixture
def assay_reference_results(assay_reference_results):
    assert assay_reference_results[0].tolist() == [1, 0, 3, 0]
    return assay_reference_results
""",
    "unknown": "",
}
OTHER_HARDWARE = {"bfloat": "npu", "importer": "own", "mistyped": "smi"}  # folder → what its runtime_hw_type returns
TARGETS = """
[tool.assay.targets.npu]
like = "iree"

[tool.assay.targets.own]
like = "sim"
import = "cp {model} {out}"
compile = "cp {model} {artifact}"
"""
BF16 = "g (bfloat16[2,4] a, bfloat16[4,3] b) => (bfloat16[2,3] y) { t = MatMul(a, b) y = Relu(t) }"
CHOSEN = """
net and (own or inputs or plain or full) and not (bfloat or unknown) or nothing or bfloat and Relu_1 or unknown and odd_full
""".strip()
CHECK_INPUTS = """
def test_inputs_count(tweaked_random_input_data, torq_results, llvmcpu_reference_results):
    assert np.array_equal(torq_results[0], np.maximum(tweaked_random_input_data[0], 0))
    assert np.array_equal(llvmcpu_reference_results[0], torq_results[0])
"""
LAYER, FULL = "net_layer_Relu_0-sim-default", "net_full_model-sim-default"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, PytestRun]:
    project = build_project(tmp_path_factory.mktemp("project"), tests="", settings=SETTINGS + TARGETS)
    project.model("net", RELU)
    project.model("half", BF16)
    odd = parse("g (float[2] x) => (float[2] y) { y = my.ops.Foo(x) }", extra=', "my.ops": 1')
    onnx.save(odd, project.model("odd", RELU))
    project.write("tests/own/test_own.py", OWN)
    hardware = {
        name: f"@pytest.fixture\ndef runtime_hw_type():\n    return {value!r}\n"
        for name, value in OTHER_HARDWARE.items()
    }
    for name, text in (REPLACED | hardware).items():
        project.write(f"tests/{name}/conftest.py", f"import numpy as np, onnx, onnx.parser, pytest\n{text}")
        own = f"import numpy as np\n{CHECK_INPUTS}" if name in ("inputs", "inputs_changed") else ""
        project.write(f"tests/{name}/test_{name}.py", (GENERIC if name == "plain" else TORQ) + own)
    # one case is enough to see that a replacement counts; inputs are those of a layer or of the model
    options = ("-v", "--debug-cache", "--import-mode=importlib", "-k", CHOSEN)
    return project, project.pytest(*options, env={"TORQ_COMPILE": "", "TORQ_RUN_MODULE": ""})


def verdicts(run: PytestRun, folder: str) -> dict[str, str]:
    found = re.findall(rf"tests/{folder}/\S+::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", run.out)
    return {name.replace("test_onnx_model_llvmcpu_torq", ""): verdict for name, verdict in found}


def test_all_are_offered_to_a_projects_own_tests(session):
    assert verdicts(session[1], "own") == {
        f"test_all_of_them[{LAYER}]": "PASSED", f"test_all_of_them[{FULL}]": "PASSED",
        f"test_layers_only[{LAYER}]": "PASSED",
        "test_of_nothing[NOTSET]": "SKIPPED",
        f"test_one_piece_only[{LAYER}]": "PASSED", f"test_one_piece_only[{FULL}]": "PASSED",
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["inputs", "inputs_changed"])
def test_other_inputs_count_on_both_sides(session, folder):
    checks = {f"test_inputs_count[{LAYER}]": "PASSED", f"test_inputs_count[{FULL}]": "PASSED"}
    assert verdicts(session[1], folder) == {f"[{LAYER}]": "PASSED", f"[{FULL}]": "PASSED"} | checks


@pytest.mark.parametrize("folder", ["results", "reference", "mlir", "compiled", "hardware"])
def test_whatever_is_replaced_takes_effect(session, folder):
    assert verdicts(session[1], folder) == {f"[{FULL}]": "FAILED"}


def test_a_replaced_chip_reaches_the_compiler(session):
    project, run = session
    assert verdicts(run, "chip") == {f"[{FULL}]": "ERROR"}
    assert "compile net.onnx chip=XYZ hw=sim" in (project.folder / "tools" / "calls").read_text()


def test_a_replacement_that_does_not_fit_is_reported(session):
    assert verdicts(session[1], "compiled_reference") == {f"[{FULL}]": "ERROR"}
    assert "llvmcpu_reference_results: there is no " in session[1].out
    assert verdicts(session[1], "wrong_inputs") == {f"[{LAYER}]": "ERROR", f"[{FULL}]": "ERROR"}
    assert "these inputs do not fit net_full_model; too many: z" in session[1].out


def test_no_traceback_of_ours_is_shown(session):
    assert "Traceback" not in session[1].out
    assert "model_fixtures.py" not in session[1].out


def test_the_plain_test_takes_replaced_inputs_and_results_too(session):
    """Its reference computes again for inputs that are not the case's own."""
    found = re.findall(r"tests/plain/\S+::test_onnx_model\[(\S+)\] (\w+)", session[1].out)
    assert dict(found) == {LAYER: "PASSED", FULL: "PASSED"}


@pytest.mark.services("sshd")
def test_a_board_that_is_off_is_no_trouble_of_the_compiler(project: Project):
    """Compilation is local: the fixture that asks for the board is the one that fails."""
    project.model("net", RELU)
    project.write("tests/test_onnx_model.py", TORQ)
    with socket.socket() as taken:  # bound, and no server listens
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        run = project.pytest("-v", "-k", "full", "--torq-addr", "root@127.0.0.1", "--torq-port", port)
    text = run.section(f"test_onnx_model_llvmcpu_torq[{FULL}]")
    assert text.startswith("torq_results: the board root@127.0.0.1 does not answer: "), text
    assert [call for call in project.calls if call.startswith("compile")] == ["compile net.onnx chip=None hw=sim"]


def test_mistyped_hardware_is_reported_with_the_missing_tools(session):
    assert verdicts(session[1], "mistyped") == {f"[{FULL}]": "ERROR"}
    text = session[1].out
    assert "torq-compile was not found" in text
    assert "no target 'smi' in the settings, so Torq's own tools are called; did you mean 'sim'?" in text


def test_a_type_that_onnxruntime_does_not_know_is_tested(session):
    """IREE is the reference of Torq's tests, and has bf16: so it also computes the values that a layer sees."""
    assert verdicts(session[1], "bfloat") == {"[half_layer_Relu_1-sim-default]": "PASSED"}


def test_a_model_that_no_reference_can_compute_is_an_error_of_the_first(session):
    assert verdicts(session[1], "unknown") == {"[odd_full_model-sim-default]": "ERROR"}
    assert "the reference ort cannot compute this model" in session[1].out


def test_an_importer_of_the_hardwares_own_is_called(session):
    assert verdicts(session[1], "importer") == {f"[{FULL}]": "PASSED"}
    assert "net_full_model own import: miss" in session[1].out

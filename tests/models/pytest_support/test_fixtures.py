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
OTHER_HARDWARE = {"importer": "own", "mistyped": "smi"}  # folder → what its runtime_hw_type returns
TARGETS = """
[tool.assay.targets.npu]
like = "iree"

[tool.assay.targets.own]
like = "sim"
import = "tools/sim-compile {model} -o {out} --chip imported"
"""
BF16 = "g (bfloat16[2,4] a, bfloat16[4,3] b) => (bfloat16[2,3] y) { t = MatMul(a, b) y = Relu(t) }"
CHOSEN = "net and (full or plain) and not unknown or layers_only or nothing or unknown and odd_full"
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
    # one case is enough to see that a replacement counts
    options = ("-v", "--import-mode=importlib", "-k", CHOSEN)
    return project, project.pytest(*options, env={"TORQ_COMPILE": "", "TORQ_RUN_MODULE": ""})


def verdicts(run: PytestRun, folder: str) -> dict[str, str]:
    found = re.findall(rf"tests/{folder}/\S+::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", run.out)
    return {re.sub("test_onnx_model(_llvmcpu_torq)?", "", name): verdict for name, verdict in found}


def test_all_are_offered_to_a_projects_own_tests(session):
    assert verdicts(session[1], "own") == {
        f"test_all_of_them[{FULL}]": "PASSED",
        f"test_layers_only[{LAYER}]": "PASSED",
        "test_of_nothing[NOTSET]": "SKIPPED",
    }


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("inputs", {f"[{FULL}]": "PASSED", f"test_inputs_count[{FULL}]": "PASSED"}),
        ("inputs_changed", {f"[{FULL}]": "PASSED", f"test_inputs_count[{FULL}]": "PASSED"}),
        *((folder, {f"[{FULL}]": "FAILED"}) for folder in ("results", "reference", "mlir", "compiled", "hardware")),
        ("chip", {f"[{FULL}]": "ERROR"}),
        ("importer", {f"[{FULL}]": "PASSED"}),
        ("plain", {f"[{LAYER}]": "PASSED", f"[{FULL}]": "PASSED"}),  # the reference computes again for its inputs
    ],
)
def test_whatever_is_replaced_takes_effect(session, folder, found):
    assert verdicts(session[1], folder) == found


def test_a_replaced_chip_and_an_importer_reach_the_compiler(session):
    calls = (session[0].folder / "tools" / "calls").read_text()
    assert "compile net.onnx chip=XYZ hw=sim" in calls
    assert "compile net.onnx chip=imported" in calls


@pytest.mark.parametrize(
    ("folder", "case", "messages"),
    [
        ("compiled_reference", FULL, ["llvmcpu_reference_results: there is no "]),
        ("wrong_inputs", FULL, ["these inputs do not fit net_full_model; too many: z"]),
        ("unknown", "odd_full_model-sim-default", ["the reference ort cannot compute this model"]),
        (
            "mistyped",
            FULL,
            [
                "torq-compile was not found",
                "no target 'smi' in the settings, so Torq's own tools are called; did you mean 'sim'?",
            ],
        ),
    ],
)
def test_what_does_not_fit_is_reported_without_a_traceback_of_ours(session, folder, case, messages):
    assert verdicts(session[1], folder) == {f"[{case}]": "ERROR"}
    assert all(message in session[1].out for message in messages)
    assert "Traceback" not in session[1].out
    assert "model_fixtures.py" not in session[1].out


@pytest.mark.services("backends")
def test_a_type_that_onnxruntime_does_not_know_is_tested(tmp_path):
    """IREE is the reference of Torq's tests, and has bf16: so it also computes the values that a layer sees."""
    project = build_project(tmp_path, TORQ, SETTINGS + TARGETS)
    project.model("half", BF16)
    found = project.pytest("-v", "-k", "Relu_1", "--torq-runtime-hw-type=npu").verdicts
    assert found == {"test_onnx_model_llvmcpu_torq[half_layer_Relu_1-npu-default]": "PASSED"}


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

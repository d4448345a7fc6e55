"""`assay model …` as a user calls it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.command_line import Cli, Result
from tests.example_models import EXAMPLES, ORT, find_marked, until, write_chain, write_long_chain, write_model

from assay.cli.main import run
from assay.models.flow.artifact_builder import ArtifactBuilder, load_product
from assay.models.records import load_report
from assay.models.report.check import build_document
from assay.show.terminal_report import render_terminal

HERE = Path(__file__).parents[1] / "flow"
TARGETS = """
[targets.wrong]
backend = "faulty:FaultyBackend"
fault = {kind = "scaled", at = "sum"}
[targets.refuses]
backend = "picky_backend:Picky"
refuses = "Add"
[targets.hangs]
backend = "picky_backend:Picky"
hang = "Add"
says = "hangs"
until = "end"
"""


CACHE_LINE = re.compile(r" (compile|run): (hit|miss): ")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests here: what the reference computes is computed once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def folder(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and targets that misbehave."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_CACHE", str(store))
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))  # no test waits for another one
    (tmp_path / "slots").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), str(HERE)]))
    (tmp_path / "assay.toml").write_text(TARGETS)
    write_chain(tmp_path / "chain.onnx")
    return tmp_path


@pytest.fixture
def model(folder: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`model("check", "net.onnx", …)` in that folder."""

    def call(*words: str) -> Result:
        capsys.readouterr()
        return Result(run(["model", *words]), *capsys.readouterr())

    assert folder.is_dir()
    return call


@pytest.fixture
def here(model: Cli, lent: None) -> Cli:
    """As `model`, with the check in this process and with workers that other tests had."""
    return model


@pytest.mark.parametrize("command", ["check", "bisect", "reduce", "split", "layers"])
def test_what_is_not_a_model_is_refused_by_every_command(command: str, model: Cli, folder: Path) -> None:
    """The kinds of files that are none: `graph/test_graph.py`."""
    (folder / "empty.onnx").write_bytes(b"")
    target = ["--target", "ort"] if command in ("check", "bisect", "reduce") else []
    result = model(command, "empty.onnx", *target).ended(2, "is not an ONNX model: the file is empty")
    assert "Traceback" not in result.out + result.err
    assert result.out == ""


def test_what_only_the_run_finds_out_is_an_error_of_the_command(here: Cli, folder: Path) -> None:
    loaded = onnx.load(folder / "chain.onnx")
    onnx.save(loaded, folder / "external.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").unlink()
    result = here("check", "external.onnx", "--target", "ort").ended(2, "weights.bin is missing")
    assert "Traceback" not in result.out + result.err
    assert here("layers", "external.onnx").code == 0  # it reads the graph alone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "irre"], "did you mean 'iree'?"),
        (["--target", "ort", "--compile-timeout", "soon"], "soon"),
        (["--target", "ort", "--samples", "0"], "0"),
        (["--target", "ort", "--md", "-", "--json"], "two reports cannot both go to stdout"),
        (["--target", "ort", "--html", "nosuch/page.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str], message: str, model: Cli) -> None:
    """All that a check refuses beforehand: `flow/test_options.py`."""
    result = model("check", "chain.onnx", *words).ended(2, message)
    assert "Traceback" not in result.err


def test_a_correct_target_is_reported_in_one_line_a_table_and_its_run(model: Cli, folder: Path) -> None:
    result = model("check", "chain.onnx", "--target", "ort:unoptimized").ended(0)
    assert result.out.startswith("PASS chain on ort:unoptimized: 3 layers and the full model agree with ort\n")
    assert result.err.splitlines()[0].startswith("ok             chain_full_model")
    assert (folder / result.out.splitlines()[-1].removeprefix("kept in ") / "model.json").exists()


def test_reports_are_written_to_files_and_one_to_stdout(here: Cli, folder: Path) -> None:
    result = here("check", "chain.onnx", "--target", "wrong", "--quiet", "--md=-", "--junit=r.xml", "--html=r.html")
    assert result.code == 1
    assert result.out.startswith("## ❌ chain on wrong: FAIL")
    failed = [
        case.get("name") for case in ET.parse(folder / "r.xml").iter("testcase") if case.find("failure") is not None
    ]
    assert any("Add_1" in str(name) for name in failed)
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert result.err == "page: r.html\n"


def test_the_commands_of_a_report_work_when_pasted(here: Cli, folder: Path) -> None:
    """--json has them as `next`; with --debug-cache its stderr has the reasons of hits and misses alone."""
    words = ["check", "chain.onnx", "--target", "wrong", "--dim", "batch=3", "--tolerance", "rel=1e-4"]
    result = here(*words, "--json", "--debug-cache").ended(1)
    assert len(result.err.splitlines()) > 4
    assert all(CACHE_LINE.search(line) for line in result.err.splitlines()), result.err
    facts = json.loads(result.out)
    assert (facts["verdict"], facts["first_wrong"]) == ("FAIL", "chain_layer_Add_1")
    show, reduce = facts["next"]
    assert reduce == (
        f"cd {folder} && assay model reduce chain.onnx --reference ort --target wrong --tolerance rel=1e-4 --dim batch=3"
    )
    words = shlex.split(show)
    assert words[:3] == ["assay", "model", "diff"]
    assert os.path.isabs(words[3]), "it may be pasted anywhere"
    pasted = here(*words[2:]).ended(1)
    assert pasted.out.startswith("FAIL: the tensors differ")


@pytest.mark.parametrize("command", ["bisect", "reduce"])
def test_bisect_and_reduce_choose_themselves(command: str, model: Cli) -> None:
    model(command, "chain.onnx", "--target", "wrong", "--only", "Add_1").ended(2, "--only")


def test_bisect_names_the_layer(here: Cli) -> None:
    result = here("bisect", "chain.onnx", "--target", "wrong").ended(1)
    assert result.out.startswith("FAIL chain on wrong: the first wrong layer is Add_1: sum is off by 0.01 of its scale")


def test_what_reduce_prints_fails_in_the_same_way_when_pasted(here: Cli, folder: Path) -> None:
    result = here("reduce", "chain.onnx", "--target", "refuses", "--samples", "2", "-o", "out/small.onnx").ended(1)
    assert [node.op_type for node in onnx.load(folder / "out" / "small.onnx").graph.node] == ["Add"]
    (line,) = [line for line in result.out.splitlines() if line.startswith("reproduce it:")]
    words = shlex.split(line.partition(":")[2])
    assert words[:4] == ["assay", "model", "check", "out/small.onnx"]  # from here: the report of a file has whole paths
    assert words.count("--input") == 2
    pasted = here(*words[2:]).ended(1)
    assert pasted.out.startswith("ERROR small on refuses: the first wrong layer is Add_0: compile unsupported: no Add")


def test_the_command_of_a_failed_step_can_be_pasted_anywhere(
    here: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one stands below the folder of the settings: programs are called from there, our files lie here."""
    (folder / "sub").mkdir()
    (folder / "tool.py").write_text("import sys\nopen(sys.argv[1], 'rb').close()\nsys.exit('no luck today')\n")
    with (folder / "assay.toml").open("a") as file:
        file.write(f'[targets.tool]\nrun = "{sys.executable} tool.py {{model}}"\n')
    monkeypatch.chdir(folder / "sub")
    result = here("check", "../chain.onnx", "--target", "tool", "--only", "Add_1", "--quiet").ended(1)
    (command,) = [line.strip().removeprefix("$ ") for line in result.out.splitlines() if line.startswith("  $ ")]
    assert command.startswith(f"cd {folder} && ")
    again = subprocess.run(command, shell=True, cwd="/", capture_output=True, text=True, check=False)
    assert again.stderr == "no luck today\n"


def test_the_command_of_a_compiler_of_ours_can_be_pasted_anywhere(here: Cli, folder: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Hardmax", ["h"], ["y"])]
    write_model(folder / "hard.onnx", nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"w": np.eye(3, dtype=np.float32)}, opset=13)
    words = ["check", "hard.onnx", "--target", "iree", "--only", "Hardmax_1", "--compiler-options=--iree-no-such-flag"]
    result = here(*words, "--quiet").ended(1)
    (command,) = [
        line.strip().removeprefix("$ ")
        for line in result.out.splitlines()
        if line.startswith("  $ ") and "iree-compile " in line
    ]
    named = [word for word in shlex.split(command)[1:] if not word.startswith("-")]
    assert named
    assert all(os.path.isabs(word) for word in named)
    assert "Hardmax_1 is wrong: " in result.out.splitlines()[0]
    assert "the layer before it was not requested" in result.out.splitlines()[0]


MINE = """
import os
from dataclasses import replace
from assay.models.backends.ort import OrtBackend
from assay.models.values.model import Step
from {beside} import FACTOR

class Mine(OrtBackend):
    def perform(self, job):
        if job.step is not Step.COMPILE:
            return super().perform(job)
        import numpy as np, onnx
        from onnx import numpy_helper
        model = onnx.load(job.source)
        for tensor in model.graph.initializer:
            if tensor.name == "w":
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(FACTOR), "w"))
        path = os.path.join(os.path.dirname(job.source), "mine.onnx")
        onnx.save(model, path)
        return super().perform(replace(job, source=path))
"""


@pytest.mark.usefixtures("in_process")
def test_an_edited_back_end_is_never_served_from_the_cache(model: Cli, folder: Path) -> None:
    """Also where the module next to it was edited. Each check has workers of its own."""
    with (folder / "assay.toml").open("a") as file:
        file.write('[targets.mine]\nbackend = "my_own_backend:Mine"\n')
    (folder / "my_own_backend.py").write_text(MINE.format(beside="my_own_factor"))
    words = ["check", "chain.onnx", "--target", "mine", "--vote", "none", "--debug-cache", "--only", "full_model"]
    for factor, exit_code in (("1.00", 0), ("1.05", 1)):
        (folder / "my_own_factor.py").write_text(f"FACTOR = {factor}\n")
        result = model(*words)
        assert result.code == exit_code, result.err
    assert "mine compile: miss: the back end's code changed: my_own_factor.py" in result.err


def test_the_function_of_the_docs_takes_a_model_with_an_open_batch(here: Cli, folder: Path) -> None:
    (folder / "data.py").write_text(
        "def make(sample, rng, inputs):\n"
        "    return {spec.name: rng.normal(size=spec.shape).astype(spec.dtype) for spec in inputs}\n"
    )
    words = ["check", "chain.onnx", "--target", "ort:unoptimized", "--function", "data.py:make", "--json"]
    result = here(*words, "--dim", "batch=3")
    assert result.code == 0, result.err
    assert json.loads(result.out)["cases"][-1]["local"][0]["shape"][0] == [3, 4]


def test_layers_lists_the_cases_with_their_nodes_own_names(model: Cli, folder: Path) -> None:
    content = onnx.load(folder / "chain.onnx")
    content.graph.node[1].name = "/enc/bias"
    onnx.save(content, folder / "named.onnx")
    result = model("layers", "named.onnx")
    lines = result.out.splitlines()
    assert (result.code, lines[1]) == (0, "named_layer_Add_1     Add     /enc/bias  product → sum")
    names = ("layer_MatMul_0", "layer_Add_1", "layer_Relu_2", "full_model")
    assert [line.split()[0] for line in lines] == [f"named_{name}" for name in names]
    facts = json.loads(model("layers", "chain.onnx", "--group", "Add,Relu", "--json").out)
    assert [layer["ops"] for layer in facts["layers"]] == [["MatMul"], ["Add", "Relu"]]


def test_split_writes_models_that_check_takes(here: Cli, folder: Path) -> None:
    result = here("split", "chain.onnx", "--only", "Add_1").ended(0)
    assert result.out.splitlines() == ["chain_layers/chain_layer_Add_1.onnx"]
    base = folder / "chain_layers" / "chain_layer_Add_1"
    here("check", f"{base}.onnx", "--target", "ort:unoptimized", "--input", f"{base}_inputs", "--quiet").ended(0)


def test_convert_never_overwrites_the_model(model: Cli, folder: Path) -> None:
    result = model("convert", "chain.onnx", "--opset", "18", "-o", "./chain.onnx").ended(2)
    assert "would overwrite the model itself" in result.err
    result = model("convert", "chain.onnx", "--opset", "18")
    assert (result.code, result.out) == (0, f"opset 17 → 18, 3 nodes: {folder}/chain_opset18.onnx\n")
    assert onnx.load(folder / "chain_opset18.onnx").opset_import[0].version == 18


def test_the_cache_is_listed_and_cleared(
    model: Cli, folder: Path, builder: ArtifactBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", "store")
    assert model("cache", "ls").out == f"0 artifacts, 0 B in {folder}/store\n"
    with builder.borrowing():
        builder.prepare(ORT, load_product(str(folder / "chain.onnx")), "chain_full_model")
    listed = json.loads(model("cache", "ls", "--json").out)
    assert [each["case"] for each in listed["artifacts"]] == ["chain_full_model"]
    assert "1 artifact, " in model("cache", "ls").out
    assert model("cache", "clear").out.startswith("1 artifact removed, ")


def test_a_command_that_is_not_there(model: Cli) -> None:
    model("chek", "chain.onnx").ended(2, "did you mean 'check'")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom assay.cli.main import run\n"
        "assert run(['model', 'check', '--help']) == 0\n"
        "print(*sorted({'numpy', 'onnx', 'onnxruntime', 'iree', 'openvino'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.needs(bench=True)
def test_bench_finds_the_times_of_layers(here: Cli, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        here("check", "chain.onnx", "--target", "ort:unoptimized", "--recompute-cache", "--quiet", "--label", "me")
    assert run(["bench", "history", "Add_1.run_s", "chain.ort_unoptimized", "--all", "--json"]) in (0, 3)
    assert "Add_1.run_s" in json.dumps(json.loads(capsys.readouterr().out))
    assert run(["bench", "table", "model.chain.ort_unoptimized", "--by", "label", "--all"]) == 0
    assert "me" in capsys.readouterr().out


def test_on_a_terminal_progress_is_one_line_that_goes(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.system.terminal.is_terminal", lambda _stream: True)
    result = here("check", "chain.onnx", "--target", "ort:unoptimized").ended(0).printed("PASS")
    assert "\n" not in result.err, "no line stays"
    assert result.err.startswith("\r\x1b[Kok             chain_layer_Relu_2 ")
    assert result.err.endswith("\r\x1b[K")


def test_an_interruption_stops_everything_and_reports_so(folder: Path) -> None:
    """What a kill leaves: `flow/test_run.py`; other signals: `launch`."""
    argv = [sys.executable, "-m", "assay", "model", "check", "chain.onnx", "--target", "hangs"]
    env = {**os.environ, "FOLDER": str(folder)}
    with subprocess.Popen(
        argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        until((folder / "hangs").exists, "the target hangs")
        assert len(find_marked(f"FOLDER={folder}")) > 2
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted by SIGINT" in err
    assert "Traceback" not in out + err
    until(lambda: find_marked(f"FOLDER={folder}") == [], "no process is left")
    (run_dir,) = (folder / "runs" / "model").glob("chain_hangs_check_*")
    assert not (run_dir / "model.json").exists()


def test_a_long_model_is_shown_in_part_unless_all_is_requested(
    here: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.models.report.check._MOST_ROWS", 5)
    write_long_chain(folder / "long.onnx", 8)
    result = here("check", "long.onnx", "--target", "ort:unoptimized", "--quiet", "--all").ended(0)
    assert all(f"_{number} " in result.out for number in range(8))
    report = load_report(str(folder / result.out.splitlines()[-1].removeprefix("kept in ")))
    assert report is not None
    assert "(--all shows every layer)" in render_terminal(build_document(report), width=100)

"""`assay trace bisect`: two sides, three executions of each, one operation."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import Cli

from assay.trace.bisecting import write_repro
from assay.trace.judge.calls import Opinion, Parting, find_parting

_TRAIN = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
begin = 0
if "--resume" in sys.argv:
    state = torch.load(sys.argv[-1])
    model.load_state_dict(state["model"])
    begin = state["step"]
for step in range(begin, 4):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
    if step >= 2:
        model[1].eps = EPS
    loss = model(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    torch.save({"model": model.state_dict(), "step": step + 1}, f"{os.environ['ASSAY_RUN_DIR']}/step-{step + 1}.pt")
"""


def _git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=n", "-c", "user.email=n@localhost")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.services("frameworks")
def test_two_commits_from_the_nearest_checkpoint(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _git(tmp_path, "init", "--quiet")
    for eps in ("1e-5", "1e-2"):
        (tmp_path / "train.py").write_text(_TRAIN.replace("EPS", eps))
        _git(tmp_path, "add", "train.py")
        _git(tmp_path, "commit", "--quiet", "-m", f"eps {eps}")
    monkeypatch.chdir(tmp_path)
    result = cli(
        *("trace", "bisect", "--a-rev", "HEAD~1", "--b-rev", "HEAD", "--resume", "--resume {checkpoint}", "--json"),
        *("-o", "alone", "--", sys.executable, "train.py"),
    )
    assert result.code == 3, result.err
    facts = json.loads(result.out)
    assert (facts["verdict"], facts["step"], facts["module"]) == ("CHANGED", 3, "1")
    assert (facts["op"], facts["kind"]) == ("aten.native_layer_norm.default", "argument")
    assert "eps 1e-05 in A, 0.01 in B" in facts["answer"]
    runs = [Path(run) for execution in facts["executions"] for run in execution["runs"]]
    assert len(runs) == 6
    assert not (runs[2] / "step-1.pt").exists()  # the second one begins at step 3
    assert (runs[2] / "step-3.pt").exists()
    # both sides do what they were asked to do
    opinion = facts["opinion"]
    assert opinion["exact"] == pytest.approx(opinion["difference"], rel=0.01)
    assert max(opinion["error_a"], opinion["error_b"]) < 1e-6
    assert len((tmp_path / "alone" / "repro.py").read_text().splitlines()) <= 40


def test_what_cannot_be_bisected(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("trace", "bisect", "--", "python", "train.py").ended(2, "both sides are the same")
    result = cli("trace", "bisect", "--b-command", "true", "--resume", "--resume", "--", "python", "train.py")
    assert result.code == 2
    assert "'--resume' has no {checkpoint}" in result.err
    monkeypatch.chdir(tmp_path)
    result = cli("trace", "bisect", "--b-command", "true", "--", "echo").ended(2)
    assert "side a is done, nothing was recorded: no Python of the program loaded the recorder" in result.err


# ---------------------------------------------------------------- where two sequences part


def _call(op: str, *args: Any, result: str = "r", random: bool = False) -> dict[str, Any]:
    own = [_tensor(each) if isinstance(each, str) else each for each in args]
    facts = {"op": f"aten.{op}.default", "names": ["self", "other"], "args": own, "kwargs": {}}
    return {**facts, "result": [_tensor(result)], "random": random, "module": "m"}


def _tensor(values: str) -> dict[str, Any]:
    return {"dtype": "float32", "shape": [1], "hash": values, "offset": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("a", "b", "kind", "text"),
    [
        (_call("relu", "x"), _call("gelu", "x"), "op", "A computes aten.relu.default, B aten.gelu.default"),
        (_call("mul", "x", 2), _call("mul", "x", 3), "argument", "aten.mul.default gets other 2 in A, 3 in B"),
        (_call("mul", "x", "y"), _call("mul", "x", "z"), "input", "aten.mul.default gets another other"),
        (_call("mm", "x", result="r"), _call("mm", "x", result="s"), "result", "computes something else"),
        (_call("rand", result="r", random=True), _call("rand", result="s", random=True), "random", "random numbers"),
        (_call("mm", "x"), None, "op", "B nothing more"),
    ],
)
def test_the_first_call_that_is_not_the_same(a: Any, b: Any, kind: str, text: str) -> None:
    equal = _call("mm", "w")
    found = find_parting([equal, a, _call("add", "q")], [equal, *([b, _call("add", "p")] if b else [])])
    assert found is not None
    assert found.kind == kind
    assert text in found.text


def test_memory_that_nobody_has_written_may_differ() -> None:
    a = [_call("empty", 1, result="old"), _call("uniform_", "old", result="u")]
    b = [_call("empty", 1, result="older"), _call("uniform_", "older", result="u")]
    assert find_parting(a, b) is None
    assert find_parting(a[1:], b[1:]) is not None


@pytest.mark.parametrize(
    ("op", "more", "problem"),
    [
        (
            torch.ops.aten.mkldnn_convolution,
            (None, [0], [1], [1], 1),
            "float64 has no opinion: itensor_view_from_dense",
        ),
        (torch.ops.aten.conv1d, (), ""),
    ],
)
def test_a_repro_asks_float64_where_the_operation_has_such_a_kernel(
    op: Any, more: tuple[Any, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(argv: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            runpy.run_path(argv[1])
        return subprocess.CompletedProcess(argv, 0, out.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run_here)
    calls = []
    for side, factor in (("a", 1.0), ("b", 2.0)):
        given = [torch.ones(1, 4, 8), torch.ones(2, 4, 3).mul(factor)]
        tensors = [*given, op(*given, *more)]
        data = [each.numpy().tobytes() for each in tensors]
        (tmp_path / side).mkdir()
        (tmp_path / side / "kept.bin").write_bytes(b"".join(data))
        *inputs, result = (_keep(each, sum(map(len, data[:number]))) for number, each in enumerate(tensors))
        call = _call(op.__name__, *inputs, *more)
        calls.append({**call, "result": [result], "executable": sys.executable})
    found = write_repro(Parting("input", *calls, ""), (str(tmp_path / "a"), str(tmp_path / "b")), str(tmp_path), "t")
    assert found.problem.startswith(problem)
    assert found.opinion == (None if problem else Opinion(1.0, 0.0, 0.0, 1.0))


def _keep(values: torch.Tensor, offset: int) -> dict[str, Any]:
    facts = {"dtype": "float32", "shape": list(values.shape), "offset": offset, "bytes": values.nbytes, "stride": None}
    return {**facts, "hash": f"{offset} {values.sum()}", "device": "cpu"}


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((0.1, 1e-8, 0.1, 0.0), "A is right: it is 1e-08 away"),
        ((0.1, 0.1, 1e-8, 0.0), "B is right"),
        ((1e-7, 1e-7, 1.2e-7, 0.0), "rounding: both are as far"),
        ((0.1, 1e-8, 1e-8, 0.1), "float64 differs as well"),
        ((float("inf"), 1e-8, float("inf"), 0.0), "A is right"),
    ],
)
def test_who_is_right(figures: tuple[float, float, float, float], text: str) -> None:
    assert text in Opinion(*figures).text

"""`assay model check net.py:build` as a user calls it. What is wrong before anything runs is refused in this process.

What has the mark is asked of one process by `test_torch_cases.py` and `test_torch_calls.py`: four import torch there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.command_line import Cli

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def build():
    return Net(), torch.randn(16, 16)


def raising():
    raise ValueError("no weights")


def wrong(module):
    with torch.no_grad():
        module.b.bias += 1
    return module
"""


@pytest.fixture(autouse=True)
def _net(own_bench: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def net(cli: Cli) -> None:
    Path("net.py").write_text(NET)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ent.py:build", "--target", "torch-bf16"), "there is no file ent.py"),
        (("net.py", "--target", "torch-bf16"), "name the function too: net.py:build"),
        (("net.py:build",), "which target?"),
        (("net.py:build", "--target", "torch-bf61"), "did you mean 'torch-bf16'?"),
        (("net.py:build", "--target", "ort"), "ort computes ONNX models, not torch modules"),
        (("net.py:build", "--target", "net.py:wrong", "--ops"), "another implementation has others"),
        (("net.py:build", "--target", "torch-bf16", "--dim", "batch=4"), "--dim: not for a torch module"),
        (("net.onnx", "--target", "ort", "--ops"), "--ops and --forward are for a torch module"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(cli: Cli, net: None, words: tuple[str, ...], message: str) -> None:
    cli("model", "check", *words).ended(2, message)


@pytest.mark.parametrize("command", ["layers", "split"])
def test_commands_for_files_say_so(cli: Cli, net: None, command: str) -> None:
    found = cli("model", command, "my net.py:build").ended(2, "my net.py:build is a torch module, not an ONNX model")
    assert "`assay model check 'my net.py:build' --target torch-bf16 --all`" in found.err


def test_a_check_from_the_command_line(cli: Cli, net: None, lent: None) -> None:
    result = cli(
        "model", "check", "net.py:build", "--target", "net.py:wrong", "--forward", "--json", "--html", "r.html"
    )
    assert result.code == 1
    report = json.loads(result.out)
    assert report["first_wrong"] == "net_layer_b"
    assert report["next"][-1].endswith("assay model reduce net.py:build --target net.py:wrong --forward")
    assert "net on net.py:wrong" in Path("r.html").read_text()


@pytest.mark.services("backends")
def test_what_the_users_code_does_wrong_is_one_line(cli: Cli, net: None) -> None:
    result = cli("model", "check", "net.py:raising", "--target", "torch-bf16", "--quiet").ended(2)
    assert "net.py:20: raising() failed: ValueError: no weights" in result.err
    assert "Traceback" not in result.err


def test_without_torch_the_command_that_installs_it_is_printed(
    cli: Cli, net: None, in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = cli("model", "check", "net.py:build", "--target", "torch-bf16", "--quiet").ended(2)
    assert "needs torch, which is not installed here: pip install torch" in result.err

"""`assay golden check --explain` and `assay golden explain`: from "the loss moved" to what began it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli

_TORCH = """
import sys
import torch
from torch import nn

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-5), nn.Linear(8, 2))
optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
step, every = 0, int(options.get("--every", 0))
if "--resume" in options:
    state = torch.load(options["--resume"])
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    step = state["step"]
optimiser.param_groups[0]["weight_decay"] = 0.01  # not what the checkpoint has
while step < int(options["--steps"]):
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
    loss = model(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    step += 1
    print(f"step {step} loss {loss.item()!r}", flush=True)
    if every and step % every == 0:
        path = f"{options['--save']}/{step}.pt"
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, path)
        print(f"saved {path} at step {step}", flush=True)
"""
_PLAIN = """
import sys

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for step in range(int(options.get("--resume", "0").split("/")[-1] or 0) + 1, int(options["--steps"]) + 1):
    print(f"step {step} loss {1.0 / step}", flush=True)
    if "--every" in options and step % int(options["--every"]) == 0:
        open(f"{options['--save']}/{step}", "w").close()
        print(f"saved {options['--save']}/{step} at step {step}", flush=True)
"""
_STUDY = """
study: little
command: {python} train.py
metrics: {{step: 'step (\\d+)', loss: 'loss ({{number}})'}}
golden:
  segment: 2
  save: 'saved (\\S+) at step (?P<step>\\d+)'
  checkpoint: --save
  resume: --resume
  length: --steps
  gather: --steps 4 --every 2
  replicas: 1
  metrics: {{loss: exact}}
"""


@pytest.fixture
def gathered(request: pytest.FixtureRequest, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A golden of a program of which everything is committed."""
    (tmp_path / "train.py").write_text(request.param)
    (tmp_path / "golden.yml").write_text(_STUDY.format(python=sys.executable))
    (tmp_path / ".gitignore").write_text("runs\ngolden\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "good"]):
        own = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.chdir(tmp_path)
    result = cli("golden", "gather", "golden.yml")
    assert result.code == 0, result.out + result.err
    return tmp_path


def _list_lines(text: str) -> list[str]:
    notes = json.loads(text)["tests"][0]["notes"]
    return [note.removeprefix("explain: ") for note in notes if note.startswith("explain: ")]


@pytest.mark.parametrize("gathered", [_TORCH], indirect=True)
def test_a_module_and_an_optimiser_group(gathered: Path, cli: Cli) -> None:
    program = gathered / "train.py"
    program.write_text(_TORCH.replace("eps=1e-5", "eps=1e-2"))
    result = cli("golden", "check", "golden.yml", "--explain", "--json")
    assert result.code == 3, result.err
    first, *others = _list_lines(result.out)
    assert first.startswith(
        "after step 2, counted from there: 1 in step 1: aten.native_layer_norm.default gets eps 1e-05"
    )
    assert others[0].startswith("float64: float64 differs as well")
    program.write_text(_TORCH.replace("= 0.01", "= 0.5"))
    result = cli("golden", "explain", "golden.yml", "--json")
    assert result.code == 3, result.err
    first, *others = _list_lines(result.out)
    assert "group 0 of the optimiser has weight_decay 0.01 in A, 0.5 in B" in first
    assert len(others) == 1  # the explanation before is replaced


@pytest.mark.parametrize("gathered", [_PLAIN], indirect=True)
def test_a_program_without_torch(gathered: Path, cli: Cli) -> None:
    result = cli("golden", "explain", "golden.yml")
    assert result.code == 2
    assert "was not checked yet" in result.out + result.err
    (gathered / "train.py").write_text(_PLAIN.replace("1.0 / step", "2.0 / step"))
    result = cli("golden", "check", "golden.yml", "--explain")
    assert result.code == 3
    assert "the program did not import torch; a trace has the tensors of torch, nothing of numpy" in result.out

"""`assay golden check --explain` and `assay golden explain`: from "the loss moved" to what began it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli

# each explanation starts four to seven programs that import torch, one after another: minutes beside other work
pytestmark = pytest.mark.timeout(1200)

_TORCH = """
import sys
import torch
from torch import nn

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8, eps=1e-5), nn.Linear(8, 8))
optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.999), eps=1e-8)
step, every = 0, int(options.get("--every", 0))
if "--resume" in options:
    state = torch.load(options["--resume"])
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    step = state["step"]
group = optimiser.param_groups[0]
group["weight_decay"], group["betas"], group["eps"] = 0.01, (0.9, 0.999), 1e-8  # not what the checkpoint has
while step < int(options["--steps"]):
    group["lr"] = 0.1 * min(1.0, (step + 1) / 8)
    x = torch.randint(8, (8, 4), generator=torch.Generator().manual_seed(step))
    windows, targets = x[:, :3], x[:, 3]
    optimiser.zero_grad()
    total = 0.0
    for part in range(2):
        chosen = slice(part * 4, part * 4 + 4)
        loss = nn.functional.cross_entropy(model(windows[chosen]), targets[chosen]) / 2
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    step += 1
    print(f"step {step} loss {total!r}", flush=True)
    if every and step % every == 0:
        path = f"{options['--save']}/{step}.pt"
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, path)
        print(f"saved {path} at step {step}", flush=True)
"""
# the faults of examples/charlm/faults.py that a program of torch can have: what is replaced, and what is named
_FAULTS = {
    "decay-lost": ("= 0.01, (", "= 0.0, (", "group 0 of the optimiser has weight_decay 0.01 in A, 0"),
    "lr-up-10": ("0.1 * min", "0.11 * min", "group 0 of the optimiser has lr "),
    "schedule-off-by-one": ("(step + 1) / 8", "step / 8", "group 0 of the optimiser has lr "),
    "beta1-0.5": (", (0.9, 0.999), 1e-8 ", ", (0.5, 0.999), 1e-8 ", "betas [0.9, 0.999] in A, [0.5, 0.999] in B"),
    "eps-1e-3": ("0.999), 1e-8 ", "0.999), 1e-3 ", "group 0 of the optimiser has eps 1e-8 in A, 0.001 in B"),
    "optimiser-state-lost": (
        "    optimiser.load_state_dict(state",
        "    (state",
        "the state of 0.weight.exp_avg in step 1",
    ),
    "no-gradient-hidden-bias": (
        "    optimiser.step()",
        "    model[2].bias.grad = None\n    optimiser.step()",
        "2.bias",
    ),
    "clipped-tightly": ("parameters(), 1.0)", "parameters(), 0.01)", "aten.mul.Tensor gets other 1.0 in A, 0.01 in B"),
    "micro-batch-lost": ("range(2)", "range(1)", "A computes aten.slice.Tensor, B aten._foreach_norm.Scalar"),
    "forgot-to-normalise": (") / 2\n", ") / 1\n", "aten.div.Tensor gets other 2 in A, 1 in B"),
    "data-repeated": ("manual_seed(step)", "manual_seed(step // 2)", "another order"),
    "blank-context": (
        "x[:, :3], x[:, 3]",
        "x[:, :3] * torch.tensor([0, 1, 1]), x[:, 3]",
        "other data, or another order",
    ),
    "epsilon-of-a-norm": (
        "LayerNorm(8, eps=1e-5)",
        "LayerNorm(8, eps=1e-2)",
        "aten.native_layer_norm.default gets eps 1e-05",
    ),
}
_IN_MAKE_TEST = ("decay-lost",)
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


@pytest.mark.services("frameworks")
@pytest.mark.parametrize("gathered", [_TORCH], indirect=True)
@pytest.mark.parametrize(
    "fault", [name if name in _IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.long) for name in _FAULTS]
)
def test_the_faults_of_charlm_in_torch_are_named(fault: str, gathered: Path, cli: Cli) -> None:
    old, new, culprit = _FAULTS[fault]
    assert old in _TORCH
    (gathered / "train.py").write_text(_TORCH.replace(old, new))
    result = cli("golden", "check", "golden.yml", "--explain", "--json")
    assert result.code == 3, result.err
    assert culprit in _list_lines(result.out)[0]


@pytest.mark.long
@pytest.mark.parametrize("gathered", [_TORCH], indirect=True)
def test_an_explanation_replaces_the_one_before(gathered: Path, cli: Cli) -> None:
    (gathered / "train.py").write_text("print('step 3 loss 9')\nprint('step 4 loss 9')\n")
    (first,) = _list_lines(cli("golden", "check", "golden.yml", "--explain", "--json").out)
    assert "not explained: side b is done, nothing was recorded: the program did not import torch" in first
    (gathered / "train.py").write_text(_TORCH.replace(*_FAULTS["decay-lost"][:2]))
    first, *others = _list_lines(cli("golden", "explain", "golden.yml", "--json").out)
    assert _FAULTS["decay-lost"][2] in first
    assert len(others) == 1


@pytest.mark.needs(golden=True)
@pytest.mark.parametrize("gathered", [_PLAIN], indirect=True)
def test_a_program_without_torch(gathered: Path, cli: Cli) -> None:
    result = cli("golden", "explain", "golden.yml").ended(2)
    assert "was not checked yet" in result.out + result.err
    (gathered / "train.py").write_text(_PLAIN.replace("1.0 / step", "2.0 / step"))
    result = cli("golden", "check", "golden.yml", "--explain").ended(3)
    assert "the program did not import torch; a trace has the tensors of torch, nothing of numpy" in result.out

"""`assay trace run` with real programs: what is recorded, what is reported where nothing can be."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.command_line import Cli

from assay.trace.records import list_traces, load_trace
from assay.trace.settings import parse_steps

pytestmark = pytest.mark.services("frameworks")

TRAIN = """
import os, sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(5, 4)
    loss = model(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    if "die" in sys.argv and step == 1:
        sys.exit(7)
    if "fork" in sys.argv:
        pid = os.fork()
        if pid == 0:
            model(x)
            os._exit(0)
        os.waitpid(pid, 0)
    if "full" in sys.argv and step == 1:
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    optimiser.step()
    print("loss", loss.item())
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def record(cli: Cli, *words: str, code: int = 0) -> dict:
    done = cli("trace", "run", "--json", *words)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    return {**json.loads(done.out), "err": done.err}


def test_a_program_is_recorded_with_noise_and_proved(cli: Cli, program: Path) -> None:
    found = record(cli, "--steps", "1-2", "--noise", "1", "--prove", "-o", "kept", "--", sys.executable, "train.py")
    assert (found["steps"], found["proof"]["verdict"], found["problems"]) == ([1, 2], "PASS", [])
    (plain,), (noisy,) = list_traces(found["dir"]), list_traces(found["dir"], "noise-1")
    rows = [load_trace(each).rows for each in (plain, noisy)]
    assert len(rows[0]) == len(rows[1])
    points = load_trace(plain).points
    same = [bool(a["hash"] == b["hash"]) for a, b in zip(*rows, strict=True)]
    phases = [points[row["point"]].phase for row in rows[0]]
    assert same[0]
    assert phases[0] == "input"
    assert not same[1]
    assert points[rows[0][1]["point"]].module == "0"
    moved = abs(rows[0][1]["sketch"] - rows[1][1]["sketch"]).max()
    assert 0 < moved < 1e-6
    assert load_trace(noisy).meta["perturbed"] == 1
    shown = cli("trace", "show", "kept", "--in", "2", "--json")
    assert {row["module"] for row in json.loads(shown.out)["rows"]} == {"2"}
    assert cli("trace", "show", found["run"]).code == 0
    cli("trace", "show", "kept", "--step", "9").ended(2, "no recorded tensor matches --step\n")
    cli("trace", "show", "kept", "--step", "1", "--in", "9").ended(2, "no recorded tensor matches --step and --in\n")
    cli("trace", "run", "-o", "kept", "--", sys.executable, "train.py").ended(2, "-o kept exists")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-I", "-c", "print('hello')"), "no Python of the program loaded the recorder"),
        (("-c", "print('hello')"), "the program did not import torch"),
        (("-c", "import torch"), "no step that was asked for was reached"),
    ],
)
def test_nothing_to_record_is_a_failure_with_its_reason(
    words: tuple[str, ...], reason: str, cli: Cli, program: Path
) -> None:
    found = record(cli, "--", sys.executable, *words, code=1)
    assert found["state"] == "done"
    assert f"nothing was recorded: {reason}" in found["err"]


def test_a_program_that_dies_in_a_traced_step_keeps_its_exit_code_and_its_record(cli: Cli, program: Path) -> None:
    found = record(cli, "--steps", "1,2", "--", sys.executable, "train.py", "die", code=1)
    assert os.path.exists(os.path.join(found["dir"], "program.exit.7"))
    trace = load_trace(list_traces(found["dir"])[0])
    assert [each["step"] for each in trace.steps] == [1]
    assert (trace.rows["step"].max(), found["missing"], trace.is_complete) == (2, [2], False)


def test_a_full_disk_ends_the_record_and_not_the_program(cli: Cli, program: Path) -> None:
    found = record(cli, "--steps", "1-3", "--", sys.executable, "train.py", "full")
    assert found["state"] == "done"
    assert found["steps"] == [1]


def test_a_module_a_hidden_sitecustomize_and_a_forked_child_that_records_nothing(
    cli: Cli, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program / "own").mkdir()
    (program / "own" / "sitecustomize.py").write_text("import os; os.environ['OWN'] = 'seen'")
    (program / "train.py").write_text(TRAIN + "assert os.environ['OWN'] == 'seen'\n")
    monkeypatch.setenv("PYTHONPATH", str(program / "own"))
    found = record(cli, "--", sys.executable, "-m", "train", "fork")
    assert (found["processes"], found["steps"]) == (1, [1])


def test_a_program_that_also_logs_to_wandb(cli: Cli, program: Path) -> None:
    text = "import wandb\nwandb.init(project='p')\n" + TRAIN + "    wandb.log({'loss': loss.item()})\n"
    (program / "train.py").write_text(text)
    found = record(cli, "--", sys.executable, "-m", "assay.wandb", "train.py")
    assert found["steps"] == [1]
    assert os.path.exists(os.path.join(found["dir"], "wandb.json"))


def test_a_study_file_asks_for_traces(cli: Cli, program: Path) -> None:
    command = f"command: {sys.executable} train.py\n"
    (program / "study.yml").write_text(f"study: s\n{command}trace: {{steps: [1, 3], level: step}}\n")
    assert cli("run", "study.yml", "-q").code == 0
    (run_dir,) = (path for path in (program / "runs" / "s").iterdir() if path.name != ".assay")
    assert [each["step"] for each in load_trace(list_traces(str(run_dir))[0]).steps] == [1, 3]
    (program / "study.yml").write_text(f"{command}trace: {{step: 1, level: modul, placement: {{'*': X(0)}}}}\n")
    refused = cli("run", "study.yml").ended(2)
    assert "study.yml:2:9 trace.step: unknown key" in refused.err
    assert "did you mean 'module'?" in refused.err
    assert "trace.placement.*: " in refused.err


def test_torchrun_records_each_rank_and_a_placement_can_be_declared(cli: Cli, program: Path) -> None:
    ranks = "torch.distributed.init_process_group('gloo')\nmodel = torch.nn.parallel.DistributedDataParallel(model)\n"
    (program / "ranks.py").write_text(TRAIN.replace("optimiser =", f"{ranks}optimiser =", 1))
    (program / "placement.txt").write_text("2 = I(0)  # as the sampler does\n")
    command = (os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2")
    found = record(cli, "--placement", "placement.txt", "--", *command, "ranks.py")
    assert (found["processes"], found["problems"]) == (2, [])
    traces = [load_trace(each) for each in list_traces(found["dir"])]
    assert [(each.meta["rank"], each.meta["world"]) for each in traces] == [(0, 2), (1, 2)]
    placements = {(p.phase, p.module, p.name): p.placement for p in traces[1].points}
    assert placements["forward", "2", "output.0"] == {"placements": ["I(0)"], "global": [10, 1]}
    assert placements["forward", "0", "output.0"] == {"placements": ["S(0)"], "global": [10, 8], "assumed": True}
    assert placements["gradient", "0", "weight"] == {"placements": ["R"], "assumed": True}
    (program / "placement.txt").write_text("* = I(0)\n2 = S\n3\n")
    refused = cli("trace", "run", "--placement", "placement.txt", "--", *command)
    assert (refused.code, "placement.txt:2:1: 'S' is not S(0)" in refused.err) == (2, True)
    assert "placement.txt:3:1: is not NAME = NAME" in refused.err


def test_steps_are_numbers_and_ranges(cli: Cli) -> None:
    assert parse_steps("100,1-3, 2", "--steps") == (1, 2, 3, 100)
    for text in ("0", "2-1", "one", "1,,2", ""):
        cli("trace", "run", "--steps", text, "--", "true").ended(2, "is not a list of steps")

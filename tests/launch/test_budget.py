"""`--budget`: which runs are not started any more, and how hours are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.finished_study import Bench

from assay.errors import UsageError
from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry
from assay.launch.budget import Budget
from assay.values.run import Command, JobHandle, Outcome, RunSpec, State
from assay.values.study import Resources

STUDY = "study: s\ncommand: sleep 0.6\nparams: {x: [1, 2, 3, 4, 5]}\nresources: {gpus: 0, cpus: 2}\n"


def run(bench: Bench, *words: str, text: str = STUDY) -> tuple[int, str, str]:
    done = bench.assay("run", bench.write("s.yml", text), *words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.needs(mcp=True)
def test_nothing_more_is_started_and_what_did_not_start_is_named(own_bench: Bench) -> None:
    code, _, err = run(own_bench, "-j", "1", "--plain", "--budget", "0.0003h")  # 0.0003 h are 1.08 s: two runs
    assert code == 3
    assert "warning: the budget of 0.0003h is used (" in err
    assert "so 3 runs did not start: x=3, x=4, x=5\n" in err
    assert err.endswith("assay run s.yml -j 1 --budget 0.0003h\n")
    rows = json.loads(own_bench.assay("ls", "s", "--fields", "state").stdout)
    assert [each["state"] for each in rows] == ["done", "done", *["not started"] * 3]
    waited = own_bench.assay("wait", "s")
    assert (waited.returncode, json.loads(waited.stdout)["counts"]) == (1, {"done": 2, "not started": 3})
    code, out, _ = run(own_bench, "-j", "1", "--json", "--budget", "0.0003cpuh")  # two cores each: one run
    facts = json.loads(out)
    assert (code, facts["exit_code"], facts["held_back"]) == (3, 3, ["x=4", "x=5"])
    code, _, err = run(own_bench, "-j", "2", "--quiet", "--budget", "1h")
    assert (code, "budget" in err) == (0, False)


def test_a_retry_is_not_started_either(own_bench: Bench) -> None:
    text = "study: s\ncommand: sleep 0.6; false\nretries: 5\nresources: {gpus: 0}\n"
    code, out, _ = run(own_bench, "-j", "1", "--json", "--budget", "0.0003h", text=text)
    assert (code, json.loads(out)["held_back"]) == (3, ["run"])
    assert json.loads(own_bench.assay("ls", "s", "--fields", "attempt").stdout) == [{"attempt": 2}]


@pytest.mark.parametrize(
    ("budget", "printed"),
    [
        (
            "2gpuh",
            "--budget 2gpuh: s does not declare GPUs\n  declare them in a file (resources: {gpus: 1}) or by --slots 0, or",
        ),
        ("2gph", "--budget '2gph' is not a budget\n  write for example 2gpuh (GPU hours), 2cpuh (core hours), 2h"),
        ("-2h", "--budget '-2h' is not a budget"),
        ("0h", "--budget '0h' is not a budget"),
        ("", "--budget '' is not a budget"),
    ],
)
def test_a_budget_that_cannot_be_counted_is_refused(own_bench: Bench, budget: str, printed: str) -> None:
    code, _, err = run(own_bench, f"--budget={budget}", "-j", "1")
    assert (code, printed in err) == (2, True), err
    assert not (own_bench.root / "s").exists()


def build_entry(slot: str | None, seconds: float, resources: Resources) -> Entry:
    spec = RunSpec("id", "run", {}, (Command("train", ""),), resources=resources)
    entry = Entry(spec, "/nowhere", RetryPolicy(), is_mine=True)
    entry.handle = JobHandle("local", "1", "here", 1, 1, "boot", slot, 1, 100.0)
    entry.outcome = Outcome(State.DONE, 1, {}, started_at=100.0, ended_at=100.0 + seconds)
    return entry


@pytest.mark.parametrize(
    ("text", "slot", "resources", "used_h"),
    [
        ("2gpuh", "0,1", Resources(), 2.0),  # one slot of two GPUs
        ("2gpuh", None, Resources(gpus=8), 8.0),  # a job on a farm
        ("2gpuh", "cpu", Resources(gpus=0), 0.0),
        ("2cpuh", "0", Resources(cpus=4), 4.0),
        ("2h", "0,1", Resources(cpus=4), 1.0),
    ],
)
def test_hours_are_those_of_what_a_run_occupies(text: str, slot: str, resources: Resources, used_h: float) -> None:
    budget = Budget(text)
    budget.add(build_entry(slot, 3600, resources))
    assert budget.measure_s() == used_h * 3600
    running = build_entry(slot, 0, resources)
    assert budget.measure_s([running]) > budget.measure_s() or used_h == 0


def test_a_slot_of_a_gpu_declares_it(tmp_path: Path) -> None:
    from assay.config.load import load_study

    (tmp_path / "s.yml").write_text("study: s\ncommand: echo\n")
    study = load_study(str(tmp_path / "s.yml"))
    Budget("1gpuh").check(study, ["0"])
    with pytest.raises(UsageError, match="does not declare GPUs"):
        Budget("1gpuh").check(study, ["cpu", "cpu"])

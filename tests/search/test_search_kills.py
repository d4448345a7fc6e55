"""A search whose supervisors are killed at random instants: no trial is lost, repeated or proposed differently."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.finished_study import Bench, until

from assay.system.files import write_atomic

pytest.importorskip("optuna")

# a trial waits until its number is allowed: however late the test looks, the search has not ended before the kills
STUDY = """
study: tune
command: 'until [ "$(cat {ledger}.most)" -ge "${ASSAY_RUN_NAME#trial-}" ]; do sleep 0.05; done; echo "$ASSAY_RUN_NAME" >> {ledger}; sleep 0.1; echo "loss=$(awk "BEGIN {{print ({x}-3)^2+{y}}}")"'
params: {x: {uniform: [0, 10]}, y: {int: [1, 9]}, opt: [a, b], ledger: LEDGER}
metrics: {loss: 'loss=({number})'}
search: {sampler: SAMPLER, metric: loss, trials: TRIALS}
resources: {gpus: 0}
"""


def write(bench: Bench, sampler: str, trials: int) -> None:
    text = STUDY.replace("SAMPLER", sampler).replace("TRIALS", str(trials))
    bench.write("study.yml", text.replace("LEDGER", str(bench.folder / "ledger")))
    allow(bench, trials)


def allow(bench: Bench, number: int) -> None:
    write_atomic(str(bench.folder / "ledger.most"), str(number))


def start(bench: Bench, slots: int) -> subprocess.Popen[str]:
    return bench.start("run", "study.yml", "-j", str(slots), "--quiet")


def finish(bench: Bench, slots: int) -> None:
    program = start(bench, slots)
    _, err = program.communicate(timeout=120)
    assert program.returncode == 0, err


def kill(program: subprocess.Popen[str]) -> None:
    """End the supervisor alone: its jobs are in sessions of their own, and go on."""
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()


def count_trials(bench: Bench) -> int:
    return len(list((bench.root / "tune").glob("trial-*")))


def load_params(bench: Bench) -> dict[int, object]:
    records = [json.loads(path.read_text()) for path in (bench.root / "tune").glob("trial-*/run.json")]
    return {
        record["trial"]: {name: value for name, value in record["spec"]["params"].items() if name != "ledger"}
        for record in records
    }


def check_ledger(bench: Bench, trials: int) -> None:
    counts = Counter((bench.folder / "ledger").read_text().split())
    assert counts == Counter(f"trial-{number:04d}" for number in range(trials)), "each trial ran exactly once"
    assert sorted(load_params(bench)) == list(range(trials))
    # an attempt whose supervisor was killed before it opened the job's gate has done nothing, and is lost
    attempts = sorted((bench.root / "tune").glob("trial-*/outcome.*"), key=lambda path: int(path.suffix[1:]))
    newest = {path.parent.name: json.loads(path.read_text())["state"] for path in attempts}
    assert [*newest.values()] == ["done"] * trials


def hammer(tmp_path: Path, sampler: str, trials: int, kills: int, seed: int) -> int:
    """Kill one supervisor after the other; how many of them came to something."""
    rng = random.Random(seed)
    (tmp_path / "killed").mkdir()
    bench = Bench(tmp_path / "killed")
    write(bench, sampler, trials)
    begun = 0
    for _ in range(kills):
        before = count_trials(bench)
        allow(bench, before + 3)
        program = start(bench, slots=1)
        if rng.random() < 0.8:  # while it proposes; else while it begins
            until(lambda before=before: count_trials(bench) > before, "a new trial", 60)
        time.sleep(rng.uniform(0, 0.7))
        assert program.poll() is None
        kill(program)
        begun += count_trials(bench) > before
    allow(bench, trials)
    finish(bench, slots=1)
    check_ledger(bench, trials)
    (tmp_path / "whole").mkdir()
    whole = Bench(tmp_path / "whole")
    write(whole, sampler, trials)
    finish(whole, slots=1)
    assert load_params(bench) == load_params(whole), "the same results gave the same proposals"
    return begun


@pytest.mark.services("kills")
def test_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert hammer(tmp_path, "tpe", trials=24, kills=5, seed=1) >= 3


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("sampler", "kills"), [("tpe", 60), ("cmaes", 20), ("qmc", 20)])
def test_a_hundred_kills_lose_and_repeat_nothing(
    tmp_path: Path, sampler: str, kills: int, record_property: Callable[[str, object], None]
) -> None:
    assert hammer(tmp_path, sampler, trials=kills * 8, kills=kills, seed=2) >= kills // 2
    record_property("kills of a supervisor, in a search", f"0 of {kills}")


@pytest.mark.long
def test_two_supervisors_that_are_killed_in_turn_share_a_search(tmp_path: Path) -> None:
    rng, trials = random.Random(3), 1000  # enough for the kills on a quick machine
    bench = Bench(tmp_path)
    write(bench, "tpe", trials)
    programs = [start(bench, slots=2) for _ in range(2)]
    for _ in range(30):
        index = rng.randrange(2)
        time.sleep(rng.uniform(0.1, 1.5))
        assert programs[index].poll() is None, "the search was finished before the kills were: give it more trials"
        kill(programs[index])
        programs[index] = start(bench, slots=2)
    for program in programs:
        _, err = program.communicate(timeout=300)
        assert program.returncode == 0, err
    check_ledger(bench, trials)

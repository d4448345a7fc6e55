"""Supervisors, job.sh's and commands die at any instant: no attempt runs twice, no run is lost, every code is true."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

import pytest
from tests.acceptance.hammer import Hammer
from tests.fork_server import call_python
from tests.study_processes import StudyProcesses

from assay.values.run import State

Record = Callable[[str, object], None]


def hammer_until(shop: StudyProcesses, kills: int, runs: int, seed: int, record: Record) -> None:
    """Ctrl-C ends it early: what was killed by then is judged and counted."""
    hammer = Hammer(shop, seed, runs)
    number, problems = 0, []
    while hammer.kills.total() < kills and not problems:
        hammer.write_study(number)
        try:
            hammer.sweep(kills - hammer.kills.total())
        except KeyboardInterrupt:
            kills = 0
        hammer.finish()
        problems = hammer.judge()
        number += 1
    for kind, count in sorted(hammer.kills.items()):
        record(f"kills of a {kind}, in studies of {runs} runs", f"{len(problems)} of {count}")
    assert not problems, f"seed {seed}, {dict(hammer.kills)}:\n" + "\n".join(problems)


def choose_seed() -> int:
    """KILL_SEED repeats a failure as nearly as the machine's timing lets it."""
    return int(os.environ.get("KILL_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.services("kills")
def test_twenty_kills(shop: StudyProcesses, record_property: Record) -> None:
    hammer_until(shop, 20, runs=60, seed=choose_seed(), record=record_property)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_kills(shop: StudyProcesses, record_property: Record) -> None:
    """KILLS is how many, 1000 where it is not set; the index is compared with a rebuilt one, point by point:

    KILLS=200 python -m pytest -s tests/acceptance/test_kill.py -k thousand
    """
    kills = int(os.environ.get("KILLS", "1000"))
    hammer_until(shop, kills, runs=120, seed=choose_seed(), record=record_property)


# ---------------------------------------------------------------- at every step

# `assay` in a process that kills itself at the nth call of a function of the operating system: before it, or after.
# `unlink:lease` counts the calls that have to do with leases.
DRIVER = """
import os, signal, sys
(name, _, word), side, count = sys.argv[1].partition(":"), sys.argv[2], int(sys.argv[3])
call = getattr(os, name)
def counted(*arguments, **options):
    global count
    if word not in str(arguments):
        return call(*arguments, **options)
    count -= 1
    if side == "before" and count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        return call(*arguments, **options)
    finally:
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
setattr(os, name, counted)
from assay.cli.main import main
main(sys.argv[4:])
"""
STEPS = {
    "mkdir:.tmp-": "the directory is made aside",
    "rename:.tmp-": "it gets its name",
    "posix_spawn:": "job.sh waits at its gate",
    "link:lease": "the lease is published",
    "unlink:lease": "its temporary name is removed",
    "pidfd_open:": "between the lease and the gate",
    "link:outcome": "the conclusion is published",
}


def die_at(hammer: Hammer, step: str, side: str, count: int) -> None:
    """A supervisor that gets as far as this step."""
    arguments = ["run", hammer.file, "--root", str(hammer.shop.root), "--plain", "--slots", f"cpu:{hammer.slots}"]
    drive(hammer.shop, step, side, count, arguments)


def drive(shop: StudyProcesses, step: str, side: str, count: int, arguments: Sequence[str]) -> None:
    driver = shop.base / "driver.py"
    driver.write_text(DRIVER)
    ended = call_python([str(driver), step, side, str(count), *arguments], cwd=shop.source, env=shop.env, timeout=60)
    assert ended.returncode == -signal.SIGKILL, f"{step} {side} {count} was not reached: {ended.stderr}"


@pytest.mark.needs(exchange=True)
def test_death_at_every_step_of_a_start(shop: StudyProcesses) -> None:
    # long enough to be found running by the next supervisor, should one have begun without its lease
    hammer = Hammer(shop, 1, runs=40, slots=8, durations_s=(0.7,))
    hammer.write_study(0)
    for step in STEPS:
        for side in ("before", "after"):
            die_at(hammer, step, side, 2)
    hammer.finish()
    assert not hammer.judge()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_death_at_every_step_again_and_again(shop: StudyProcesses, record_property: Record) -> None:
    counts, problems = (1, 3, 4, 5, 7), []
    for number, count in enumerate(counts):
        hammer = Hammer(shop, count, runs=90, slots=3)
        hammer.write_study(number)
        for step in STEPS:
            for side in ("before", "after"):
                die_at(hammer, step, side, count)
        hammer.finish()
        problems += hammer.judge()
    tried = len(counts) * len(STEPS) * 2
    record_property("deaths of a supervisor before and after each step of a start", f"{len(problems)} of {tried}")
    assert not problems, "\n".join(problems)


@pytest.mark.needs(exchange=True)
def test_what_a_dead_supervisor_left_aside_is_cleared_away(shop: StudyProcesses) -> None:
    hammer = Hammer(shop, 1, runs=6, slots=1)
    hammer.write_study(0)
    die_at(hammer, "rename:.tmp-", "before", 3)
    left = [path for path in (shop.root / hammer.name / ".assay").rglob("*") if path.name.startswith(".tmp-")]
    assert left
    hammer.finish()
    assert all(path.exists() for path in left)  # so young that a supervisor on another host may still be at it
    for path in left:
        os.utime(path, (time.time() - 100,) * 2)
    hammer.finish()
    assert not any(path.exists() for path in left)
    assert not hammer.judge()


# ---------------------------------------------------------------- while a rule ends runs

RULES = {"link:stop": "the decision is published", "link:outcome": "the conclusion is published"}
PRUNED = r"""
study: study
command: 'echo "step 1 loss {x}"; [ {x} -lt 5 ] || { (setsid sleep 1000 &); sleep 1000; }; sleep 0.3'
params: {x: [1, 9, 2, 8, 3, 7, 6, 10]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
stop: {rule: bounds, metric: loss, max: 5}
"""


@pytest.mark.parametrize("step", RULES)
@pytest.mark.needs(search=True)
def test_death_while_a_rule_ends_runs(shop: StudyProcesses, step: str) -> None:
    """Whenever the supervisor dies: each run is ended once, as decided, and leaves no process."""
    shop.write("study.yml", PRUNED)
    arguments = ["run", "study.yml", "--root", str(shop.root), "--plain", "-j", "3"]
    for side, count in (("before", 1), ("after", 1), ("before", 2), ("after", 2)):
        drive(shop, step, side, count, arguments)
    ended = shop.call(*arguments)
    assert ended.code == 0, ended.err
    states = {int(name.partition("=")[2]): shop.states(name) for name in shop.run_dirs()}
    assert states == {x: [State.DONE if x < 5 else State.PRUNED] for x in (1, 2, 3, 6, 7, 8, 9, 10)}
    assert shop.processes() == {}

"""`assay wait`."""

from __future__ import annotations

import json
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench

from assay.follow.locations import StudyLocation
from assay.reading.listing import load_all_rows
from assay.record.index.base import IndexTable
from assay.record.index.stored import Index
from assay.show.console import Console

# each run waits until its file is there
GATED = r"""
study: gated
command: 'echo "step 1 loss {x}"; until [ -e go-{x} ]; do sleep 0.05; done; echo "step 2 loss 0.{x}"; [ {x} != 2 ]'
params: {x: [1, 2, 3]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
code: live
"""


def read(result: Any) -> dict[str, Any]:
    (line,) = result.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_condition_over_states_and_metrics(cli) -> None:
    found = cli("wait", "fit", "--until", "failed or loss < 1")
    assert (found.code, found.err) == (0, "")
    facts = read(found)
    assert (facts["reason"], facts["matches"], facts["matched"]) == ("met", 2, ["lr=0.5,n=7", "lr=0.5,n=8"])
    assert (facts["runs"], facts["counts"]) == (4, {"done": 2, "failed": 2})
    assert read(cli("wait", "fit/lr=0.1*", "--until", "done", "--all"))["matched"] == ["lr=0.1,n=7", "lr=0.1,n=8"]


def test_a_study_at_its_end_is_not_waited_for(cli) -> None:
    for words, code in (((), 1), (("--until", "loss < 0"), 1), (("--until", "done", "--all"), 1)):
        found = cli("wait", "fit", *words)
        assert (found.code, read(found)["reason"]) == (code, "finished")
    assert cli("wait", "fit/lr=0.1*").code == 0


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("nope",), "no study or run named 'nope'"),
        (("fit", "--until", "loss <"), "--until: expected a name or a value, not the end\n  loss <\n        ^"),
        (("fit", "--until", "fialed"), "did you mean 'failed'?"),
        (("fit", "--until", "state == fialed"), "--until: no state is named 'fialed'"),
        (("fit", "--timeout", "soon"), "--timeout 'soon' is not a duration"),
        (("fit", "--timeout=-3s"), "--timeout '-3s' is not a duration"),
        (("fit", "--all"), "--all belongs to --until"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(cli, words: tuple[str, ...], printed: str) -> None:
    found = cli("wait", *words)
    assert (found.code, found.out) == (2, "")
    assert printed in found.err


def test_a_name_that_nothing_has_is_reported(cli) -> None:
    facts = read(cli("wait", "fit", "--until", "lss < 1"))
    assert (facts["reason"], facts["unknown"]) == ("finished", ["lss"])


def open_gate(bench: Bench, *numbers: int) -> None:
    for number in numbers:
        (bench.folder / f"go-{number}").touch()


def test_runs_that_go_on_are_followed(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)
    supervisor = own_bench.assay("run", "gated.yml", "-j", "3", "--detach")
    assert supervisor.returncode == 0, supervisor.stderr
    early = own_bench.assay("wait", "gated", "--until", "lss < 1 or loss < 0", "--timeout", "1s")
    facts = json.loads(early.stdout)
    assert (early.returncode, facts["reason"]) == (3, "timeout")
    assert facts["runs"] == 3  # directly after the start as well
    waiter = own_bench.start("wait", "gated", "--until", "lss < 1 or loss < 0.15")
    assert waiter.stderr is not None
    assert waiter.stderr.readline() == "warning: no run has lss yet; metrics: loss\n"
    assert waiter.poll() is None
    open_gate(own_bench, 1)
    out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    assert json.loads(out)["matched"] == ["x=1"]
    rest = own_bench.start("wait", "gated")
    open_gate(own_bench, 2, 3)
    out, err = rest.communicate(timeout=60)
    assert (rest.returncode, json.loads(out)["counts"]) == (1, {"done": 2, "failed": 1})


def test_it_pauses_between_its_looks(cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "3", "--detach").returncode == 0
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            open_gate(own_bench, 1, 2, 3)
        time.sleep(seconds)

    monkeypatch.setattr("assay.mcp.wait.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    assert cli("wait", "gated", "--until", "loss < 0").code == 1
    assert len(pauses) >= 3
    assert min(pauses) >= 0.25


def test_it_can_be_interrupted(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "3", "--detach").returncode == 0
    waiter = own_bench.start("wait", "gated", "--until", "lss < 1")
    assert waiter.stderr is not None
    waiter.stderr.readline()  # it looks by now
    waiter.send_signal(signal.SIGINT)
    out, err = waiter.communicate(timeout=30)
    assert (waiter.returncode, out, err) == (130, "", "assay: interrupted\n")
    assert own_bench.assay("stop", "gated").returncode == 0


def test_a_run_is_not_waited_for_longer_than_itself(own_bench: Bench) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "3", "--detach").returncode == 0
    open_gate(own_bench, 1)
    found = own_bench.assay("wait", "gated/x=1")
    assert (found.returncode, json.loads(found.stdout)["counts"]) == (0, {"done": 1})
    assert own_bench.assay("stop", "gated").returncode == 0


def test_a_run_that_begins_during_the_look_is_not_unknown(
    own_bench: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "3", "--detach").returncode == 0
    open_gate(own_bench, 1)
    looks: list[int] = []

    def miss_once(index: Index, location: StudyLocation, console: Console) -> tuple[int, IndexTable]:
        count, data = load_all_rows(index, location, console)
        looks.append(count)
        kept = [row for row in data.rows if row.name != "x=1"]
        return count, IndexTable(kept, {}) if len(looks) == 1 else data

    monkeypatch.setattr("assay.mcp.wait.load_all_rows", miss_once)
    found = cli("wait", "gated/x=1")
    assert (found.code, read(found)["counts"]) == (0, {"done": 1})
    assert cli("wait", "gated/x=7").code == 2
    assert own_bench.assay("stop", "gated").returncode == 0

"""`assay wait`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench, until
from tests.fork_server import start_assay

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


def test_a_condition_over_states_and_metrics(cli: Cli) -> None:
    found = cli("wait", "fit", "--until", "failed or loss < 1")
    assert (found.code, found.err) == (0, "")
    facts = read(found)
    assert (facts["reason"], facts["matches"], facts["matched"]) == ("met", 2, ["lr=0.5,n=7", "lr=0.5,n=8"])
    assert (facts["runs"], facts["counts"]) == (4, {"done": 2, "failed": 2})
    assert read(cli("wait", "fit/lr=0.1*", "--until", "done", "--all"))["matched"] == ["lr=0.1,n=7", "lr=0.1,n=8"]


def test_a_study_at_its_end_is_not_waited_for(cli: Cli) -> None:
    for words in ((), ("--until", "loss < 0"), ("--until", "done", "--all"), ("--until", "lss < 1")):
        found = cli("wait", "fit", *words)
        assert (found.code, read(found)["reason"]) == (1, "finished")
        assert read(found)["unknown"] == (["lss"] if "lss < 1" in words else [])
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
def test_what_cannot_be_waited_for_is_refused(cli: Cli, words: tuple[str, ...], printed: str) -> None:
    found = cli("wait", *words)
    assert (found.code, found.out) == (2, "")
    assert printed in found.err


def test_runs_that_go_on_are_followed(
    own_bench: Bench, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_bench.write("gated.yml", GATED)
    assert own_bench.assay("run", "gated.yml", "-j", "3", "--detach").returncode == 0
    early = cli("wait", "gated", "--until", "lss < 1 or loss < 0", "--timeout", "300ms")
    assert (early.code, read(early)["reason"], read(early)["runs"]) == (3, "timeout", 3)  # directly after the start too
    check_interruption(own_bench, tmp_path / "log")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        for number in {3: [1], 6: [2, 3]}.get(len(pauses), []):
            (own_bench.folder / f"go-{number}").touch()
        time.sleep(seconds)

    monkeypatch.setattr("assay.mcp.wait.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    met = cli("wait", "gated", "--until", "lss < 1 or loss < 0.15")
    assert (met.code, met.err) == (0, "warning: no run has lss yet; metrics: loss\n")
    assert read(met)["matched"] == ["x=1"]
    assert len(pauses) >= 3
    assert min(pauses) >= 0.25
    alone = cli("wait", "gated/x=1")  # not longer than itself
    assert (alone.code, read(alone)["counts"]) == (0, {"done": 1})
    check_a_run_that_begins(cli, monkeypatch)
    rest = cli("wait", "gated")
    assert (rest.code, read(rest)["counts"]) == (1, {"done": 2, "failed": 1})


def check_interruption(bench: Bench, path: Path) -> None:
    with path.open("w") as log:
        waiter = start_assay(
            ["wait", "gated", "--until", "lss < 1"], cwd=bench.folder, env=os.environ | bench.extra, log=log
        )
    until(lambda: "no run has lss yet" in path.read_text(), "it looks")
    waiter.send_signal(signal.SIGINT)
    assert waiter.wait(30) == 130
    assert path.read_text().splitlines()[1:] == ["assay: interrupted"]


def check_a_run_that_begins(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that gets its directory during the first look is not unknown."""
    looks: list[int] = []

    def miss_once(index: Index, location: StudyLocation, console: Console) -> tuple[int, IndexTable]:
        count, data = load_all_rows(index, location, console)
        looks.append(count)
        kept = [row for row in data.rows if row.name != "x=1"]
        return count, IndexTable(kept, {}) if len(looks) == 1 else data

    monkeypatch.setattr("assay.mcp.wait.load_all_rows", miss_once)
    found = cli("wait", "gated/x=1")
    assert (found.code, read(found)["counts"], len(looks)) == (0, {"done": 1}, 2)
    assert cli("wait", "gated/x=7").code == 2

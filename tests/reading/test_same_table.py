"""A file gives one table locally, on Slurm, on Ray and over ssh; readings and a search's ends as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import FARMS, Engines, start_engines

from assay.execute import process

pytestmark = [pytest.mark.services("slurm"), pytest.mark.services("sshd"), pytest.mark.services("ray")]

PLACES = {"local": "local", **FARMS}
STUDY = """
study: fit
commands:
  train: bash train.sh {lr} {n}
  test: echo "acc=0.{n}"
params: {lr: [0.1, 0.5], n: [7, 8]}
metrics: {step: 'step (\\d+)', loss: 'loss ({number})', test.acc: {regex: 'acc=({number})', command: test}}
env: {SCALE: '2'}
checks: [{metric: test.acc, min: 0.75}]
"""
# lr=0.5,n=8 fails; lr=0.1,n=7 goes on until it has been measured
TRAIN = """
for i in 1 2 3; do echo "step $i loss $((4 - i)).$2$SCALE"; done
[ "$1,$2" != 0.1,7 ] || until [ -s "$ASSAY_RUN_DIR/readings.jsonl" ]; do sleep 0.1; done
[ "$1,$2" != 0.5,8 ]
"""

# a trial with a large x never ends by itself
SEARCH = """
study: tune
command: 'echo "loss {x}"; awk "BEGIN {{ exit !({x} < 5) }}" || sleep 300'
params: {x: {uniform: [0, 10]}}
metrics: {loss: 'loss ({number})'}
search: {sampler: random, metric: loss, direction: min, trials: 6, seed: 1}
stop: {rule: bounds, metric: loss, max: 5}
code: live
"""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with start_engines() as engines:
        yield engines


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "study.yml").write_text(STUDY)
    (tmp_path / "train.sh").write_text(TRAIN)
    (tmp_path / "search.yml").write_text(SEARCH)
    return tmp_path


def load_table(engines: Engines, work: Path, root: str) -> list[dict[str, Any]]:
    """Without the time that each took."""
    rows = json.loads(engines.assay(work, "sum", "fit", "--root", root, "--json"))
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]


def test_the_same_file_gives_the_same_table_everywhere(engines: Engines, work: Path) -> None:
    tables, shown = {}, {}
    for place, farm in PLACES.items():
        engines.assay(work, "run", "study.yml", "--on", farm, "--root", place, "--quiet", "-j", "2", code=1)
        tables[place] = load_table(engines, work, place)
        shown[place] = json.loads(engines.assay(work, "show", "--root", place, "fit/lr=0.1,n=7", "--json"))
    assert [(row["run"], row["state"], row["loss"]) for row in tables["local"]][-1] == ("lr=0.5,n=8", "failed", 1.82)
    assert tables["slurm"] == tables["local"]
    assert tables["ray"] == tables["local"]
    assert tables["ssh"] == tables["local"]
    for place, facts in shown.items():
        assert facts["readings"], (place, facts["no_readings"])
        assert facts["readings"]["peak_rss_bytes"] > 0
        assert facts["attempts"][0]["outcome"]["peak_rss_bytes"] > 0


def load_trials(root: Path) -> dict[str, tuple[float, str]]:
    records = {path.parent: json.loads(path.read_text()) for path in root.glob("tune/trial-*/run.json")}
    tags = [process.AttemptProcesses(0, 0, f"{record['uid']}.1") for record in records.values()]
    assert process.find_members(tags) == set(), "nothing of a pruned trial goes on"
    return {
        path.name: (record["spec"]["params"]["x"], json.loads((path / "outcome.1").read_text())["state"])
        for path, record in records.items()
    }


LONG = (pytest.param(farm, marks=pytest.mark.long) for place, farm in FARMS.items() if place != "slurm")


@pytest.mark.parametrize("farm", [FARMS["slurm"], *LONG])
def test_a_search_prunes_its_trials_on_every_engine(engines: Engines, work: Path, farm: str) -> None:
    """The sampler is random: with one seed every place proposes the same trials."""
    for root, on in (("here", "local"), ("there", farm)):
        engines.assay(work, "run", "search.yml", "--on", on, "--root", root, "--quiet", "-j", "2")
    found = load_trials(work / "here")
    assert {"done", "pruned"} == {state for _, state in found.values()}
    assert all((x > 5) == (state == "pruned") for x, state in found.values())
    assert load_trials(work / "there") == found

"""`assay run FILE NAME=VALUE`: the same study with other runs; no existing run is lost."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench

from assay.follow.locations import StudyLocation
from assay.launch.prepared import Again
from assay.record import run_directory

STUDY = """
study: fit
command: 'echo "loss {epochs}"; [ {lr} != {bad} ]'
params: {lr: [0.1, 0.01], epochs: 3, bad: 9}
metrics: {loss: 'loss ({number})'}
checks: [{metric: loss, max: 5}]
code: live
resources: {gpus: 0}
"""


def names(bench: Bench, study: str = "fit") -> list[str]:
    return sorted(os.path.basename(path) for path in run_directory.find_run_dirs(str(bench.root / study)))


def record(bench: Bench, name: str, study: str = "fit") -> run_directory.RunRecord:
    return run_directory.load_record(str(bench.root / study / name))


def test_overridden_runs_belong_to_the_study_and_a_plain_call_leaves_them_alone(own_bench: Bench) -> None:
    assert own_bench.run(STUDY).returncode == 0
    result = own_bench.run(STUDY, "epochs=6", "lr=0.1,0.5")
    assert result.returncode == 1  # the study's checks judge the runs
    assert names(own_bench) == ["lr=0.01", "lr=0.1", "lr=0.1,epochs=6", "lr=0.5,epochs=6"]
    assert record(own_bench, "lr=0.1,epochs=6").overrides == ("epochs=6", "lr=0.1,0.5")
    assert record(own_bench, "lr=0.1").overrides == ()
    plain = own_bench.run(STUDY, "--json")
    assert plain.returncode == 0
    assert [run["name"] for run in json.loads(plain.stdout)["runs"]] == ["lr=0.1", "lr=0.01"]
    rows = {row["name"]: row for row in json.loads(own_bench.assay("ls", "fit", "--json").stdout)}
    assert rows["lr=0.5,epochs=6"]["overrides"] == ["epochs=6", "lr=0.1,0.5"]
    assert rows["lr=0.1"]["overrides"] == []
    assert "epochs=6 lr=0.1,0.5" in own_bench.assay("show", "fit/lr=0.5,epochs=6").stdout
    assert json.loads(own_bench.assay("show", "fit/lr=0.5,epochs=6", "--json").stdout)["overrides"] == [
        "epochs=6",
        "lr=0.1,0.5",
    ]


def test_overrides_that_describe_a_run_of_the_file_mean_that_run(own_bench: Bench) -> None:
    assert own_bench.run(STUDY, "lr=0.1").returncode == 0
    assert names(own_bench) == ["lr=0.1"]
    assert own_bench.run(STUDY).returncode == 0
    assert names(own_bench) == ["lr=0.01", "lr=0.1"]
    assert own_bench.run(STUDY, "lr=0.1,0.01", "epochs=3").returncode == 0
    assert names(own_bench) == ["lr=0.01", "lr=0.1"]
    assert not list(own_bench.root.glob("fit/*/lease.2"))


def test_a_dry_run_shows_the_overrides_and_writes_nothing(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("s.yml", STUDY)
    rows = json.loads(cli("run", "s.yml", "epochs=6", "-n", "--json").out)
    assert [row["name"] for row in rows] == ["lr=0.1,epochs=6", "lr=0.01,epochs=6"]
    assert all(row["overrides"] == ["epochs=6"] for row in rows)
    assert not own_bench.root.exists()


@pytest.mark.parametrize(
    "words", [("lr=1,,",), ("lrr=1",), ("lr",), ("lr=1", "lr=2"), ("--set", "timeot=1"), ("lr={uniform: [0, 1]}",)]
)
def test_bad_overrides_are_refused_before_anything_is_written(
    own_bench: Bench, cli: Cli, words: tuple[str, ...]
) -> None:
    own_bench.write("s.yml", STUDY)
    result = cli("run", "s.yml", *words).ended(2)
    assert "Traceback" not in result.err
    assert not own_bench.root.exists()


def test_settings_are_set_for_this_call_and_shown_as_words_of_the_command(own_bench: Bench, cli: Cli) -> None:
    assert own_bench.run(STUDY, "--set", "timeout=2h", "--set", "checks=[{metric: loss, max: 1}]").returncode == 1
    assert record(own_bench, "lr=0.1").spec.timeout_s == 7200
    (shown,) = [line for line in cli("show", "fit/lr=0.1").out.splitlines() if line.split()[:1] == ["settings"]]
    assert shown.split()[:2] == ["settings", "--set=timeout=2h"]


def test_secrets_of_overrides_are_hidden(own_bench: Bench) -> None:
    text = "study: s\ncommand: 'echo {x} [api_key] > /dev/null; exit 3'\nparams: {x: 1, api_key: null}\ncode: live\n"
    result = own_bench.run(text, "api_key=hunter2-hunter2")
    assert result.returncode == 1
    (run_dir,) = run_directory.find_run_dirs(str(own_bench.root / "s"))
    assert run_directory.load_record(run_dir).overrides == ("api_key=***",)
    holders = [path for path in own_bench.root.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert [path.name for path in holders] == ["secrets.sh"]
    assert "hunter2" not in result.stdout + result.stderr


def test_printed_commands_repeat_the_overrides(own_bench: Bench) -> None:
    result = own_bench.run(STUDY, "lr=9", "epochs=1,2")
    assert result.returncode == 1
    hints = [line for line in result.stderr.splitlines() if "assay run" in line]
    assert hints, result.stderr
    assert {"lr=9", "epochs=1,2"} <= set(shlex.split(hints[0][hints[0].index("assay run") :]))
    assert Again(("assay", "run"), "s.yml", (), ('name="a b"',)).build() == """assay run s.yml 'name="a b"'"""


def test_a_call_with_overrides_does_not_forget_what_another_call_planned(own_bench: Bench) -> None:
    location = StudyLocation(str(own_bench.root), "fit")
    Path(location.dir, ".assay").mkdir(parents=True)
    run_directory.write_plan(location.dir, {"waits": "1"})
    run_directory.write_plan(location.dir, {"waits too": "2"}, ["epochs=6"])
    assert run_directory.load_planned(location.dir) == {"waits": "1", "waits too": "2"}
    assert own_bench.run(STUDY, "epochs=4").returncode == 0
    assert run_directory.load_planned(location.dir) == {"waits": "1", "waits too": "2"}
    assert own_bench.run(STUDY, "epochs=6").returncode == 1
    assert run_directory.load_planned(location.dir) == {"waits": "1"}


RUNX = "CMD: 'true'\nHPARAMS: {lr: [0.1, 0.2], size: 3}\n"


@pytest.mark.needs(compat=True)
def test_runx_files_keep_their_sets_apart(own_bench: Bench) -> None:
    assert own_bench.run(RUNX, file="sweep.yml").returncode == 0
    first = set(names(own_bench, "sweep"))
    assert own_bench.run(RUNX, "lr=0.1,0.5", file="sweep.yml").returncode == 0
    second = set(names(own_bench, "sweep"))
    assert len(second) == 3  # the run lr=0.1 exists already
    assert own_bench.run(RUNX, file="sweep.yml").returncode == 0
    assert own_bench.run(RUNX, "lr=0.1,0.5", file="sweep.yml").returncode == 0
    assert set(names(own_bench, "sweep")) == second
    sets = sorted((own_bench.root / "sweep" / ".assay").glob("set.*.json"))
    assert [json.loads(path.read_text()).get("overrides") for path in sets] == [None, ["lr=0.1,0.5"]]
    assert first < second


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr=range(0.1,1)", "lr='{range: [0.1,1]}'"),
        ("lr=choice(0.1, 1)", "lr='[0.1, 1]'"),
        ("lr=interval(0,1)", "lr='{uniform: [0,1]}'"),
    ],
)
def test_the_notation_of_hydra_is_refused(cli: Cli, own_bench: Bench, word: str, meant: str) -> None:
    own_bench.write("s.yml", STUDY)
    cli("run", "s.yml", word, "-n").ended(2, f"write {meant}")
    assert cli("run", "s.yml", "lr='range(0.1,1)'", "-n").code == 0


def test_a_parameter_written_as_an_option(cli: Cli, own_bench: Bench) -> None:
    own_bench.write("s.yml", STUDY)
    for words in (("--lr", "0.1"), ("--lr=0.1",)):
        cli("run", "s.yml", *words).ended(2, "write lr=0.1")
    assert "write" not in cli("run", "s.yml", "--nope", "1").err


@pytest.mark.needs(exchange=True)
def test_names_that_other_commands_have(cli: Cli, own_bench: Bench) -> None:
    assert "assay index ingest" in cli("import", "journal.log").err
    assert "rm -r runs/STUDY/RUN" in cli("rm", "s").err
    assert "'-o'" in cli("export", "csv", "s", "--to", "x.csv").err
    own_bench.write("s.yml", STUDY)
    assert cli("run", "s.yml", "-q").code == 0

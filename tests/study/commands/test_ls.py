"""`assay ls`, on runs that have really been run."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from tests.study.workbench import BAD, GOOD, STUDY, Bench, until


def test_studies_are_listed_with_their_states(cli) -> None:
    result = cli("ls")
    assert result.code == 0
    head, _, row = result.out.splitlines()
    assert head.split() == ["study", "runs", "done", "failed", "last", "activity"]
    assert row.split()[:4] == ["fit", "4", "2", "2"]


def test_studies_as_json(cli, bench: Bench) -> None:
    (study,) = json.loads(cli("ls", "--json").out)
    assert study["study"] == "fit"
    assert study["dir"] == str(bench.root / "fit")
    assert study["counts"]["done"] == 2
    assert study["counts"]["queued"] == 0
    assert study["last_activity"] > 1e9


def test_runs_are_listed_with_state_metrics_and_reason(cli) -> None:
    lines = cli("ls", "fit").out.splitlines()
    assert lines[0].split() == ["run", "state", "slot", "time", "step", "test.acc", "loss", "reason"]
    assert lines[-1] == "4 runs: 2 done, 2 failed"
    by_name = {line.split()[0]: line for line in lines[2:]}
    assert by_name[GOOD].split()[1:] == ["done", "cpu", "0:00", "3", "0.7", "1.7"]
    assert "failed" in by_name[BAD]
    assert by_name[BAD].endswith("train ended with exit code 1")


def test_runs_by_state(cli) -> None:
    rows = json.loads(cli("ls", "fit", "--state", "failed", "--json").out)
    assert sorted(row["name"] for row in rows) == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert cli("ls", "fit", "--state", "lost").err == "fit: no run in this state\n"
    assert cli("ls", "--state", "failed").out
    assert "no study with a run that is lost" in cli("ls", "--state", "lost").err


def test_a_run_as_json_has_everything(cli, bench: Bench) -> None:
    rows = {row["name"]: row for row in json.loads(cli("ls", "fit", "--json").out)}
    row = rows[GOOD]
    assert row["params"] == {"lr": 0.1, "n": 7}
    assert row["metrics"] == {"loss": 1.7, "test.acc": 0.7}
    assert row["dir"] == str(bench.root / "fit" / GOOD)
    assert row["exit_code"] == 0
    assert rows[BAD]["exit_code"] == 1


def test_a_study_by_its_folder(cli) -> None:
    assert cli("ls", "runs/fit").out == cli("ls", "fit").out


def test_an_unknown_study(cli) -> None:
    result = cli("ls", "fitt")
    assert result.code == 2
    assert result.err == "assay: no study named 'fitt'\n  did you mean 'fit'?\n"


def test_no_study_at_all(cli, own_bench: Bench) -> None:
    result = cli("ls")
    assert (result.code, result.out) == (0, "")
    assert "assay demo" in result.err
    assert json.loads(cli("ls", "--json").out) == []


def test_an_empty_study(cli, own_bench: Bench) -> None:
    (own_bench.root / "empty" / ".assay").mkdir(parents=True)
    assert cli("ls").out.splitlines()[2].split() == ["empty", "0", "-"]
    result = cli("ls", "empty")
    assert (result.code, result.out, result.err) == (0, "", "empty: no runs yet\n")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}', '{"format": 99, "spec": {}}'])
def test_a_damaged_run_is_said_and_the_others_are_listed(cli, own_bench: Bench, bench: Bench, damage: str) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    (own_bench.root / "fit" / BAD / "run.json").write_text(damage)
    result = cli("ls", "fit")
    assert result.code == 0
    rows = {row["name"]: row for row in json.loads(cli("ls", "fit", "--json").out)}
    assert len(rows) == 4
    assert rows[BAD]["state"] == "damaged"
    assert rows[BAD]["reason"].startswith("run.json")
    assert rows[GOOD]["state"] == "done"


def test_a_run_without_an_outcome_is_concluded_from_its_markers(cli, own_bench: Bench, bench: Bench) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    os.unlink(own_bench.root / "fit" / GOOD / "outcome.1")
    os.unlink(own_bench.root / "fit" / BAD / "outcome.1")
    os.unlink(own_bench.root / "fit" / BAD / "train.exit.1")
    rows = {row["name"]: row["state"] for row in json.loads(cli("ls", "fit", "--json").out)}
    assert rows[GOOD] == "done"
    assert rows[BAD] == "lost"  # dead without a word


def test_another_root(cli, own_bench: Bench, bench: Bench) -> None:
    assert cli("ls", "fit", "--root", str(bench.root)).code == 0
    assert cli("ls", "fit").code == 2


def test_attempts_show_when_there_is_more_than_one(cli, own_bench: Bench) -> None:
    own_bench.run(STUDY, "--retry", "failed")
    own_bench.run(STUDY, "--retry", "failed")
    assert cli("ls", "fit").out.splitlines()[0].split()[2] == "attempt"


def test_after_a_kill_all_runs_of_the_study_are_listed_with_their_times(own_bench: Bench) -> None:
    """Those that nobody saw end have lease and marker, those that never began are in the plan."""
    text = "command: 'until [ -e go ]; do sleep 0.02; done; [ {n} != 1 ]'\nparams: {n: {range: 9}}\ncode: live\n"
    supervisor = own_bench.start("run", own_bench.write("killed.yml", text), "-j", "2", "--quiet")
    until((own_bench.root / "killed/n=1/lease.1").exists, "two runs began")
    supervisor.kill()
    supervisor.communicate(timeout=60)
    (own_bench.folder / "go").touch()
    until((own_bench.root / "killed/n=1/run.exit.1").exists, "the second failed")
    until((own_bench.root / "killed/n=0/run.exit.0").exists, "the first is done")
    rows = json.loads(own_bench.assay("ls", "killed", "--json").stdout)
    assert [row["name"] for row in rows] == [f"n={n}" for n in range(9)]
    assert [row["state"] for row in rows] == ["done", "failed", *["queued"] * 7]
    for row, marker in zip(rows, ("run.exit.0", "run.exit.1"), strict=False):
        assert row["ended_at"] == (own_bench.root / "killed" / row["name"] / marker).stat().st_mtime
        assert row["elapsed_s"] == max(0.0, row["ended_at"] - row["started_at"])
    assert own_bench.assay("ls", "killed").stdout.splitlines()[-1] == "9 runs: 7 queued, 1 done, 1 failed"
    assert json.loads(own_bench.assay("ls", "--json").stdout)[0]["runs"] == 9
    assert own_bench.assay("run", "killed.yml", "-j", "2", "--quiet").returncode == 1
    shutil.rmtree(own_bench.root / "killed/n=5")
    assert own_bench.assay("ls", "killed").stdout.splitlines()[-1] == "8 runs: 7 done, 1 failed"

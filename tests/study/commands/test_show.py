"""`assay show`."""

from __future__ import annotations

import json
import shutil

from tests.study.workbench import BAD, GOOD, Bench


def test_everything_about_a_run(cli) -> None:
    result = cli("show", f"fit/{GOOD}")
    assert result.code == 0
    sections = result.out.split("\n\n")
    heads = [section.splitlines()[0] for section in sections]
    assert heads[1:] == ["Parameters", "Commands", "Metrics", "Resources", "Origin", "Files"]
    assert "done" in sections[0]
    assert "  lr  0.1" in sections[1]
    assert 'test   echo "acc=0.7"' in sections[2]
    assert "job.sh" in sections[6]


def test_a_failed_run_says_why(cli) -> None:
    assert "failed: train ended with exit code 1" in cli("show", BAD).out


def test_as_json(cli, bench: Bench) -> None:
    facts = json.loads(cli("show", f"fit/{GOOD}", "--json").out)
    assert facts["dir"] == str(bench.root / "fit" / GOOD)
    assert facts["commands"]["test"] == 'echo "acc=0.7"'
    assert facts["attempts"][0]["outcome"]["codes"] == {"train": 0, "test": 0}
    loss = facts["metrics"]["loss"]
    assert (loss["last"], loss["last_step"], loss["best"], loss["max"], loss["count"]) == (1.7, 3, 1.7, 3.7, 3)
    assert facts["metric_sources"] == ["train.log", "test.log"]
    assert facts["environment"]["python"]
    assert facts["files"]["train.exit.0"] == 0


def test_the_environment_on_request(cli) -> None:
    assert "Environment" not in cli("show", GOOD).out
    shown = cli("show", GOOD, "--env").out
    assert "Environment" in shown
    assert "fingerprint" in shown


def test_a_missing_environment_is_said(cli, own_bench: Bench, bench: Bench) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    (own_bench.root / "fit" / GOOD / "environment.json").unlink()
    assert "missing or damaged" in cli("show", GOOD, "--env").out


def test_the_script(cli, bench: Bench) -> None:
    assert cli("show", GOOD, "--job").out == (bench.root / "fit" / GOOD / "job.sh").read_text()
    result = cli("show", GOOD, "--job", "--json")
    assert (result.code, "--job prints the script" in result.err) == (2, True)


def test_an_ambiguous_name(cli) -> None:
    result = cli("show", "fit/lr=0.1*")
    assert result.code == 2
    assert "names 2 runs" in result.err
    assert "fit/lr=0.1,n=8" in result.err


def test_an_unknown_run(cli) -> None:
    result = cli("show", "fit/lr=0.1,n=9")
    assert result.code == 2
    assert "did you mean" in result.err


def test_by_id(cli) -> None:
    known = json.loads(cli("show", GOOD, "--json").out)["id"]
    assert json.loads(cli("show", known[:10], "--json").out)["name"] == GOOD


def test_a_damaged_run(cli, own_bench: Bench, bench: Bench) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    (own_bench.root / "fit" / BAD / "run.json").write_text('{"format": 1')
    result = cli("show", f"fit/{BAD}")
    assert result.code == 0
    assert "damaged: run.json is damaged" in result.out
    assert cli("show", f"fit/{GOOD}").code == 0
    assert cli("show", "abcdef0123").code == 2  # looking for an id passes the damaged one by


def test_attempts_are_tabled_when_there_are_several(cli, own_bench: Bench, bench: Bench) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    assert cli("rerun", f"fit/{BAD}", "--quiet").code == 1
    shown = cli("show", f"fit/{BAD}").out
    assert "Attempts" in shown
    assert shown.count("train ended with exit code 1") == 3  # the state, and one row each

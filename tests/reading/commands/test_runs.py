"""`assay ls`, `show`, `logs` and `diff`, on runs that have really been run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.finished_study import BAD, GOOD, Bench, until


def test_studies_are_listed_with_their_states(cli) -> None:
    result = cli("ls").ended(0)
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


def test_columns_without_room_are_named_below_the_table(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no room" not in cli("ls", "fit").err
    monkeypatch.setattr("assay.show.console.terminal_width", lambda _stream: 34)
    result = cli("ls", "fit")
    assert result.out.splitlines()[0].split() == ["run", "state", "time", "test.acc"]
    assert " ".join(result.err.split()) == "(no room here for slot, step, loss: widen the terminal, or --json)"


def test_runs_by_state(cli) -> None:
    rows = json.loads(cli("ls", "fit", "--state", "failed", "--json").out)
    assert sorted(row["name"] for row in rows) == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert cli("ls", "fit", "--state", "lost").err == "fit: no run matches\n"
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


def test_no_study_at_all(cli, own_bench: Bench) -> None:
    result = cli("ls")
    assert (result.code, result.out) == (0, "")
    assert "assay demo" in result.err
    assert json.loads(cli("ls", "--json").out) == []
    assert all("assay demo" in cli(*words).err for words in (("ls", "x"), ("logs", "x"), ("show", "x/y"), ("sum", "x")))


def test_an_empty_study(cli, own_bench: Bench) -> None:
    (own_bench.root / "empty" / ".assay").mkdir(parents=True)
    assert cli("ls").out.splitlines()[2].split() == ["empty", "0", "-"]
    result = cli("ls", "empty")
    assert (result.code, result.out, result.err) == (0, "", "empty: no runs yet\n")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}', '{"format": 99, "spec": {}}'])
def test_a_damaged_run_is_shown_and_the_others_are_listed(cli, own_fit: Bench, damage: str) -> None:
    (own_fit.root / "fit" / BAD / "run.json").write_text(damage)
    assert cli("ls", "fit").code == 0
    rows = {row["name"]: row for row in json.loads(cli("ls", "fit", "--json").out)}
    assert len(rows) == 4
    assert rows[BAD]["state"] == "damaged"
    assert rows[BAD]["reason"].startswith("run.json")
    assert rows[GOOD]["state"] == "done"


def test_another_root(cli, own_bench: Bench, bench: Bench) -> None:
    assert cli("ls", "fit", "--root", str(bench.root)).code == 0
    assert cli("ls", "fit").code == 2


def test_after_a_kill_all_runs_of_the_study_are_listed_with_their_times(own_bench: Bench) -> None:
    """Runs whose end no supervisor saw have lease and marker; those that never began are in the plan."""
    text = "command: 'until [ -e go ]; do sleep 0.05; done; [ {n} != 1 ]'\nparams: {n: {range: 9}}\ncode: live\n"
    supervisor = own_bench.start("run", own_bench.write("killed.yml", text), "-j", "2", "--quiet")
    until((own_bench.root / "killed/n=1/lease.1").exists, "two runs began")
    supervisor.kill()
    supervisor.communicate(timeout=60)
    (own_bench.folder / "go").touch()
    until((own_bench.root / "killed/n=1/run.exit.1").exists, "the second failed")
    until((own_bench.root / "killed/n=0/run.exit.0").exists, "the first is done")
    rows = json.loads(own_bench.assay("ls", "killed", "--json").stdout)
    assert [row["name"] for row in rows] == [f"n={n}" for n in range(9)]
    assert [row["state"] for row in rows] == ["done", "failed", *["not started"] * 7]
    for row, marker in zip(rows, ("run.exit.0", "run.exit.1"), strict=False):
        assert row["ended_at"] == (own_bench.root / "killed" / row["name"] / marker).stat().st_mtime
        assert row["elapsed_s"] == max(0.0, row["ended_at"] - row["started_at"])
    assert own_bench.assay("ls", "killed").stdout.splitlines()[-1] == "9 runs: 7 not started, 1 done, 1 failed"
    (study,) = json.loads(own_bench.assay("ls", "--json").stdout)
    assert (study["runs"], study["counts"]["not started"], study["counts"]["queued"]) == (9, 7, 0)
    assert own_bench.assay("ls").stdout.split()[:5] == ["study", "runs", "not", "started", "done"]
    assert own_bench.assay("ls", "--state", "queued", "--json").stdout != "[]\n"  # as `--where` and `--retry` call them
    assert own_bench.assay("run", "killed.yml", "-j", "2", "--quiet").returncode == 1
    shutil.rmtree(own_bench.root / "killed/n=5")
    assert own_bench.assay("ls", "killed").stdout.splitlines()[-1] == "8 runs: 7 done, 1 failed"


# ---------------------------------------------------------------- show


def test_everything_about_a_run(cli) -> None:
    result = cli("show", f"fit/{GOOD}").ended(0)
    sections = result.out.split("\n\n")
    heads = [section.splitlines()[0] for section in sections]
    assert heads[1:] == ["Parameters", "Commands", "Metrics", "Resources", "Origin", "Files"]
    assert "done" in sections[0]
    assert "  lr  0.1" in sections[1]
    assert 'test   echo "acc=0.7"' in sections[2]
    assert "job.sh" in sections[6]


def test_parts_of_a_run(cli, bench: Bench) -> None:
    """Why it failed; its environment and its script on request; a run by the beginning of its id."""
    assert "failed: train ended with exit code 1" in cli("show", BAD).out
    assert "Environment" not in cli("show", GOOD).out
    shown = cli("show", GOOD, "--env").out
    assert ("Environment" in shown, "fingerprint" in shown) == (True, True)
    assert cli("show", GOOD, "--job").out == (bench.root / "fit" / GOOD / "job.sh").read_text()
    known = json.loads(cli("show", GOOD, "--json").out)["id"]
    assert json.loads(cli("show", known[:10], "--json").out)["name"] == GOOD


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


def test_a_missing_environment_is_reported(cli, own_fit: Bench) -> None:
    (own_fit.root / "fit" / GOOD / "environment.json").unlink()
    assert "missing or damaged" in cli("show", GOOD, "--env").out


def test_a_damaged_run(cli, own_fit: Bench) -> None:
    (own_fit.root / "fit" / BAD / "run.json").write_text('{"format": 1')
    cli("show", f"fit/{BAD}").ended(0).printed("damaged: run.json is damaged")
    assert cli("show", f"fit/{GOOD}").code == 0
    assert cli("show", "abcdef0123").code == 2  # looking for an id passes the damaged one by


def test_attempts_are_tabled_when_there_are_several(cli, own_fit: Bench) -> None:
    assert cli("rerun", f"fit/{BAD}", "--quiet").code == 1
    shown = cli("show", f"fit/{BAD}").out
    assert "Attempts" in shown
    assert shown.count("train ended with exit code 1") == 3  # the state, and one row each
    assert cli("ls", "fit").out.splitlines()[0].split()[2] == "attempt"


# ---------------------------------------------------------------- logs


TALK = r"""
study: talk
commands:
  train: for i in 1 2; do echo "train {x} $i"; done; while [ ! -e {go} ]; do sleep 0.05; done; echo "train {x} end"
  test: 'printf "test {x}\nno newline"'
params: {x: [1, 2], go: GO}
resources: {gpus: 0}
"""


def test_the_log_of_the_failed_command_the_last_one_or_the_one_asked_for(cli, bench: Bench) -> None:
    assert cli("logs", f"fit/{BAD}").out == (bench.root / "fit" / BAD / "train.log").read_text()
    assert cli("logs", f"fit/{GOOD}").out == "acc=0.7\n"
    assert cli("logs", GOOD, "-c", "train", "-n", "1").out == "step 3 loss 1.7 lr 0.1\n"
    assert cli("logs", GOOD, "-c", "train", "-n", "0").out == ""


def test_following_what_is_over_prints_it(cli) -> None:
    assert cli("logs", "-f", f"fit/{GOOD}").out == "acc=0.7\n"
    assert cli("logs", "-f", "fit").err == "nothing is running in fit\n"


def test_bytes_pass_unchanged(own_bench: Bench) -> None:
    own_bench.run("study: raw\ncommand: \"printf '\\\\377\\\\000x\\\\r\\\\n'\"\nresources: {gpus: 0}\n")
    result = subprocess.run(
        [sys.executable, "-m", "assay", "logs", "raw/run"],
        cwd=own_bench.folder,
        env=os.environ | own_bench.extra,
        capture_output=True,
        check=True,
    )
    assert result.stdout == b"\xff\x00x\r\n"


def test_a_reader_that_leaves_is_no_error(own_bench: Bench) -> None:
    own_bench.run("study: much\ncommand: seq 200000\nresources: {gpus: 0}\n")
    command = f"{sys.executable} -m assay logs much/run | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=own_bench.folder,
        env=os.environ | own_bench.extra,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "1\n0\n"
    assert result.stderr == ""


def test_following_a_run_and_a_study_until_they_are_over(own_bench: Bench) -> None:
    go = own_bench.folder / "GO"
    runs = own_bench.start("run", own_bench.write("talk.yml", TALK.replace("GO", str(go))), "-j", "2", "--quiet")
    logs = own_bench.root / "talk"
    until(lambda: logs.is_dir() and len(list(logs.glob("x=*/train.log"))) == 2, "both runs write")
    one = own_bench.start("logs", "-f", "talk/x=1")
    both = own_bench.start("logs", "-f", "talk")
    assert one.stdout is not None
    assert both.stdout is not None
    assert one.stdout.readline() == "train 1 1\n"
    begun = sorted(both.stdout.readline() for _ in range(4))  # of both: a run that is seen later begins at its last log
    assert begun == ["x=1 | train 1 1\n", "x=1 | train 1 2\n", "x=2 | train 2 1\n", "x=2 | train 2 2\n"]
    go.touch()
    assert one.stdout.read() == "train 1 2\ntrain 1 end\ntest 1\nno newline"
    lines = both.stdout.read().splitlines()
    assert {"x=2 | train 2 end", "x=2 | test 2", "x=2 | no newline", "x=1 | no newline"} <= {*lines}
    for process in (runs, one, both):
        process.communicate(timeout=60)
    assert (runs.returncode, one.returncode, both.returncode) == (0, 0, 0)


def test_following_a_study_waits_for_retries_that_are_still_queued(own_bench: Bench) -> None:
    """Both runs have failed; they are repeated one after the other, and neither has begun again when we begin to look."""
    go = own_bench.folder / "GO"
    text = "study: talk\ncommand: 'echo {x}; until [ -e GO ]; do sleep 0.05; done; [ -e GO2 ] && echo again {x}'\n"
    text += "params: {x: [1, 2]}\nresources: {gpus: 0}\ncode: live\n"
    go.touch()
    assert own_bench.run(text, file="talk.yml").returncode == 1
    go.unlink()
    (own_bench.folder / "GO2").touch()
    held = own_bench.start("run", "talk.yml", "-j", "1", "--retry", "failed", "--quiet")
    again = own_bench.root / "talk" / "x=1" / "run.2.log"  # until it is there, the first attempt's log is the newest
    until(lambda: again.exists() and again.read_text() == "1\n", "the first is repeated")
    logs = own_bench.start("logs", "-f", "talk")
    assert logs.stdout is not None
    assert logs.stdout.readline() == "x=1 | 1\n"
    go.touch()
    assert logs.stdout.read().splitlines() == ["x=1 | again 1", "x=2 | 2", "x=2 | again 2"]
    for process in (held, logs):
        process.communicate(timeout=60)


# ---------------------------------------------------------------- diff


OTHER = "lr=0.1,n=8"


def test_what_differs(cli) -> None:
    result = cli("diff", GOOD, OTHER).ended(0)
    sections = {part.splitlines()[0]: part for part in result.out.rstrip().split("\n\n")[1:]}
    assert list(sections) == ["Parameters", "Commands", "Environment", "Code", "Metrics"]
    assert [line.split() for line in sections["Parameters"].splitlines()[3:]] == [["n", "7", "8"]]
    assert "(no difference)" in sections["Code"]
    assert [line.split() for line in sections["Metrics"].splitlines()[3:]] == [
        ["loss", "1.7", "1.8", "0.1", "1.7", "1.8", "0.1"],
        ["test.acc", "0.7", "0.8", "0.1", "0.7", "0.8", "0.1"],
    ]


def test_states_and_missing_metrics(cli) -> None:
    facts = json.loads(cli("diff", GOOD, BAD, "--json").out)
    assert facts["state"] == {"first": "done", "second": "failed"}
    assert facts["params"] == {"lr": {"first": 0.1, "second": 0.5}}
    assert facts["metrics"]["test.acc"]["last"] == {"first": 0.7, "second": None, "difference": None}
    assert facts["environment"] == {}


def test_a_run_and_itself(cli) -> None:
    facts = json.loads(cli("diff", GOOD, GOOD, "--json").out)
    assert (facts["params"], facts["commands"], facts["code"], facts["state"]) == ({}, {}, {}, None)
    assert cli("diff", GOOD, GOOD, "--code").out == ""


def test_code_and_environment(cli, own_fit: Bench) -> None:
    run = own_fit.root / "fit" / OTHER
    (run / "code" / "new.py").write_text("a = 1\n")
    (own_fit.root / "fit" / GOOD.rpartition("/")[2] / "code" / "both.py").write_text("b = 1\n")
    (run / "code" / "both.py").write_text("b = 2\n")
    (run / "code" / "blob").write_bytes(b"\0\1")
    fields = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(fields | {"code_hash": "f" * 32}))
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").unlink()  # one file for all runs
    (run / "environment.json").write_text(json.dumps(environment | {"python": "2.7", "packages": {"jax": "9"}}))
    facts = json.loads(cli("diff", GOOD, OTHER, "--json").out)
    assert facts["code"] == {"blob": "only in the second", "new.py": "only in the second", "both.py": "differs"}
    assert facts["environment"]["python"]["second"] == "2.7"
    assert facts["environment"]["package jax"] == {"first": None, "second": "9"}
    lines = cli("diff", GOOD, OTHER, "--code").out.splitlines()
    assert "+a = 1" in lines
    assert "+b = 2" in lines
    assert "blob: only in the second (not text, or too large to show)" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "fitt"), "assay: no study or run named 'fitt'\n  did you mean 'fit'?\n"),
        (("show", "fit/lr=0.1*"), "names 2 runs\n  choose one of: fit/lr=0.1,n=7, fit/lr=0.1,n=8"),
        (("show", "fit/lr=0.1,n=9"), "did you mean"),
        (("show", GOOD, "--job", "--json"), "--job prints the script"),
        (("logs", GOOD, "-c", "tran"), "did you mean 'train'?"),
        (("logs", GOOD, "--attempt", "2"), "has no attempt 2\n  its attempts: 1\n"),
        (("logs", BAD, "-c", "test"), "has no output of test yet"),
        (("logs", "fit"), "names 4 runs"),
        (("logs", "fit/nothing"), "no run named"),
        (("logs", GOOD, "-f", "--attempt", "1"), "--follow goes with"),
        (("logs", GOOD, "-f", "-c", "tran"), "did you mean 'train'?"),
        (("diff", "fit", GOOD), "names 4 runs"),
        (("diff", GOOD, "nothing"), "no study or run named"),
        (("diff", GOOD, OTHER, "--code", "--json"), "not JSON"),
        (("diff", GOOD), "SECOND"),
    ],
)
def test_what_is_refused(cli, arguments: tuple[str, ...], message: str) -> None:
    cli(*arguments).ended(2, message)

"""`assay run FILE` as a user meets it: which code a run gets, what is repeated, which devices and threads it sees."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.study_processes import StudyProcesses, load_json, until

from assay.record import run_directory
from assay.system.fast_dataclasses import replace
from assay.system.files import write_atomic
from assay.values.run import State

RUN = "run"


# ---------------------------------------------------------------- whose code


def test_editing_the_code_during_a_sweep_changes_nothing_for_it(shop: StudyProcesses) -> None:
    """An edit changes neither the runs that wait nor a run that is started again."""
    wait = 'until [ -e "$ALL" ]; do sleep 0.05; done'
    shop.write("train.sh", f"echo old\n[ $1 != 1 ] || {wait}\n[ $1 != 3 ] || [ $ASSAY_ATTEMPT_NUMBER = 2 ]")
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2, 3]}\nretries: 1\n")
    program = shop.start("--plain", "--slots", "0")
    until(lambda: (shop.dir("n=1") / "run.log").exists() and shop.log("n=1"), "the first runs")
    shop.write("train.sh", "echo new\n")
    (shop.base / "all").touch()
    assert program.wait(60) == 0
    assert [shop.log(f"n={n}") for n in (1, 2, 3)] == ["old\n"] * 3
    assert shop.log("n=3", attempt=2) == "old\n"


def test_code_that_has_changed_is_reported_and_finished_runs_are_kept(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh")
    assert shop.run("--slots", "0").code == 0
    unchanged = shop.run("--slots", "0")
    assert "changed since" not in unchanged.err
    shop.write("another.sh", "echo new\n")
    assert "1 run kept: another.sh is new;" in shop.run("--slots", "0").err
    shop.write("train.sh", "echo new\n")
    again = shop.run("--slots", "0").ended(0, "1 run kept: train.sh has changed since, another.sh is new")
    steps = [line.split() for line in again.err[again.err.index("next: ") + 6 :].splitlines()]
    assert [step[:2] for step in steps] == [["assay", "sum"], ["diff", steps[1][1]], ["assay", "run"]]
    assert [(shop.source / path).read_text() for path in steps[1][1:]] == ["echo old\n", "echo new\n"]
    assert steps[2][-2:] == ["--force", "--new-code"], "what has changed comes first"
    assert shop.states(RUN) == [State.DONE]


def test_comments_and_blank_lines_are_no_change(shop: StudyProcesses) -> None:
    shop.write("train.py", "x = 1\nprint(x)\n")
    shop.write_study("python train.py")
    assert shop.run("--slots", "0").code == 0
    shop.write("train.py", "# what x is\nx = 1  # one\n\n\nprint( x )\n")
    assert "changed since" not in shop.run("--slots", "0").err
    shop.write("train.py", "x = 2\nprint(x)\n")
    assert "1 run kept: train.py has changed since" in shop.run("--slots", "0").err


def test_a_sweep_that_is_continued_runs_the_code_it_was_planned_with(shop: StudyProcesses) -> None:
    wait = "while [ ! -e $ALL ]; do sleep 0.05; done"
    shop.write("train.sh", f"echo old\n[ $1 != 1 ] || {wait}\n")
    shop.write_study("bash train.sh {n}", f"params: {{n: {[*range(1, 13)]}}}\n")
    program = shop.start("--plain", "--slots", "0")
    until(lambda: (shop.dir("n=1") / "run.log").exists() and shop.log("n=1"), "the first run")
    program.kill()
    program.wait(60)
    shop.write("train.sh", "echo new\n")
    (shop.base / "all").touch()
    again = shop.run("--slots", "0").ended(0)
    assert [shop.log(f"n={n}") for n in range(1, 13)] == ["old\n"] * 12
    assert "ran with the recorded snapshot: train.sh has changed since" in again.err
    assert "assay rerun" not in again.err, "a command with some of the 12 names would be a trap"


def test_new_code_replaces_the_copy_and_keeps_the_old_one(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh")
    assert shop.run("--slots", "0").code == 0
    before = shop.code_hash()
    shop.write("train.sh", "echo new\n")
    assert shop.run("--slots", "0", "--force").code == 0
    assert (shop.log(attempt=2), shop.code_hash()) == ("old\n", before), "without --new-code it has its own"
    assert shop.run("--slots", "0", "--force", "--new-code").code == 0
    assert shop.states(RUN) == [State.DONE] * 3
    assert shop.log(attempt=3) == "new\n"
    assert (shop.dir(RUN) / "code/train.sh").read_text() == "echo new\n"
    assert (shop.dir(RUN) / "code.2/train.sh").read_text() == "echo old\n"
    assert shop.code_hash() not in (None, before)
    again = shop.run("--slots", "0")
    assert (again.code, "changed since" in again.err) == (0, False)
    assert shop.run("--slots", "0", "--force", "--new-code").code == 0  # the code has not changed: nothing to replace
    assert sorted(path.name for path in shop.dir(RUN).glob("code*")) == ["code", "code.2"]


def test_new_code_is_only_for_what_is_repeated(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n[ $1 = 1 ]\n")
    shop.write_study("bash train.sh {n}", "params: {n: [1, 2]}\n")
    assert shop.run("--slots", "0").code == 1
    shop.write("train.sh", "echo new\n")
    assert shop.run("--slots", "0", "--retry", "failed", "--new-code").code == 0
    assert shop.states("n=1") == [State.DONE]
    assert (shop.dir("n=1") / "code/train.sh").read_text().startswith("echo old")
    assert (shop.states("n=2"), shop.log("n=2", attempt=2)) == ([State.FAILED, State.DONE], "new\n")


def test_new_code_for_live_code_means_nothing(shop: StudyProcesses) -> None:
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh", "code: live\n")
    assert shop.run("--slots", "0").code == 0
    shop.write("train.sh", "echo new\n")
    assert shop.run("--slots", "0", "--force", "--new-code").code == 0
    assert shop.log(attempt=2) == "new\n"
    assert not list(shop.dir(RUN).glob("code*"))


def test_new_code_survives_a_kill_in_the_middle(shop: StudyProcesses) -> None:
    """The next attempt completes the exchange of code, whichever call starts it, with --new-code or without."""
    kills = ["offer", "record", "old", "new"]
    shop.write("train.sh", "echo old\n")
    shop.write_study("bash train.sh {after}", f"params: {{after: {json.dumps(kills)}}}\n")
    assert shop.run("--slots", "0").code == 0
    for killed_after in kills:
        exchange_until(shop.dir(f"after={killed_after}"), killed_after)
    assert shop.run("--slots", "0", "--force").code == 0
    for name in (f"after={each}" for each in kills):
        assert shop.log(name, attempt=2) == "new\n"
        assert (shop.dir(name) / "code.1/train.sh").read_text() == "echo old\n"
        assert shop.code_hash(name) == "0123"
        assert sorted(path.name for path in shop.dir(name).glob("code*")) == ["code", "code.1"]


def exchange_until(run: Path, killed_after: str) -> None:
    waiting = run / "code.next-0123"
    waiting.mkdir()
    (waiting / "train.sh").write_text("echo new\n")
    record = run_directory.load_record(str(run))
    if killed_after != "offer":
        write_atomic(str(run / "run.json"), run_directory.render_record(replace(record, code_hash="0123")))
    if killed_after in ("old", "new"):
        (run / "code").rename(run / "code.1")
    if killed_after == "new":
        waiting.rename(run / "code")


# ---------------------------------------------------------------- slots


def env_of(shop: StudyProcesses, run: str = RUN, attempt: int = 1) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in shop.log(run, attempt).splitlines())


SHOW = "env | grep -E '^(CUDA|OMP|MKL|OPENBLAS|ASSAY_SLOT)'"


def test_a_run_sees_the_devices_of_its_slot(shop: StudyProcesses) -> None:
    """The whole job has the variable, not only the first program of the command's line."""
    (shop.source / "x").mkdir()
    shop.write("x/here", "")
    shop.write_study(f"cd x && FOO=1 true && bash -c 'echo in=$CUDA_VISIBLE_DEVICES' && {SHOW}")
    for attempt, (slots, visible) in enumerate([("0+1", "0,1"), ("GPU-abc", "GPU-abc")], 1):
        assert shop.run("--slots", slots, "--force").code == 0
        seen = env_of(shop, attempt=attempt)
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["ASSAY_SLOT"], seen["in"]) == (visible,) * 3
        assert "CUDA_DEVICE_ORDER" not in seen  # the user has named the devices, in an unknown order


def test_a_slot_of_two_devices_excludes_both(shop: StudyProcesses) -> None:
    """Another supervisor that has only one of the two devices waits."""
    shop.write_study('echo up; until [ -e "$ALL" ]; do sleep 0.05; done')
    shop.write("other.yml", "study: other\ncommand: 'true'\n")
    first = shop.start("--plain", "--slots", "0+1")
    until(lambda: (shop.dir(RUN) / "run.log").exists() and shop.log(), "the first runs")
    other = shop.start("--plain", "--slots", "1", file="other.yml")
    wants = shop.base / "slots"
    until(lambda: [name for name in os.listdir(wants) if name.startswith("want.")], "the other one waits")
    assert not (shop.dir(RUN, "other") / "lease.1").exists()
    (shop.base / "all").touch()
    assert [first.wait(60), other.wait(60)] == [0, 0]


def test_the_same_device_twice_is_two_places(shop: StudyProcesses) -> None:
    """Both runs are there at the same time: each waits for the other."""
    command = 'touch "$LEDGER.{n}"; until [ -e "$LEDGER.1" ] && [ -e "$LEDGER.2" ]; do sleep 0.03; done; echo at=$CUDA_VISIBLE_DEVICES'
    shop.write_study(command, "params: {n: [1, 2]}\n")
    assert shop.run("--slots", "0,0").code == 0
    assert [shop.log(f"n={n}") for n in (1, 2)] == ["at=0\n"] * 2


def test_a_machine_without_gpus_gets_cpu_slots(shop: StudyProcesses) -> None:
    shop.write_study(SHOW)
    del shop.env["OMP_NUM_THREADS"]
    (shop.base / "nvml.json").write_text('{"reason": "no driver"}')
    assert shop.run(ASSAY_FAKE_NVML=str(shop.base / "nvml.json")).code == 0
    seen = env_of(shop)
    assert (seen["OMP_NUM_THREADS"], seen["ASSAY_SLOT"]) == ("1", "cpu")


# ---------------------------------------------------------------- GPUs that were found

GIB = 1 << 30


def write_gpus(shop: StudyProcesses, *used: int) -> str:
    path = shop.base / "nvml.json"
    aside = shop.base / "nvml.new"
    aside.write_text(json.dumps({"gpus": [{"memory_bytes": 16 * GIB, "used_bytes": each * GIB} for each in used]}))
    aside.rename(path)
    return str(path)


def test_found_gpus_are_counted_as_nvml_counts_them(shop: StudyProcesses) -> None:
    shop.write_study(SHOW)
    fake = write_gpus(shop, 0, 0)
    del shop.env["OMP_NUM_THREADS"]
    assert shop.run(ASSAY_FAKE_NVML=fake).code == 0
    seen = env_of(shop)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")
    assert "OMP_NUM_THREADS" not in seen
    assert shop.run("--force", ASSAY_FAKE_NVML=fake, CUDA_DEVICE_ORDER="FASTEST_FIRST").code == 0
    assert env_of(shop, attempt=2)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    shop.write_study(SHOW, "env: {CUDA_DEVICE_ORDER: FASTEST_FIRST}\n")
    assert shop.run("--force", ASSAY_FAKE_NVML=fake).code == 0
    assert env_of(shop, attempt=3)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST", "that of the file"


def test_a_busy_gpu_is_left_alone_until_it_is_free(shop: StudyProcesses) -> None:
    """While another program uses GPU 1, the runs take turns on GPU 0; when GPU 1 becomes free, it is used."""
    command = 'echo "at=$CUDA_VISIBLE_DEVICES"; [ {n} -lt 3 ] || until [ -e "$ALL" ]; do sleep 0.05; done'
    shop.write_study(command, "params: {n: {range: 5}}\n")
    fake = write_gpus(shop, 0, 12)
    program = shop.start("--plain", ASSAY_FAKE_NVML=fake)
    until(lambda: (shop.dir("n=3") / "run.log").exists() and shop.log("n=3"), "the fourth runs")
    assert [shop.log(f"n={n}") for n in range(4)] == ["at=0\n"] * 4
    assert not (shop.dir("n=4") / "lease.1").exists()
    write_gpus(shop, 0, 0)
    until(lambda: (shop.dir("n=4") / "run.log").exists() and shop.log("n=4"), "the fifth runs")
    assert shop.log("n=4") == "at=1\n"
    (shop.base / "all").touch()
    assert program.wait(60) == 0


# ---------------------------------------------------------------- the index says what the files say


def test_a_second_attempt_replaces_the_points_of_the_first(shop: StudyProcesses) -> None:
    """The points are replaced also if the supervisor is killed, and the second attempt ends without one."""
    shop.write(
        "train.sh",
        'for i in 1 2 3; do echo "loss $ASSAY_ATTEMPT_NUMBER.$i"; done\n[ $ASSAY_ATTEMPT_NUMBER = 1 ] && exit 1\necho up > "$LEDGER"; until [ -e "$ALL" ]; do sleep 0.05; done',
    )
    shop.write_study("bash train.sh", "metrics: {loss: 'loss ({number})'}\nretries: 1\n")
    program = shop.start("--plain", "--slots", "0")
    until((shop.base / "ledger").exists, "the second attempt runs")
    shop.end(program, signal.SIGKILL)
    (shop.base / "all").touch()
    until(lambda: shop.has_ended(RUN), "it ended")
    assert shop.run("--slots", "0").code == 0
    table = shop.call("sum", "study", "--root", str(shop.root), "--json")
    assert table.code == 0, table.err
    assert load_json(shop.dir(RUN) / "outcome.2")["state"] == "done"
    assert load_losses(shop) == [2.1, 2.2, 2.3]


def load_losses(shop: StudyProcesses) -> list[float]:
    from assay.record.index.sqlite import SqliteIndex
    from assay.system.files import index_path

    with SqliteIndex(index_path(shop.root, shop.env)) as index:
        return list(index.load_series(f"study/{RUN}", "loss").values)


def test_checks_of_finished_runs_hold_with_a_new_index(shop: StudyProcesses) -> None:
    """After an update that changes the index, the index has not read the runs of earlier calls."""
    shop.write_study("echo loss 0.5", "metrics: {loss: 'loss {number}'}\nchecks: [{metric: loss, max: 1}]\n")
    assert shop.run().code == 0
    again = shop.run(ASSAY_CACHE_DIR=str(shop.base / "another cache"))
    assert (again.code, "ERROR" in again.out + again.err) == (0, False)


def test_a_pattern_that_was_corrected_is_reported_with_the_command_that_reads_the_logs_again(
    shop: StudyProcesses,
) -> None:
    shop.write_study("echo Loss 0.5", "metrics: {loss: 'loss ({number})'}\n")
    assert "metrics.loss matched no number" in shop.run().err
    assert "newer" not in shop.run().err, "the runs have this pattern"
    shop.write_study("echo Loss 0.5", "metrics: {loss: 'Loss ({number})'}\n")
    command = shop.run().err.partition("to read their logs with it: assay ")[2].splitlines()[0]
    assert shop.call(*command.split()).code == 0
    assert load_losses(shop) == [0.5]
    assert "newer" not in shop.run().err


def test_a_pattern_that_was_corrected_is_reported_beside_new_runs(shop: StudyProcesses) -> None:
    """The old runs have values, too: the table would compare what two patterns read."""
    shop.write_study("echo loss 0.5", "metrics: {loss: 'loss (\\d)'}\nparams: {n: [1]}\n")
    assert shop.run().code == 0
    shop.write_study("echo loss 0.5", "metrics: {loss: 'loss ({number})'}\nparams: {n: [1, 2]}\n")
    again = shop.run().err
    assert "metrics.loss is newer than the runs of earlier calls" in again
    assert "matched no" not in again
    shop.write_study("echo loss 0.5", "metrics: {loss: 'loss ({number})'}\nparams: {n: [2, 3]}\n")
    assert "newer" not in shop.run().err


def test_what_could_not_be_read_is_reported_once_and_shown(shop: StudyProcesses) -> None:
    shop.write(
        "train.sh", """echo 'loss 0,5'; printf '{"acc": "0.7", "phase": "val"}\\n{"acc": 0.' > $ASSAY_RUN_DIR/m.jsonl"""
    )
    metrics = "metrics: {loss: 'loss (\\S+)', more: {jsonl: m.jsonl}}\n"
    shop.write_study("bash train.sh", f"{metrics}params: {{n: [1, 2]}}\n")
    first = " ".join(shop.run().err.split())
    assert first.count("not all could be read in 2 runs; n=1: 1 value not read, such as ") == 1
    assert "matched no line" not in first
    shown = " ".join(shop.call("show", "--root", str(shop.root), "study/n=2").out.split())
    assert "run.log: 1 value not read, such as loss: '0,5'" in shown
    assert """m.jsonl: 1 value not read, such as acc: '0.7'; 1 line not read, such as {"acc": 0.""" in shown
    assert "could be read" not in shop.run().err

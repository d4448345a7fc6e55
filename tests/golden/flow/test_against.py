"""`assay golden check --against … --from …` and `assay golden import`, as they are typed in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.golden.other_goldens import (
    STEPS,
    Folder,
    build_loss,
    build_megatron,
    write_events,
    write_lines,
    write_megatron,
    write_mllog,
    write_titan,
    write_trl,
)

from assay.errors import UsageError
from assay.golden.files.sources import choose_sources, list_sources, load_curves

EVERY = range(1, 101)
RCP = {"bert_ref_256": {"Benchmark": "bert", "BS": 256, "Epochs to converge": [95, 100, 105, 100, 90]}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path, capsys)


def three(folder: str, name: str = "golden_values_dev_dgx_h100") -> None:
    for number in (1, 2, 3):
        write_megatron(f"{folder}/{name}_{number}.json", build_loss(number))


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_megatron, "golden_values_dev_dgx_h100.json"), (write_titan, "llama3_cuda.txt"), (write_trl, "sft.json")],
)
def test_a_golden_of_another_tool_is_checked_in_one_line(here: Folder, write, name: str) -> None:  # type: ignore[no-untyped-def]
    write(name, build_loss())
    write(f"run-{name}", build_loss())
    here.expect(0, f"{name} run-{name}", "PASS", "values are equal")
    assert sorted(os.listdir(here.path)) == sorted([name, f"run-{name}"])  # no store, no runs
    write(f"run-{name}", build_loss(scale=1.03))
    here.expect(3, f"{name} run-{name}", "CHANGED", "+3%", "noise unknown")


def test_3_percent_worse_within_5_is_not_pass_where_three_goldens_show_less_noise(here: Folder) -> None:
    three("golden")
    write_megatron("good.json", build_loss(9))
    write_megatron("worse.json", build_loss(9, 1.03))
    here.expect(0, "golden good.json")
    here.expect(
        3,
        "golden worse.json --tolerance 5%",
        "CHANGED",
        "outside the noise of 3 goldens",
        "within the stated tolerance of 5%",
    )
    here.expect(1, "golden worse.json", "FAIL")
    here.expect(1, "golden worse.json --tolerance 2%")
    here.expect(
        0,
        "golden/golden_values_dev_dgx_h100_1.json worse.json --tolerance 5%",
        "within the stated tolerance of 5%, noise unknown",
    )
    write_megatron("better.json", build_loss(9, 0.97))
    here.expect(1, "golden better.json")  # better than all goldens is outside as well
    Path("golden/golden_values_dev_dgx_h100_3.json").unlink()
    write_megatron("worse.json", build_loss(9, 1.02))
    here.expect(3, "golden worse.json", "INCONCLUSIVE", "too few goldens")


def test_history_shows_the_noise_of_one_golden(here: Folder) -> None:
    golden = write_megatron("golden.json", build_loss(1))
    worse = write_megatron("worse.json", build_loss(9, 1.03))
    for night in ("2026-11-01", "2026-11-03", "2026-11-09"):  # the numbers of these names are dates, not in sequence
        write_megatron(f"nights/{night}/values.json", build_loss(int(night[-1])))
    here.expect(1, f"{golden} {worse} --history nights")
    write_megatron("good.json", build_loss(20))
    # the golden is one of the nights, and counts once
    here.expect(0, f"{golden} good.json --history nights", "inside the noise of 3 goldens")
    longer = build_loss(8, steps=range(1, 201))
    night = write_megatron("nights/2026-11-10/values.json", longer, other={5: 1.5})
    # the golden defines what is judged, and at which steps
    here.expect(0, f"{golden} good.json --history nights", "inside the noise of 4 goldens")
    write_megatron(night, build_loss(8, steps=range(1, 50)))
    here.expect(0, f"{golden} good.json --history nights", "lm loss: 1 of 4 goldens lack it or some of its steps")


def test_a_bad_run_is_not_hidden_by_good_ones_and_is_named(here: Folder) -> None:
    three("golden")
    for number in range(1, 11):
        write_megatron(f"runs/run{number}.json", build_loss(20 + number))
    here.expect(0, "golden runs")
    write_megatron("runs/run7.json", build_loss(27, 1.03))
    here.expect(
        1,
        "golden runs",
        "lm loss: runs/run7.json: +",
        "lm loss: runs/run6.json: inside the noise of 3 goldens",
        "\nruns: FAIL, ",
    )
    write_megatron("runs/run7.json", {**build_loss(27), 7: float("nan")})
    assert "lm loss: runs/run7.json: the run is nan at step 7" in here.check("golden", "runs").out
    write_lines("runs/run7.json", build_loss(27), "accuracy")
    assert "runs/run7.json has no lm loss; it has accuracy" in here.check("golden", "runs").out


def test_goldens_that_differ_at_first_hide_nothing_later(here: Folder) -> None:
    """The noise is 5% in the first ten steps, and 0.1% after them: there 3% is thirty times as much."""
    at_first = {number: build_loss(number, noise=0.05, steps=range(1, 11)) for number in (1, 2, 3, 9)}
    for number in (1, 2, 3):
        loss = at_first[number] | build_loss(number, steps=range(11, 101))
        write_megatron(f"golden/g_{number}.json", loss)
    for scale, code in ((1.0, 0), (1.03, 1), (0.97, 1)):
        run = write_megatron("run.json", at_first[9] | build_loss(9, scale, steps=range(11, 101)))
        found = here.check("golden", run)
        assert found.code == code, found.out
        assert f"by up to {'0.1' if code else ''}" in found.out  # what they differ by in the window that is shown
    here.expect(3, f"golden {run} --tolerance 30%")


def test_equality_is_at_the_digits_of_the_coarser_side(here: Folder) -> None:
    """Megatron-LM's golden has five decimals, and the run full numbers; and the other way round."""
    write_megatron("golden.json", build_loss())
    run = write_lines("run.jsonl", build_loss(), "lm loss")
    here.expect(0, f"golden.json {run}", "digits of the golden (5 decimals)")
    assert "digits of the run (5 decimals)" in here.check(run, "golden.json").out
    write_lines("run.jsonl", {**build_loss(), 50: build_loss()[50] + 1e-5}, "lm loss")
    here.expect(3, f"golden.json {run}")


def test_tensorboard_trainer_state_csv_and_a_json_list_are_read_and_damage_is_found(here: Folder) -> None:
    path = write_events("tensorboard", build_loss(steps=EVERY))
    loss = {step: build_loss(steps=EVERY)[step] for step in STEPS}
    golden = write_lines("golden.jsonl", loss)
    here.expect(0, f"{golden} tensorboard", "single precision")
    write_megatron("golden.json", loss)
    here.expect(0, "golden.json tensorboard --map 'lm loss=loss'")
    content = path.read_bytes()
    for damaged, message in ((content[:-9], "truncated"), (content[:-20] + b"x" * 20, "cannot be read")):
        path.write_bytes(damaged)
        here.expect(2, f"{golden} tensorboard", message)
    loss = build_loss()
    history = [{"step": step, "epoch": step / 10, "loss": value, "learning_rate": 1e-4} for step, value in loss.items()]
    state = {"best_metric": None, "global_step": 100, "log_history": [*history, {"step": 100, "train_runtime": 8.5}]}
    Path("checkpoint-100").mkdir()
    Path("checkpoint-100/trainer_state.json").write_text(json.dumps(state))
    Path("checkpoint-100/config.json").write_text('{"hidden_size": 768}')  # a file that is ignored
    rows = "".join(f"{step},{value!r},0.0001\n" for step, value in loss.items())
    Path("run.csv").write_text("step,loss,learning_rate\n" + rows)
    Path("run.json").write_text(json.dumps(history))
    for run in ("run.csv", "run.json"):
        # a time is shown, and not judged
        here.expect(0, f"checkpoint-100 {run}", "train_runtime")


def test_an_rcp_file_judges_the_epochs_of_a_run(here: Folder) -> None:
    other = {"bert_ref_448": {"Benchmark": "bert", "BS": 448, "Epochs to converge": [20, 21, 22]}}
    Path("rcps_bert.json").write_text(json.dumps(RCP | other))
    write_mllog("result_0.txt", build_loss(steps=range(1, 101)))
    # the entry with the run's batch size is used
    here.expect(0, "rcps_bert.json result_0.txt", "bert_ref_256")
    both = re.sub(r'("epoch_num": )(\d+)', r'\1\2, "step_num": \g<2>000', Path("result_0.txt").read_text())
    Path("steps.txt").write_text(both)
    here.expect(0, "rcps_bert.json steps.txt", "bert_ref_256")
    write_mllog("result_0.txt", build_loss(steps=range(1, 400)))
    here.expect(1, "rcps_bert.json result_0.txt")
    write_mllog("result_0.txt", build_loss(), status="aborted")
    here.expect(2, "rcps_bert.json result_0.txt", "the run did not end with success")
    assert "an RCP file holds references, and no run" in here.check("result_0.txt", "rcps_bert.json").err
    write_mllog("result_0.txt", build_loss(steps=range(1, 101)), batch=512)
    forced = here.check("rcps_bert.json", "result_0.txt", "--environment", "bert_ref_256")
    assert "global_batch_size is 512, was 256" in forced.out


def test_environments_are_compared_and_values_without_a_step_are_named(here: Folder) -> None:
    write_trl("golden.json", build_loss(), torch="2.10.0", gpu="H100")
    write_trl("run.json", build_loss(scale=1.01), torch="2.11.0", gpu="H100")
    done = here.check("golden.json", "run.json")
    assert "torch is 2.11.0, was 2.10.0" in done.out
    assert "gpu is" not in done.out
    golden = write_lines("golden.jsonl", build_loss())
    golden.write_text(golden.read_text() + '{"eval_loss": 2.5, "note": "done"}\n')
    here.expect(
        0, "golden.jsonl golden.jsonl", "eval_loss: values of the golden that have no step, which are not judged"
    )


def test_times_and_memory_are_judged_with_a_tolerance_alone_and_their_units_are_asked_about(here: Folder) -> None:
    times = dict.fromkeys(STEPS, 0.12)
    slow = dict.fromkeys(STEPS, 0.15)
    memory = dict.fromkeys(STEPS, 777900032.0)
    write_megatron("golden.json", build_loss(), iteration_time={**times, 1: "nan"}, mem_bytes=memory)
    write_megatron("run.json", build_loss(), iteration_time=slow, mem_bytes=memory)
    here.expect(0, "golden.json run.json", "iteration-time: 0.15, the golden 0.12 (+25%)")
    here.expect(0, "golden.json run.json --tolerance iteration-time=30%")
    here.expect(
        3, "golden.json run.json --tolerance iteration-time=10%", "beyond the stated tolerance of 10%, noise unknown"
    )
    for number in (1, 2):
        write_megatron(f"golden/g_{number}.json", build_loss(number), iteration_time=times)
    here.expect(1, "golden run.json --tolerance iteration-time=10% --only iteration-time")
    write_lines("golden.jsonl", dict.fromkeys(STEPS, 0.1), "step_time")
    here.expect(1, "golden.jsonl golden.jsonl", "nothing was compared")
    for name, code in {"_timestamp": 1, "walltime": 1, "charts/SPS": 1, "rmse_temperature": 0, "time_mae": 0}.items():
        write_lines("golden.jsonl", build_loss(), name)
        assert here.check("golden.jsonl", "golden.jsonl").code == code, name
    seconds = {step: 0.12 + step / 1e4 for step in STEPS}
    write_megatron("golden.json", build_loss(), iteration_time=seconds)
    milliseconds = {step: 1000 * value for step, value in seconds.items()}
    write_megatron("run.json", build_loss(), iteration_time=milliseconds)
    shown = here.check("golden.json", "run.json")
    assert "about 1000 times those of the golden: are the units the same?" in shown.out
    here.expect(1, "golden.json run.json --tolerance iteration-time=10%")


def test_a_golden_of_megatron_before_2025_and_a_step_twice(here: Folder) -> None:
    parts = {"start_step": 0, "end_step": 50, "step_interval": 5}
    old = {"lm loss": {**parts, "values": [10.42107, 10.3, 9.65]}, "iteration_timing_avg": 1.8964105882352944}
    Path("golden.json").write_text(json.dumps(old))
    run = write_lines("run.jsonl", {0: 10.4210723, 5: 10.3, 10: 9.65}, "lm loss")
    here.expect(0, f"golden.json {run}", "iteration_timing_avg: the run has none, and it is not judged")
    write_lines(run, {0: 10.4210723, 5: 10.4, 10: 9.65}, "lm loss")
    assert "first at step 5: 10.4, expected 10.3" in here.check("golden.json", run).out
    lines = write_lines("run.jsonl", build_loss())
    golden = write_titan("golden.txt", build_loss())
    lines.write_text(lines.read_text() + json.dumps({"step": 100, "loss": build_loss()[100]}) + "\n")
    here.expect(0, f"{golden} {lines}")  # an equal value is no contradiction
    lines.write_text(lines.read_text() + '{"step": 100, "loss": 9.5}\n')
    for against, source in ((golden, lines), (lines, golden)):
        here.expect(2, f"{against} {source}", "loss has step 100 twice")
    text = json.dumps(build_megatron(build_loss())).replace('"100":', '"95": 3.0, "100":')
    Path("twice.json").write_text(text)
    assert "'95' is there twice" in here.check("twice.json", golden).err


def test_platforms_are_never_pooled(here: Folder) -> None:
    three("golden", "golden_values_dev_dgx_h100")
    three("golden", "golden_values_dev_dgx_a100")
    run = write_megatron("run.json", build_loss(9))
    done = here.expect(2, f"golden {run}", "2 environments")
    choices = [line.split()[1] for line in done.err.splitlines() if "--environment" in line]
    assert choices == ["golden_values_dev_dgx_a100_#.json", "golden_values_dev_dgx_h100_#.json"] or len(choices) == 2
    for choice in [choices[1].strip("'"), "h100"]:
        here.expect(0, f"golden {run} --environment {choice}", "dgx_h100", "3 recordings")
    here.expect(2, f"golden {run} --environment b200", "b200")
    named = write_megatron("golden_values_dev_dgx_a100.json", build_loss(9))
    assert "dgx_a100_#" in here.check("golden", named).out  # the environment with the run's name
    for name in ("first", "second"):
        write_megatron(f"out/{name}.json", build_loss())
    here.expect(2, "out/first.json out", "--from out/first.json")


def test_a_metric_without_a_counterpart_next_to_others_is_an_error(here: Folder) -> None:
    loss = build_loss()
    write_megatron("golden.json", loss, grad_norm=loss)
    write_megatron("run.json", loss, gradnorm=loss)
    here.expect(1, "golden.json run.json", "run.json has no grad-norm; did you mean --map grad-norm=gradnorm?")
    write_megatron("other.json", loss)
    assert "other.json has no grad-norm; --only 'lm loss' leaves it out" in here.check("golden.json", "other.json").out
    here.expect(0, "golden.json run.json --map grad-norm=gradnorm")
    here.expect(0, "golden.json run.json --only 'lm loss'")
    assert "did you mean" in here.check("golden.json", "run.json", "--only", "lm los").err
    write_megatron("golden.json", loss, eval_loss={50: 2.5, 100: 2.25})
    write_megatron("run.json", loss, eval_loss={51: 2.5, 101: 2.25})
    here.expect(1, "golden.json run.json", "no step in common: eval-loss has steps 50 to 100")
    here.expect(0, "golden.json run.json --only 'lm loss'")
    write_megatron("golden.json", loss, other_loss={step: loss[step] for step in (50, 100)})
    # two metrics may be one in the run
    here.expect(0, "golden.json golden.json --map 'other-loss=lm loss'")


def test_another_interval_is_compared_where_both_have_steps_and_nothing_in_common_is_refused(here: Folder) -> None:
    write_lines("golden.jsonl", build_loss(steps=EVERY))
    every = build_loss(steps=EVERY)
    write_lines("run.jsonl", {step: every[step] for step in range(10, 101, 10)})
    here.expect(
        0,
        "golden.jsonl run.jsonl",
        "compared at 10 of the golden's 100 steps: loss has steps 1 to 100 in the golden, every 1",
    )
    # a run that logs more often has every step
    more = here.expect(0, "run.jsonl golden.jsonl")
    assert "goes on" not in more.out
    write_lines("golden.jsonl", {step: every[step] for step in range(1, 51)})
    write_lines("run.jsonl", every)
    assert "the golden ends at step 50; the run goes on to 100, and is" in here.check("golden.jsonl", "run.jsonl").out
    write_lines("golden.jsonl", build_loss(), "lm loss")
    write_lines("run.jsonl", build_loss(), "lm-loss")
    here.expect(2, "golden.jsonl run.jsonl", "no metric in common", "did you mean --map 'lm loss=lm-loss'?")
    here.expect(0, "golden.jsonl run.jsonl --map 'lm loss=lm-loss'")
    here.expect(2, "golden.jsonl run.jsonl --map 'lm loss=other'")
    here.expect(2, "golden.jsonl run.jsonl --map lm")
    write_lines("golden.jsonl", build_loss())
    write_lines("run.jsonl", {step * 1024 + 7: value for step, value in build_loss().items()})
    here.expect(
        2,
        "golden.jsonl run.jsonl",
        "no step in common: loss has steps 1 to 100 in the golden, every 5, and 1031 to 102407 in the run",
    )


def test_runs_that_lack_steps_or_do_not_train_never_pass(here: Folder) -> None:
    every = build_loss(steps=EVERY)
    write_lines("golden.jsonl", every)
    for lost in (range(51, 101), [40], range(1, 20), range(2, 100)):
        write_lines("run.jsonl", {step: value for step, value in every.items() if step not in lost})
        here.expect(1, "golden.jsonl run.jsonl --tolerance 5%", f"{len(lost)} of 100 steps are missing")
    dead = write_lines("golden.jsonl", dict.fromkeys(STEPS, 10.373491181781864))
    here.expect(3, f"{dead} {dead}", "nothing shows that it trains")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite(here: Folder, value: float) -> None:
    bad = write_megatron("bad.json", {**build_loss(), 50: value})
    good = write_megatron("good.json", build_loss())
    here.expect(2, f"{bad} {good}", "at step 50: a golden that is not finite is refused")
    assert here.call("golden", "import", str(bad)).code == 2
    here.expect(1, f"{good} {bad} --tolerance 50%", f"is {value:g} at step 50")
    elsewhere = write_megatron("other.json", {**build_loss(), 77: value})
    assert f"{value:g} at step 77" in here.check(good, elsewhere).out, "the golden has no such step"


def test_numbers_and_what_is_not_finite_may_be_written_as_text(here: Folder) -> None:
    good = write_lines("good.jsonl", build_loss())
    for text in ('"NaN"', '"-Infinity"', '"inf"', "NaN"):
        lines = write_lines("bad.jsonl", {**build_loss(), 50: 7.0})
        lines.write_text(lines.read_text().replace("7.0}", f"{text}}}"))
        assert "a golden that is not finite is refused" in here.check(lines, good).err
        here.expect(1, f"{good} {lines}")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    Path("rows.json").write_text(json.dumps(rows))
    here.expect(2, f"rows.json {good}")
    for name, loss in (("golden", "2.5"), ("run", "9.5")):
        rows = [{"step": step, "loss": f"{float(loss) / step}", "lr": 0.125, "id": "7"} for step in (1, 2, 4)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    here.expect(3, "golden.jsonl run.jsonl", "loss")


def write_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write steps with a loss in the format that the file's name shows."""

    def entry(row: dict[str, Any]) -> str:
        return json.dumps({"key": "loss", "value": row["loss"], "metadata": {"step_num": str(row["step"])}})

    def cell(row: dict[str, Any]) -> str:
        return "" if row["loss"] is None else str(row["loss"])

    Path(name).write_text(
        {
            "run.jsonl": lambda: "".join(f"{json.dumps(row)}\n" for row in rows),
            "run.csv": lambda: "step,loss\n" + "".join(f"{row['step']},{cell(row)}\n" for row in rows),
            "run.json": lambda: json.dumps({"log_history": rows}),
            "run.log": lambda: "".join(f":::MLLOG {entry(row)}\n" for row in rows),
            "metrics.csv": lambda: "".join(f"val,loss,{cell(row)},epoch,{row['step']},timestamp,1\n" for row in rows),
            "megatron.json": lambda: json.dumps(
                build_megatron({row["step"]: row["loss"] or "nan" for row in rows})
            ).replace("lm loss", "loss"),
        }[name]()
    )


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.json", "run.log", "metrics.csv"])
def test_a_text_instead_of_a_number_never_passes(here: Folder, name: str) -> None:
    """A text at every second step looks like another interval; at step 30 the golden has no value."""
    for steps in (range(2, 21, 2), range(15, 21), [30]):
        good = {step: 2 + 3 / step for step in sorted({*range(1, 21), *steps})}
        write_lines("golden.jsonl", {step: good[step] for step in range(1, 21)})
        rows = [{"step": step, "loss": "diverged" if step in steps else good[step], "phase": "a"} for step in good]
        write_rows(name, rows)
        here.expect(1, f"golden.jsonl {name}", f"the run is 'diverged' (not a number) at step {steps[0]}")
        here.expect(2, f"{name} golden.jsonl", f"loss is 'diverged' (not a number) at step {steps[0]}")


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv", "run.json", "megatron.json"])
def test_a_metric_that_became_empty_never_passes(here: Folder, name: str) -> None:
    """Many tools write NaN as null. `eval_loss` is empty at most steps, and none of its values is missing."""
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "loss": round(2 + 3 / step, 5) if step < 21 else None,
            "eval_loss": None if step % 5 else 9 / step,
        }
        for step in range(1, 25)
    ]
    write_lines("golden.jsonl", {row["step"]: row["loss"] for row in rows[:20]})
    write_rows(name, rows)
    for sides in (("golden.jsonl", name), (name, "golden.jsonl")):
        found = here.check(*sides, "--only", "loss")
        assert found.code == 3, found.out + found.err
        assert f"{name} has no value after step 20, and is empty up to step 24" in found.out
    if name == "run.jsonl":
        again = Path("again.jsonl")
        again.write_text(Path(name).read_text())
        here.expect(0, f"{name} {again} --only eval_loss")
        again.write_text("".join(again.read_text().splitlines(keepends=True)[:21]))
        here.expect(0, f"golden.jsonl {again} --only loss")  # the last row has other metrics


def test_a_value_whose_step_cannot_be_read_is_not_left_out(here: Folder) -> None:
    good = {step: 2 + 3 / step for step in range(1, 21)}
    golden = write_lines("golden.jsonl", good)
    for step in ('"21"', '"last"'):
        run = write_lines("run.jsonl", good)
        run.write_text(f'{run.read_text()}{{"step": {step}, "loss": 9.0}}\n')
        for sides in ((golden, run), (run, golden)):
            here.check(*sides).ended(2, "run.jsonl: the step '")
    rows = "".join(f'"{step:,}",{value}\n' for step, value in build_loss(steps=range(900, 1100)).items())
    Path("run.csv").write_text(f"step,loss\n{rows}")
    assert "run.csv: the step '1,000' is not a number" in here.check("run.csv", "golden.jsonl").err
    commas = "".join(f"{step};{1 / step:.5f}\n".replace(".", ",") for step in range(1, 21))
    Path("run.csv").write_text(f"step;loss\n{commas}")
    here.expect(2, "golden.jsonl run.csv", "loss is '1,00000' at step 1, which is not a number")


NO_CURVES = [
    ("", "it is empty"),
    ("hello\n", "its format is not known"),
    ('{"lm loss": {"values": {"1": 1.5,', "truncated"),
    ('{"lm loss": {"values": {"1": "x"}}}', 'lm loss at step 1: "x" is not a number'),
    ('{"lm loss": {"start_step": 1, "step_interval": 0, "values": [3, 2]}}', "lm loss: `start_step` and `step_int"),
    ('{"lm loss": {"start_step": NaN, "values": [3, 2]}}', "are not whole numbers above 0"),
    ('{"lm loss": {"values": {"1": null}}}', "lm loss at step 1: null is not a number"),
    ('{"step": 1, "loss": 2.0}\n{"step": 2, "lo', "run.txt:2: a record cannot be read"),
    ("step,loss,loss\n1,2.5,9.5\n2,2.25,8.5\n", "the column 'loss' is there twice"),
    ("1 2.5\n2 2.4\n3 oops\n", "run.txt:3"),
    ("step,loss\n", "it contains no value with a step"),
    ('{"hidden_size": 768}', "its format is not known"),
    (':::MLLOG {"key": "eval_accuracy", "value": 1\n', "its format is not known"),
    (':::MLLOG {"value": 1}\n', "run.txt:1"),
    (':::MLLOG {"key": "a", "value": 1, "metadata": {"epoch_num": "last"}}\n', "run.txt:1: the position 'last'"),
    ("step,loss\n1,2.5\n2,2.25,7\n", "cannot be read"),
    ('{"step": 1.5, "loss": 2.0}\n{"step": 2, "loss": 2.0}\n', "is not a whole number"),
    ('{"step": 1e999, "loss": 2.0}\n{"step": 2, "loss": 2.0}\n', "loss: the step inf is not a whole number"),
]


def test_files_that_hold_no_curve(here: Folder) -> None:
    golden = write_titan("golden.txt", build_loss())
    for text, message in NO_CURVES:
        Path("run.txt").write_text(text)
        done = here.check("run.txt", golden)
        assert (done.code, message in done.err) == (2, True), done.out + done.err


def test_files_that_cannot_be_read(here: Folder, hostile_path: Path) -> None:
    golden = write_titan(hostile_path / "golden.txt", build_loss())
    assert here.check(golden, golden).code == 0
    os.mkfifo("pipe")
    Path("empty").mkdir()
    secret = write_titan("secret.txt", build_loss())
    secret.chmod(0)
    cases = {"none.json": "No such file", "pipe": "neither a file nor a folder", "empty": "no file in this folder"}
    if not os.access(secret, os.R_OK):
        cases["secret.txt"] = "cannot be read"
    for name, message in cases.items():
        for against, source in ((golden, name), (name, golden)):
            refused = here.check(against, source)
            assert (refused.code, message in refused.err) == (2, True), refused.err


def test_tolerances_that_are_none_and_options_that_do_not_belong_together(here: Folder) -> None:
    golden = write_titan("golden.txt", build_loss())
    for words in (["5"], ["-1%"], ["x"], ["loss=0"], ["5%", "4%"], ["los=5%"]):
        done = here.check(golden, golden, *(word for each in words for word in ("--tolerance", each))).ended(2)
        assert words[-1].split("=")[0].rstrip("%") in done.err
    for words, message in (
        ([], "FILE is missing"),
        (["--against", "a"], "--against needs the run"),
        (["x.yml", "--against", "a", "--from", "b"], "FILE is not for --against"),
        (["--against", "a", "--from", "b", "-j", "2"], "--jobs is not for --against"),
        (["x.yml", "--tolerance", "5%"], "--tolerance needs --against"),
    ):
        here.call("golden", "check", *words).ended(2, message)


def test_of_a_run_only_the_steps_of_the_golden_are_kept_and_a_golden_must_be_short(
    here: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_lines("run.jsonl", build_loss(steps=EVERY))
    (source,) = list_sources(str(run))
    (file,) = load_curves(source, {"loss": frozenset((5, 50)), "other": frozenset((1,))})
    assert {name: track.steps for name, track in file.tracks.items()} == {"loss": (5, 50)}
    assert (file.extents["loss"].count, file.extents["loss"].last) == (100, 100)
    monkeypatch.setattr("assay.golden.files.sources._MOST_VALUES", 10)
    golden = write_titan("golden.txt", build_loss())
    here.expect(2, f"{golden} {golden}", "more than 10 values")


@pytest.mark.long
def test_a_long_run_takes_no_more_memory_than_a_short_one(here: Folder) -> None:
    write_lines("golden.jsonl", build_loss())
    short = write_lines("short.jsonl", build_loss(steps=EVERY))
    with Path("long.jsonl").open("w") as file:
        file.write(short.read_text())
        file.writelines(f'{{"step": {step}, "loss": 2.0625}}\n' for step in range(101, 10_000_000))
    program = (
        "import resource, sys\nfrom assay.cli.main import run\n"
        "code = run(['golden', 'check', '--against', 'golden.jsonl', '--from', sys.argv[1]])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\nsys.exit(code)\n"
    )
    used = []
    for name in ("short.jsonl", "long.jsonl"):
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stdout + done.stderr  # one recording, other values
        used.append(int(done.stderr.split()[-1]))
    assert used[1] - used[0] < 120_000  # KiB: pieces of the file, whatever its length


def test_the_result_is_in_every_form(here: Folder) -> None:
    write_megatron("golden.json", build_loss())
    write_megatron("run.json", build_loss(scale=1.03))
    done = here.check("golden.json", "run.json", "--tolerance", "5%", "--md", "r.md", "--json")
    facts = json.loads(done.out)
    assert (done.code, facts["verdict"], facts["tests"][0]["comparisons"]) == (0, "PASS", len(STEPS))
    assert "within the stated tolerance of 5%, noise unknown" in Path("r.md").read_text()
    here.expect(3, "golden.json run.json")
    here.expect(0, "golden.json run.json --allow-changed")
    small = write_titan("small.txt", {**build_loss(), 50: 1e-320})
    found = here.check(small, write_titan("run.txt", build_loss()), "--html", "r.html")
    assert found.code == 3, found.err
    assert "first at step 50" in Path("r.html").read_text()


def test_a_golden_is_imported_into_its_store_and_checked_against(here: Folder) -> None:
    three("theirs")
    done = here.call("golden", "import", "theirs", "--store", "ours")
    assert done.code == 0, done.out + done.err
    (manifest,) = Path("ours").iterdir()
    content = json.loads(manifest.read_text())
    assert content["test"] == "golden_values_dev_dgx_h100"
    assert content["noise"]["lm loss"] > 0
    assert len(content["provenance"]["imported_from"]) == 3
    assert here.call("golden", "show", "ours").code == 0
    good = write_megatron("good.json", build_loss(9))
    worse = write_megatron("worse.json", build_loss(9, 1.03))
    here.expect(0, f"ours {good}")
    here.expect(1, f"{manifest} {worse}")
    manifest.write_text(manifest.read_text().replace('"10.', '"1:0.', 1))
    here.expect(2, f"{manifest} {worse}", "this golden recording is damaged")
    here.call("golden", "import", "theirs", "--store", "ours").ended(2, "--name")
    assert here.call("golden", "import", "theirs", "--store", "ours", "--name", "second").code == 0
    write_titan("golden.txt", build_loss())
    for name in ("../out", "a/b", "..", ""):
        found = here.call("golden", "import", "golden.txt", "--store", "store", "--name", name).ended(2)
        assert "is not the name of a file" in found.err


def test_the_run_is_none_of_its_goldens_and_one_that_crashed_is_not_passed_over(here: Folder) -> None:
    three("nights", "night")
    write_megatron("nights/night_4.json", build_loss(9, 1.03))
    worse = "nights/night_4.json"
    for words in ((), ("--history", "nights")):
        against = "nights/night_1.json" if words else "nights"
        found = here.call("golden", "check", "--against", against, "--from", worse, *words)
        assert found.code == 1, found.out
        assert "3 goldens" in found.out
    here.call("golden", "check", "--against", worse, "--from", worse).ended(2, "is the run itself")
    write_titan("golden.txt", build_loss())
    write_titan("runs/run1.txt", build_loss())
    Path("runs/notes.txt").write_text("of another kind")
    here.expect(0, "golden.txt runs")
    second = Path("runs/run2.txt")
    for text in ("", "Traceback (most recent call last):\n", None):
        second.unlink(missing_ok=True)
        second.symlink_to("gone") if text is None else second.write_text(text)
        here.expect(2, "golden.txt runs", "runs/run2.txt: it has the name of a recording, but contains none")


LOSSES = "1 2.5\n2 2.25\n"


def group(folder: Path, *names: str) -> dict[str, int]:
    """How many recordings each environment has."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LOSSES)
    keys = [each.key for each in list_sources(str(folder))]
    return {key: keys.count(key) for key in keys}


@pytest.mark.parametrize(
    "names",
    [
        ("h100_1.txt", "h100_2.txt", "h100_3.txt"),
        ("0.txt", "1.txt"),
        ("gpus_2_1.txt", "gpus_2_2.txt"),
        ("1/losses.txt", "2/losses.txt"),
        ("run-812.txt", "run-815.txt"),
        ("seed1337_h100.txt", "seed42_h100.txt"),
        ("nightly-20261101.txt", "nightly-20261107.txt"),
        ("2026-11-01/losses.txt", "2026-11-07/losses.txt"),
    ],
)
def test_names_that_differ_in_a_running_number_are_one_environment(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert list(group(tmp_path, *names).values()) == [len(names)]


@pytest.mark.parametrize(
    "names",
    [
        ("dgx_h100.txt", "dgx_a100.txt"),
        ("dgx_a100.txt", "dgx_a10.txt"),
        ("golden_0.8.0.txt", "golden_0.9.0.txt"),
        ("gpus_8.txt", "gpus_16.txt"),
        ("gpus_1.txt", "gpus_2.txt"),
        ("1_gpu/losses.txt", "2_gpu/losses.txt"),
        ("llama-fsdp-1.txt", "llama-fsdp-2.txt"),
        ("qwen3_5_a10g.txt", "qwen3_6_a10g.txt"),
        ("a10g/llama3.txt", "mi350x/llama3.txt"),
        ("cuda_1.txt", "rocm_2.txt"),
    ],
)
def test_anything_else_is_another_environment(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = group(tmp_path, *names)
    assert list(found.values()) == [1, 1]
    with pytest.raises(UsageError, match="2 environments, which are never pooled") as refused:
        choose_sources(list_sources(str(tmp_path)), "goldens")
    assert all(f"--environment {key}" in str(refused.value).replace("'", "") for key in found)

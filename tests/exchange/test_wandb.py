"""`import assay.wandb as wandb`: scripts written for Weights & Biases, inside and outside of a run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finished_study import Bench

import assay
from assay import script, script_run, wandb
from assay.record.tags import load_marks

TRAIN = """\
import argparse
import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
wandb.login()
with wandb.init(project="line", config=args, tags=["base line"], notes="first", mode="online") as run:
    wandb.config.depth = 3
    wandb.watch(None)
    for step in range(3):
        wandb.log({"train": {"loss": wandb.config.lr / (step + 1)}, "pictures": wandb.Image([[0]]), "word": "x"})
    run.summary["top"] = 0.9
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file(__file__)
    run.log_artifact(artifact)
wandb.finish()
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("ASSAY_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "_adhoc_dir", None)
    monkeypatch.setattr(script_run, "_said", set())
    monkeypatch.chdir(tmp_path)
    script.close_stream()
    yield
    wandb.finish()
    script.close_stream()


def read_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.glob("metrics/*.jsonl")) for line in path.read_text().splitlines()]
    return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]


def find_dir(run: wandb.Run) -> Path:
    return Path(run.url.removeprefix("file://"))


# ---------------------------------------------------------------- whole scripts


def test_a_script_runs_unchanged_inside_and_outside_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path).enter(monkeypatch)
    bench.write("train.py", TRAIN)
    outside = [sys.executable, "-m", "assay.wandb", "train.py", "--lr", "0.5"]
    for _ in range(2):
        done = subprocess.run(outside, cwd=bench.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert [line.split()[1] for line in done.stderr.splitlines()] == ["metrics", "pictures:", "word:", "artifacts"]
    inside = f"study: in\ncommand: {sys.executable} -m assay.wandb train.py --lr {{lr}}\nparams: {{lr: [0.1, 0.2]}}\n"
    assert bench.run(inside + "resources: {gpus: 0}\n").returncode == 0
    for run in (*assay.runs("line"), *assay.runs("in")):
        assert run.metrics == {"train/loss": pytest.approx(run.params["lr"] / 3), "top": 0.9}
        assert load_marks(f"{run.dir}/tags.json")[:1] == (("base-line",),)
        assert json.loads(Path(run.dir, "script-config.json").read_text()) == {"lr": run.params["lr"], "depth": 3}
    assert [run.params for run in assay.runs("line")] == [{"lr": 0.5, "depth": 3}] * 2
    assert [run.params for run in assay.runs("in")] == [{"lr": 0.1}, {"lr": 0.2}]
    assert "top" in bench.assay("sum", "in").stdout


# ---------------------------------------------------------------- log


def test_steps_are_counted_as_wandb_counts_them() -> None:
    run = wandb.init(project="p", name="a/b")
    wandb.log({"x": 1})
    wandb.log({"x": 2}, commit=False)
    wandb.log({"y": 3})
    wandb.log({"x": 4}, step=10)
    run.log({"x": 5})
    run.log({"x": 6}, step=np.int64(20), commit=True)
    run.log({"x": 7})
    assert find_dir(run) == Path("runs/p/a-b").absolute()
    assert read_lines(find_dir(run)) == [
        {"step": 0, "x": 1},
        {"step": 1, "x": 2},
        {"step": 1, "y": 3},
        {"step": 10, "x": 4},
        {"step": 10, "x": 5},
        {"step": 20, "x": 6},
        {"step": 21, "x": 7},
    ]


def test_a_step_behind_the_last_one_does_not_become_the_last_value(capfd: pytest.CaptureFixture[str]) -> None:
    run = wandb.init(project="p", name="r")
    wandb.log({"loss": 0.5}, step=5)
    wandb.log({"loss": 9.0}, step=1)
    wandb.log({"loss": 8.0}, step=2)
    wandb.log({"loss": 0.25}, step=6)
    assert run.summary["loss"] == 0.25
    assert capfd.readouterr().err.count("step=1 is behind step 5: this and the like are left out") == 1
    wandb.finish()
    assert read_lines(find_dir(run)) == [{"step": 5, "loss": 0.5}, {"step": 6, "loss": 0.25}]


def test_a_metric_may_count_the_steps_of_others() -> None:
    run = wandb.init()
    wandb.define_metric("round")
    wandb.define_metric("val/*", step_metric="round", summary="min")
    wandb.define_metric("acc", summary="best", goal="maximize")
    wandb.log({"round": 7, "val/loss": 0.5, "acc": 0.2})
    wandb.log({"val/loss": 0.75, "acc": 0.1})
    assert read_lines(find_dir(run)) == [
        {"step": 0, "round": 7, "acc": 0.2},
        {"step": 7, "val/loss": 0.5},
        {"step": 7, "val/loss": 0.75},
        {"step": 1, "acc": 0.1},
    ]
    assert dict(run.summary) == {"round": 7, "val/loss": 0.5, "acc": 0.2}


def test_names_that_a_line_has_already() -> None:
    run = wandb.init()
    wandb.log({"epoch": 2, "loss": 0.5})
    wandb.log({"step": 30, "loss": 0.25, "time": 3})
    wandb.log({"epoch": 3})
    assert read_lines(find_dir(run)) == [
        {"step": 0, "epoch": 2, "loss": 0.5},
        {"step": 30, "loss": 0.25, "wandb/time": 3},
    ]


def test_what_is_not_a_number_is_left_out_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = wandb.init()
    for _ in range(2):
        wandb.log({"a": np.float32(0.5), "b": {"c": {"d": True}}, "e": "text", "f": [1, 2], "g": np.arange(3)})
        wandb.log({"h": wandb.Histogram([1, 2]), "i": wandb.Table(columns=["x"]), "j": wandb.plot.line(None, "x", "y")})
    assert read_lines(find_dir(run)) == [{"step": 0, "a": 0.5, "b/c/d": 1}, {"step": 2, "a": 0.5, "b/c/d": 1}]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in said[1:]] == ["e", "f", "g", "h"]
    with pytest.raises(TypeError, match="dictionary"):
        wandb.log(3)  # type: ignore[arg-type]


# ---------------------------------------------------------------- config and summary


def test_config_takes_what_scripts_give_it() -> None:
    run = wandb.init(config=argparse.Namespace(lr=0.1, layers=[1, 2]))
    wandb.config.update({"depth": np.int64(3)})
    wandb.config["norm"] = "batch"
    wandb.config.act = None
    wandb.config.setdefaults({"lr": 9, "more": 1})
    assert (wandb.config.lr, wandb.config["depth"], wandb.config.get("absent", 7)) == (0.1, 3, 7)
    assert "norm" in run.config
    assert {**wandb.config} == run.config.as_dict()
    with pytest.raises(AttributeError, match="did you mean 'depth'"):
        _ = wandb.config.deph
    params = {"lr": 0.1, "layers": [1, 2], "depth": 3, "norm": "batch", "act": None, "more": 1}
    (found,) = assay.runs("adhoc")
    assert found.params == params


def test_secrets_are_not_written() -> None:
    run = wandb.init(config={"api_key": "abcdef", "lr": 1})
    texts = [path.read_text() for path in find_dir(run).glob("*.json")]
    assert len(texts) == 3
    assert "abcdef" not in "".join(texts)
    assert wandb.config.api_key == "abcdef"


def test_the_parameters_of_the_study_fill_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"params": {"lr": 0.1, "seed": 3, "n": 2}}))
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    run = wandb.init(config={"lr": 0.8, "n": 2})
    assert dict(run.config) == {"lr": 0.8, "seed": 3, "n": 2}
    said = capsys.readouterr().err
    assert "config.lr is 0.8; the parameter of the study is 0.1" in said
    assert "config.n" not in said
    assert json.loads((tmp_path / "run.json").read_text()) == {"params": {"lr": 0.1, "seed": 3, "n": 2}}


def test_a_summary_becomes_metrics_and_changes_no_curve() -> None:
    run = wandb.init()
    wandb.log({"acc": 0.5})
    wandb.summary["acc"] = 0.9
    run.summary.update({"top": np.float64(0.25), "word": "good"})
    run.summary.best = 1
    assert read_lines(find_dir(run)) == [
        {"step": 0, "acc": 0.5},
        {"summary/acc": 0.9},
        {"top": 0.25},
        {"best": 1},
    ]
    kept = json.loads((find_dir(run) / "wandb.json").read_text())["summary"]
    assert kept == {"acc": 0.9, "top": 0.25, "word": "good", "best": 1}


# ---------------------------------------------------------------- init and finish


def test_each_init_after_a_finish_is_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    first = wandb.init(project="p", name="same")
    assert wandb.init(project="other") is first
    assert wandb.run is first
    wandb.log({"x": 1})
    first.finish()
    assert wandb.run is None
    second = wandb.init(project="p", name="same")
    wandb.log({"x": 2})
    third = wandb.init(project="p", reinit=True)
    assert [find_dir(run).name for run in (first, second)] == ["same", "same-2"]
    assert wandb.run is third
    assert [run.metrics for run in assay.runs("p") if run.metrics] == [{"x": 1}, {"x": 2}]
    assert capsys.readouterr().err.count("metrics go to") == 3


def test_a_disabled_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with wandb.init(project="p", config={"a": 1}) as run:
        run.log({"x": 1})
        run.summary["y"] = 2
        assert (run.config.a, run.summary["x"], run.disabled) == (1, 1, True)
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_refuses_does_not_stop_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "file"))
    run = wandb.init(project="p")
    run.log({"x": 1})
    run.config.a = 2
    assert "cannot be recorded" in capsys.readouterr().err


def test_only_the_first_rank_writes_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    run = wandb.init(config={"a": 1}, tags=["t"])
    run.log({"x": 1})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics"]
    assert [path.name[:5] for path in (tmp_path / "metrics").iterdir()] == ["a1-r1"]


def test_what_there_is_not_says_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(wandb.UsageError, match=r"wandb\.init"):
        wandb.log({"a": 1})
    with pytest.raises(wandb.Error, match=r"wandb\.init"):
        _ = wandb.config
    with pytest.raises(AttributeError, match=r"assay\.runs"):
        _ = wandb.Api
    with pytest.raises(AttributeError, match="did you mean 'define_metric'"):
        _ = wandb.define_metrics
    run = wandb.init()
    with pytest.raises(AttributeError, match="logg"):
        _ = run.logg
    with pytest.raises(wandb.UsageError, match="data:v3"):
        run.use_artifact("data:v3")
    assert run.save("*.pt") == []
    assert Path(run.dir).parent == find_dir(run)
    assert len(wandb.util.generate_id()) == 8
    assert wandb.errors.CommError is wandb.CommError
    assert not hasattr(wandb, "__path__")

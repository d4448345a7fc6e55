"""The callbacks for Lightning and the Hugging Face Trainer, with the real libraries, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay import lightning, script, transformers

LIGHTNING = """\
import torch
from lightning.pytorch import LightningModule, Trainer

from assay.lightning import AssayLogger


class Line(LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _index):
        loss = ((self.layer(batch) - 2 * batch) ** 2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        self.log("val/loss", ((self.layer(batch) - 2 * batch) ** 2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


data = torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2)
trainer = Trainer(
    logger=AssayLogger(project="line", name="first"), max_epochs=2, log_every_n_steps=1, accelerator="cpu",
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Line(), data, data)
"""

TRANSFORMERS = """\
import torch
from transformers import Trainer, TrainingArguments

from assay.transformers import AssayCallback


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(4)]
args = TrainingArguments(
    output_dir="out", report_to=[], use_cpu=True, num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1,
    save_strategy="no", eval_strategy="epoch", disable_tqdm=True, learning_rate=0.125,
)
callback = AssayCallback(project="line", name="first")
Trainer(Line(), args, train_dataset=data, eval_dataset=data, callbacks=[callback]).train()
"""


def require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {' '.join(packages)}")


def run_script(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    known = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "ASSAY_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**known, **offline, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read_lines(folder: Path) -> list[dict[str, float]]:
    (path,) = folder.glob("metrics/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.services("frameworks")
def test_lightning_logs_to_a_run_of_its_own(tmp_path: Path) -> None:
    require("lightning")
    done = run_script(LIGHTNING, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "line" / "first"
    assert f"metrics go to {folder}" in done.stderr
    lines = read_lines(folder)
    assert [line["step"] for line in lines if "loss" in line] == [0, 1, 2, 3, 4, 5]
    assert {line["epoch"] for line in lines if "val/loss" in line} == {0, 1}
    assert json.loads((folder / "run.json").read_text())["params"] == {"lr": 0.1}
    assert list(folder.glob("checkpoints/*.ckpt"))


@pytest.mark.services("frameworks")
def test_the_hugging_face_trainer_logs_to_the_run_that_started_it(tmp_path: Path) -> None:
    require("transformers", "accelerate", "torch")
    folder = tmp_path / "run"
    folder.mkdir()
    done = run_script(TRANSFORMERS, tmp_path, ASSAY_RUN_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    lines = read_lines(folder)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 4]
    assert [line["epoch"] for line in lines if "eval_loss" in line] == [1, 2]
    config = json.loads((folder / "script-config.json").read_text())
    assert (config["learning_rate"], config["num_train_epochs"], "adam_beta1" in config) == (0.125, 2, False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("ranks", "is_first"), [((None, 1), False), ((None, 0), True), ((0, 1), True), ((1, 0), False)]
)
def test_the_rank_is_that_of_the_first_package_that_is_loaded(
    monkeypatch: pytest.MonkeyPatch, ranks: tuple[int | None, int], is_first: bool
) -> None:
    for package, rank in zip(lightning._PACKAGES, ranks, strict=True):  # None: its import is blocked
        module = None if rank is None else SimpleNamespace(rank_zero_only=SimpleNamespace(rank=rank))
        monkeypatch.setitem(sys.modules, f"{package}.utilities", module)
    assert lightning._Logging()._is_first() is is_first


def test_a_metric_called_time_does_not_stop_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    script.close_stream()
    lightning._Logging().log_metrics({"time": 1.5, "loss": 0.5, "epoch": 1}, step=3)
    state = SimpleNamespace(is_world_process_zero=True, global_step=4)
    transformers._Logging().on_log(None, state, None, {"time": 2.5, "step": 9})
    script.close_stream()
    first, second = read_lines(tmp_path)
    assert (first["step"], first["epoch"], first["lightning/time"], first["loss"]) == (3, 1, 1.5, 0.5)
    assert (second["step"], second["transformers/time"], second["transformers/step"]) == (4, 2.5, 9)


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("lightning", "AssayLogger", "lightning"), ("transformers", "AssayCallback", "transformers")],
)
def test_without_the_library_the_install_command_is_named(module: str, name: str, package: str, tmp_path: Path) -> None:
    for hidden in ("lightning", "pytorch_lightning", "transformers"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "__init__.py").write_text("raise ModuleNotFoundError('hidden')")
    done = run_script(f"from assay.{module} import {name}", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"{name} needs {package}, which is not installed here: pip install {package}"
    )

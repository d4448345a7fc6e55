"""logx as runx's users know it, and what was broken there."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import os
import pickle
import subprocess
import sys
import types
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from assay import checkpoint, script
from assay import logx as module
from assay.errors import UsageError
from assay.logx import LogX
from assay.values import layout

SRC = str(Path(script.__file__).parents[1])


@pytest.fixture(autouse=True)
def work(tmp_path_factory, monkeypatch):
    """A folder without .runx, a home without runx.yml, nothing printed or opened by an earlier test."""
    folder = tmp_path_factory.mktemp("work")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setattr(module, "_said", set())
    monkeypatch.setattr(script, "_stream", None)
    return folder


@pytest.fixture
def logx():
    with contextlib.closing(LogX()) as instance:
        yield instance


@pytest.fixture
def torch(monkeypatch):
    """A stand-in that saves in the same container as torch: a zip with a pickle in the old protocol."""
    fake = types.ModuleType("torch")

    def save(content, path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))

    def load(path, map_location=None, weights_only=None):
        assert weights_only is True
        if not zipfile.is_zipfile(path):
            raise pickle.UnpicklingError("Invalid magic number; corrupt file?")
        with zipfile.ZipFile(path) as archive:
            return pickle.loads(archive.read("archive/data.pkl"))

    fake.save, fake.load = save, load
    fake.serialization = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def read_rows(logdir):
    with open(Path(logdir) / "metrics.csv", newline="") as file:
        return list(csv.reader(file))


def names(logdir):
    return sorted(os.listdir(logdir))


# ---------------------------------------------------------------- files and formats


def test_the_files_of_a_plain_run(logx, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module.time, "time", lambda: 1700000000.5)
    logx.initialize(tmp_path / "log", hparams={"lr": 0.1, "arch": "alexnet"})
    logx.msg("hello")
    logx.metric("val", {"loss": 0.5, "acc": np.float32(0.75)}, epoch=3)
    logx.metric("train", {"loss": 0.5})
    assert names(tmp_path / "log") == ["hparams.json", "logging.log", "metrics.csv"], "no series outside of a run"
    assert names(".") == []
    assert (tmp_path / "log/metrics.csv").read_bytes() == (
        b"start,start/step,0,timestamp,1700000000.5\r\nval,loss,0.5,acc,0.75,epoch,3,timestamp,1700000000.5\r\n"
    )
    assert (tmp_path / "log/hparams.json").read_text() == '{\n    "lr": 0.1,\n    "arch": "alexnet"\n}'
    assert (tmp_path / "log/logging.log").read_text() == "hello\n"
    assert capsys.readouterr().out == "hello\n"
    logx.initialize(tmp_path / "bare", no_timestamp=True)
    logx.metric("val", {"acc": 1}, epoch=0)
    assert read_rows(tmp_path / "bare") == [["start", "start/step", "0"], ["val", "acc", "1", "epoch", "0"]]


def test_initializing_again_appends_also_after_a_line_that_a_kill_cut_short(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"start,start/step,0\r\nval,acc,0.")
    for _ in range(2):
        with contextlib.closing(LogX()) as again:
            again.initialize(tmp_path, no_timestamp=True)
            again.msg("one")
    assert read_rows(tmp_path)[1:] == [["val", "acc", "0."], *[["start", "start/step", "0"]] * 2]
    assert (tmp_path / "logging.log").read_text() == "one\none\n"


def test_hparams_may_be_anything_and_are_never_overwritten(logx, tmp_path):
    hparams = argparse.Namespace(path=Path("/data"), lr=np.float32(0.5), layers=[1, 2], none=None)
    logx.initialize(tmp_path, hparams=hparams)
    logx.initialize(tmp_path, hparams={"lr": 2})
    read = json.loads((tmp_path / "hparams.json").read_text())
    assert read == {"path": "/data", "lr": "0.5", "layers": [1, 2], "none": None}
    with pytest.raises(TypeError, match="hparams must be a dict or an argparse Namespace, not 3"):
        logx.initialize(tmp_path / "other", hparams=3)


def test_hparams_of_a_runx_run_are_completed_by_its_script(logx, tmp_path, monkeypatch):
    """`assay runx` writes what the sweep sets; the table of the original has what the script gave, defaults included."""
    (tmp_path / "hparams.json").write_text('{"lr": "1e-4", "x": "None", "tag": "a"}')
    (tmp_path / "submit_cmd.sh").touch()
    logx.initialize(tmp_path, hparams={"lr": 2})
    assert json.loads((tmp_path / "hparams.json").read_text())["lr"] == "1e-4", "of a run that is not this one"
    monkeypatch.setenv("ASSAY_RUN_DIR", str(tmp_path))
    logx.initialize(tmp_path, hparams={"lr": 0.0001, "x": None, "width": 8})
    assert json.loads((tmp_path / "hparams.json").read_text()) == {"lr": 0.0001, "x": None, "tag": "a", "width": 8}


def test_odd_names_and_messages(logx, hostile_path, hostile_name):
    logx.initialize(str(hostile_path / "deep/er"), hparams={})
    assert names(hostile_path / "deep/er") == ["hparams.json", "logging.log", "metrics.csv"]
    logx.msg({"a": 1})
    logx.msg(hostile_name)
    assert (hostile_path / "deep/er/logging.log").read_text("utf-8") == f"{{'a': 1}}\n{hostile_name}\n"


def test_a_log_directory_that_cannot_be_made_or_is_full(logx, tmp_path, capsys):
    """A full disk does not stop the training."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"logx cannot use the log directory .*file/log: Not a directory"):
        logx.initialize(tmp_path / "file/log")
    logx.initialize(tmp_path)
    os.dup2(full := os.open("/dev/full", os.O_WRONLY), logx._metrics_file._fd)
    os.close(full)
    logx.metric("val", {"acc": 1.0})
    logx.metric("val", {"acc": 2.0})
    assert capsys.readouterr().err.count("No space left on device. The script goes on") == 1
    logx._metrics_file.forget()


# ---------------------------------------------------------------- metrics


def test_every_spelling_of_a_phase(logx, tmp_path):
    logx.initialize(tmp_path)
    for phase in ("val", "validate", "validation", "test"):
        logx.metric(phase, {"acc": 0.5}, epoch=1)
        assert read_rows(tmp_path)[-1][:5] == ["val", "acc", "0.5", "epoch", "1"]
    for phase in ("trn", "train", "training"):
        logx.metric(phase, {"loss": 0.5}, epoch=1)
    assert len(read_rows(tmp_path)) == 5, "train metrics are not in the csv"
    known = "trn, train, training, val, validate, validation, test"
    with pytest.raises(ValueError, match=f"phase 'eval' is none of {known}"):
        logx.metric("eval", {"acc": 1})


def test_epochs_count_by_themselves_for_each_phase(logx, tmp_path):
    logx.initialize(tmp_path)
    logx.metric("train", {"loss": 1})
    for epoch in (None, None, 10, None, None, 3, 4, None):
        logx.metric("val", {"acc": 1}, epoch=epoch)
    seen = [row[4] for row in read_rows(tmp_path)[1:]]
    assert seen == ["0", "1", "10", "10", "11", "3", "4", "4"], "as runx: the count goes on from the last, not after it"


def test_metrics_of_every_make(logx, tmp_path):
    logx.initialize(tmp_path)
    logx.metric("val", {"a": np.float64(0.5), "b": np.array([2]), "c": True, "d": math.nan, "e": "text, quoted"})
    assert read_rows(tmp_path)[-1][1:11] == ["a", "0.5", "b", "2", "c", "1", "d", "nan", "e", "text, quoted"]


# ---------------------------------------------------------------- before initialize, and other ranks


def test_before_initialize_only_messages_work(logx, capsys):
    """B16"""
    logx.msg("early")
    assert capsys.readouterr().out == "early\n"
    calls = {"metric": ("val", {"a": 1}), "save_model": ({}, 1.0, 0), "add_scalar": ("a", 1, 0)}
    calls |= {"add_image": ("a", None), "get_best_checkpoint": ()}
    for name, arguments in calls.items():
        with pytest.raises(UsageError, match=r"before logx\.initialize: call logx\.initialize\(logdir=\.\.\.\) first"):
            getattr(logx, name)(*arguments)


def test_other_ranks_write_print_and_create_nothing(logx, tmp_path, capsys):
    logx.initialize(tmp_path / "log", hparams={"a": 1}, tensorboard=True, global_rank=1)
    logx.msg("hello")
    logx.metric("val", {"acc": 1})
    logx.metric("train", {"acc": 1})
    logx.add_scalar("a", 1, 0)
    logx.tensorboard.add_text("a", "b")
    assert logx.save_model({}, 1.0, 0) is None
    assert logx.get_best_checkpoint() is None
    assert not (tmp_path / "log").exists()
    assert capsys.readouterr() == ("", "")


# ---------------------------------------------------------------- where logs go


def test_logroot_is_found_without_a_yaml_library(work):
    texts = {
        "LOGROOT: /logs\nFARM: big\n": "/logs",
        "FARM: big\nLOGROOT:   '/my logs'   # where\n": "/my logs",
        'LOGROOT: "/a#b"\r\n': "/a#b",
        "LOGROOT : relative/logs # x\n": "relative/logs",
        "LOGROOT: /logs#1\n": "/logs#1",
        "big:\n  LOGROOT: /nested\n": None,
        "NGC_LOGROOT: /ngc\n": None,
        "": None,
    }
    for text, found in texts.items():
        Path(".runx").write_bytes(text.encode())
        assert module.load_logroot() == (found and os.path.abspath(found)), text


def test_logroot_of_the_folder_beats_that_of_the_user(logx, work):
    (work / "home/.config").mkdir(parents=True)
    (work / "home/.config/runx.yml").write_text("LOGROOT: ../logs\n")
    assert module.find_logdir(False) == str(work / "home/.config/../logs/default")
    Path(".runx").write_text("LOGROOT: here\n")
    assert module.find_logdir(False) == str(work / "here/default")
    logx.initialize()
    assert names("here/default") == ["logging.log", "metrics.csv"]
    # a cool name is two words, and not always the same
    found = {Path(module.find_logdir(True)).name for _ in range(20)}
    assert len(found) > 1
    assert all(len(name.split("-")) == 2 and name.replace("-", "").isalpha() for name in found)


def test_without_logroot_logs_go_to_adhoc_and_that_is_said_once(work, capsys):
    assert module.find_logdir(False) == module.find_logdir(False) == "runs/adhoc/default"
    said = capsys.readouterr().err
    assert said == f"logx: no logdir given and no LOGROOT in .runx, so logs go to {work}/runs/adhoc/default\n"


def test_inside_a_run_train_metrics_are_series_and_val_metrics_only_with_another_logdir(logx, tmp_path, monkeypatch):
    """The ingest reads metrics.csv: written twice, they would count twice."""
    monkeypatch.setenv(layout.ENV_RUN_DIR, str(tmp_path))
    logx.initialize(coolname=True)
    logx.metric("trn", {"loss": 0.5, "note": "text"}, epoch=7)
    logx.metric("val", {"acc": 0.9}, epoch=1)
    assert read_rows(tmp_path)[-1][:3] == ["val", "acc", "0.9"]
    logx.initialize(tmp_path / "logs")
    logx.metric("val", {"acc": 0.9, "time": 3}, epoch=1)
    script._stream.close()
    lines = [json.loads(line) for path in tmp_path.glob("metrics/*") for line in path.read_text().splitlines()]
    for line in lines:
        del line["time"]
    assert lines == [{"step": 7, "train/loss": 0.5}, {"epoch": 1, "acc": 0.9, "val/time": 3}]


# ---------------------------------------------------------------- TensorBoard


class Writer:
    """Keeps the calls that it gets."""

    def __init__(self, *args, **kwargs):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


@pytest.fixture
def writer(logx, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    logx.initialize(tmp_path / "tb", tensorboard=True)
    return logx.tb_writer


def test_calls_are_passed_on_and_flushed(logx, writer, tmp_path):
    logx.add_scalar("lr", 0.1, 5)
    logx.add_image("img", "pixels", 2)
    logx.tensorboard.add_text("a", "b")
    flush = ("flush",)
    passed = [("add_scalar", "lr", 0.1, 5), ("add_image", "img", "pixels", 2), ("add_text", "a", "b")]
    assert writer.calls == [call for each in passed for call in (each, flush)]
    writer.calls.clear()
    logx.metric("trn", {"loss": 0.5, "acc": 1, "note": "text"}, epoch=3)  # with the phase as given and one flush
    assert writer.calls == [("add_scalar", "trn/loss", 0.5, 3), ("add_scalar", "trn/acc", 1, 3), flush]
    logx.initialize(tmp_path / "tb", tensorboard=True, eager_flush=False)
    logx.add_scalar("a", 1, 0)
    logx.metric("train", {"a": 1})
    assert "flush" not in [call[0] for call in logx.tb_writer.calls]


def test_suspend_flush(logx, writer):
    with logx.suspend_flush():
        logx.add_scalar("a", 1, 0)
        logx.add_scalar("a", 2, 1)
    with logx.suspend_flush(flush_at_end=False):
        logx.add_scalar("a", 3, 2)
    assert [call[0] for call in writer.calls] == ["add_scalar", "add_scalar", "flush", "add_scalar"]
    with pytest.raises(ZeroDivisionError), logx.suspend_flush():
        1 / 0  # noqa: B018
    assert logx.eager_flush is True, "flushing resumes after an error"


def test_without_the_extra_torchs_writer_is_used_or_the_install_command_is_said_once(
    logx, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    for _ in range(2):
        logx.initialize(tmp_path, tensorboard=True)
        logx.add_scalar("a", 1, 0)
    assert capsys.readouterr().err.count("pip install 'assay[tensorboard]'") == 1
    for name in ("torch", "torch.utils", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["torch.utils.tensorboard"].SummaryWriter = Writer
    logx.initialize(tmp_path, tensorboard=True)
    assert isinstance(logx.tb_writer, Writer)


@pytest.mark.long
@pytest.mark.skipif(find_spec("tensorboardX") is None, reason="the tensorboard extra is not installed")
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard itself is not installed")
def test_event_files_are_what_tensorboard_opens(tmp_path):
    """In a process of its own: those libraries warn about one another and change the environment."""
    code = """
from assay.logx import logx
logx.initialize("log", tensorboard=True)
logx.metric("val", {"acc": 0.5}, epoch=3)
logx.close()  # tensorboardX writes behind, up to a second
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("log")
events.Reload()
print([(event.step, event.value) for event in events.Scalars("val/acc")])
"""
    program, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[(3, 0.5)]\n"


# ---------------------------------------------------------------- models


def list_models(logdir):
    return [name for name in names(logdir) if name.endswith("pth")]


def test_the_last_and_the_best_model_are_kept(logx, tmp_path, torch):
    logx.initialize(tmp_path)
    better = [logx.save_model({"state_dict": {}}, metric, epoch) for epoch, metric in enumerate([0.5, 0.7, 0.6])]
    assert better == [True, True, False]
    assert list_models(tmp_path) == ["best_checkpoint_ep1.pth", "last_checkpoint_ep2.pth"]
    assert logx.get_best_checkpoint() == str(tmp_path / "best_checkpoint_ep1.pth")
    assert logx.save_ckpt_fn == str(tmp_path / "last_checkpoint_ep2.pth")


def test_lower_may_be_better_and_old_models_may_stay(logx, tmp_path, torch):
    logx.initialize(tmp_path)
    saved = [logx.save_model({}, m, e, higher_better=False, delete_old=False) for e, m in enumerate([0.5, 0.7, 0.4])]
    assert saved == [True, False, True]
    assert list_models(tmp_path) == ["best_checkpoint_ep2.pth", *(f"last_checkpoint_ep{n}.pth" for n in range(3))]
    logx.save_model({"state_dict": 0.1}, 0.1, 2, higher_better=False)
    assert logx.load_model(logx.get_best_checkpoint())[0] == 0.1, "the same epoch saved again replaces it"


def test_nan_never_stays_the_best_and_a_text_is_refused(logx, tmp_path, torch):
    logx.initialize(tmp_path)
    with pytest.raises(TypeError, match="metric must be a single number, not 'high'"):
        logx.save_model({}, "high", 0)
    assert names(tmp_path) == ["logging.log", "metrics.csv"], "before anything is written"
    better = [logx.save_model({}, metric, 0) for metric in (math.nan, math.nan, 0.1, math.nan)]
    assert better == [True, False, True, False]
    assert logx.best_metric == 0.1


def test_the_users_dict_is_not_changed(logx, tmp_path, torch):
    logx.initialize(tmp_path)
    content = {"state_dict": {"w": 1}, "epoch": 3}
    logx.save_model(content, np.float32(0.5), 3)
    assert content == {"state_dict": {"w": 1}, "epoch": 3}
    state, meta = logx.load_model(logx.save_ckpt_fn)
    assert state == {"w": 1}
    assert meta == {"epoch": 3, "__metric": 0.5}
    assert type(meta["__metric"]) is float
    torch.save({"weights": 1}, tmp_path / "x.pth")
    with pytest.raises(UsageError, match="contains no 'state_dict'"):
        logx.load_model(tmp_path / "x.pth")


def test_a_failed_save_leaves_the_old_models(logx, tmp_path, torch, monkeypatch):
    logx.initialize(tmp_path)
    logx.save_model({}, 0.5, 0)

    def fail(content, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        logx.save_model({}, 0.6, 1)
    assert names(tmp_path) == ["best_checkpoint_ep0.pth", "last_checkpoint_ep0.pth", "logging.log", "metrics.csv"]


@pytest.mark.parametrize("metric", [0.5, np.float16(0.5)])
def test_a_resumed_training_knows_its_best_model(tmp_path, torch, metric):
    """B17: also from files of runx, which hold numpy's numbers; torch since 2.6 refuses those."""
    content = {"state_dict": {}, "__metric": metric, "args": argparse.Namespace(x=1)}
    torch.save(content, tmp_path / "best_checkpoint_ep4.pth")
    torch.save({}, tmp_path / "last_checkpoint_ep5.pth")
    with contextlib.closing(LogX()) as resumed:
        resumed.initialize(tmp_path)
        assert resumed.best_metric == 0.5
        assert resumed.save_model({}, 0.4, 6) is False
        assert resumed.save_model({}, 0.6, 7) is True
    assert list_models(tmp_path) == ["best_checkpoint_ep7.pth", "last_checkpoint_ep7.pth"]


def test_initialize_needs_no_torch_and_takes_the_highest_epoch(logx, tmp_path, monkeypatch):
    ends = ("best_checkpoint_ep9.pth", "best_checkpoint_ep10.pth", "best_checkpoint_ep11xpth")
    for name in (*ends, "xbest_checkpoint_ep12.pth"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    logx.initialize(tmp_path)
    assert logx.get_best_checkpoint() == str(tmp_path / "best_checkpoint_ep10.pth")
    with pytest.raises(UsageError, match="saving a model needs torch"):
        logx.save_model({}, 0.5, 0)
    with pytest.raises(UsageError, match="loading a model needs torch"):
        logx.load_model(tmp_path / "x.pth")


def damage_zip(offset, value):
    """A zip file with a wrong byte at this offset of its table of contents."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a/data.pkl", b"x")
    data = bytearray(content.getvalue())
    data[data.index(b"PK\1\2") + offset] = value
    return bytes(data)


@pytest.mark.parametrize(
    "content",
    [b"damaged", damage_zip(6, 99), damage_zip(8, 1), damage_zip(10, 7)],
    ids=["", "version", "flag", "method"],
)
def test_a_best_model_that_cannot_be_read_is_kept_and_said(logx, tmp_path, torch, capsys, content):
    (tmp_path / "best_checkpoint_ep4.pth").write_bytes(content)
    logx.initialize(tmp_path)
    assert logx.save_model({}, 0.1, 5) is True
    assert "cannot read the metric in" in capsys.readouterr().err
    assert names(tmp_path)[:2] == ["best_checkpoint_ep4.pth", "best_checkpoint_ep5.pth"]


# ---------------------------------------------------------------- checkpoints are not trusted


class Bomb:
    """Runs a command when unpickled carelessly."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_reading_a_metric_runs_nothing(tmp_path, torch, monkeypatch):
    torch.save({"x": Bomb(tmp_path / "ran"), "__metric": np.float64(0.5)}, tmp_path / "one.pth")
    torch.save({"__metric": Bomb(tmp_path / "ran")}, tmp_path / "two.pth")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert checkpoint.load_metric(str(tmp_path / "one.pth")) == 0.5
    assert checkpoint.load_metric(str(tmp_path / "two.pth")) is None
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02}q\x00."])
def test_a_damaged_checkpoint_has_no_metric(tmp_path, monkeypatch, content):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "x.pth").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "y.pth", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    assert checkpoint.load_metric(str(tmp_path / "x.pth")) is None
    assert checkpoint.load_metric(str(tmp_path / "y.pth")) is None


# ---------------------------------------------------------------- with the real torch


@pytest.fixture
def real_torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("kind", [float, np.int64, "tensor"])
def test_resume_with_the_real_torch(tmp_path, real_torch, kind):
    first = real_torch.tensor(0.5) if kind == "tensor" else kind(1)
    model = real_torch.nn.Linear(2, 1)
    with contextlib.closing(LogX()) as logx:
        logx.initialize(tmp_path)
        logx.save_model({"state_dict": model.state_dict(), "epoch": 1}, first, 1)
    with contextlib.closing(LogX()) as resumed:
        resumed.initialize(tmp_path)
        assert resumed.save_model({"state_dict": {}}, 0.1, 2) is False
        state, meta = resumed.load_model(resumed.get_best_checkpoint())
    assert real_torch.equal(state["weight"], model.state_dict()["weight"])
    assert meta["epoch"] == 1


@pytest.mark.parametrize("metric", [np.float32(0.5), np.float16(0.5), "tensor"])
@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_of_runx_with_the_real_torch(tmp_path, real_torch, metric, zipped):
    metric = real_torch.tensor(0.5) if isinstance(metric, str) else metric
    path = str(tmp_path / "best_checkpoint_ep1.pth")
    content = {"state_dict": {"w": real_torch.ones(2)}, "__metric": metric}
    real_torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert checkpoint.load_metric(path) == 0.5
    assert float(LogX().load_model(path)[1]["__metric"]) == 0.5


def test_the_real_torch_runs_nothing_either(tmp_path, real_torch):
    path = str(tmp_path / "x.pth")
    real_torch.save({"state_dict": {}, "x": Bomb(tmp_path / "ran")}, path)
    with pytest.raises(UsageError, match=r"might run code that it holds: posix\.mkdir.*If you trust the file"):
        LogX().load_model(path)
    assert not (tmp_path / "ran").exists()

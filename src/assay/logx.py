"""runx's `logx`, for scripts that already use it: `from assay.logx import logx`.

<logdir>/hparams.json            the hparams of initialize, written once
         metrics.csv             val,acc,0.9,epoch,3,timestamp,1700000000.25
         logging.log             the messages that msg printed
         last_checkpoint_ep7.pth best_checkpoint_ep5.pth
         events.out.tfevents.*   with tensorboard=True

Inside an Assay run, train metrics are also logged as series of the run (`train/loss`). Validation metrics are logged
as series only if logdir is not the run's directory, since the run's series include its metrics.csv.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

from assay import checkpoint, script
from assay.errors import UsageError
from assay.system.files import read_text, replacing
from assay.values import layout

TRAIN_PHASES = ("trn", "train", "training")
VAL_PHASES = ("val", "validate", "validation", "test")

_BEST = re.compile(r"best_checkpoint_ep([0-9]+)\.pth")
_LAST = re.compile(r"last_checkpoint_ep([0-9]+)\.pth")
_LOGROOT_LINE = re.compile(r"(?m)^LOGROOT[ \t]*:[ \t]*(?P<quote>['\"]?)(?P<path>.+?)(?P=quote)\s*?(?:\s#.*)?$")
_RESERVED_NAMES = ("step", "epoch", "time")


class TensorBoard:
    """Passes every call to the TensorBoard writer; without a writer a call does nothing."""

    def __init__(self, logx: LogX) -> None:
        self._logx = logx

    def __getattr__(self, name: str) -> Any:
        self._logx.require("tensorboard")
        writer = self._logx.tb_writer
        if writer is None:
            return lambda *_args, **_kwargs: None
        attribute = getattr(writer, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            if self._logx.eager_flush:
                self._logx.flush_tensorboard()
            return result

        return call if callable(attribute) else attribute


class LogX:
    """The logger of a process, which all modules share as `logx`. Only rank 0 prints, writes or creates anything."""

    def __init__(self) -> None:
        self.initialized = False
        self.rank0 = True
        self.logdir = ""
        self.eager_flush = True
        self.no_timestamp = False
        self.tb_writer: Any = None
        self.tensorboard = TensorBoard(self)
        self.save_metric: float | None = None
        self.save_ckpt_fn = ""  # the newest checkpoint
        self.best_ckpt_fn = ""
        self._best_metric: float | None = None
        self._best_is_known = True
        self._epochs: dict[str, int] = {}
        self._metrics_file: script.Stream | None = None
        self._log_file: script.Stream | None = None

    # ------------------------------------------------------------ beginning and end

    def initialize(
        self,
        logdir: str | os.PathLike[str] | None = None,
        coolname: bool = False,
        hparams: Mapping[Any, Any] | object | None = None,
        tensorboard: bool = False,
        no_timestamp: bool = False,
        global_rank: int = 0,
        eager_flush: bool = True,
    ) -> None:
        """Open the log directory; scripts call this once, before the training, on every rank.

        The default of `logdir` is the run's directory inside an Assay run, else a folder below LOGROOT of ./.runx or
        ~/.config/runx.yml: `default`, or with `coolname` a readable random name.
        """
        self.close()
        self.rank0 = global_rank == 0
        self.eager_flush, self.no_timestamp = eager_flush, no_timestamp
        self._epochs = {}
        self.logdir = os.fspath(logdir) if logdir is not None else find_logdir(coolname, quiet=not self.rank0)
        self.initialized = True
        if self.rank0:
            self._open_logdir(hparams, tensorboard)

    def _open_logdir(self, hparams: object, tensorboard: bool) -> None:
        try:
            os.makedirs(self.logdir, exist_ok=True)
            if hparams is not None:
                write_hparams(os.path.join(self.logdir, layout.HPARAMS_FILE), hparams)
        except OSError as error:
            raise UsageError(f"logx cannot use the log directory {self.logdir}: {error.strerror or error}") from error
        self._metrics_file = _open_appending(os.path.join(self.logdir, layout.LOGX_METRICS_FILE))
        self._log_file = _open_appending(os.path.join(self.logdir, layout.LOGX_LOG_FILE))
        self.tb_writer = _open_tensorboard(self.logdir) if tensorboard else None
        self.save_metric = None
        self.save_ckpt_fn = self._find_newest(_LAST) or ""
        self.best_ckpt_fn = self._find_newest(_BEST) or ""
        self._best_metric, self._best_is_known = None, not self.best_ckpt_fn
        self._write_row(["start", "start/step", 0])
        atexit.unregister(self.close)
        atexit.register(self.close)

    def close(self) -> None:
        """Close every file; the end of the process does this as well."""
        for stream in (self._metrics_file, self._log_file):
            if stream is not None:
                stream.close()
        if self.tb_writer is not None:
            self.tb_writer.close()
        self._metrics_file = self._log_file = self.tb_writer = None

    def require(self, what: str) -> None:
        """Raise unless `initialize` was called."""
        if not self.initialized:
            raise UsageError(f"logx.{what} was used before logx.initialize: call logx.initialize(logdir=...) first")

    # ------------------------------------------------------------ messages and metrics

    def msg(self, msg: object) -> None:
        """Print a message, and write it to logging.log if the log directory is open."""
        if not self.rank0:
            return
        print(msg)
        if self._log_file is not None:
            self._log_file.write(f"{msg}\n".encode("utf-8", "backslashreplace"))

    def metric(self, phase: str, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        """Record numbers of an epoch (`val`) or an iteration (`train`); without `epoch`, calls are counted from 0."""
        self.require("metric")
        if not self.rank0:
            return
        if phase not in TRAIN_PHASES and phase not in VAL_PHASES:
            raise ValueError(f"logx.metric: phase {phase!r} is none of {', '.join((*TRAIN_PHASES, *VAL_PHASES))}")
        canonical = "train" if phase in TRAIN_PHASES else "val"
        if epoch is None:
            epoch = self._epochs.get(canonical, 0)
            self._epochs[canonical] = epoch + 1
        else:
            self._epochs[canonical] = epoch  # as in runx, a given epoch is kept without +1
        numbers = {name: script.build_number(value) for name, value in metrics.items()}
        if canonical == "val":
            row: list[object] = []
            for name, value in metrics.items():
                row += [name, value if numbers[name] is None else numbers[name]]
            self._write_row(["val", *row, "epoch", epoch])
        known = {name: number for name, number in numbers.items() if number is not None}
        self._write_series(canonical, known, epoch)
        with self.suspend_flush():
            for name, number in known.items():
                self.tensorboard.add_scalar(f"{phase}/{name}", number, epoch)

    def _write_row(self, row: list[object]) -> None:
        if self._metrics_file is None:
            return
        text = io.StringIO()
        csv.writer(text).writerow(row if self.no_timestamp else [*row, "timestamp", time.time()])
        self._metrics_file.write(text.getvalue().encode("utf-8", "backslashreplace"))

    def _write_series(self, phase: str, numbers: Mapping[str, float], epoch: int) -> None:
        run_dir = os.environ.get(layout.ENV_RUN_DIR)
        if not run_dir:
            return
        if phase == "train":
            script.log({f"train/{name}": number for name, number in numbers.items()}, step=epoch)
        elif os.path.realpath(self.logdir) != os.path.realpath(run_dir):
            named = {f"val/{name}" if name in _RESERVED_NAMES else name: number for name, number in numbers.items()}
            script.log(named, epoch=epoch)

    # ------------------------------------------------------------ TensorBoard

    def add_scalar(self, name: str, val: Any, idx: int) -> None:
        self.tensorboard.add_scalar(name, val, idx)

    def add_image(self, path: str, img: Any, step: int | None = None) -> None:
        self.tensorboard.add_image(path, img, step)

    def flush_tensorboard(self) -> None:
        if self.tb_writer is not None:
            self.tb_writer.flush()

    @contextlib.contextmanager
    def suspend_flush(self, flush_at_end: bool = True) -> Iterator[None]:
        """Make TensorBoard calls without a flush after each one; `flush_at_end`: flush once after the last call."""
        before, self.eager_flush = self.eager_flush, False
        try:
            yield
        finally:
            self.eager_flush = before
            if flush_at_end and before:
                self.flush_tensorboard()

    # ------------------------------------------------------------ models

    @property
    def best_metric(self) -> float | None:
        """The metric of the best checkpoint, which may be of an earlier process; the first use reads it."""
        if not self._best_is_known:
            self._best_metric, self._best_is_known = checkpoint.load_metric(self.best_ckpt_fn), True
            if self._best_metric is None:
                problem = f"logx cannot read the metric in {self.best_ckpt_fn}"
                script.say(f"{problem}: it is kept, and the next model is the best")
                self.best_ckpt_fn = ""
        return self._best_metric

    @staticmethod
    def is_better(save_metric: float, best_metric: float | None, higher_better: bool) -> bool:
        """Compare two metrics: NaN is better than no metric, but never better than a number."""
        if best_metric is None or math.isnan(best_metric):
            return best_metric is None or not math.isnan(save_metric)
        return save_metric > best_metric if higher_better else save_metric < best_metric

    def save_model(
        self,
        save_dict: Mapping[str, Any],
        metric: Any,
        epoch: int,
        higher_better: bool = True,
        delete_old: bool = True,
    ) -> bool | None:
        """Save the last checkpoint, and the best one if `metric` is the best; return whether it is, None off rank 0."""
        self.require("save_model")
        if not self.rank0:
            return None
        number = script.build_number(metric)
        if number is None:
            raise TypeError(f"logx.save_model: metric must be a single number, not {metric!r}")
        self.save_metric = float(number)
        path = os.path.join(self.logdir, f"last_checkpoint_ep{epoch}.pth")
        with replacing(path) as temporary:
            checkpoint.write_checkpoint({**save_dict, checkpoint.METRIC_KEY: self.save_metric}, temporary)
        if delete_old and self.save_ckpt_fn != path:
            _remove(self.save_ckpt_fn)
        self.save_ckpt_fn = path
        is_better = self.is_better(self.save_metric, self.best_metric, higher_better)
        if is_better:
            path = os.path.join(self.logdir, f"best_checkpoint_ep{epoch}.pth")
            with replacing(path) as temporary:
                shutil.copyfile(self.save_ckpt_fn, temporary)
            if self.best_ckpt_fn != path:
                _remove(self.best_ckpt_fn)
            self.best_ckpt_fn, self._best_metric = path, self.save_metric
        return is_better

    def get_best_checkpoint(self) -> str | None:
        """Return the path of the best checkpoint, of the highest epoch if there are several, or None."""
        self.require("get_best_checkpoint")
        return self._find_newest(_BEST)

    def _find_newest(self, pattern: re.Pattern[str]) -> str | None:
        try:
            found = [match for name in os.listdir(self.logdir) if (match := pattern.fullmatch(name))]
        except FileNotFoundError:  # another rank may get here before rank 0 has created the folder
            return None
        newest = max(found, key=lambda match: int(match[1]), default=None)
        return os.path.join(self.logdir, newest[0]) if newest else None

    def load_model(self, path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
        """Return the state dict of a checkpoint, and the other values that were saved with it."""
        content = checkpoint.load_checkpoint(os.fspath(path))
        if not isinstance(content, Mapping) or "state_dict" not in content:
            wanted = "load_model reads what save_model({'state_dict': ...}) wrote"
            raise UsageError(f"{path} contains no 'state_dict': {wanted}")
        return content["state_dict"], {key: value for key, value in content.items() if key != "state_dict"}


# ---------------------------------------------------------------- files


def _open_appending(path: str) -> script.Stream:
    def open_file() -> tuple[str, int]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")  # a killed process left an incomplete line
        return path, fd

    stream = script.Stream("logx", open_file)
    stream.retry()  # this creates the file before the first line is written
    return stream


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def write_hparams(path: str, hparams: object) -> None:
    """Write parameters as JSON, with values of other types as text. An existing file is kept, except that of `assay
    runx`, which has only the sweep's parameters: the script's defaults and parsed values are added to it."""
    known: dict[str, Any] = {}
    if os.path.exists(path):
        folder, run_dir = os.path.dirname(path) or os.curdir, os.environ.get(layout.ENV_RUN_DIR)
        is_runx = os.path.exists(os.path.join(folder, layout.SUBMIT_SCRIPT))
        if not is_runx or not run_dir or not os.path.samefile(folder, run_dir):
            return
        with contextlib.suppress(ValueError, TypeError):
            known = dict(json.loads(read_text(path)))
    fields = hparams if isinstance(hparams, Mapping) else getattr(hparams, "__dict__", None)
    if fields is None:
        raise TypeError(f"logx.initialize: hparams must be a dict or an argparse Namespace, not {hparams!r}")
    from assay.values.secrets import hide_params

    shown = hide_params({str(key): value for key, value in fields.items()})
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump({**known, **shown}, file, indent=4, default=str, skipkeys=True)


def _open_tensorboard(logdir: str) -> Any:
    """Return a TensorBoard writer; print a message and return None if none is installed, so that a training goes on."""
    for module in ("tensorboardX", "torch.utils.tensorboard"):
        with contextlib.suppress(ImportError):
            from importlib import import_module

            return import_module(module).SummaryWriter(logdir, flush_secs=1)
    _say_once("logx: nothing is written for TensorBoard, install its writer: pip install 'assay[tensorboard]'")
    return None


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        script.say(text)


# ---------------------------------------------------------------- where logs go by default


def find_logdir(coolname: bool, *, quiet: bool = False) -> str:
    """Return the run's directory inside a run, else a folder below LOGROOT, or below runs/adhoc without LOGROOT."""
    run_dir = os.environ.get(layout.ENV_RUN_DIR)
    if run_dir:
        return run_dir
    name = script.build_random_name() if coolname else "default"
    logroot = load_logroot()
    if logroot is not None:
        return os.path.join(logroot, name)
    path = os.path.join(os.environ.get("ASSAY_ROOT") or layout.DEFAULT_ROOT, layout.ADHOC_STUDY, name)
    if not quiet:
        _say_once(f"logx: no logdir given and no LOGROOT in .runx, so logs go to {os.path.abspath(path)}")
    return path


def load_logroot() -> str | None:
    """Load LOGROOT from ./.runx, else from ~/.config/runx.yml, without PyYAML, which a training script may not have.
    A relative LOGROOT is relative to the file that sets it."""
    for path in (".runx", os.path.expanduser("~/.config/runx.yml")):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            match = _LOGROOT_LINE.search(read_text(path))
            base = os.path.dirname(os.path.abspath(path))
            return os.path.join(base, os.path.expanduser(match["path"])) if match else None
    return None


logx = LogX()

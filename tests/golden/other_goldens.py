"""Golden files and runs in the forms of other tools, with made-up numbers."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.command_line import Result

from assay.cli.main import run as run_command
from assay.observe.events import masked_crc32c
from assay.values import protobuf

STEPS = tuple(step for step in range(1, 101) if step == 1 or step % 5 == 0)
Values = dict[int, float]


def build_loss(seed: int = 0, scale: float = 1.0, noise: float = 1e-3, steps: Sequence[int] = STEPS) -> Values:
    """Build the same curve for all seeds, with noise of its own for each."""
    rng = random.Random(seed)
    return {step: scale * (2 + 9 * math.exp(-step / 30)) * (1 + noise * rng.gauss(0, 1)) for step in steps}


def build_megatron(loss: Values, **others: Mapping[int, Any]) -> dict[str, Any]:
    """Build a file as read_tb_logs_as_list of Megatron-LM does: five decimals, "nan" for a step that was not logged."""
    metrics: dict[str, Mapping[int, Any]] = {"lm loss": loss, **others}
    return {
        name.replace("_", "-"): {
            "start_step": min(values),
            "end_step": max(values),
            "step_interval": 5,
            "values": {str(step): round(v, 5) if isinstance(v, float) else v for step, v in values.items()},
        }
        for name, values in metrics.items()
    }


def write(name: str | Path, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_megatron(name: str | Path, loss: Values, **others: Mapping[int, Any]) -> Path:
    return write(name, json.dumps(build_megatron(loss, **others), indent=4))


def write_titan(name: str | Path, loss: Values) -> Path:
    return write(name, "".join(f"{step} {value!r}\n" for step, value in loss.items()))


def write_trl(name: str | Path, loss: Values, **env: str) -> Path:
    steps = [{"step": step, "loss": value, "grad_norm": 3 * value} for step, value in loss.items()]
    config = {"name": "sft_default", "method": "sft", "args": {"max_steps": "50", "seed": "42"}}
    return write(name, json.dumps({"config": config, "env": env, "steps": steps}, indent=2))


def write_lines(name: str | Path, loss: Values, metric: str = "loss") -> Path:
    return write(name, "".join(json.dumps({"step": step, metric: value}) + "\n" for step, value in loss.items()))


def write_mllog(name: str | Path, loss: Values, *, batch: int = 256, status: str = "success") -> Path:
    def line(key: str, value: object, **metadata: object) -> str:
        entry = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value}
        return f":::MLLOG {json.dumps({**entry, 'metadata': {'file': 'run.py', 'lineno': 3, **metadata}})}\n"

    text = "some other output\n" + line("global_batch_size", batch)
    text += "".join(line("eval_accuracy", 1 / value, epoch_num=step) for step, value in loss.items())
    return write(name, text + line("run_stop", None, status=status))


def write_events(folder: str, loss: Values) -> Path:
    """Write a TensorBoard file: records with checksums, single precision."""

    def build(step: int, value: float) -> bytes:
        summary = protobuf.text(1, "loss") + b"\x15" + struct.pack("<f", value)
        content = protobuf.number(2, step) + protobuf.message(5, protobuf.message(1, summary))
        parts = struct.pack("<Q", len(content)), content
        return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts)

    path = write(f"{folder}/events.out.tfevents.1.host", "")
    path.write_bytes(b"".join(build(step, value) for step, value in loss.items()))
    return path


class Folder:
    """An empty folder in which commands are executed."""

    def __init__(self, path: Path, capsys: Any) -> None:
        self.path = path
        self.capsys = capsys

    def call(self, *words: str) -> Result:
        self.capsys.readouterr()
        code = run_command(words)
        out, err = self.capsys.readouterr()
        return Result(code, out, err)

    def check(self, against: object, source: object, *words: str) -> Result:
        """Check a run; if it is the golden's own file, which would be refused, a copy of it."""
        if str(against) == str(source) and os.path.isfile(str(source)):
            source = shutil.copy(str(source), os.path.join(tempfile.mkdtemp(dir=self.path.parent), "copy"))
        return self.call("golden", "check", "--against", str(against), "--from", str(source), *words)

    def expect(self, code: int, line: str, *texts: str) -> Result:
        """Check that golden and run (and options) end with this code, and that these texts are printed: on stderr if
        the check is refused."""
        done = self.check(*shlex.split(line))
        assert done.code == code, done.out + done.err
        for text in texts:
            assert text in (done.err if code == 2 else done.out), done.out + done.err
        return done

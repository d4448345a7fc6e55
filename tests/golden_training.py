"""A small fake training and the convergence file that describes it, used by the tests of golden recordings.

The training is a formula, so every value is known. `change.py` next to it makes a change of the program: another scale,
other values at some steps, a crash, noise on a stream, and so on.
"""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.in_process_jobs import run_in_process

from assay.errors import ExitCode
from assay.golden.flow.each_test import check_file, gather_file
from assay.golden.flow.segments import GoldenOptions
from assay.golden.values import GoldenReport, GoldenTestReport

__all__ = ["CONFIG", "NATIVE", "Lab", "messages", "run_in_process"]

# The script imports next to nothing: it is started a thousand times, and argparse takes longer than Python itself.
TRAINING = r"""
import os, sys, time

here = os.path.dirname(os.path.abspath(__file__))
change = {}
if os.path.exists(here + "/change.py"):
    with open(here + "/change.py") as file:
        change = eval(file.read())

class options:
    ckpt = load = x = ""
    save_every, start, until, log_every, seed = 10, 0, 30, 1, 0
    first_save = bare = False

words = iter(sys.argv[1:])
for word in words:
    name = word.removeprefix("--").replace("-", "_")
    if name not in vars(options):
        sys.exit(f"unknown option {word}")
    kind = type(getattr(options, name))
    setattr(options, name, True if kind is bool else kind(next(words)))
with open(here + "/calls", "a") as file:
    file.write(repr(sys.argv[1:]) + "\n")
out = sys.stderr if change.get("stream") == "stderr" else sys.stdout

def save(number):
    folder = change.get("save_in") or options.ckpt
    os.makedirs(folder, exist_ok=True)
    for name in change.get("saves", ["model"]):
        path = f"{folder}/{name}_{number}.bin"
        with open(path, "w") as file:
            file.write(str(number))
        print(f"Saving model to: {os.path.relpath(path) if change.get('relative') else path}", file=out, flush=True)

if options.load and not os.path.exists(options.load):
    sys.exit(f"no checkpoint {options.load}")
if change.get("noise"):
    other = sys.stdout if out is sys.stderr else sys.stderr
    other.write("x" * change["noise"] + "\n")
if options.ckpt and options.first_save:
    save(0)
first = change.get("first", 0)
if options.load and change.get("ignores_start"):
    options.start = 0
options.until = change.get("until", options.until)
digits = change.get("digits", 6)
for step in range(options.start + first, options.until + first):
    if step % options.log_every == 0 and not change.get("mute"):
        value = change.get("loss", {}).get(str(step)) or f"{2.0 / (step + 1) * change.get('scale', 1.0):.{digits}f}"
        value = change.get("always", value)
        text = change.get("format", "{step}").format(step=step)
        loss = "" if step in change.get("without", []) else f" Loss: {value} Acc: {step / 100:.3f}"
        print(f"Iteration: {text}{loss}", file=out, flush=True)
        for again in change.get("again", {}).get(str(step), []):
            print(f"Iteration: {step} Loss: {again} Acc: 0", file=out, flush=True)
    if step == change.get("hold_at"):
        if change.get("child"):
            import subprocess
            subprocess.Popen(["setsid", "sleep", "600"])
        time.sleep(600)
    if options.ckpt and (step + 1 - first) % options.save_every == 0:
        save(step + 1)
if change.get("close"):
    os.close(1); time.sleep(0.3)
sys.exit(change.get("exit", 0))
"""

CONFIG: dict[str, Any] = {
    "directory": ".",
    "executable": ["python3", "training.py"],
    "log_output": "stdout",
    "log_parsing": {
        "step_num": {"regex": r"Iteration:\s+(\d+)"},
        "model_save": {"regex": r"Saving model to: ([^\s+]+)"},
        "loss": {"regex": r"Loss: ([\d\.]+)"},
    },
    "metrics": {"loss": {"margin": 0.05, "comparison": "<="}},
    "recording": {"steps_to_record_after_save": 4},
    "flags": {
        "common": {},
        "gather": {"checkpoint_output": {"set_in_script": True, "key": "--ckpt"}},
        "run": {
            "checkpoint_input": {"set_in_script": True, "key": "--load"},
            "start_step": {"set_in_script": True, "key": "--start"},
            "run_for": {"set_in_script": True, "key": "--until"},
        },
    },
}

NATIVE = r"""
study: demo
command: python3 training.py
metrics:
  step: 'Iteration: (\d+)'
  loss: 'Loss: ({number})'
golden:
  segment: 6
  save: 'Saving model to: (\S+)'
  checkpoint: --ckpt
  resume: --load
  start: --start
  length: --until
  replicas: 2
  metrics: {loss: exact}
"""


_GATHERED: dict[tuple[str, ...], dict[str, bytes]] = {}  # program, file, change and options → what gathering left


class Lab:
    """A folder with the training, its file, a store and a root for runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.file = folder / "config.yml"
        folder.mkdir(exist_ok=True)
        (folder / "training.py").write_text(TRAINING)
        self.config: dict[str, Any] = {"demo": copy.deepcopy(CONFIG)}
        self.write()

    @property
    def test(self) -> dict[str, Any]:
        return self.config["demo"]

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump(self.config, sort_keys=False))

    def write_native(self, text: str = NATIVE) -> None:
        self.file.write_text(text)

    def flags(self, mode: str, **values: Any) -> None:
        """Add flags, as in `flags("gather", save_every=20)`; None is the bare flag."""
        misc = {name: {"key": "--" + name.replace("_", "-"), "value": value} for name, value in values.items()}
        section = self.test["flags"]["common"] if mode == "common" else self.test["flags"][mode].setdefault("misc", {})
        section.update(misc)
        self.write()

    def edit(self, old: str, new: str) -> None:
        """Change the program."""
        script = self.folder / "training.py"
        text = script.read_text()
        assert old in text
        script.write_text(text.replace(old, new))

    def change(self, **change: Any) -> None:
        (self.folder / "change.py").write_text(repr(change))

    def options(self, **given: Any) -> GoldenOptions:
        defaults: dict[str, Any] = {
            "file": str(self.file),
            "store": str(self.store),
            "root": str(self.folder / "runs"),
            "slots": ("cpu", "cpu"),
            "grace_s": 2.0,
        }
        return GoldenOptions(**{**defaults, **given})

    def gather(self, **given: Any) -> GoldenReport:
        return gather_file(self.options(**given))

    def use_golden(self, **given: Any) -> None:
        """Restore what `gather` leaves, for tests of something else: done once for each program, file and options."""
        inputs = [self.folder / "training.py", self.file, self.folder / "change.py"]
        key = (*(path.read_text() if path.exists() else "" for path in inputs), repr(sorted(given.items())))
        if key not in _GATHERED:
            with pytest.MonkeyPatch.context() as patch:
                run_in_process(patch)
                report = self.gather(**given)
            assert report.exit_code() is ExitCode.OK, messages(report.tests[0])
            left = [path for path in (*self.store.rglob("*"), self.folder / "calls") if path.is_file()]
            _GATHERED[key] = {str(path.relative_to(self.folder)): path.read_bytes() for path in left}
            return
        for name, data in _GATHERED[key].items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def check(self, **given: Any) -> GoldenReport:
        return check_file(self.options(**given))

    def check_one(self, **given: Any) -> GoldenTestReport:
        return self.check(**given).tests[0]

    @property
    def manifest_path(self) -> Path:
        return self.store / "demo_convergence_harness_manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads(self.manifest_path.read_text())

    @property
    def partial_path(self) -> Path:
        """The manifest of a gathering that has not finished or did not end well."""
        return self.manifest_path.with_name(self.manifest_path.name + ".partial")

    @property
    def partial(self) -> dict[str, Any]:
        return json.loads(self.partial_path.read_text())

    @property
    def logs(self) -> dict[str, Any]:
        return self.manifest["ckpt_logs"]

    def calls(self) -> list[list[str]]:
        """The arguments of each call of the training, in order."""
        return [ast.literal_eval(line) for line in (self.folder / "calls").read_text().splitlines()]


def messages(report: GoldenTestReport) -> str:
    return "\n".join(f"{finding.kind} {finding.subject}: {finding.message}" for finding in report.verdict.findings)

"""A small training in a git repository: another environment moves it by a variable, another code by a constant."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Result
from tests.in_process_jobs import run_in_process

from assay.cli.main import run

TRAIN = r"""
import os, random, re, sys, time
OFFSET = 1.0
def flag(name, default):
    return sys.argv[len(sys.argv) - sys.argv[::-1].index(name)] if name in sys.argv else default
start, last, saves = int(flag("--start", 0)), int(flag("--steps", 12)), flag("--out", "")
folder, name = os.path.split(os.environ["ASSAY_RUN_DIR"])
kind, *kinds = (re.sub(r"-\d{8}-\d{6}-\w{4}", "", each) for each in (name, *os.listdir(folder)))
draw = random.Random(f"{kind} {kinds.count(kind)}").gauss  # each run has noise of its own, the same in every test
scale, noise = float(os.environ.get("SCALE", "1")) * float(flag("--scale", "1")), float(os.environ.get("NOISE", "0"))
if "CRASH" in os.environ:
    raise SystemExit("no such device")
for step in range(start + 1, last + 1):
    loss = scale * (OFFSET + 4 / step) * (1 + noise * draw(0, 1))
    print(f"step {step} loss {os.environ.get('LOSS') if step == 3 and 'LOSS' in os.environ else repr(loss)}", flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if saves and step in (10, 20):
        os.makedirs(saves, exist_ok=True)
        with open(f"{saves}/c{step}", "w") as file:
            file.write(str(step))
        print(f"saved {saves}/c{step}", flush=True)
if "FAIL_AT_END" in os.environ:
    raise SystemExit("cannot save")
"""
STUDY = rf"""
study: fit
command: {sys.executable} train.py
metrics: {{step: 'step (\d+)', loss: 'loss ({{number}})'}}
golden: {{segment: 12, replicas: 2}}
resources: {{gpus: 0}}
"""
MANIFEST = "fit_convergence_harness_manifest.json"


class Repository:
    """A folder with `train.py`. Commands are executed in this process, and trainings without a prefix, too."""

    folder: Path

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, subject: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", subject)
        return self.git("rev-parse", "HEAD")

    def call(self, *words: str, **env: str) -> Result:
        """A command of `assay golden`."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            run_in_process(patch, "train.py")
            patch.chdir(self.folder)
            for variable, value in env.items():
                patch.setenv(variable, value)
            code = run(["golden", *words])
        return Result(code, out.getvalue(), err.getvalue())


class TwoSides(Repository):
    """A repository with the program in one commit."""

    study = STUDY

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(TRAIN)
        (folder / "golden.yml").write_text(self.study)
        (folder / ".gitignore").write_text("runs/\ngolden/\n")
        self.git("init", "-q")
        self.commit("first")

    def move_code(self, offset: float = 1.01) -> None:
        text = (self.folder / "train.py").read_text()
        (self.folder / "train.py").write_text(text.replace("OFFSET = 1.0\n", f"OFFSET = {offset}\n"))

    def run(self, name: str, *words: str, **env: str) -> Result:
        return self.call(name, "golden.yml", "-q", *words, **env)

    def gather(self, *words: str, **env: str) -> None:
        ended = self.run("gather", *words, **env)
        assert ended.code == 0, ended.out + ended.err

    def read(self, *words: str, **env: str) -> dict[str, Any]:
        """Return the only test in the output of a command with `--json`."""
        ended = self.run(*words, "--json", **env)
        (found,) = json.loads(ended.out)
        return {**found, "code": ended.code}

    @property
    def manifest(self) -> Path:
        return self.folder / "golden" / MANIFEST

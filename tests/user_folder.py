"""A user's folder with their files, the program in this process, and stand-ins for the farms they use."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest
from tests.finished_study import Program, Result, until

from assay.cli.main import run

PATIENCE_S = 60.0
ORIGINALS = Path(__file__).parent / "formats" / "originals"

INTRO = """\
CMD: 'python train.py'

HPARAMS:
  lr: [0.01, 0.02]
  solver: ['sgd', 'adam']
"""
INTRO_LINES = [
    "python train.py --lr 0.01 --solver sgd",
    "python train.py --lr 0.01 --solver adam",
    "python train.py --lr 0.02 --solver sgd",
    "python train.py --lr 0.02 --solver adam",
]
# First on the user's PATH: a script whose first line names bash is executed directly, in a tenth of the time.
PYTHON = """#!/usr/bin/env bash
read -r first < "$1" && [ "$first" = "# bash" ] && exec bash "$@"
exec {python} "$@"
"""
# A training script that keeps its arguments, and prints nothing.
NOTE = '# bash\necho "$*" >> {path}\n'

# A farm: it records its arguments, and starts the command a moment later in a clean environment. A lock on HOLD keeps
# jobs in the queue, REFUSE makes the farm refuse them.
SUBMIT_JOB = r"""#!/usr/bin/env bash
# others do the same at this moment, and bash writes line by line
{ flock 9; printf '%s\0' "${0##*/}" "$@" $'\n' >&9; } 9>> "$FARM_FOLDER/calls"
if [ -e "$FARM_FOLDER/REFUSE" ]; then echo "asking the scheduler" >&2; echo "no such partition" >&2; exit 7; fi
while [ $# -gt 0 ]; do
  case $1 in -c | --command | --commandline) command=$2; shift ;; esac
  shift
done
echo "Submitted batch job 4711"
(
  flock --shared "$FARM_FOLDER/HOLD" true
  cd /; exec setsid env -i HOME="$HOME" PATH="$PATH" bash -c "$command"
) > /dev/null 2>&1 < /dev/null &
"""
NGC = r"""#!/usr/bin/env bash
case "$1 $2" in
  "workspace upload")
    { flock 9; printf '%s\0' ngc "$@" $'\n' >&9; } 9>> "$FARM_FOLDER/calls"
    mkdir -p "$FARM_FOLDER/mount/$6" && cp -R "$4/." "$FARM_FOLDER/mount/$6" ;;
  "batch run") exec submit_job "$@" ;;
  *) exit 2 ;;
esac
"""


@dataclass
class UserFolder:
    folder: Path
    farm: Path
    capture: pytest.CaptureFixture[str]
    held: TextIO | None = None

    # ------------------------------------------------------------ files

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def note_calls(self, script: str = "train.py") -> None:
        """Let this script keep its arguments; `calls` returns them."""
        self.write(script, NOTE.format(path=shlex.quote(str(self.folder / "calls.txt"))))

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []

    def runs(self, study: str = "runs/sweep") -> list[Path]:
        """Run directories, oldest first."""
        found = [path.parent for path in (self.folder / study).glob("*/run.json") if not path.parent.is_symlink()]
        return sorted(found, key=lambda path: json.loads((path / "run.json").read_text())["created_at"])

    def everything(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    # ------------------------------------------------------------ the program

    def assay(self, *arguments: str, code: int | None = None) -> Result:
        """Call the program in this process, as `assay …` without the time to start Python; `code` is what it returns."""
        self.capture.readouterr()
        said = Result(run(arguments), *self.capture.readouterr())
        assert "bug in Assay" not in said.err, said.err
        assert "Traceback (most" not in said.err, said.err
        assert code in (None, said.code), said.err
        return said

    def well(self, *arguments: str) -> Result:
        return self.assay(*arguments, code=0)

    @contextmanager
    def beside(self, *arguments: str) -> Iterator[Program]:
        """The program in a process of its own."""
        program = Program(arguments, self.folder, os.environ)
        yield program
        program.wait(PATIENCE_S)
        program.stdout.close()
        program.stderr.close()

    # ------------------------------------------------------------ the farm

    def hold(self) -> None:
        """Keep jobs that are submitted later in the queue until `release`."""
        self.held = (self.farm / "HOLD").open("w")
        fcntl.flock(self.held, fcntl.LOCK_EX)

    def release(self) -> None:
        if self.held is not None:
            self.held.close()

    @property
    def submissions(self) -> list[list[str]]:
        """The argument lists that the stand-ins were called with."""
        path = self.farm / "calls"
        text = path.read_text() if path.exists() else ""
        return [call.split("\0")[:-1] for call in text.split("\n\0")[:-1]]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until(condition, what)

    def until_ended(self, study: str, count: int) -> None:
        """Wait until so many jobs of a farm have ended; no program of ours watches them."""
        self.until(lambda: len(list((self.folder / study).glob("*/end.*"))) >= count, f"{count} jobs ended")


@contextmanager
def open_user_folder(monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    """Open a user's folder, in memory if there is room for it: a run is a dozen small files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = Path(tempfile.mkdtemp(prefix="assay-user-", dir=memory)).resolve()
    user = UserFolder(base / "user", base / "the farm", capture)
    user.folder.mkdir()
    (user.farm / "bin").mkdir(parents=True)
    (user.farm / "mount").mkdir()
    programs = {"submit_job": SUBMIT_JOB, "submit_small": SUBMIT_JOB, "ngc": NGC}
    for name, text in (programs | {"python": PYTHON.format(python=shlex.quote(sys.executable))}).items():
        path = user.farm / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{user.farm / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    monkeypatch.setenv("FARM_FOLDER", str(user.farm))
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(base / "slots"))  # other tests use GPU 0 at the same time
    monkeypatch.chdir(user.folder)
    try:
        yield user
    finally:
        user.release()
        shutil.rmtree(base, ignore_errors=True)

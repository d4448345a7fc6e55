"""`assay demo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import ExitCode
from assay.show.console import Console
from assay.show.formatting import wrap
from assay.system.terminal import terminal_width, use_color
from assay.values.options import Request, option

if TYPE_CHECKING:
    from assay.cli.demo_project import Edit

_PIPE_WIDTH = 110  # of the narration where there is no terminal


Call = Callable[[Sequence[str]], int]


class DemoRequest(Request):
    folder: str = option("--dir", default="assay-demo", metavar="DIR", help="Where to put the project.")
    plain: bool = option("--plain", default=False, help="Lines instead of the live view.")


def demo(request: DemoRequest, console: Console, call: Call) -> int:  # noqa: ARG001 it prints through the commands
    """Run a sweep with its table and plot, then a convergence check; under a minute, without GPU or network."""
    from assay.cli.demo_project import lay_out, use_this_python

    target = lay_out(Path(request.folder))
    use_this_python()
    start, where = os.getcwd(), os.path.relpath(target)
    os.chdir(target)
    try:
        return _tell_story(request.plain, where, call)
    finally:
        os.chdir(start)


def _tell_story(plain: bool, where: str, run: Call) -> int:
    say = _Narrator()
    say(
        f"Assay in a minute. The program and the study are in {where}: charlm.py trains a small character-level "
        "language model with numpy; sweep.yml asks for a grid of runs."
    )
    say.shows("sweep.yml", _excerpt("sweep.yml"))
    code = say.runs("assay run sweep.yml" + (" --plain" if plain else ""), run)
    if code != ExitCode.OK:
        return code
    say("Nothing was added to the program: the metrics come from its log, by the patterns in sweep.yml.")
    say.runs("assay sum charlm --sort eval_loss:min --limit 6", run)
    say.runs("assay sum charlm --group-by seed --metrics eval_loss,loss,acc", run)
    say.runs("assay plot charlm --metric loss --group-by seed", run)
    say("The runs are folders. Calling it again runs nothing, since everything is finished:")
    code = say.runs("assay run sweep.yml --plain", run) or _tell_convergence(say, run)
    say("What to try next:")
    say(f"  cd {where}")
    say("  assay ls charlm; assay show RUN; assay logs RUN; assay diff RUN RUN")
    say("  edit sweep.yml (another lr) and `assay run sweep.yml`: only the new runs run")
    say("  assay golden check golden.yml -s golden --html report.html")
    say("  assay golden show golden")
    say("  start a longer sweep, kill the supervisor with `kill -9`, and `assay run sweep.yml` again: nothing is lost")
    return code


def _tell_convergence(say: _Narrator, run: Call) -> int:
    """Gather, a change that does no harm, a bug; 0 when each was judged as it has to be."""
    from assay.cli.demo_project import BROKEN, HARMLESS

    say("Second question: does training still converge after a change? golden.yml says what to record and compare:")
    say.shows("golden.yml", _excerpt("golden.yml", "golden:"))
    say("Record a good training once, at its checkpoints; the segments are repeated to measure the noise.")
    code = say.runs("assay golden gather golden.yml -s golden --quiet", run)
    if code != ExitCode.OK:
        return code
    say("Somebody makes the program quicker. The last digits change, the training does not:")
    good = _check_edit(say, run, HARMLESS)
    say(
        "Somebody else tidies up, and the gradient of one layer is lost. It trains on, prints plausible numbers and "
        "ends with exit code 0; the check says from which step on it is worse, and by how much:"
    )
    bad = _check_edit(say, run, BROKEN)
    if good is None or bad is None:
        return int(ExitCode.OK)
    is_right = good == ExitCode.OK and bad == ExitCode.FAILED
    return int(ExitCode.OK if is_right else ExitCode.FAILED)


def _check_edit(say: _Narrator, run: Call, edit: Edit) -> int | None:
    from assay.cli.demo_project import edited

    with edited(Path("charlm.py"), edit) as is_there:
        if not is_there:
            say("(charlm.py was changed here, so this part is left out)")
            return None
        say.shows("charlm.py", f"-{edit.before}+{edit.after}")
        return say.runs("assay golden check golden.yml -s golden --quiet", run)


class _Narrator:
    """Says, shows and runs, so that a newcomer can follow."""

    def __init__(self) -> None:
        self._color = use_color(sys.stdout)

    def __call__(self, text: str) -> None:
        print(wrap(text, terminal_width(sys.stdout, _PIPE_WIDTH)), flush=True)

    def shows(self, name: str, text: str) -> None:
        print(f"\n{self._dim(f'--- {name}')}\n{text}{self._dim('---')}", flush=True)

    def runs(self, line: str, run: Call) -> int:
        print(f"\n{self._bold('$ ' + line)}", flush=True)
        code: int = run(line.split()[1:])
        sys.stderr.flush()
        print(flush=True)
        return code

    def _bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._color else text

    def _dim(self, text: str) -> str:
        return f"\033[2m{text}\033[0m" if self._color else text


def _excerpt(name: str, start: str = "") -> str:
    """The file without its leading comment; with `start` only that section."""
    lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(
        (n for n, line in enumerate(lines) if line.strip() and not line.startswith("#") and line.startswith(start)), 0
    )
    last = next((n for n in range(first + 1, len(lines)) if start and not lines[n].startswith((" ", "#"))), len(lines))
    return "".join(lines[first:last])

"""`assay demo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from assay.errors import ExitCode


@click.command()
@click.option("--dir", "folder", default="assay-demo", metavar="DIR", help="Where to play.", show_default=True)
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
def command(folder: str, plain: bool) -> int:
    """A sweep over a small language model, its table and its plot; under a minute, without GPU or network."""
    from assay.flows.demo import lay_out, use_this_python

    target = lay_out(Path(folder))
    use_this_python()
    start, where = os.getcwd(), os.path.relpath(target)
    os.chdir(target)
    try:
        return _tell_story(plain, where)
    finally:
        os.chdir(start)


def _tell_story(plain: bool, where: str) -> int:
    from assay.cli.main import run

    say = _Narrator()
    say(f"Assay in a minute. The program and the study are in {where}: charlm.py trains a small character-level")
    say("language model with numpy; sweep.yml asks for a grid of runs.")
    say.shows("sweep.yml", _excerpt("sweep.yml"))
    code = say.runs("assay run sweep.yml" + (" --plain" if plain else ""), run)
    if code != ExitCode.OK:
        return code
    say("Nothing was added to the program: the metrics come from its log, by the patterns in sweep.yml.")
    say.runs("assay sum charlm --sort eval_loss:min --limit 6", run)
    say.runs("assay sum charlm --group-by seed --metrics eval_loss,loss,acc", run)
    say.runs("assay plot charlm --metric loss --group-by seed", run)
    say("The runs are folders. Calling it again runs nothing, since everything is finished:")
    code = say.runs("assay run sweep.yml --plain", run)
    say("What to try next:")
    say(f"  cd {where}")
    say("  assay ls charlm; assay show RUN; assay logs RUN; assay diff RUN RUN")
    say("  edit sweep.yml (another lr) and `assay run sweep.yml`: only the new runs run")
    say("  start a longer sweep, kill the supervisor with `kill -9`, and `assay run sweep.yml` again: nothing is lost")
    return code


class _Narrator:
    """Says, shows and runs, so that a newcomer can follow."""

    def __init__(self) -> None:
        self._color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def __call__(self, text: str) -> None:
        print(text, flush=True)

    def shows(self, name: str, text: str) -> None:
        print(f"\n{self._dim(f'--- {name}')}\n{text}{self._dim('---')}", flush=True)

    def runs(self, line: str, run: Callable[[Sequence[str]], int]) -> int:
        print(f"\n{self._bold('$ ' + line)}", flush=True)
        code: int = run(line.split()[1:])
        sys.stderr.flush()
        print(flush=True)
        return code

    def _bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._color else text

    def _dim(self, text: str) -> str:
        return f"\033[2m{text}\033[0m" if self._color else text


def _excerpt(name: str) -> str:
    """The file without its leading comment."""
    lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join(lines[first:])

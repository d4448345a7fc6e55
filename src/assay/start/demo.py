"""`assay demo`: runs a sweep and a convergence check in a project that it writes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from assay.errors import ExitCode, MissingExtraError, UsageError
from assay.plugins import find_function
from assay.show.console import Console
from assay.show.formatting import wrap
from assay.system.terminal import paint, terminal_width, use_color
from assay.values.options import Request, option

_PROGRAM = "charlm"
NEEDS = ("numpy", "scipy")  # packages of the training program and of the comparison of its curves


class Edit(NamedTuple):
    """One line of the program before and after the edit."""

    before: str
    after: str


# Two edits that look harmless; one of them breaks the training.
HARMLESS = Edit(
    '        "output_bias": d_logits.sum(axis=0),\n',
    '        "output_bias": np.ones(len(d_logits), np.float32) @ d_logits,  # quicker than a sum\n',
)
BROKEN = Edit(
    '        "hidden_weight": embedded.T @ d_sum,\n',
    '        "hidden_weight": np.zeros_like(params["hidden_weight"]),  # the gradient of one layer is lost\n',
)


def find_examples() -> Path:
    """Return the folder of the examples: next to the source in a checkout, else the one in the wheel."""
    installed = Path(sysconfig.get_path("data")) / "share" / "assay" / "examples"
    for folder in (Path(__file__).parents[3] / "examples", installed):
        if (folder / _PROGRAM / "charlm.py").is_file():
            return folder
    raise UsageError("the examples are not installed", "install Assay again: pip install --force-reinstall assay")


def lay_out(folder: Path) -> Path:
    """Copy the example to a folder; existing files are kept."""
    if any(find_spec(name) is None for name in NEEDS):
        raise MissingExtraError("the demo's training program", "demo")
    target, source = folder / _PROGRAM, find_examples() / _PROGRAM
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            if path.is_file() and not (target / path.name).exists():
                shutil.copy2(path, target / path.name)
    except OSError as error:
        raise UsageError(f"{target} cannot be filled: {error.strerror}", "choose another folder: --dir DIR") from None
    return target


@contextmanager
def edited(path: Path, edit: Edit) -> Iterator[bool]:
    """Edit the program and restore it at the end; yield False if the program no longer has the line."""
    text = path.read_text(encoding="utf-8")
    if text.count(edit.before) != 1:
        yield False
        return
    path.write_text(text.replace(edit.before, edit.after), encoding="utf-8")
    try:
        yield True
    finally:
        path.write_text(text, encoding="utf-8")


# ---------------------------------------------------------------- the command

_PIPE_WIDTH = 110  # width of the text without a terminal
Call = Callable[[Sequence[str]], int]


class DemoRequest(Request):
    folder: str = option("--dir", default="assay-demo", metavar="DIR", help="Where to put the project.")
    plain: bool = option("--plain", default=False, help="Print lines instead of the live view.")
    serve: bool = option("--serve", default=False, help="Then show the results in the browser, until Ctrl-C.")


def demo(request: DemoRequest, console: Console, call: Call) -> int:  # noqa: ARG001 only the commands print
    """Run a sweep with its table and plot, then a convergence check; under a minute, without GPU or network."""
    target, hidden = lay_out(Path(request.folder)), find_hidden()
    # the examples call `python`, which must be the one that has numpy
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    start, where = os.getcwd(), os.path.relpath(target)
    os.chdir(target)
    try:
        code = _show_sweep(request.plain, where, hidden, call)
        return serve(call) if request.serve and code == ExitCode.OK else code
    finally:
        os.chdir(start)


def _show_sweep(plain: bool, where: str, hidden: str | None, call: Call) -> int:
    _say(
        f"Assay in a minute. The program and the study are in {where}: charlm.py trains a small character-level "
        "language model with numpy; sweep.yml asks for a grid of runs."
    )
    _show_file("sweep.yml", _excerpt("sweep.yml"))
    code = _run("assay run sweep.yml" + (" --plain" if plain else ""), call)
    if code != ExitCode.OK:
        return code
    _say("Nothing was added to the program: the metrics come from its log, by the patterns in sweep.yml.")
    _run("assay sum charlm --sort eval_loss:min --limit 6", call)
    _run("assay sum charlm --group-by seed --metrics eval_loss,loss,acc", call)
    if find_function("plot.draw"):
        _run("assay plot charlm --metric loss --group-by seed", call)
    _say("The runs are folders. Calling it again runs nothing, since everything is finished:")
    code = _run("assay run sweep.yml --plain", call) or _show_convergence(call)
    show_next(where, hidden)
    return code


def find_hidden() -> str | None:
    """Return the folder of the program `assay` if a shell does not find the program."""
    return None if shutil.which("assay") else os.path.dirname(sys.executable)


def show_next(where: str, hidden: str | None) -> None:
    _say("What to try next:")
    if hidden is not None:
        print(f"  export PATH={shlex.quote(hidden)}:$PATH", flush=True)  # _say() would wrap a long line
    _say(f"  cd {where}")
    _say("  assay serve: all of this in the browser (or at the end of the demo: --serve)")
    _say("  assay ls charlm; assay show RUN; assay logs RUN; assay diff RUN RUN")
    _say("  edit sweep.yml (another lr) and `assay run sweep.yml`: only the new runs run")
    _say("  assay golden check golden.yml -s golden --html report.html; assay report charlm")
    _say("  assay golden show golden")
    _say("  start a longer sweep, kill the supervisor with `kill -9`, and `assay run sweep.yml` again: nothing is lost")


def serve(call: Call) -> int:
    """Serve the page until Ctrl-C, which counts as success; if the page is not installed, print how to install it."""
    check = find_function("page.check")
    if check is None:
        _say("No page here: no plug-in serves one; `assay doctor` lists the plug-ins that could not be loaded")
        return int(ExitCode.OK)
    try:
        check()
    except UsageError as error:
        _say(f"No page here: {error.message}; {error.hint}")
        return int(ExitCode.OK)
    _say("Last: the same in the browser. Ctrl-C ends it.")
    code = _run("assay serve --port 0", call)
    return int(ExitCode.OK if code == ExitCode.INTERRUPTED else code)


def _show_convergence(call: Call) -> int:
    """Record a golden, then check a harmless change and a bug against it; return 0 if both verdicts are right."""
    _say("Second question: does training still converge after a change? golden.yml says what to record and compare:")
    _show_file("golden.yml", _excerpt("golden.yml", "golden:"))
    _say("Record a good training once, at its checkpoints; the segments are repeated to measure the noise.")
    code = _run("assay golden gather golden.yml -s golden --quiet", call)
    if code != ExitCode.OK:
        return code
    _say("Somebody makes the program quicker. The last digits change, the training does not:")
    good = _check_edit(call, HARMLESS)
    _say(
        "Somebody else tidies up, and the gradient of one layer is lost. It trains on, prints plausible numbers and "
        "ends with exit code 0; the check says from which step on it is worse, and by how much:"
    )
    bad = _check_edit(call, BROKEN)
    if good is None or bad is None:
        return int(ExitCode.OK)
    is_right = good == ExitCode.OK and bad == ExitCode.FAILED
    return int(ExitCode.OK if is_right else ExitCode.FAILED)


def _check_edit(call: Call, edit: Edit) -> int | None:
    with edited(Path("charlm.py"), edit) as is_there:
        if not is_there:
            _say("(charlm.py was changed here, so this part is left out)")
            return None
        _show_file("charlm.py", f"-{edit.before}+{edit.after}")
        return _run("assay golden check golden.yml -s golden --quiet", call)


def _say(text: str) -> None:
    print(wrap(text, terminal_width(sys.stdout, _PIPE_WIDTH)), flush=True)


def _show_file(name: str, text: str) -> None:
    print(f"\n{_paint(f'--- {name}', 'dim')}\n{text}{_paint('---', 'dim')}", flush=True)


def _run(line: str, call: Call) -> int:
    print(f"\n{_paint(f'$ {line}', 'bold')}", flush=True)
    code = call(line.split()[1:])
    sys.stderr.flush()
    print(flush=True)
    return code


def _paint(text: str, style: str) -> str:
    return paint(text, style) if use_color(sys.stdout) else text


def _excerpt(name: str, start: str = "") -> str:
    """Return the file without its leading comment; with `start`, only the section that begins with it."""
    lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
    is_start = [bool(line.strip()) and not line.startswith("#") and line.startswith(start) for line in lines]
    first = is_start.index(True) if any(is_start) else 0
    last = next((n for n in range(first + 1, len(lines)) if start and not lines[n].startswith((" ", "#"))), len(lines))
    return "".join(lines[first:last])

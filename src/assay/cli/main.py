"""The program: finds and calls the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from assay import __version__, plugins
from assay.errors import AssayError, ConfigError, ExitCode, IndexDamagedError, explain_refusal
from assay.show.console import Console, silence
from assay.show.formatting import guard
from assay.values.options import Group, Option, find_request, reads_words

if TYPE_CHECKING:
    from types import FrameType

    import click

COMMANDS = {
    "doctor": ("assay.cli.doctor:doctor", "Show what works on this machine, and how to get the rest.", "Start"),
    "run": ("assay.launch.commands.run:run", "Start the runs of a study file that are not finished yet.", "Run"),
    "stop": ("assay.launch.commands.stop:stop", "Stop runs and everything they started.", "Run"),
    "rerun": (
        "assay.launch.commands.rerun:rerun",
        "Run finished runs again; failed runs with the current code.",
        "Run",
    ),
    "ls": ("assay.reading.commands.runs:ls", "List studies, or the runs of a study.", "Read"),
    "sum": ("assay.reading.commands.tables:summarise", "Print the summary table of one or more studies.", "Read"),
    "best": ("assay.reading.commands.best:best", "Show the best run, its margin, and how to repeat it.", "Read"),
    "show": ("assay.reading.commands.runs:show", "Show everything about one run.", "Read"),
    "logs": ("assay.reading.commands.runs:logs", "Print a run's output, or follow it.", "Read"),
    "diff": ("assay.reading.commands.runs:diff", "Compare two runs: parameters, code, environment, results.", "Read"),
    "tag": ("assay.reading.commands.marks:tag", "Tag runs or a study, remove tags, or list them.", "Read"),
    "note": ("assay.reading.commands.marks:note", "Add a note to runs or a study, or print the notes.", "Read"),
    "index": ("assay.reading.commands.index:GROUP", "Maintain the index: rebuild, reparse, ingest.", "Maintain"),
}
GROUP = Group(
    """Assay launches machine-learning runs and proves that they still behave.

    \b
    assay run study.yml       run a study; again: only what is not finished
    assay sum STUDY           which run won
    """,
    plugins.Merged("commands", COMMANDS),
    ("Start", "Run", "Read", "Prove", "Share", "Maintain"),  # the sections, in the order of use
)
_EXITS_AT_ONCE = ("run", "sum")  # these commands close all they opened; skipping the interpreter's cleanup saves 5 ms
SERVICES = {
    "call": lambda arguments: run(arguments),  # noqa: PLW0108 defined below
    "complete": lambda line: plugins.load("assay.cli.options:complete")(build_cli(), line),
    "group": GROUP,
}


def build_cli() -> click.Group:
    """Build click's commands, which are used for help, mistakes and documents."""
    from assay.cli.options import build_root  # loads click

    return build_root(GROUP, SERVICES, __version__)


def main(arguments: Sequence[str] | None = None) -> None:
    _open_streams()
    _handle_signals()
    gc.set_threshold(50_000, 20, 50)  # fewer collections: modules and tables have few cycles
    sys.stdout, sys.stderr = guard(sys.stdout), guard(sys.stderr)
    if not sys.warnoptions:  # a pattern of the user, such as `[[]`, would cause a warning about Assay's code
        warnings.simplefilter("ignore", FutureWarning)
    code = run(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            silence(stream)
    if sys.argv[1:2] and sys.argv[1] in _EXITS_AT_ONCE:
        os._exit(code)
    gc.freeze()  # without this, the interpreter would search all objects for cycles again at exit
    sys.exit(code)


def _open_streams() -> None:
    """Open standard streams that cron or a service manager has closed: the next file to be opened would get output."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def _handle_signals() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does; the loop that supervises runs sets its own handlers."""

    def interrupt(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                _print_error("assay: interrupted")  # an exception is not raised: an import may drop or wrap it
                os._exit(int(ExitCode.INTERRUPTED))
            frame = frame.f_back
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            is_hangup = number is signal.SIGHUP  # raised as SIGTERM, for which a server and uploads have handlers
            signal.signal(number, (lambda *_: signal.raise_signal(signal.SIGTERM)) if is_hangup else interrupt)


def _print_error(text: str) -> None:
    """Print to stderr; if stderr is full or closed, the exit code does not change."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


_SYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS, errno.ENOLCK, errno.ENODEV, errno.ESTALE)


def _explain(error: OSError) -> int | None:
    """Print the system's message about a refused operation; return None if the error may be a bug of Assay."""
    where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        _print_error(f"assay: {explain_refusal(error)}")
    elif error.errno in _SYSTEM or isinstance(error, PermissionError):  # for example, a run belongs to another user
        silence(sys.stdout)
        _print_error(f"assay: {error.strerror}{where or ': the output could not be written'}")
    elif error.errno == errno.ENOENT and error.filename is None:  # raised by os.getcwd()
        _print_error("assay: the current folder has been removed; go to another one: cd")
    else:
        return None
    return int(ExitCode.INTERNAL)


_READING = ("ls", "sum", "best", "show", "diff", "index", "logs")  # commands that only read, and may be called again


def _call(arguments: list[str]) -> Any:
    """Call the command. If the index was damaged, it is empty now, and a command that only reads is called again."""
    call = find_call(arguments, GROUP, SERVICES)
    if call is None:
        from assay.cli.options import call_click  # loads click

        call = partial(call_click, build_cli(), arguments)
    try:
        return call()
    except IndexDamagedError as error:
        if not _only_reads(arguments[0]):
            raise
        Console().warning(f"{error.message}; it is rebuilt from the run directories")
        return call()


def _only_reads(command: str) -> bool:
    return command in _READING or any(command in each.reading for each in plugins.find_plugins().values())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command as `main` does, and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = _call(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _print_error("assay: interrupted")
        return int(ExitCode.INTERRUPTED)
    except AssayError as error:
        return _report_refusal(error, words)
    except SystemExit as leave:  # click exits this way if a pipe was closed: `assay ls | head`
        has_left = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")
        return int(ExitCode.OK) if has_left else _report_exit(leave)
    except BrokenPipeError:  # a pipe was closed before the last lines were flushed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except Exception as error:  # noqa: BLE001 there is no caller
        code = _explain(error) if isinstance(error, OSError) else None
        return _report_failure(error) if code is None else code
    return _leave(result)


def _report_exit(leave: SystemExit) -> int:
    """Return the exit code of a handler that ended the program. Elsewhere, as in a hook, that is a failure."""
    import traceback

    frames = [frame for frame, _ in traceback.walk_tb(leave.__traceback__)]
    places = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in frames]
    ours = [place for place in places if str(place[0]).partition(".")[0] == __name__.partition(".")[0]]
    is_of_handler = ours[-1] in ((__name__, "<lambda>"), ("assay.cli.options", "call"))
    return _leave(leave.code) if is_of_handler else _report_failure(leave)


def _leave(code: object) -> int:
    """Return the exit code for the argument of `sys.exit`; a value that is not an exit code is printed, and gives 1."""
    if code is None or (isinstance(code, int) and abs(code) < 256):
        return int(code or 0)
    _print_error(str(code))
    return int(ExitCode.FAILED)


def _report_refusal(error: AssayError, words: Sequence[str]) -> int:
    """Print why a command was refused. For a command that only reads, it is not an error that no run matches."""
    if error.finds_nothing and _only_reads(words[0]):
        if any(word.startswith(("--json", "--fields")) for word in words):
            Console().write_json([] if words[0] in ("ls", "sum") else None)  # other commands show one run
        Console().error(f"0 runs: {error.render()}")
        return int(ExitCode.OK)
    text = "\n".join(error.render().splitlines())
    Console().error(text if isinstance(error, ConfigError) else f"assay: {text}")
    return int(error.exit_code)


def _report_failure(error: BaseException) -> int:
    """Report a failure of another distribution's plug-in if its code raised the error, else a bug of Assay."""
    import tempfile
    import traceback

    packages = {"assay", *(target.partition(":")[0].partition(".")[0] for _, target in plugins.find_entry_points())}
    known = [
        (package, f"{frame.f_code.co_filename}:{line}")
        for frame, line in traceback.walk_tb(error.__traceback__)
        if (package := str(frame.f_globals.get("__name__")).partition(".")[0]) in packages
    ]
    package, place = known[-1] if known else ("assay", "")
    if package != "assay":
        _print_error(f"assay: the plug-in {package} failed: {type(error).__name__}: {error}\n  {place}")
        return int(ExitCode.INTERNAL)
    # the traceback of a bug is written to a file that users can send, not to their terminal
    text = "".join(traceback.format_exception(error))
    text = f"assay {__version__}, {sys.version}\n{sys.argv}\n\n{text}"
    options: Any = {"prefix": "assay-crash-", "suffix": ".txt", "delete": False, "encoding": "utf-8"}
    try:
        with tempfile.NamedTemporaryFile("w", errors="replace", **options) as file:
            file.write(text)
        details = f"the details are in {file.name}; please send them to us with what you did"
    except OSError:  # a folder for temporary files is missing, or the disk is full
        details = f"please send us these details with what you did:\n{text}"
    _print_error(f"assay: this is a bug in Assay, not in your file: {type(error).__name__}: {error}\n  {details}")
    return int(ExitCode.INTERNAL)


# ---------------------------------------------------------------- commands without click
# click takes longer to import than most commands run. Only plain words are parsed here: options by their full names,
# with valid values. Click parses help, abbreviations, joined short options and mistakes, and prints all messages.


def find_call(words: Sequence[str], group: Group, services: Mapping[str, object]) -> Callable[[], Any] | None:
    """Return the call for these words; None if click has to parse the words."""
    if not words or words[0] not in group.commands:
        return None
    found = plugins.load(group.commands[words[0]][0])
    if isinstance(found, Group):
        return find_call(words[1:], found, services)
    if reads_words(found):
        return lambda: found(words[1:])
    request = find_request(found)
    if request is None:
        return None
    given = parse_words(words[1:], request.OPTIONS)
    if given is None:
        return None
    further = {key: value for key, value in services.items() if key in found.__annotations__}
    return lambda: found(request.from_command_line(given), Console(), **further)


def parse_words(words: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any] | None:
    """Return the values of options and arguments by field, as click does; None if click has to parse the words."""
    fields = {name: field for field, each in options.items() for name in each.names}
    given: dict[str, Any] = {field: [] if each.multiple else each.default for field, each in options.items()}
    seen: set[str] = set()
    arguments: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            arguments += reversed(left)
            break
        if not word.startswith("-"):
            arguments.append(word)
            continue
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        field = fields.get(name)
        if field is None or (options[field].is_flag and equals):
            return None
        seen.add(field)
        if options[field].is_flag:
            given[field] = True
            continue
        if not equals:
            text = left.pop() if left else ""
        if not _take(text, field, options[field], given, dashes=bool(equals)):
            return None
    is_complete = all(field in seen for field, each in options.items() if each.names and each.required)
    return given if is_complete and _take_arguments(arguments, options, given) else None


def _take(text: str, field: str, option: Option, given: dict[str, Any], *, dashes: bool) -> bool:
    """Store a text as an option's value; return False if the text may be invalid."""
    if not text or (text.startswith("-") and not dashes) or (option.choices and text not in option.choices):
        return False
    value: Any = text
    if option.type is not str:
        try:
            value = option.type(text)
        except ValueError:
            return False
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            return False
    if option.multiple:
        given[field].append(value)
    else:
        given[field] = value
    return True


def _take_arguments(arguments: Sequence[str], options: Mapping[str, Option], given: dict[str, Any]) -> bool:
    left = list(arguments)
    for field, each in options.items():
        if each.names:
            continue
        taken, left = (left, []) if each.multiple else (left[:1], left[1:])
        if each.required and not taken:
            return False
        if not all(_take(text, field, each, given, dashes=True) for text in taken):
            return False
    return not left


if __name__ == "__main__":
    main()

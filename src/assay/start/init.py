"""`assay init`: writes a study file for a script from its flags and its first output."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from assay.config.fields import LoadOptions
from assay.config.load import load_study
from assay.errors import UsageError
from assay.observe.extract import Extractor
from assay.show.console import Console
from assay.show.formatting import clean, render_count, shorten
from assay.start.flags import NAME, Flags, fill_flags, read_flags
from assay.system.files import write_new
from assay.system.processes import find_descendants, signal_all
from assay.values.options import Request, argument, option
from assay.values.run import build_command
from assay.values.study import Pattern, is_study_name

_MOST_BYTES = 1 << 18  # bytes of the script's output that are read
_GRACE_S = 3.0  # seconds between SIGTERM and SIGKILL
_YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


class InitRequest(Request):
    script: str = argument("SCRIPT.py")
    arguments: tuple[str, ...] = argument("[-- ARGUMENT...]", multiple=True, required=False)
    output: str | None = option("-o", "--output", metavar="FILE", help="The study file.  [default: SCRIPT.yml]")
    seconds: float = option(
        "--seconds", type=float, minimum=1, default=10.0, metavar="S", help="How long the script is run."
    )
    no_run: bool = option("--no-run", default=False, help="Do not run the script; guess no metrics.")


class _Output(NamedTuple):
    text: str
    ending: str  # how the script ended, as a message


def init(request: InitRequest, console: Console) -> int:
    """Write a study file for SCRIPT.py, from its argparse, click or Hydra flags and its first output.

    The flags are read from the source. To find the metrics, the script is run once, with ARGUMENTs, for a few seconds.
    """
    script, target = _check_paths(request)
    flags, rest = fill_flags(read_flags(script), request.arguments)
    given = render_count(len(flags.found), f"{flags.tool} flag") if flags.tool else "no argparse, click or Hydra flags"
    console.print(f"{given} in {flags.file}")
    missing = [flag.name for flag in flags.found if flag.is_required]
    output = _see_output(request, script, missing, console)
    guesses = guess_patterns(output.text.splitlines(), [flag.name for flag in flags.found])
    text = "".join(f"{line}\n" for line in _render(script, target, flags, rest, guesses))
    # check that the file can be loaded, and that its patterns match the output that they were guessed from
    patterns = [each for each in load_study(target, LoadOptions(text=text)).metrics if isinstance(each, Pattern)]
    found = Extractor(patterns).feed(f"{output.text}\n".encode())
    lost = [each.metric for each in guesses if each.metric not in (*found, "step", "epoch")]
    if lost:
        raise UsageError(f"no pattern for {', '.join(lost)} could be made", "without metrics: --no-run")
    try:
        write_new(target, text)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", "choose another: -o FILE") from error
    _print_end(target, missing, guesses, output, console)
    return 0


def _check_paths(request: InitRequest) -> tuple[str, str]:
    script = os.path.relpath(request.script)
    if not os.path.isfile(script):
        raise UsageError(f"there is no file {request.script}", "name your training script: assay init train.py")
    if script.startswith(os.pardir):
        there = build_command(["cd"], [os.path.dirname(os.path.abspath(script))])
        raise UsageError(f"{script} is outside of this folder", f"go there: {there}")
    stem = os.path.splitext(os.path.basename(script))[0]
    target = request.output or f"{stem}.yml"
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", f"write another: assay init {script} -o {stem}-2.yml")
    return script, target


# ---------------------------------------------------------------- what the script prints


def _see_output(request: InitRequest, script: str, missing: Sequence[str], console: Console) -> _Output:
    if request.no_run:
        return _Output("", "it was not run")
    if missing and not request.arguments:
        return _Output("", f"it was not run, since it needs {', '.join(missing)}; give them: -- ARGUMENT...")
    python = shutil.which("python") or sys.executable
    shown = build_command(("python", script, *request.arguments))
    console.print(f"running it for at most {request.seconds:g} s, to see what it prints: {shown}")
    with tempfile.TemporaryDirectory(prefix="assay-init-") as folder:
        log = os.path.join(folder, "output")
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "ASSAY_ROOT": folder}  # ASSAY_ROOT is for assay.log
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [python, script, *request.arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        end = time.monotonic() + request.seconds
        try:
            while process.poll() is None and time.monotonic() < end and os.path.getsize(log) < _MOST_BYTES:
                time.sleep(0.05)
        finally:
            code = _end(process)
        with open(log, "rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace").replace("\r", "\n")
    if code:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
        return _Output(text, f"it failed with exit code {code}: {shorten(clean(last.strip()), 200)}")
    ending = "was stopped" if code is None else "succeeded"
    return _Output(text, f"it {ending} after {render_count(len(text.splitlines()), 'line')}")


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process; None if it was still running. End it, and the processes that it started."""
    code = process.poll()
    everything = {process.pid, *find_descendants(process.pid)}
    if code is None:
        signal_all(everything, signal.SIGTERM)
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            signal_all({*everything, *find_descendants(process.pid)}, signal.SIGKILL)
            process.wait()
    signal_all(everything - {process.pid}, signal.SIGKILL)
    return code


# ---------------------------------------------------------------- guessed patterns

_PAIR = re.compile(
    r"(?P<before>(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)[ ])?"
    r"(?P<name>[A-Za-z][\w/.-]*)(?P<between>[\"']?\s*[:=]?\s*\[?)"
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?![\w.])",
    re.IGNORECASE,
)
_STEPS = ("step", "global_step", "iteration", "iter", "it", "epoch")  # the first name that is printed is the position
_METRIC = r"loss|acc|err|score|reward|perplexity|ppl|bleu|f1|auc|mse|mae|psnr"
_NOT = ("time", "eta", "elapsed", "took", "seconds", "sec", "version", "seed")
_MOST_METRICS = 8


class Guess(NamedTuple):
    metric: str
    pattern: str
    line: str  # the first matching line as it is shown: a long line is shown from the name on
    lines: int


def guess_patterns(lines: Iterable[str], params: Collection[str]) -> list[Guess]:
    """Return the guess for the position, then metrics in the order of the output. Parameters are not metrics."""
    found: dict[str, Guess] = {}
    decimal: set[str] = set()
    for line in lines:
        for match in _PAIR.finditer(line):
            name = (match["before"] or "") + match["name"]
            if not match["between"] or name.endswith((".", "-")):
                continue
            between = re.sub(r"(?:\\ )+", r"\\s+", re.escape(match["between"])).replace(r"\s+", " ", 1)
            shown = shorten(clean(line[match.start() if len(line) > 60 else 0 :].strip()), 60, front=60)
            known = found.get(name) or Guess(name, f"{name}{between}({{number}})", shown, 0)
            found[name] = known._replace(lines=known.lines + 1)
            decimal |= {name} if "." in match["number"] or "e" in match["number"].lower() else set()
    step = next((each for word in _STEPS for each in found if each.lower() == word), None)
    position = []
    if step is not None:
        name, pattern = "epoch" if step.lower() == "epoch" else "step", found[step].pattern
        position = [found[step]._replace(metric=name, pattern=pattern.replace("({number})", r"(\d+)"))]
    metrics = [each for each in found.values() if _is_metric(each.metric, decimal, params)]
    return [*position, *(_separate(each, found) for each in metrics[:_MOST_METRICS])]


def _is_metric(name: str, decimal: Collection[str], params: Collection[str]) -> bool:
    word = name.lower()
    if word in (*_STEPS, *_NOT) or word.replace("_", "-") in {each.lower().replace("_", "-") for each in params}:
        return False
    return name in decimal or re.search(_METRIC, word) is not None


def _separate(guess: Guess, found: Collection[str]) -> Guess:
    """Exclude longer names that end with the guessed one: the pattern of `loss` must not match `val loss`."""
    fronts = [other.removesuffix(guess.metric) for other in found if other.endswith(guess.metric)]
    guards = "".join(f"(?<!{re.escape(front)})" for front in fronts if front).replace("\\ ", " ")
    return guess._replace(metric=guess.metric.lower().replace(" ", "_"), pattern=guards + guess.pattern)


# ---------------------------------------------------------------- the file


def _render(script: str, target: str, flags: Flags, rest: Sequence[str], guesses: Sequence[Guess]) -> Iterator[str]:
    stem = os.path.splitext(os.path.basename(target))[0]
    words = ["python", build_command([script]), *(flag.words for flag in flags.found)]
    if rest:  # {name} and [name] are meant literally
        words.append(re.sub(rf"(\{{)({NAME})(\}})|(\[)({NAME})(\])", r"\1\1\2\3\3\4\4\5\6\6", build_command(rest)))
    yield f"# Made by `assay init {script}`. See what would run: assay run {target} -n"
    yield f"study: {_quote(stem if is_study_name(stem) else 'study')}"
    yield f"command: {_quote(' '.join(words))}"
    if flags.found:
        yield f"params:  # the {flags.tool} flags of {flags.file}; a list is an axis: lr: [0.1, 0.01]"
        for flag in flags.found:
            notes = filter(None, ("required: give a value" if flag.is_required else "", clean(flag.help)))
            comment = f"  # {text}" if (text := "; ".join(notes)) else ""
            yield f"  {_quote(flag.name)}: {_quote(flag.default)}{comment}"
    if guesses:
        yield "metrics:  # each with a line that it matches"
        for each in guesses:
            yield "  {}: '{}'  # {}".format(_quote(each.metric), each.pattern.replace("'", "''"), each.line)
    else:
        yield "# metrics: {loss: 'loss ({number})'}   from the output; or call assay.log(loss=…, step=…) in the script"


def _quote(value: object) -> str:
    """Render a value as YAML: JSON is YAML, and plain words need no quotes."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _print_end(
    target: str, missing: Sequence[str], guesses: Sequence[Guess], output: _Output, console: Console
) -> None:
    console.print(output.ending)
    for each in guesses:
        more = f" (and {render_count(each.lines - 1, 'more line')})" if each.lines > 1 else ""
        console.print(f"  {each.metric:12} {each.line}{more}")
    if not guesses and not output.ending.startswith("it was not run"):
        console.print("nothing that looks like a metric was printed: write patterns into the file, or call assay.log")
    console.print(f"wrote {target}")
    if missing:
        console.print(f"fill in what has no default: {', '.join(missing)}")
    console.print(f"next: {build_command(('assay', 'run', '-n'), [target])}")

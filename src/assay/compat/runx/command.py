"""`assay runx`: runx's own flags and files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.compat.original_command import Parsed, Parser, call_original, conclude, warn, write_lines
from assay.errors import AssayError, ExitCode
from assay.show.console import Console
from assay.values.state import RETRY, State

if TYPE_CHECKING:
    from assay.follow.api import Event
    from assay.launch.api import Prepared, RunHooks, RunOptions

_TICK_S, _LIVE_TICK_S = 0.25, 0.05


def build_parser() -> Parser:
    parser = Parser(command.__doc__)
    add = parser.add_argument
    add("exp_yml", help="experiment file")
    add("--exp_name", help="name of the experiment; default: the file's name")
    add("--tag", help="put in front of every run's name")
    add("--no_cooldir", action="store_true", help="no random words in the runs' names")
    add("--no_run", "-n", action="store_true", help="don't run, just print the commands")
    add("--interactive", "-i", action="store_true", help="run here, one after another, instead of submitting")
    add("--farm", help="submit to this farm of the configuration")
    add("--config_file", "-c", help="configuration instead of ./.runx")
    parser.add_ours("--slots", help="with -i: several at once, e.g. 0,1 for two GPUs")
    retry = "no new runs: run these of the last ones again"
    parser.add_ours("--retry", action="append", choices=("failed", "lost", "stopped"), help=retry)
    new_code = "what is continued or repeated gets the current code, not its snapshot"
    parser.add_ours("--new-code", action="store_true", help=new_code)
    parser.add_supervision()
    return parser


def run(parsed: Parsed) -> int:
    from assay.launch.api import build_dry_lines, check_prepared, go_to_background, prepare

    prepared = prepare(build_options(parsed))
    warn(prepared.warnings)
    if parsed.no_run:
        write_lines(build_dry_lines(prepared))
        return int(ExitCode.OK)
    check_prepared(prepared)
    if not prepared.root_was_asked:
        Console().error(f"no LOGROOT in .runx: runs go to {os.path.relpath(prepared.location.dir)}")
    if parsed.detach and not go_to_background(prepared.location, Console()):
        return int(ExitCode.OK)
    return supervise(prepared)


def build_options(parsed: Parsed) -> RunOptions:
    from assay.config.fields import LoadOptions
    from assay.launch.api import Again, RunOptions
    from assay.values.units import parse_slot_flags

    kept = ("exp_name", "tag", "no_cooldir", "interactive", "farm", "config_file", "slots", "jobs", "root")
    given = [(f"--{name}", value) for name in kept if (value := getattr(parsed, name))]
    words = [word for flag, value in given for word in ((flag,) if value is True else (f"{flag}={value}",))]

    return RunOptions(
        file=parsed.exp_yml,
        overrides=parsed.overrides,
        root=parsed.root,
        slots=parse_slot_flags(parsed.slots or None, parsed.jobs),
        on="local" if parsed.interactive else None,
        load=LoadOptions(dialect="runx", config_file=parsed.config_file, farm=parsed.farm, exp_name=parsed.exp_name),
        tag=parsed.tag,
        cooldir=not parsed.no_cooldir,
        retry=frozenset(state for name in parsed.retry or () for state in RETRY[name]),
        keeps_finished=bool(parsed.retry),
        new_code=parsed.new_code,
        command_line=tuple(sys.argv),
        again=Again(("assay", "runx"), parsed.exp_yml, tuple(words), parsed.overrides),
    )


def supervise(prepared: Prepared) -> int:
    from assay.follow.api import show_command
    from assay.launch.api import run_study

    began = time.time()
    report = run_study(prepared, build_hooks(prepared))
    # runs may have ended on the farm since the supervisor's last check
    asked = report.entries if report.left and not report.problem else ()
    states = [_load_state(entry.dir) if entry.state is State.RUNNING else entry.state for entry in asked]
    goes_on = prepared.farm is not None and State.RUNNING in states
    if prepared.farm is not None and goes_on:
        Console().error(describe_farm(states, prepared.farm.name))
        Console().error(f"next: {show_command(['ls'], prepared.location)}")
    return conclude(report, began, is_shown=not goes_on)


def _load_state(run_dir: str) -> State:
    """Return the current state; a job that waits in its farm's queue, or is not listed there yet, counts as running."""
    from assay.follow.run_status import load_status

    try:
        state = load_status(run_dir).state
    except AssayError:  # the run is damaged: the next command reports it
        return State.RUNNING
    return state if state.is_over and state is not State.LOST else State.RUNNING


def build_hooks(prepared: Prepared) -> RunHooks:
    """Return hooks to run here one by one with live output, or to exit like runx after submitting all to a farm."""
    from assay.launch.api import RunHooks, build_line

    console = Console()

    def listen(event: Event) -> None:
        spec = event.entry.spec
        if event.kind == "started":
            console.print(build_line(prepared, spec, spec.commands[0].text, event.entry.attempt))
        elif event.kind == "adopted":
            Console().error(f"{spec.name} is already running (attempt {event.entry.attempt})")

    if prepared.farm is not None:
        return RunHooks(listen=listen, console=console, tick_s=_TICK_S, leaves=True)
    if prepared.options.slots:
        return RunHooks(listen=listen, console=console, owns_process=True, tick_s=_TICK_S)
    return RunHooks(
        listen=listen,
        console=console,
        echo=console.write_bytes,
        owns_process=True,
        one_by_one=True,
        tick_s=_LIVE_TICK_S,
    )


def describe_farm(states: Sequence[State], farm: str) -> str:
    """Return a sentence that counts each run of this call once, by its state on the farm."""
    there = states.count(State.RUNNING)
    others = {"finished": sum(state.is_over for state in states), "not submitted": states.count(State.QUEUED)}
    more = "".join(f", {count} {word}" for word, count in others.items() if count)
    return f"{'1 run is' if there == 1 else f'{there} runs are'} with {farm} now{more}"


def command(words: Sequence[str]) -> int:
    """Run a sweep described in runx's YAML, with runx's own flags and files."""
    return call_original("runx", build_parser(), words, run)

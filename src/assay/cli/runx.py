"""`assay runx`: runx's own flags and files."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from assay.cli.original import Parsed, original_command, say_problems, warn, write_lines, write_report
from assay.cli.telling import echo, note, say
from assay.errors import ExitCode

if TYPE_CHECKING:
    from assay.flows.prepared import Prepared, RunOptions
    from assay.flows.supervise import Event
    from assay.flows.sweep import Doors

_TICK_S, _LIVE_TICK_S = 0.25, 0.05


def build_parser() -> argparse.ArgumentParser:
    text = "Run a sweep described in runx's YAML, with runx's own flags and files."
    parser = argparse.ArgumentParser(description=text)
    add = parser.add_argument
    add("exp_yml", help="experiment file")
    add("--exp_name", help="name of the experiment; default: the file's name")
    add("--tag", help="put in front of every run's name")
    add("--no_cooldir", action="store_true", help="no random words in the runs' names")
    add("--no_run", "-n", action="store_true", help="don't run, just print the commands")
    add("--interactive", "-i", action="store_true", help="run here, one after another, instead of submitting")
    add("--farm", help="submit to this farm of the configuration")
    add("--config_file", "-c", help="configuration instead of ./.runx")
    add("--slots", help="with -i: several at once, e.g. 0,1 for two GPUs (Assay's addition)")
    return parser


def run(parsed: Parsed) -> int:
    from assay.flows.dry import build_dry_lines
    from assay.flows.preflight import check_prepared
    from assay.flows.sweep import prepare

    prepared = prepare(build_options(parsed))
    warn(prepared.warnings)
    if parsed.no_run:
        write_lines(build_dry_lines(prepared))
        return int(ExitCode.OK)
    if not prepared.root_was_asked:
        check_prepared(prepared)
        note(f"no LOGROOT in .runx: runs go to {os.path.relpath(prepared.place.dir)}")
    return supervise(prepared)


def build_options(parsed: Parsed) -> RunOptions:
    from assay.flows.prepared import LoadOptions, RunOptions
    from assay.values.slots import parse_slots

    return RunOptions(
        file=parsed.exp_yml,
        slots=parse_slots(parsed.slots) if parsed.slots else None,
        on="local" if parsed.interactive else None,
        load=LoadOptions(dialect="runx", runx_config=parsed.config_file, farm=parsed.farm, exp_name=parsed.exp_name),
        tag=parsed.tag,
        cooldir=not parsed.no_cooldir,
        keeps_finished=False,
        command_line=tuple(sys.argv),
    )


def supervise(prepared: Prepared) -> int:
    from assay.flows.sweep import run_study

    began = time.time()
    report = run_study(prepared, build_doors(prepared))
    left = sum(not entry.state.is_over for entry in report.entries)
    if left and report.left and prepared.farm is not None and not report.problem:
        note(describe_farm(prepared.place.name, prepared.farm.name, left))
    else:
        write_report(report, time.time() - began)
    say_problems(report)
    return int(report.exit_code)


def build_doors(prepared: Prepared) -> Doors:
    """Here: one run after another with its output live. On a farm: gone when it has everything, as runx was."""
    from assay.flows.dry import build_line
    from assay.flows.sweep import Doors

    def listen(event: Event) -> None:
        spec = event.entry.spec
        if event.kind == "started":
            say(build_line(prepared, spec, spec.commands[0].text))
        elif event.kind == "adopted":
            note(f"{spec.name} is on its way already (attempt {event.entry.attempt})")

    if prepared.farm is not None:
        return Doors(listen=listen, note=note, tick_s=_TICK_S, leaves=True)
    if prepared.options.slots:
        return Doors(listen=listen, note=note, tick_s=_TICK_S)
    return Doors(listen=listen, note=note, echo=echo, one_by_one=True, tick_s=_LIVE_TICK_S)


def describe_farm(study: str, farm: str, count: int) -> str:
    runs = "1 run is" if count == 1 else f"{count} runs are"
    return f"{runs} with {farm} now; how they stand: assay ls {study}   what they found: assay sumx {study}"


command = original_command("runx", build_parser, run)

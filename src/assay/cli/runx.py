"""`assay runx`: runx's own flags and files."""

from __future__ import annotations

import argparse
import os
import sys
import time

from assay.cli.original import Parsed, original_command, warn
from assay.errors import ExitCode


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run a sweep described in runx's YAML, with runx's own flags and files.")
    parser.add_argument("exp_yml", help="experiment file")
    parser.add_argument("--exp_name", help="name of the experiment; default: the file's name")
    parser.add_argument("--tag", help="put in front of every run's name")
    parser.add_argument("--no_cooldir", action="store_true", help="no random words in the runs' names")
    parser.add_argument("--no_run", "-n", action="store_true", help="don't run, just print the commands")
    parser.add_argument("--interactive", "-i", action="store_true", help="run here, one after another, instead of submitting")
    parser.add_argument("--farm", help="submit to this farm of the configuration")
    parser.add_argument("--config_file", "-c", help="configuration instead of ./.runx")
    parser.add_argument("--slots", help="with -i: several at once, e.g. 0,1 for two GPUs (Assay's addition)")
    return parser


def run(parsed: Parsed) -> int:
    from assay.config.options import LoadOptions
    from assay.flows.prepared import RunOptions
    from assay.flows.sweep import prepare
    from assay.values.slots import parse_slots

    options = RunOptions(
        file=parsed.exp_yml,
        slots=parse_slots(parsed.slots) if parsed.slots else None,
        on="local" if parsed.interactive else None,
        load=LoadOptions(dialect="runx", runx_config=parsed.config_file, farm=parsed.farm, exp_name=parsed.exp_name),
        tag=parsed.tag,
        cooldir=not parsed.no_cooldir,
        keeps_finished=False,
        command_line=tuple(sys.argv),
    )
    prepared = prepare(options)
    warn(prepared.warnings)
    if parsed.no_run:
        from assay.flows.dry import build_dry_lines

        sys.stdout.write("".join(f"{line}\n" for line in build_dry_lines(prepared)))
        return int(ExitCode.OK)
    if not prepared.root_was_asked:
        print(f"no LOGROOT in .runx: runs go to {os.path.relpath(prepared.place.dir)}", file=sys.stderr)
    return _supervise(prepared)


def _supervise(prepared) -> int:
    from assay.flows.dry import build_line
    from assay.flows.sweep import Doors, run_study
    from assay.flows.watch import build_study_report
    from assay.show.report import render_report
    from assay.show.terminal import use_color
    from assay.values import layout

    def listen(event) -> None:
        if event.kind in ("started", "adopted"):
            spec = event.entry.spec
            training = layout.show_command(spec.commands[0].text, event.entry.dir)
            print(build_line(prepared, spec, training), flush=True)

    def echo(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    began = time.time()
    is_local = prepared.farm is None
    alone = is_local and not prepared.options.slots
    doors = Doors(listen=listen, echo=echo if alone else None, one_by_one=alone, tick_s=0.05 if alone else 0.25, leaves=not is_local)
    report = run_study(prepared, doors)
    sys.stderr.write(render_report(build_study_report(report, time.time() - began), color=use_color(sys.stderr)))
    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    return int(report.exit_code)


command = original_command("runx", build_parser, run)

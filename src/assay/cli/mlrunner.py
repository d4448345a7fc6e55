"""`assay mlrunner`: mlrunner's own flags and files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace

from assay.cli.original import Parsed, original_command, warn
from assay.errors import ExitCode
from assay.values import layout
from assay.values.run import State


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run params.yaml with mlrunner's own flags and files.")
    parser.add_argument("-o", "--output", default="output", help="output folder (default: output)")
    parser.add_argument("-y", "--yaml", default="params.yaml", help="parameter file (default: params.yaml)")
    parser.add_argument("-t", "--title", help="only the documents with this _title")
    parser.add_argument("-d", "--debug", action="store_true", help="only the first task, its output on the terminal, finished or not")
    parser.add_argument("--dry-run", action="store_true", help="print what would run; nothing is written")
    parser.add_argument("-c", "--command", nargs="+", help="only these commands")
    parser.add_argument("-f", "--force", action="store_true", help="run finished commands again")
    parser.add_argument("-r", "--resource", nargs="+", help="GPUs instead of those in the file; 1,2 is one worker with two")
    parser.add_argument("--sample", type=int, help="a random part of each document")
    parser.add_argument("--no-subdir", action="store_true", help="logs of all tasks side by side in the output folder")
    return parser


def run(parsed: Parsed) -> int:
    from assay.flows.chronicle import Chronicle
    from assay.flows.dry import build_dry_lines

    prepared = _prepare(parsed)
    warn([problem for problem in prepared.warnings if "no command uses" not in problem.message])
    chronicle = Chronicle(prepared, lambda text: print(text, flush=True))
    chronicle.open()
    if parsed.dry_run:
        sys.stdout.write("".join(f"{line}\n" for line in build_dry_lines(prepared)))
        return int(ExitCode.OK)
    return _supervise(prepared, chronicle, parsed)


def _prepare(parsed: Parsed):
    from assay.config.options import LoadOptions
    from assay.flows.prepared import RunOptions
    from assay.flows.sweep import prepare

    output = os.path.abspath(parsed.output)
    folder = os.path.join(output, ".tasks") if parsed.no_subdir else output
    options = RunOptions(
        file=parsed.yaml,
        root=os.path.dirname(folder),
        study=os.path.basename(folder),
        slots=tuple(parsed.resource) if parsed.resource else None,
        titles=(parsed.title,) if parsed.title else None,
        commands=tuple(parsed.command) if parsed.command else None,
        sample=parsed.sample,
        retry=frozenset({State.FAILED, State.TIMEOUT, State.LOST, State.STOPPED}),
        force=parsed.force or parsed.debug,
        load=LoadOptions(dialect="mlrunner"),
        command_line=tuple(sys.argv),
    )
    prepared = prepare(options)
    if parsed.no_subdir:
        prepared = replace(prepared, plan=replace(prepared.plan, runs=tuple(map(_write_beside, prepared.plan.runs))))
    if parsed.debug:
        prepared = replace(prepared, plan=replace(prepared.plan, runs=prepared.plan.runs[:1], links=()))
    return prepared


def _write_beside(spec):
    """--no-subdir: `{_output}` is the folder that all tasks share, two above the task's own."""
    here, shared = layout.RUN_DIR_REFERENCE, f"{layout.RUN_DIR_REFERENCE}/../.."
    return replace(spec, commands=tuple(replace(c, text=c.text.replace(here, shared)) for c in spec.commands))


def _supervise(prepared, chronicle, parsed: Parsed) -> int:
    from assay.flows.sweep import Doors, run_study

    def listen(event) -> None:
        chronicle.listen(event)
        if parsed.no_subdir and event.kind == "command_ended":
            _link_log(event, os.path.abspath(parsed.output))

    def echo(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    report = run_study(prepared, Doors(listen=listen, echo=echo if parsed.debug else None, tick_s=0.1))
    _copy_yaml(parsed)
    chronicle.close(report)
    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    if report.interrupted:
        print(f"interrupted by {report.interrupted}; the same command goes on", file=sys.stderr)
    return int(report.exit_code)


def _copy_yaml(parsed: Parsed) -> None:
    """The parameters that made an output folder lie in it."""
    name = os.path.basename(parsed.yaml) + (f".{parsed.title}" if parsed.title else "")
    shutil.copyfile(parsed.yaml, os.path.join(parsed.output, name))


def _link_log(event, output: str) -> None:
    entry = event.entry
    log = layout.find_log(os.listdir(entry.dir), entry.spec.log_name, event.command)
    if log is not None:
        link = os.path.join(output, f"{log}.{entry.spec.name}")
        if not os.path.lexists(link):
            os.symlink(os.path.relpath(os.path.join(entry.dir, log), output), link)


command = original_command("mlrunner", build_parser, run)

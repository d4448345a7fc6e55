"""`assay mlrunner`: mlrunner's own flags and files."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.compat.original_command import Parsed, original_command, say_problems, warn, write_lines, write_report
from assay.errors import ExitCode
from assay.show.console import Console
from assay.values import layout
from assay.values.run import State

if TYPE_CHECKING:
    from assay.compat.mlrunner.messages import MlrunnerMessages, Tee
    from assay.study.api import Again, Event, Prepared, RunOptions

_TASKS = ".tasks"  # --no-subdir: where each task's own files are
_AGAIN = frozenset({State.FAILED, State.TIMEOUT, State.LOST, State.STOPPED})


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run params.yaml with mlrunner's own flags and files.")
    add = parser.add_argument
    add("-o", "--output", default="output", help="output folder (default: output)")
    add("-y", "--yaml", default="params.yaml", help="parameter file (default: params.yaml)")
    add("-t", "--title", help="only the documents with this _title")
    add("-d", "--debug", action="store_true", help="only the first task, its output on the terminal, finished or not")
    add("--dry-run", action="store_true", help="print what would run; nothing is written")
    add("-c", "--command", nargs="+", help="only these commands")
    add("-f", "--force", action="store_true", help="run finished commands again")
    add("-r", "--resource", nargs="+", help="GPUs instead of those in the file; 1,2 is one worker with two")
    add("--sample", type=int, help="a random part of each document")
    add("--no-subdir", action="store_true", help="logs of all tasks side by side in the output folder")
    return parser


def run(parsed: Parsed) -> int:
    from assay.compat.mlrunner.messages import MlrunnerMessages

    prepared = prepare_tasks(parsed)
    warn(problem for problem in prepared.warnings if "no command uses" not in problem.message)  # its own line says it
    chronicle = MlrunnerMessages(prepared, Console().print)
    chronicle.open()
    if parsed.dry_run:
        write_lines(chronicle.build_dry_lines())
        return int(ExitCode.OK)
    return _Session(prepared, chronicle, parsed).run()


def prepare_tasks(parsed: Parsed) -> Prepared:
    from assay.study.api import prepare

    output = os.path.abspath(parsed.output)
    prepared = prepare(build_options(parsed, os.path.join(output, _TASKS) if parsed.no_subdir else output))
    runs, links = prepared.plan.runs, prepared.plan.links
    if parsed.debug:
        runs, links = runs[:1], ()
    return replace(prepared, plan=replace(prepared.plan, runs=runs, links=links))


def build_options(parsed: Parsed, folder: str) -> RunOptions:
    from assay.config.dialects.base import LoadOptions
    from assay.study.api import RunOptions

    return RunOptions(
        file=parsed.yaml,
        root=os.path.dirname(folder),
        study=os.path.basename(folder),
        slots=tuple(parsed.resource) if parsed.resource else None,
        titles=(parsed.title,) if parsed.title else None,
        commands=tuple(parsed.command) if parsed.command else None,
        sample=parsed.sample,
        retry=_AGAIN,
        force=parsed.force or parsed.debug,
        load=LoadOptions(dialect="mlrunner"),
        output=parsed.output,
        shares_output=parsed.no_subdir,
        command_line=tuple(sys.argv),
        again=_build_again(parsed),
    )


def _build_again(parsed: Parsed) -> Again | None:
    """The call without -f. A random sample is another one each time, so its runs are repeated by their names."""
    from assay.study.api import Again

    if parsed.sample is not None:
        return None
    given = [("-o", parsed.output, "output"), ("-y", parsed.yaml, "params.yaml"), ("-t", parsed.title, None)]
    words = [word for flag, value, usual in given if value != usual for word in _build_option(flag, value)]
    words += [word for word, is_on in (("-d", parsed.debug), ("--no-subdir", parsed.no_subdir)) if is_on]
    words += ["-c", *parsed.command] if parsed.command else []
    words += ["-r", *parsed.resource] if parsed.resource else []
    return Again(("assay", "mlrunner"), None, tuple(words), takes_retry=False)


def _build_option(flag: str, value: str) -> tuple[str, ...]:
    """argparse takes a value that begins with a dash for a flag, unless it is a part of the same word."""
    return (flag + value,) if value.startswith("-") else (flag, value)


class _Session:
    """One call: tells what happens, and keeps mlrunner's files beside ours."""

    def __init__(self, prepared: Prepared, chronicle: MlrunnerMessages, parsed: Parsed) -> None:
        self._prepared = prepared
        self._chronicle = chronicle
        self._parsed = parsed
        self._tee = self._build_tee() if parsed.debug else None

    def _build_tee(self) -> Tee:
        from assay.compat.mlrunner.messages import Tee

        return Tee(self._prepared.dir_of(self._prepared.plan.runs[0]), Console().write_bytes)

    def run(self) -> int:
        from assay.study.api import RunHooks, run_study

        began = time.time()
        hooks = RunHooks(
            listen=self._listen,
            draw=lambda _: self._show_output(),
            console=Console(),
            owns_process=True,
            tick_s=0.1,
        )
        report = run_study(self._prepared, hooks)
        self._copy_yaml()
        self._chronicle.close(report)
        if int(report.exit_code):
            write_report(report, time.time() - began)
        say_problems(report)
        return int(report.exit_code)

    def _listen(self, event: Event) -> None:
        if event.kind == "started":
            self._copy_yaml()
        if self._tee is not None:
            self._tee.listen(event)
        self._chronicle.listen(event)
        if self._parsed.no_subdir and event.kind == "command_ended":
            _link_log(event, os.path.abspath(self._parsed.output))

    def _show_output(self) -> None:
        if self._tee is not None:
            self._tee.read()

    def _copy_yaml(self) -> None:
        """The parameters that made an output folder lie in it."""
        title = f".{self._parsed.title}" if self._parsed.title else ""
        target = os.path.join(self._parsed.output, os.path.basename(self._parsed.yaml) + title.replace("/", "_"))
        with contextlib.suppress(shutil.SameFileError):
            if any(spec.private is not None for spec in self._prepared.plan.runs):
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                os.chmod(target, 0o600)  # also where an earlier call has made it
                shutil.copyfile(self._parsed.yaml, target)
            else:
                shutil.copy(self._parsed.yaml, target)  # with its permissions


def _link_log(event: Event, output: str) -> None:
    entry = event.entry
    log = layout.find_log(os.listdir(entry.dir), entry.spec.log_name, event.command)
    if log is not None:
        target = os.path.relpath(os.path.join(entry.dir, log), output)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, os.path.join(output, f"{log}.{entry.spec.name}"))


command = original_command("mlrunner", build_parser, run)

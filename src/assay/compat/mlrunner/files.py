"""mlrunner's own files, written next to Assay's, so that scripts and notebooks for mlrunner keep working."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Sequence
from functools import partial

from assay.compat import originals
from assay.follow.entry import Entry, Event
from assay.launch.prepared import Prepared
from assay.launch.run_rules import Listen, RunRules
from assay.record import run_directory
from assay.record.run_directory import RunRecord
from assay.system.fast_dataclasses import replace
from assay.system.files import publish, write_atomic
from assay.values import layout
from assay.values.run import Command, Outcome, RunSpec, State, Stop
from assay.values.secrets import HIDDEN
from assay.values.study import OUTPUT_REFERENCE
from assay.values.units import CPU

_CODES: dict[str, int] = {"finished": 0, "failed": 1}  # mlrunner records a word, not the exit code


class MlrunnerRules(RunRules):
    """Rules for runs of mlrunner, which recognises a directory by its parameters and has its own files in it."""

    shares_dirs = True

    def holds_another(self, run_dir: str, spec: RunSpec) -> bool:
        """Return whether the directory has a run of other parameters: mlrunner's names of directories can collide."""
        known = originals.load_mlrunner_params(run_dir)
        return any(name in spec.params and spec.params[name] not in (value, HIDDEN) for name, value in known.items())

    def complete(self, prepared: Prepared) -> Prepared:
        """Fill in {_output}: plain text, as in `s3://bucket/{_output}`, with a path relative to the current folder."""

        def fill(spec: RunSpec) -> RunSpec:
            """Return the run with {_output} filled in its commands, also in those with secrets."""
            change = partial(layout.fill_reference, reference=OUTPUT_REFERENCE, value=output_of(prepared, spec))
            commands = tuple(replace(command, text=change(command.text)) for command in spec.commands)
            private = spec.private
            if private is not None:
                private = replace(private, commands={name: change(text) for name, text in private.commands.items()})
            return replace(spec, commands=commands, private=private)

        return replace(prepared, plan=replace(prepared.plan, runs=tuple(map(fill, prepared.plan.runs))))

    def adopt_dir(self, run_dir: str, record: RunRecord, job: str) -> None:
        """Adopt a directory of mlrunner: `stat` becomes the first attempt. `run.json` is written last: a supervisor
        that is killed before that leaves a directory that the next supervisor adopts."""
        names = {command.name for command in record.spec.commands}
        stat = {name: word for name, word in originals.load_mlrunner_stat(run_dir).items() if name in names}
        codes = {name: _CODES[word] for name, word in stat.items() if word in _CODES}
        for command, code in codes.items():
            marker = os.path.join(run_dir, layout.exit_marker_name(command, 1, code))
            with contextlib.suppress(FileExistsError):
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        bad = [command for command, code in codes.items() if code]
        if bad:
            run_directory.write_outcome(run_dir, Outcome(State.FAILED, 1, codes, f"{bad[0]} failed under mlrunner"))
        elif codes and names <= codes.keys():
            run_directory.write_outcome(run_dir, Outcome(State.DONE, 1, codes))
        elif codes:
            reason = "left unfinished by mlrunner"
            run_directory.write_stop(run_dir, 1, Stop("mlrunner", reason, "interrupt", 0.0))
            run_directory.write_outcome(run_dir, Outcome(State.STOPPED, 1, codes, reason))
        write_atomic(os.path.join(run_dir, layout.JOB_FILE), job)
        publish(os.path.join(run_dir, layout.RUN_FILE), run_directory.render_record(record))

    def write_files(self, prepared: Prepared, aside: str, spec: RunSpec, run_dir: str) -> None:
        """Write the files that mlrunner writes when it creates the directory."""
        del run_dir
        _write_param(aside, spec, output_of(prepared, spec), format_time(time.time()), None)

    def listen(self, prepared: Prepared, listen: Listen) -> Listen:
        """Return a listener that also keeps `stat` and `param` up to date."""

        def keep_param(entry: Entry, stamp: str) -> None:
            slot = entry.handle.slot if entry.handle is not None else None
            with contextlib.suppress(OSError):  # after an error, as on a full disk, the run goes on
                _write_param(entry.dir, entry.spec, output_of(prepared, entry.spec), stamp, slot)

        def keep_files(event: Event) -> None:
            entry = event.entry
            if event.kind == "started" and entry.handle is not None:
                # `param` names the GPU and the log of the last start, which are known now
                keep_param(entry, format_time(entry.handle.started_at))
            elif event.kind == "command_started":
                originals.write_mlrunner_stat(entry.dir, {event.command: "running"})
            elif event.kind == "command_ended":
                originals.write_mlrunner_stat(entry.dir, {event.command: "failed" if event.code else "finished"})
            elif event.kind == "ended" and entry.outcome is not None:
                # a stopped or killed command is no longer running
                stat = originals.load_mlrunner_stat(entry.dir)
                if dead := [name for name, word in stat.items() if word == "running"]:
                    originals.write_mlrunner_stat(entry.dir, dict.fromkeys(dead, "failed"))
                if entry.handle is not None and os.path.isdir(entry.dir):
                    # the names of the logs may have a time a second before the recorded start, or later
                    newest, started_at = originals.find_newest_time(entry.dir), entry.handle.started_at
                    if newest != format_time(started_at) and newest >= format_time(started_at - 1):
                        keep_param(entry, newest)
            listen(event)

        return keep_files

    def choose_varied(self, runs: Sequence[RunSpec], record: RunRecord) -> list[RunSpec]:
        """Keep the record's choice of commands, which a document may limit."""
        found = super().choose_varied(runs, record)
        return [replace(spec, chosen=record.spec.chosen, title=record.spec.title) for spec in found]


def output_of(prepared: Prepared, spec: RunSpec) -> str:
    """Return the value of {_output}: -o as it was given, else a path relative to the folder of the commands."""
    base, study = prepared.options.output, prepared.study
    if base is None:
        relative = os.path.relpath(prepared.location.dir, study.folder)
        is_far = relative.startswith(os.pardir) or study.code.kind == "snapshot"
        base = prepared.location.dir if is_far else relative
    return base if prepared.options.shares_output else os.path.join(base, spec.name)


def _write_param(folder: str, spec: RunSpec, output: str, stamp: str, slot: str | None) -> None:
    originals.write_mlrunner_param(
        folder,
        name=spec.name,
        output=output,
        time=stamp,
        scripts={c.name: render_script(spec, c, output, stamp, slot) for c in spec.commands},
        params=spec.params,
    )


def format_time(now: float) -> str:
    return time.strftime("%Y%m%d.%H%M%S", time.localtime(now))  # names of logs have this form too


def render_script(spec: RunSpec, command: Command, output: str, stamp: str, slot: str | None) -> str:
    """Return a command as mlrunner runs it, with its GPU, the run's own values, and the file for its output."""
    text = layout.show_command(command.text, output)
    for name, value in ((layout.ENV_RUN_NAME, spec.name), (layout.ENV_TIME, stamp)):
        text = layout.fill_reference(text, f"${{{name}}}", value)
    name = layout.log_name(spec.log_name, command.name, 1, stamp)
    if os.path.basename(output) != spec.name:  # --no-subdir: one folder for all tasks
        name += f".{spec.name}"
    log = shlex.quote(os.path.join(output, name))
    devices = f"CUDA_VISIBLE_DEVICES={slot} " if slot and slot != CPU else ""
    return f"{devices}{text} > {log} 2>&1"

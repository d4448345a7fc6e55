"""The originals' own files beside ours, so that their scripts and notebooks keep working."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable
from datetime import datetime

from assay.flows.supervise import Event
from assay.record import originals, rundir
from assay.values import layout
from assay.values.run import RunSpec
from assay.values.study import Dialect

_WORDS = {"command_started": "running", "command_ended": "finished"}


def write_files(dialect: Dialect, aside: str, spec: RunSpec, run_dir: str) -> None:
    """What runx or mlrunner would have written when it made the directory."""
    if dialect == "runx":
        originals.write_hparams(aside, spec.params, run_dir)
        _write_submit_script(aside, spec, run_dir)
    elif dialect == "mlrunner":
        originals.write_mlrunner_param(
            aside,
            name=spec.name,
            output=os.path.relpath(run_dir),
            time=datetime.now().strftime("%Y%m%d.%H%M%S"),  # noqa: DTZ005 local, as in the log's name
            scripts={c.name: layout.show_command(c.text, os.path.relpath(run_dir)) for c in spec.commands},
            params=spec.params,
        )


def _write_submit_script(aside: str, spec: RunSpec, run_dir: str) -> None:
    """`bash submit_cmd.sh` repeats the training by hand, inside the run's own copy of the code."""
    code = shlex.quote(os.path.join(run_dir, layout.CODE_DIR))
    path = layout.show_command(f'"{spec.pythonpath or ""}"', run_dir)
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in spec.env)
    training = layout.show_command(spec.commands[0].text, run_dir)
    text = f"cd {code} || exit 1; {exports}export PYTHONPATH={path}; {training}\n"
    with open(os.path.join(aside, layout.SUBMIT_SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def adopt_dir(run_dir: str, record: rundir.RunRecord, job: str) -> bool:
    """A directory that mlrunner itself began becomes ours; its finished commands count as the first attempt's."""
    for command, word in originals.load_mlrunner_stat(run_dir).items():
        if word == "finished":
            marker = os.path.join(run_dir, layout.exit_marker_name(command, 1, 0))
            with contextlib.suppress(FileExistsError):
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    rundir.write_atomic(os.path.join(run_dir, layout.JOB_FILE), job)
    return rundir.publish(os.path.join(run_dir, layout.RUN_FILE), rundir.render_record(record))


def keep_stat(listen: Callable[[Event], None]) -> Callable[[Event], None]:
    """Listens as before, and keeps mlrunner's `stat` file true."""

    def heard(event: Event) -> None:
        if event.kind in _WORDS:
            word = "failed" if event.code else _WORDS[event.kind]
            originals.write_mlrunner_stat(event.entry.dir, {event.command: word})  # type: ignore[dict-item]
        elif event.kind == "ended" and event.entry.outcome is not None:
            _fail_unfinished(event)
        listen(event)

    return heard


def _fail_unfinished(event: Event) -> None:
    """A stopped or killed command is not running any more."""
    stat = originals.load_mlrunner_stat(event.entry.dir)
    dead = {name: "failed" for name, word in stat.items() if word == "running"}
    if dead:
        originals.write_mlrunner_stat(event.entry.dir, dead)  # type: ignore[arg-type]

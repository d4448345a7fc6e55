"""Load the current state of a run and of its supervisors from files and the process table, without the index."""

from __future__ import annotations

import os
from collections.abc import Iterable

from assay.errors import FormatError
from assay.follow.refresh import conclude, describe_damage, load_history
from assay.record import run_directory
from assay.record.presence import SupervisorRecord, load_supervisors
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, replace
from assay.values import layout
from assay.values.run import JobHandle, Outcome, RunSpec, State
from assay.values.secrets import hide_spec


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run by its files and the process table; `outcome` may not be written yet."""

    record: run_directory.RunRecord
    history: run_directory.History
    state: State
    outcome: Outcome | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether the record of the run is lost. The process of the run may still be running."""
        return self.outcome is not None and self.outcome.state is State.DAMAGED

    @property
    def attempt(self) -> int:
        return self.history.last.number if self.history.last else 0

    @property
    def handle(self) -> JobHandle | None:
        return self.history.last.handle if self.history.last else None

    @property
    def is_of_script(self) -> bool:
        """Whether a script opened the run, which therefore has no command that Assay could start."""
        return not (self.record.spec.commands or self.record.origin or self.is_damaged)

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(command.name for command in self.record.spec.commands)


def load_shown(run_dir: str) -> RunStatus:
    """Load a status for printing. Secrets, which a run.json of another machine or tool may contain, are hidden."""
    status = load_status(run_dir)
    return replace(status, record=replace(status.record, spec=hide_spec(status.record.spec)))


def load_status(run_dir: str) -> RunStatus:
    """Load the status of a run; raise FormatError only if the folder itself cannot be read."""
    record = run_directory.try_record(run_dir)
    try:
        history = load_history(run_dir)
    except OSError as error:
        raise FormatError(f"{run_dir} cannot be read: {error.strerror}") from error
    last = history.last
    if record is None:  # the process of a damaged run may still be running
        study_dir, name = os.path.split(run_dir)
        spec = RunSpec(run_directory.load_job_field(run_dir, layout.ENV_RUN_ID) or "", name, {}, ())
        record = run_directory.RunRecord(spec, os.path.basename(study_dir), "", 0.0)
        is_running = last is not None and not last.outcome and conclude(run_dir, history, ()).state is State.RUNNING
        number, codes = (last.number, last.codes) if last else (0, {})
        outcome = Outcome(State.DAMAGED, number, codes, describe_damage(run_dir))
        return RunStatus(record, history, State.RUNNING if is_running else State.DAMAGED, outcome)
    if last is None:
        state = State.QUEUED if record.spec.commands else State.DONE  # another tool made a run without commands
        return RunStatus(record, history, state)
    if last.outcome is not None:
        return RunStatus(record, history, last.outcome.state, last.outcome)
    decision = conclude(run_dir, history, run_directory.find_commands(record.spec))
    return RunStatus(record, history, decision.state, decision.outcome)


def load_record(run_dir: str) -> run_directory.RunRecord:
    try:
        return run_directory.load_record(run_dir)
    except OSError as error:
        path = os.path.join(run_dir, layout.RUN_FILE)
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error


def find_owner(handle: JobHandle | None) -> SupervisorRecord | None:
    """Return the other live process of this host that started this attempt, if any."""
    if handle is None or handle.host != processes.host_name() or handle.supervisor_pid in (0, os.getpid()):
        return None
    owner = SupervisorRecord(handle.host, handle.supervisor_pid, handle.supervisor_start, handle.boot)
    return owner if owner.is_alive else None


def find_supervisors(run_dirs: Iterable[str], study_dir: str | None = None) -> list[SupervisorRecord]:
    """Return other live processes of this host that started the last attempts of these runs. With `study_dir`, also
    return supervisors that have started nothing: they wait for a slot, or watch runs of another supervisor."""
    registered = load_supervisors(study_dir) if study_dir is not None else ()
    ours = [each for each in registered if each.host == processes.host_name() and each.pid != os.getpid()]
    found = {each for each in ours if each.is_alive}
    for run_dir in run_dirs:
        try:
            last = run_directory.load_history(run_dir).last
        except OSError:  # the run was removed or is unreadable: its supervisor is unknown
            continue
        if (owner := find_owner(last.handle if last else None)) is not None:
            found.add(owner)
    return sorted(found)

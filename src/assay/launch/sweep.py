"""`assay run FILE`: plan the runs of a study file, supervise them, and report on them."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from select import select as wait_for
from typing import TYPE_CHECKING

from assay.config.load import load_study
from assay.config.places import choose_farm
from assay.config.settings import load_settings
from assay.errors import InfrastructureError, UsageError, check_known
from assay.execute.base import Executor
from assay.execute.machine_lease import MachineLease, Use
from assay.execute.places import build_executor, find_executor
from assay.execute.slots import SlotPool, build_entries, slots_directory
from assay.follow.attempts import RetryPolicy
from assay.follow.collect import Collector, closing_quietly
from assay.follow.entry import Entry, Event, Observer
from assay.follow.locations import StudyLocation, choose_root, show_command
from assay.follow.opening import open_index
from assay.follow.refresh import refresh_study
from assay.follow.run_status import load_status
from assay.judge.bounds import judge_checks
from assay.launch.prepared import (
    Prepared,
    Report,
    RunOptions,
    describe_kept,
    describe_unfinished,
    find_pass,
    find_repeat,
)
from assay.launch.run_dir_builder import DirBuilder
from assay.launch.run_rules import Listen, find_rules
from assay.launch.slot_choice import Slots, WaitNotice, choose_slots
from assay.launch.steps import RunContext, RunStep, find_steps
from assay.launch.supervise import LoopSettings, Supervisor
from assay.observe.files import UNREAD, describe_unread
from assay.plan.expand import NameSource, build_plan, select
from assay.plugins import find_dialect
from assay.record import presence, run_directory
from assay.record.index.stored import Index
from assay.record.received import set_aside
from assay.show.console import SILENT, Console
from assay.show.formatting import join_first, render_count
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names
from assay.system.terminal import find_terminals
from assay.values import layout
from assay.values.hooks import NATIVE
from assay.values.run import Plan, RunSpec, State
from assay.values.secrets import hide_assignment, hide_spec
from assay.values.state import RETRY
from assay.values.study import LOCAL, STUDY_NAME_RULE, Pattern, Problem, Study, is_study_name
from assay.values.units import CPU
from assay.values.verdict import Verdict

if TYPE_CHECKING:
    from assay.launch.live_view import BestSoFar

_BEGIN_S = 10.0  # how long a command with --detach waits for its supervisor; a farm may take longer
_waiting: list[int] = []  # the pipe to the waiting command, in a supervisor that has not begun yet
_MAX_WAIT_S: dict[Use, float] = {"run": 86_400, "check": 3600, "benchmark": 3600}  # longest waits for the machine lease
Draw = Callable[[Supervisor], None]


# ---------------------------------------------------------------- before anything is written


def prepare(options: RunOptions) -> Prepared:
    settings = load_settings(os.getcwd(), os.environ)
    if any(hide_assignment(text, settings.secrets) != text for text in (*options.overrides, *options.settings)):
        options = replace(options, again=None)  # a command that is printed shows no secret
    load = replace(options.load, overrides=options.overrides, settings=options.settings)
    study = _rename(load_study(options.file, load), options)
    if options.code is not None:
        study = replace(study, code=replace(study.code, kind="live" if options.code == "live" else "snapshot"))
    # a choice of commands does not change the runs, so it is made when they start, not when they are planned
    check_known("command", options.commands or (), [command.name for command in study.commands])
    study = select(study, options.titles or None, options.sample, options.seed)
    root, asked = choose_root(options.root, study.root, settings)
    location, farm = StudyLocation(root, study.name), choose_farm(study, options.on, settings)
    if farm is None and options.on is None and study.farm is None and settings.farm not in (None, LOCAL):
        message = f"the farm {settings.farm!r} of {settings.farm_from} is not known here: the runs stay on this machine"
        hint = "correct the name, define the farm, or choose this machine: --on local"
        study = replace(study, warnings=(*study.warnings, Problem(message, hint=hint)))
    prepared = Prepared(study, Plan(study, ()), location, asked, farm, settings, options)
    for step in find_steps(prepared):
        prepared = step.prepare(prepared)
        if not isinstance(prepared, Prepared):
            raise InfrastructureError(f"{type(step).__module__}.{type(step).__qualname__}.prepare returned no Prepared")
    if prepared.search is not None:
        return prepared
    options, rules = prepared.options, find_rules(prepared.study.dialect)
    names = NameSource(random.Random(), datetime.now(), options.tag, options.cooldir, os.path.exists)  # noqa: DTZ005 local time
    prepared = replace(prepared, plan=build_plan(prepared.study, names, settings.secrets))
    return rules.complete(_choose_runs(rules.name_runs(prepared)))


def _choose_runs(prepared: Prepared) -> Prepared:
    """Return the plan with the runs that --where chooses. Other runs are neither started nor judged."""
    if prepared.options.where is None:
        return prepared
    from assay.reading.choosing import choose_planned  # most calls do not have --where

    runs = tuple(choose_planned(prepared.options.where, prepared.plan.runs, prepared.location))
    names = {spec.name for spec in runs}
    links = tuple((name, target) for name, target in prepared.plan.links if target in names)
    return replace(prepared, plan=replace(prepared.plan, runs=runs, links=links))


def _rename(study: Study, options: RunOptions) -> Study:
    """Give the study the name in the command line, else in its file. The name must not be a path or hidden."""
    flag = find_dialect(options.load.dialect or NATIVE.name).name_flag
    if not flag:  # a dialect without such a flag names the folder by its path
        return replace(study, name=options.study or study.name)
    given = options.study if options.study is not None else options.load.exp_name
    name = study.name if options.study is None else options.study
    if not is_study_name(name, from_file=given is None):
        more = "" if given is not None else f"; choose another with {flag} NAME"
        raise UsageError(f"{name!r} cannot name a study", f"{STUDY_NAME_RULE}{more}")
    return replace(study, name=name)


# ---------------------------------------------------------------- --detach: a supervisor in the background


def go_to_background(location: StudyLocation, console: Console) -> bool:
    """Fork; return True in the supervisor, which continues with its output in a file. In the called command, return
    False once the runs that have a slot are started, so that the next command, such as `assay stop STUDY/RUN`, finds
    their directories."""
    os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
    log = os.path.join(location.dir, layout.STUDY_META_DIR, layout.SUPERVISOR_LOG)
    hints = [show_command([word], location) for word in ("ls", "stop")]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        presence.announce(location.dir, pid)
        wait_for([reader], [], [], _BEGIN_S)
        os.close(reader)
        console.print(f"supervisor {pid} runs in the background; its output is in {os.path.relpath(log)}")
        console.print(f"next: {hints[0]}")
        console.print(f"      {hints[1]}")
        return False
    os.close(reader)
    _waiting.append(writer)
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    return True


# ---------------------------------------------------------------- running


@dataclass(slots=True)
class RunHooks(LoopSettings):
    """Settings and callbacks of a command while the study runs. If `max_wait_s` is None, the settings decide."""

    finish: Draw = lambda _supervisor: None
    console: Console = SILENT
    owns_process: bool = False  # whether this process may become the parent of processes that jobs leave
    echo: Callable[[bytes], None] | None = None
    one_by_one: bool = False  # without slots: one run after another, devices untouched
    slots_name: str | None = None  # name of separate slots: checks and trainings do not wait for each other
    at_once: int | None = None  # limit of runs on a farm at a time; None: no limit
    use: Use = "run"  # how the machine is used, for the machine lease
    observe: Callable[[Observer], Observer] = lambda observer: observer  # wraps the collector
    best: BestSoFar | None = None  # finds the best run for the command
    steps: Sequence[RunStep] = ()  # empty: the steps of the study and the options


def run_study(prepared: Prepared, hooks: RunHooks) -> Report:
    """Run the planned runs that are not finished. The caller has called `check_prepared` and shown the warnings."""
    plan, farm = prepared.plan, prepared.farm
    if not plan.is_hidden:  # recordings, benchmarks, models and repeated runs are not planned from a study file
        runs = tuple(hide_spec(spec, prepared.settings.secrets) for spec in plan.runs)
        prepared = replace(prepared, plan=replace(plan, runs=runs, is_hidden=True))
    # a farm has its own devices and threads: those of this machine do not matter
    is_here = farm is None or find_executor(farm.executor).uses_slots(farm)
    asked = prepared.options.slots if is_here and not hooks.one_by_one else (CPU,)
    slots = choose_slots(prepared.study, asked, prepared.settings)
    if prepared.options.budget is not None:
        prepared.options.budget.check(prepared.study, slots.labels)
    os.makedirs(os.path.join(prepared.location.dir, layout.STUDY_META_DIR), exist_ok=True)
    rules = find_rules(prepared.study.dialect)
    with _deferred_signals(), presence.register(prepared.location.dir), rules.hold(prepared) as held:
        present = list_names(held.location.dir)
        for spec in (each for each in held.plan.runs if each.name in present):
            if (kept := set_aside(held.dir_of(spec))) is not None:
                text = f"{spec.name} was uploaded and is not continued; it is kept as {kept}, see it: "
                hooks.console.message(text + show_command(["show"], held.location, kept))
        return _run_planned(held, hooks, slots)


def _run_planned(prepared: Prepared, hooks: RunHooks, slots: Slots) -> Report:
    """Supervise the planned runs: directories, code, index, executor, slots, plug-ins' steps, the loop, the report."""
    for name, target in prepared.plan.links:  # a second name for the same parameters is a link to the first folder
        path = os.path.join(prepared.location.dir, name)
        if not os.path.lexists(path):
            os.symlink(target, path)
    with suppress(OSError):  # a full disk is reported when the run directories are written
        if not prepared.options.names_runs:  # named runs exist already
            planned = {spec.name: spec.id for spec in prepared.plan.runs}
            run_directory.write_plan(prepared.location.dir, planned, prepared.plan_key)
    builder = DirBuilder(prepared, hooks.console.error)
    for line in (*slots.warnings, *builder.describe_size()):
        hooks.console.message(f"warning: {line}")
    with closing_quietly(open_index(prepared.location.root, hooks.console.warning, is_needed=False)) as index:
        collector = Collector(index, prepared.location, slots.devices, hooks.echo)
        repairs = builder.repair(prepared.plan.runs)
        builder.adopt()
        builder.renew_secrets(prepared.plan.runs)
        entries = _build_entries(prepared, builder, hooks)
        _forget_removed(prepared, entries, index)
        steps = hooks.steps or find_steps(prepared)
        executor, pool, limit = _choose_executor(prepared, slots, hooks)
        loop: LoopSettings = _build_loop(prepared, hooks, builder, slots, limit)
        build_entry = partial(_build_entry, prepared=prepared, again=frozenset(), base=0)
        context = RunContext(prepared, index, entries, collector, pool, hooks.best, build_entry)
        for step in steps:
            loop = step.begin(context, replace(loop, listen=_join(loop.listen, step, loop.warn)))
        supervisor = Supervisor(entries, executor, pool, hooks.observe(collector), loop)
        _run_loop(supervisor, hooks, collector)
        _end_plan(prepared, supervisor.entries)
        notes = [*repairs, *builder.notes, *([collector.failure] if collector.failure else [])]
        return _build_report(prepared, supervisor, builder, steps, index, notes)


def _end_plan(prepared: Prepared, entries: Sequence[Entry]) -> None:
    """Remove the plan and the completed passes of --force once all runs are finished."""
    if not all(entry.state.is_over for entry in entries):
        return
    if not prepared.options.names_runs:
        run_directory.remove_plan(prepared.location.dir, prepared.plan_key)
    # Ctrl-C stopped a run, here or in another supervisor: a later call continues it
    if "interrupt" not in _find_stops(entry for entry in entries if entry.state is State.STOPPED):
        # a --force is complete when all its runs have been repeated, by any call
        last = {entry.spec.name: entry.attempt for entry in entries}
        for path in run_directory.find_passes(prepared.location.dir):
            with suppress(OSError):
                run_directory.leave_pass(path, last)


def _join(first: Listen, step: RunStep, warn: Callable[[str], None]) -> Listen:
    """Add the step's listener, which gets no further events after a failure, so that the runs continue."""
    listeners = [step.listen]

    def listen(event: Event) -> None:
        first(event)
        try:
            for each in listeners:
                each(event)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a plug-in may raise any error
            listeners.clear()
            warn(f"{type(step).__module__}.{type(step).__qualname__}.listen failed: {error!r}")

    return listen


def _build_loop(
    prepared: Prepared, hooks: RunHooks, builder: DirBuilder, slots: Slots, limit: int | None
) -> LoopSettings:
    env = slots.env if hooks.slots_name is None else {}  # checks share the cores freely
    return replace(
        hooks,
        create=builder.create,
        renew=builder.renew,
        rewrite=builder.rewrite_job,
        remake=builder.remake_entry,
        listen=find_rules(prepared.study.dialect).listen(prepared, _suppress_lost_output(hooks.listen)),
        draw=_build_draw(builder, _suppress_lost_output(hooks.draw), hooks.console),
        warn=lambda line: hooks.console.message(f"warning: {line}"),
        env=env if prepared.farm is None else {layout.ENV_PYTHON: sys.executable},
        grace_s=prepared.options.grace_s,
        keeps_slots=hooks.slots_name is not None,
        lease=MachineLease(hooks.use) if prepared.farm is None else None,
        max_wait_s=hooks.max_wait_s or prepared.settings.max_wait_s or _MAX_WAIT_S[hooks.use],
        limit=limit,
        budget=prepared.options.budget,
    )


def _build_draw(builder: DirBuilder, draw: Draw, console: Console) -> Draw:
    notice = WaitNotice(console)

    def drawn(supervisor: Supervisor) -> None:
        builder.flusher.tick()
        notice.update(supervisor.leased_s, supervisor.settings.lease, supervisor.waited_s, supervisor.pool)
        draw(supervisor)
        while _waiting:  # the slots are filled or there is nothing to start: the waiting command may end
            os.close(_waiting.pop())

    return drawn


def _run_loop(supervisor: Supervisor, hooks: RunHooks, collector: Collector) -> None:
    """Run the loop. However the loop ends, collected metrics are written, and slots and jobs are released."""
    with _signals(supervisor):
        try:
            supervisor.run()
        finally:
            _suppress_lost_output(hooks.finish)(supervisor)
            collector.flush()
            if supervisor.pool is not None:
                supervisor.pool.close()
            if supervisor.settings.lease is not None:
                supervisor.settings.lease.close()
            supervisor.executor.close()


def _judge(prepared: Prepared, entries: Sequence[Entry], index: Index) -> tuple[Verdict | None, list[str]]:
    """Judge every done run by the study's checks; other runs have no result. Verdicts on runs that ended in this call
    are recorded; the second value is warnings about verdicts that could not be recorded."""
    done = {prepared.location.key(entry.dir): entry for entry in entries if entry.state is State.DONE}
    checks = prepared.study.checks
    if not checks or not done:
        return None, []
    from assay.follow.verdicts import record_verdicts  # most studies have no checks

    summaries = index.load_summaries(keys=list(done))
    if not all(summaries.get(key) or entry.finished_here for key, entry in done.items()):
        refresh_study(index, prepared.location)  # a new index does not have the runs of earlier calls yet
        summaries = index.load_summaries(keys=list(done))
    verdicts = {key: judge_checks(checks, entry.spec.name, summaries.get(key, {})) for key, entry in done.items()}
    new = {os.path.basename(done[key].dir): verdicts[key] for key in done if done[key].finished_here}
    warnings = record_verdicts(prepared.location, "checks", new, index)
    findings = [finding for verdict in verdicts.values() for finding in verdict.findings]
    return Verdict.of(findings, sum(verdict.comparisons for verdict in verdicts.values())), warnings


def _choose_executor(prepared: Prepared, slots: Slots, hooks: RunHooks) -> tuple[Executor, SlotPool | None, int | None]:
    """Return the executor, the slots of this machine, and the limit of runs at once if there are no slots."""
    if prepared.farm is not None:
        executor = build_executor(prepared.farm.executor, farm=prepared.farm)
        limit = len(slots.labels) if executor.uses_slots(prepared.farm) else None
        return executor, None, 1 if hooks.one_by_one else hooks.at_once or limit
    executor = build_executor("local", owns_process=hooks.owns_process)
    if hooks.one_by_one:
        return executor, None, 1
    directory = slots_directory(hooks.slots_name)
    return executor, SlotPool(build_entries(slots.labels), directory, slots.usable, prepared.study.priority), None


def _build_entries(prepared: Prepared, builder: DirBuilder, hooks: RunHooks) -> list[Entry]:
    options, runs = prepared.options, prepared.plan.runs
    last = {spec.name: _load_last(prepared.dir_of(spec)) if options.force or options.retry else None for spec in runs}
    numbers = {name: attempt.number if attempt else 0 for name, attempt in last.items()}
    codes = builder.choose_codes([spec for spec in runs if _takes_current_code(prepared, spec, last[spec.name])])
    if not options.force:
        _print_codes(builder, hooks, codes, runs)
        return [_build_entry(spec, prepared, options.retry, numbers[spec.name]) for spec in runs]
    begun, path = numbers, find_pass(prepared, codes=codes)
    with suppress(OSError):  # a full disk: an interrupted pass would be repeated in full
        begun = run_directory.join_pass(path, begun)
    code = builder.snapshot.hash if options.new_code and builder.snapshot else None
    found = {spec.name: find_repeat(prepared, spec, last[spec.name], begun, code) for spec in runs}
    if kept := sum(repeat.is_kept for repeat in found.values()):
        hooks.console.message(describe_kept(prepared, kept, path))
    repeated = [spec for spec in runs if not found[spec.name].is_kept]
    _print_codes(builder, hooks, [spec.name for spec in repeated], repeated)
    return [
        _build_entry(spec, prepared, frozenset(State), found[spec.name].base, since=found[spec.name].begun)
        for spec in runs
    ]


def _takes_current_code(prepared: Prepared, spec: RunSpec, last: run_directory.Attempt | None) -> bool:
    """Whether the run failed and a user repeats it; automatic retries and continued runs keep their code."""
    options = prepared.options
    if last is None or options.old_code:
        return False
    state = last.outcome.state if last.outcome else load_status(prepared.dir_of(spec)).state
    is_repeated = options.force or state in options.retry
    return is_repeated and (options.new_code or state in RETRY["failed"])


def _print_codes(builder: DirBuilder, hooks: RunHooks, names: Collection[str], specs: Sequence[RunSpec]) -> None:
    for line in filter(None, (builder.describe_newer(names), builder.describe_recorded(specs))):
        hooks.console.error(line)


def _build_entry(
    spec: RunSpec, prepared: Prepared, again: frozenset[State], base: int, since: int | None = None
) -> Entry:
    options = prepared.options
    policy = RetryPolicy(retries=spec.retries, again=again, base=base, abandons=State.LOST in options.retry)
    names = options.commands or spec.chosen  # -c replaces the commands that a part of the file chooses
    wanted = None if names is None else frozenset(names)
    return Entry(spec, prepared.dir_of(spec), policy, wanted=wanted, since=since)


def _find_stops(entries: Iterable[Entry]) -> set[str]:
    """Return the kinds of the stop files of these runs; `assay stop` writes them before it sends a signal."""
    found = [_load_last(entry.dir) for entry in entries]
    return {last.stop.kind for last in found if last is not None and last.stop is not None}


def _load_last(run_dir: str) -> run_directory.Attempt | None:
    return run_directory.load_history(run_dir).last if os.path.isdir(run_dir) else None


def _suppress_lost_output(show: Callable[..., None]) -> Callable[..., None]:
    """Ignore errors of a terminal or a reader that is gone, so that supervision continues."""

    def show_if_possible(value: Event | Supervisor) -> None:
        with suppress(OSError):
            show(value)

    return show_if_possible


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer signals until the loop handles them, so that a supervisor can be stopped once it is registered."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """Handle signals: Ctrl-C and TERM stop the runs, HUP leaves them running."""
    terminals = find_terminals()  # found before a terminal hangs up

    def interrupt(number: int, _frame: object) -> None:
        supervisor.interrupted = signal.Signals(number).name
        supervisor.at_interrupt = supervisor.at_interrupt or list(supervisor.running.values())

    def leave(_number: int, _frame: object) -> None:
        supervisor.leave = True
        # after a hangup every write to the terminal would fail
        null = os.open(os.devnull, os.O_RDWR)
        for fd in terminals:
            os.dup2(null, fd)
        os.close(null)

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGHUP: leave}
    for number in [number for number in handlers if signal.getsignal(number) == signal.SIG_IGN]:
        del handlers[number]  # ignored by nohup or a shell's background job: the parent process has decided
    if threading.current_thread() is not threading.main_thread():
        handlers = {}  # in another thread (do_convergence_test) signals are left to the main thread
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _build_report(
    prepared: Prepared,
    supervisor: Supervisor,
    builder: DirBuilder,
    steps: Sequence[RunStep],
    index: Index,
    notes: Sequence[str],
) -> Report:
    entries = supervisor.entries
    verdict, warnings = _judge(prepared, entries, index)
    doubts = [note for step in steps for note in step.describe_end(entries)]
    with suppress(InfrastructureError):  # errors of the index are ignored: the runs are complete
        for describe in (_describe_unmatched, _describe_unread, _describe_not_finite):
            doubts += describe(prepared, entries, index)
    code, leftovers = builder.describe_other_code(entries), _describe_leftovers(prepared, entries)
    last = {entry.spec.name: entry.attempt for entry in entries}
    is_over = all(entry.state.is_over for entry in entries)
    unfinished = describe_unfinished(prepared, last) if is_over else []
    held_back = [entry.spec.name for entry in supervisor.held_back]
    if (budget := prepared.options.budget) is not None and held_back:
        again = prepared.options.again
        command = again.build("--budget", budget.text) if again else show_command(["ls"], prepared.location)
        unfinished.append((budget.describe(held_back), command))
    return Report(
        prepared=prepared,
        entries=entries,
        interrupted="assay stop" if _find_stops(supervisor.at_interrupt) == {"user"} else supervisor.interrupted,
        is_stopped="user" in _find_stops(entry for entry in entries if entry.state is State.STOPPED),
        left=supervisor.leave,
        problem=supervisor.problem.render() if supervisor.problem else None,
        verdict=verdict,
        notes=[*code, *leftovers, *notes, *warnings, *doubts, *(note for note, _ in unfinished)],
        advice=[*builder.advice, *(command for _, command in unfinished)],
        result=next((found for step in steps if (found := step.build_result())), None),
        held_back=held_back,
    )


def _forget_removed(prepared: Prepared, entries: Sequence[Entry], index: Index) -> None:
    """Forget the index's rows of runs whose directories were removed, before new runs get their names."""
    location = prepared.location
    present = list_names(location.dir)
    new = [location.key(entry.dir) for entry in entries if entry.spec.name not in present]
    with suppress(InfrastructureError):
        known = index.load_runs(None, new) if prepared.search is None else index.load_runs([location.name])
        if gone := [row.key for row in known if not os.path.isdir(os.path.join(location.root, row.key))]:
            index.forget_runs(gone)


def _describe_unmatched(prepared: Prepared, entries: Sequence[Entry], index: Index) -> list[str]:
    """Describe metrics whose pattern matched in none of the runs that finished here: the pattern is probably wrong.
    Also describe patterns that are newer than the kept runs, which keep their own patterns."""
    location, done = prepared.location, [entry for entry in entries if entry.state is State.DONE]
    new, kept = ([entry for entry in done if entry.finished_here is is_new] for is_new in (True, False))
    wanted = [p for p in prepared.study.metrics if isinstance(p, Pattern) and not p.labels and "(?P<" not in p.regex]
    pairs = [(p.metric, p.regex) for p in wanted if p.metric not in ("step", "epoch")]
    if not done or not pairs:
        return []
    logs = show_command(["logs"], location, os.path.basename(done[0].dir))
    again = show_command(["index", "reparse"], location, options=("--file", prepared.study.source))
    found = index.load_summaries(keys=[location.key(entry.dir) for entry in new or kept])
    lost = [pair for pair in pairs if not any(pair[0] in metrics for metrics in found.values())]
    record = run_directory.try_record(kept[0].dir) if kept and (lost or new) else None
    own = [(p.metric, p.regex) for p in record.spec.patterns if isinstance(p, Pattern)] if record else pairs
    newer = [pair for pair in (pairs if new else lost) if pair not in own]
    why = {f"matched no number in any run; compare its pattern with a log: {logs}": lost if new else []}
    why[f"is newer than the runs of earlier calls, which keep theirs; to read their logs with it: {again}"] = newer
    return list(dict.fromkeys(f"metrics.{name} {text}" for text, which in why.items() for name, _ in which))


def _describe_unread(prepared: Prepared, entries: Sequence[Entry], index: Index) -> list[str]:
    """Return one note for all runs that ended here with unreadable values or lines."""
    names = {prepared.location.key(entry.dir): entry.spec.name for entry in entries if entry.finished_here}
    cursors = index.load_cursors(None, [prepared.location.name], [*UNREAD]) if names else {}
    found = [f"{names[key]}: {describe_unread(cursors[key].state)}" for key in names if key in cursors]
    return [f"not all could be read in {render_count(len(found), 'run')}; {found[0]}"] if found else []


def _describe_not_finite(prepared: Prepared, entries: Sequence[Entry], index: Index) -> list[str]:
    """Describe metrics that ended as NaN or infinite in done runs: a diverged training ends with exit code 0."""
    done = {prepared.location.key(entry.dir): entry for entry in entries if entry.state is State.DONE}
    found: dict[str, list[str]] = {}
    for key, summaries in index.load_summaries(keys=list(done)).items() if done else ():
        for metric, summary in summaries.items():
            if not math.isfinite(summary.last):
                found.setdefault(metric, []).append(done[key].spec.name)
    runs = {metric: "1 run is" if len(names) == 1 else f"{len(names)} runs are" for metric, names in found.items()}
    return [f"{runs[each]} done, and {each} is not finite at the end: {join_first(found[each], 3)}" for each in found]


def _describe_leftovers(prepared: Prepared, entries: Sequence[Entry]) -> list[str]:
    """Return one note for all runs that finished here and left processes running."""
    done = [entry for entry in entries if entry.finished_here and entry.state is State.DONE]
    found = [f"{each.spec.name} {each.outcome.reason}" for each in done if each.outcome and each.outcome.reason]
    what = f"{render_count(len(found), 'run')} left processes running when finished"
    is_reported = found and not prepared.study.leave_running
    return [f"{what}: {found[0]} (to keep such processes: leave_running: true)"] if is_reported else []

"""Runs of a golden test on the spine: their commands and directories, and what their logs say while they grow."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.golden import manifests
from assay.golden.recorder import Logged, LogReader, RunRecorder, Values
from assay.golden.values import FlagSpec, GoldenFile, GoldenTest, SegmentRun, Variant
from assay.plan.expand import build_plan
from assay.plan.identity import spec_id
from assay.study.api import (
    Entry,
    Observer,
    Prepared,
    Report,
    RunHooks,
    RunOptions,
    Source,
    StudyPlace,
    choose_root,
    find_sources,
    run_study,
)
from assay.system.git import find_git_root
from assay.system.tail import Tail
from assay.values import layout
from assay.values.run import Command, LogStream, Plan, RunSpec, Usage
from assay.values.secrets import hide_spec
from assay.values.study import STUDY_NAME_RULE, CodePolicy, Farm, Pattern, Problem, Study, is_study_name

COMMAND = "train"
STUDY_PREFIX = "golden-"
_READ_BYTES = 1 << 20
_TAIL_BYTES = 2000
_LOG_BYTES = 32 << 20  # of a log that nothing was read from: enough to say why
NO_LINE = "matches no line of the log"
NO_STEP_LINE = "never stands on a line that says the step, so it is not read"
_LOG_NAMES: dict[LogStream, tuple[str, str]] = {  # what is parsed, and the other stream
    "stdout": ("{command}{suffix}.stdout.log", "{command}{suffix}.stderr.log"),
    "stderr": ("{command}{suffix}.stderr.log", "{command}{suffix}.stdout.log"),
    "both": ("{command}{suffix}.log", "{command}{suffix}.other.log"),
}


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    """What a door asks for."""

    file: str
    store: str
    manifest_name: str = manifests.DEFAULT_NAME
    root: str | None = None
    slots: tuple[str, ...] | None = None
    on: str | None = None
    tests: tuple[str, ...] | None = None
    replicas: int | None = None  # further runs of each segment while gathering; None: what the file says
    counting: bool = False  # gather: only how the program counts its steps, into the golden that is there
    most_checks: int | None = None
    early_stop: bool = True
    timeout_s: float | None = None
    env: tuple[tuple[str, str], ...] = ()  # on top of the file's
    run_arguments: tuple[str, ...] = ()  # put behind the command of every check
    grace_s: float = 10.0
    command_line: tuple[str, ...] = ()
    is_harness: bool = False  # the call came through the original's door: its ways, its hints


@dataclass(frozen=True, slots=True)
class GoldenContext:
    """One test with everything that is known before it runs."""

    test: GoldenTest
    folder: str  # where its command runs
    folder_from: str  # how that was found, for people
    store: str
    manifest: str
    checkpoints: str
    study: Study
    place: StudyPlace
    farm: Farm | None
    settings: Settings
    options: GoldenOptions
    config_hash: str
    is_original: bool


def build_context(file: GoldenFile, test: GoldenTest, options: GoldenOptions) -> GoldenContext:
    _check_names(test, options)
    settings = load_settings(os.getcwd(), os.environ)
    folder, found = resolve_folder(file, test)
    study = _build_study(file, test, folder)
    if file.study is not None:
        test = replace(test, command=_render_native(file.study))
    test = replace(test, timeout_s=options.timeout_s or test.timeout_s, env=(*test.env, *options.env))
    root, _ = choose_root(options.root, study.root, settings)
    store = os.path.abspath(options.store)
    return GoldenContext(
        test=test,
        folder=folder,
        folder_from=found,
        store=store,
        manifest=manifests.manifest_path(store, test.name, options.manifest_name),
        checkpoints=_checkpoint_dir(store, test, len(file.tests) == 1),
        study=study,
        place=StudyPlace(root, study.name),
        farm=_choose_farm(study, options),
        settings=settings,
        options=options,
        config_hash=file.config_hash,
        is_original=file.dialect == "convergence",
    )


def _check_names(test: GoldenTest, options: GoldenOptions) -> None:
    """Both become names of files and folders: none leads out of the store or the root."""
    if not is_study_name(test.name, from_file=True):
        raise UsageError(f"{test.name!r} cannot name a study", STUDY_NAME_RULE)
    if "/" in options.manifest_name or not options.manifest_name.isprintable():
        raise UsageError(
            f"{options.manifest_name!r} cannot end a manifest's name", "give a file name, without a folder: --store DIR"
        )


def _checkpoint_dir(store: str, test: GoldenTest, is_alone: bool) -> str:
    """Tests of one file would overwrite each other's checkpoints: several get a folder each."""
    base = os.path.join(store, manifests.CHECKPOINT_DIR)
    return base if is_alone else os.path.join(base, test.name)


def _build_study(file: GoldenFile, test: GoldenTest, folder: str) -> Study:
    name = STUDY_PREFIX + test.name
    if file.study is not None:
        return replace(file.study, name=name, code=CodePolicy("live"), checks=(), retries=0)
    return Study(name, "native", file.source, folder, (), (), resources=test.resources, code=CodePolicy("live"))


def _render_native(study: Study) -> str:
    """The one command of the one run that a golden study stands for."""
    runs = build_plan(study).runs
    if len(runs) != 1 or len(runs[0].commands) != 1:
        what = f"{len(runs)} runs" if len(runs) != 1 else f"{len(runs[0].commands)} commands"
        hint = "a golden recording is of one training: give every parameter one value, and one command"
        raise ConfigError([Problem(f"this file makes {what}", "golden", None, hint)])
    command, private = runs[0].commands[0], runs[0].private
    return command.text if private is None else private.commands.get(command.name, command.text)


def _choose_farm(study: Study, options: GoldenOptions) -> Farm | None:
    name = options.on or study.farm
    if name is None or name == "local":
        return None
    if name not in study.farms:
        raise NotFoundError("farm", name, [*study.farms, "local"])
    return study.farms[name]


def resolve_folder(file: GoldenFile, test: GoldenTest) -> tuple[str, str]:
    """Where the program runs, and how that was decided."""
    if file.study is not None:
        return file.study.folder, "the working directory"
    config_folder = os.path.dirname(file.path)
    root = find_git_root(config_folder)
    tried = [(root, "the git root of the file")] if root else []
    tried += [(config_folder, "the file's folder"), (os.getcwd(), "the working directory")]
    for base, words in tried:
        path = os.path.normpath(os.path.join(base, test.directory or "."))
        if os.path.isdir(path) and (test.directory or _holds_program(path, test)):
            return path, words
    listed = ", ".join(os.path.normpath(os.path.join(base, test.directory or ".")) for base, _ in tried)
    if not test.directory:
        return config_folder, "the file's folder"
    problem = Problem(
        f"there is no folder {test.directory!r}", f"{test.name}.directory", test.position, f"looked for: {listed}"
    )
    raise ConfigError([problem])


def _holds_program(folder: str, test: GoldenTest) -> bool:
    """Without `directory` the place that has the program's files counts."""
    scripts = [word for word in test.executable if word.endswith((".py", ".sh")) or word.startswith("./")]
    return all(os.path.exists(os.path.join(folder, script)) for script in scripts)


def use_variant(context: GoldenContext, variant: Variant) -> GoldenContext:
    """The same test with a variant's environment and arguments."""
    test = replace(context.test, env=(*context.test.env, *variant.env))
    options = replace(context.options, run_arguments=(*context.options.run_arguments, *variant.flags))
    return replace(context, test=test, options=options)


# ---------------------------------------------------------------- commands


def build_gather_command(context: GoldenContext) -> str:
    return build_command(context.test, context.test.gather_flags, {"checkpoint_output": context.checkpoints})


def build_check_command(
    context: GoldenContext, checkpoint: str, start: int, beyond: int = 0, seed: int | None = None
) -> str:
    length = context.test.steps_to_record
    values = {
        "checkpoint_input": checkpoint,
        "start_step": str(start),
        "run_for": str(start + length + beyond),
        "run_length": str(length + beyond),
    }
    if seed is not None:
        values["seed"] = str(seed)
    return build_command(context.test, context.test.run_flags, values, context.options.run_arguments)


def can_check(context: GoldenContext) -> bool:
    """Whether the file says how a check is started; the original also gathers where it does not."""
    named = {flag.name for flag in context.test.run_flags}
    return "checkpoint_input" in named and bool(named & {"run_for", "run_length"})


def build_command(
    test: GoldenTest, flags: Sequence[FlagSpec], values: Mapping[str, str], further: Sequence[str] = ()
) -> str:
    words = [word for flag in flags for word in _flag_words(flag, values)]
    start = test.command if test.command is not None else " ".join(map(shlex.quote, test.executable))
    return " ".join([start, *map(shlex.quote, [*words, *further])])


def _flag_words(flag: FlagSpec, values: Mapping[str, str]) -> list[str]:
    value = values.get(flag.name) if flag.is_set else flag.value
    if flag.is_set and value is None:
        return []  # a seed that nobody asks for
    if value is None:
        return [flag.key]
    return [f"{flag.key}{value}"] if flag.key.endswith("=") else [flag.key, value]


def build_spec(context: GoldenContext, name: str, text: str, params: Mapping[str, Any]) -> RunSpec:
    test = context.test
    commands = (Command(COMMAND, text),)
    log_name, other = _LOG_NAMES[test.stream]
    step = Pattern("step", test.step.regex)
    return RunSpec(
        id=spec_id(commands, params),
        name=name,
        params=params,
        commands=commands,
        resources=test.resources,
        patterns=(step, *test.metrics, *test.files),
        timeout_s=test.timeout_s,
        env=test.env,
        code=CodePolicy("live"),
        log_name=log_name,
        log_stream=test.stream,
        other_log_name=other,
    )


def hide_command(context: GoldenContext, text: str) -> str:
    """A command as it may be shown, and as the run's record has it."""
    return hide_spec(build_spec(context, "", text, {}), context.settings.secrets).commands[0].text


# ---------------------------------------------------------------- following runs


class Follower(Protocol):
    """Somebody who reads a run's files while it runs."""

    def read(self, entry: Entry, final: bool) -> None: ...


class Listening:
    """An observer around another: each run's follower reads after every tick and once more at the end."""

    def __init__(self, inner: Observer, followers: Callable[[Entry], Follower]) -> None:
        self._inner = inner
        self._make = followers
        self._live: dict[str, Follower] = {}

    def started(self, entry: Entry) -> None:
        self._live[entry.dir] = self._make(entry)
        self._inner.started(entry)

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self._inner.tick(running, now)
        for entry in running:
            if entry.dir in self._live:
                self._live[entry.dir].read(entry, final=False)

    def usage(self, entry: Entry) -> Usage | None:
        return self._inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        follower = self._live.pop(entry.dir, None) or self._make(entry)
        follower.read(entry, final=True)
        self._inner.ended(entry)

    def flush(self) -> None:
        self._inner.flush()


class LogFollower:
    """New bytes of a run's parsed log, attempt by attempt."""

    def __init__(self) -> None:
        self._tail: Tail | None = None

    def read(self, entry: Entry) -> bytes:
        if self._tail is None:
            name = layout.log_name(entry.spec.log_name, COMMAND, max(1, entry.attempt), "")
            self._tail = Tail(os.path.join(entry.dir, name))
        parts = []
        while data := self._tail.read(_READ_BYTES):
            parts.append(data)
        return b"".join(parts)


@dataclass(slots=True)
class FileFollower:
    """Metrics that the program writes into files: JSON lines, csv, TensorBoard, or its own `assay.log`."""

    _open: dict[str, tuple[Source, Tail, dict[str, Any]]] = field(default_factory=dict)

    def read(self, entry: Entry, final: bool, values: Values) -> None:
        logs = set(layout.find_logs(os.listdir(entry.dir), entry.spec.log_name, COMMAND))
        for source in find_sources(entry.dir, entry.spec):
            if source.name not in logs:
                self._open.setdefault(source.name, (source, Tail(os.path.join(entry.dir, source.name)), {}))
        for name, (source, tail, state) in list(self._open.items()):
            self._open[name] = (source, tail, _read_source(source, tail, state, final, values))


def _read_source(source: Source, tail: Tail, state: dict[str, Any], final: bool, values: Values) -> dict[str, Any]:
    """Everything that there is to read now; returns the state to go on from."""
    while True:
        data = tail.read(_READ_BYTES)
        if not data and not final:
            return state
        is_last = len(data) < _READ_BYTES
        columns, consumed, state = source.parse(data, dict(state), final and is_last)
        tail.offset -= len(data) - consumed
        _add_columns(values, columns)
        if is_last:
            return state


def _add_columns(values: Values, columns: Mapping[str, tuple[Any, Any, Any]]) -> None:
    for metric, (steps, numbers, _) in columns.items():
        for step, number in zip(steps, numbers, strict=True):
            if math.isfinite(step) and step == int(step):
                values.add(int(step), Logged(metric, "", repr(float(number)), float(number)))


class SegmentFollower:
    """All values of one run of a segment."""

    def __init__(self, test: GoldenTest) -> None:
        reader = LogReader(test.step, test.metrics, named_groups=not test.same_line)
        self._recorder = RunRecorder(reader, test.same_line)
        self._log = LogFollower()
        self._files = FileFollower() if test.files or not test.same_line else None
        self.has_news = False

    @property
    def values(self) -> Values:
        return self._recorder.values

    def read(self, entry: Entry, final: bool) -> None:
        data = self._log.read(entry)
        self._recorder.feed(data)
        if final:
            self._recorder.finish()
        if self._files is not None:
            self._files.read(entry, final, self.values)
        self.has_news |= bool(data) or self._files is not None


# ---------------------------------------------------------------- running


def run_specs(context: GoldenContext, specs: Sequence[RunSpec], hooks: RunHooks) -> Report:
    """All of them, spread over the slots."""
    options = context.options
    prepared = Prepared(
        study=context.study,
        plan=Plan(context.study, tuple(specs)),
        place=context.place,
        root_was_asked=True,
        farm=context.farm,
        settings=context.settings,
        options=RunOptions(
            options.file, slots=options.slots, grace_s=options.grace_s, command_line=options.command_line
        ),
    )
    return run_study(prepared, hooks)


def build_run(entry: Entry, last_step: int | None, early: str | None = None) -> SegmentRun:
    outcome = entry.outcome
    elapsed = None
    if outcome and outcome.started_at and outcome.ended_at:
        elapsed = max(0.0, outcome.ended_at - outcome.started_at)
    reason = outcome.reason if outcome else "it was not started"
    return SegmentRun(entry.dir, entry.state, reason, elapsed, last_step, early)


def describe_end(entry: Entry) -> str:
    """Why a run that is not done ended, with the last words of its program."""
    reason = (entry.outcome.reason if entry.outcome else "") or f"it is {entry.state}"
    last = load_last_words(entry)
    return f"{reason}; its last words: {last}" if last else reason


def describe_places(context: GoldenContext) -> list[str]:
    """Where the program runs, and where its runs are kept."""
    runs = os.path.relpath(context.place.dir)
    shown = context.place.dir if runs.startswith(os.pardir) else os.path.join(os.curdir, runs)
    return [f"program's folder: {context.folder} ({context.folder_from})", f"runs: {shown}"]


def find_log(entry: Entry) -> str:
    """The log that is parsed."""
    return os.path.join(entry.dir, layout.log_name(entry.spec.log_name, COMMAND, max(1, entry.attempt), ""))


def load_log(entry: Entry) -> bytes:
    try:
        with open(find_log(entry), "rb") as file:
            return file.read(_LOG_BYTES)
    except OSError:
        return b""


def find_unread(test: GoldenTest, data: bytes) -> dict[str, str]:
    """Patterns that match nothing in a log, and metrics that never stand where they would be read: name → why."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    patterns = (test.step, test.save, *test.metrics)
    found = {pattern.metric: NO_LINE for pattern in patterns if not count_lines(pattern, text)}
    if test.same_line:
        recorder = RunRecorder(LogReader(test.step, test.metrics), same_line=True)
        recorder.feed(data)
        recorder.finish()
        for pattern in test.metrics:
            if pattern.metric not in found and not recorder.values.steps_of(pattern.metric):
                found[pattern.metric] = NO_STEP_LINE
    return found


def count_lines(pattern: Pattern, text: str) -> int:
    regex = re.compile(pattern.regex)
    return sum(regex.search(line) is not None for line in text.split("\n"))


def load_last_words(entry: Entry) -> str:
    """The last line on stderr, or of the only log."""
    names = [entry.spec.log_name]
    if entry.spec.log_stream == "stdout":
        names.insert(0, entry.spec.other_log_name)
    for template in names:
        path = os.path.join(entry.dir, layout.log_name(template, COMMAND, max(1, entry.attempt), ""))
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            continue
        words = [line.strip() for line in lines if line.strip()]
        if words:
            return words[-1][-300:]
    return ""


def build_stamp() -> str:
    """Tells the runs of one call from those of another."""
    import secrets

    return time.strftime("%Y%m%d-%H%M%S") + "-" + secrets.token_hex(2)


def check_store(context: GoldenContext) -> None:
    """Refuse before a long training: the store must be a folder that can be written."""
    try:
        os.makedirs(context.checkpoints, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the store {context.store} cannot be made: {error.strerror}", "choose another: -s DIR"
        ) from None
    if not os.access(context.store, os.W_OK | os.X_OK):
        raise UsageError(f"the store {context.store} cannot be written", "choose another: -s DIR")

"""Runs of a golden test: context, commands, run specs and how runs are started; the choice of one golden of several.

Goldens of several environments in one store are `TEST_NAME@…manifest.json` next to `TEST_…manifest.json`. A golden's
environment is what its provenance states: GPU, torch, container image. A property that is not stated fits every
environment: a golden of the original harness, or an imported one, is used everywhere.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.config.places import choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.follow.api import Entry, StudyLocation, choose_root
from assay.golden import manifests
from assay.golden.values import (
    DEFAULT_MANIFEST,
    DEFAULT_STORE,
    FlagSpec,
    Golden,
    GoldenFile,
    GoldenTest,
    GoldenTestReport,
    Segment,
    SegmentReport,
    SegmentRun,
    Variant,
    list_gpus,
)
from assay.launch.api import Report, RunHooks, run_specs
from assay.observe.environment import load_environment
from assay.plan.expand import build_plan
from assay.system.fast_dataclasses import asdict, dataclass, replace
from assay.system.git import find_git_root
from assay.values.run import Command, LogStream, RunSpec, State, spec_id
from assay.values.secrets import hide_spec
from assay.values.study import STUDY_NAME_RULE, CodePolicy, Farm, Pattern, Problem, Study, is_study_name

COMMAND = "train"
ENDED_WELL = (State.DONE, State.PRUNED)  # PRUNED: the run was ended when its segment was complete
STUDY_PREFIX = "golden-"
DEFAULT = "default"  # the environment of the golden whose file does not name one
_MARK = "@"  # the end of an environment's name in a file's name
_IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_CHECK_SEEDS = 1000  # the first seed of checks
_LOG_NAMES: dict[LogStream, tuple[str, str]] = {  # the log that is parsed, and the log of the other stream
    "stdout": ("{command}{suffix}.stdout.log", "{command}{suffix}.stderr.log"),
    "stderr": ("{command}{suffix}.stderr.log", "{command}{suffix}.stdout.log"),
    "both": ("{command}{suffix}.log", "{command}{suffix}.other.log"),
}

Key = Mapping[str, str]  # an environment's GPU, torch and image, as far as they are known
Explain = Callable[["GoldenContext", GoldenTestReport, RunHooks], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    """The options of a command of `assay golden`."""

    file: str
    store: str
    manifest_name: str = DEFAULT_MANIFEST
    root: str | None = None
    slots: tuple[str, ...] | None = None
    on: str | None = None
    tests: tuple[str, ...] = ()  # empty: all tests of the file
    replicas: int | None = None  # further runs of each segment while gathering; None: as in the file
    counting: bool = False  # gather: record only how the program counts its steps, in the existing golden
    most_checks: int | None = None
    only: tuple[str, ...] = ()  # check: judge these metrics, or labels as in `loss MLM`, and no others
    early_stop: bool = True
    timeout_s: float | None = None
    env: tuple[tuple[str, str], ...] = ()  # variables in addition to the file's
    run_arguments: tuple[str, ...] = ()  # appended to the command of every check
    grace_s: float = 10.0
    command_line: tuple[str, ...] = ()
    environment: str | None = None  # the environment whose golden is used; None: see `choose_golden`
    address: str | None = None  # the address of a store that is used as a copy on this machine
    explain: Explain | None = None  # a plug-in's function that finds what began a difference, for the report
    is_harness: bool = False  # called by the command line of the original harness, with its behaviour and hints

    def build_arguments(self) -> str:
        """Return the arguments with which a subcommand of `assay golden` uses the same golden."""
        words, store = [self.file], self.address or self.store
        words += ["-s", store] if store != DEFAULT_STORE else []
        if self.manifest_name != DEFAULT_MANIFEST:
            words += ["--manifest-name", self.manifest_name]
        words += [word for name in self.tests for word in ("-t", name)]
        words += ["--root", self.root] if self.root else []
        words += ["--on", self.on] if self.on else []
        return " ".join(map(shlex.quote, words))


@dataclass(frozen=True, slots=True)
class GoldenContext:
    """One test with everything that is known before it runs."""

    test: GoldenTest
    folder: str  # the folder in which its command runs
    folder_from: str  # how that folder was found, for messages
    store: str
    manifest: str
    checkpoints: str
    study: Study
    location: StudyLocation
    farm: Farm | None
    settings: Settings
    options: GoldenOptions
    config_hash: str
    is_original: bool
    chosen: str = ""  # which golden of several was chosen, and why

    def use_store(self, store: str) -> GoldenContext:
        """Give a test another store."""
        options = replace(self.options, store=store)
        checkpoints = os.path.join(store, os.path.relpath(self.checkpoints, self.store))
        manifest = manifests.manifest_path(store, self.test.name, options.manifest_name)
        return replace(self, options=options, store=store, manifest=manifest, checkpoints=checkpoints)

    def use_variant(self, variant: Variant) -> GoldenContext:
        """Give a test a variant's environment and arguments."""
        test = replace(self.test, env=(*self.test.env, *variant.env))
        options = replace(self.options, run_arguments=(*self.options.run_arguments, *variant.flags))
        return replace(self, test=test, options=options)

    def use_same(self, configuration: Variant) -> GoldenContext:
        """Give a test a configuration that must agree: metrics without an exact rule are judged by the noise."""
        used = self.use_variant(configuration)
        rules = tuple(rule if rule.kind == "exact" else replace(rule, kind="same") for rule in self.test.rules)
        return replace(used, test=replace(used.test, rules=rules))

    def build_gather_command(self) -> str:
        """Build the command of the recorded training; without checkpoints, it is the command of a check."""
        if self.test.from_start:
            return self.build_check_command("", 0)
        return _build_command(self.test, self.test.gather_flags, {"checkpoint_output": self.checkpoints})

    def build_check_command(self, checkpoint: str, start: int, beyond: int = 0, seed: int | None = None) -> str:
        length = self.test.steps_to_record
        values = {
            "checkpoint_input": checkpoint,
            "start_step": str(start),
            "run_for": str(start + length + beyond),
            "run_length": str(length + beyond),
        }
        if seed is not None:
            values["seed"] = str(seed)
        return _build_command(self.test, self.test.run_flags, values, self.options.run_arguments)

    @property
    def can_check(self) -> bool:
        """Whether the file defines how a check is started; the original harness gathers even if it does not."""
        return self.test.has_length and any(flag.name == "checkpoint_input" for flag in self.test.run_flags)

    def find_checkpoint(self, segment: Segment | SegmentReport) -> str | None:
        """Return the path of a segment's checkpoint; empty if the segment begins with the training; None if missing."""
        return manifests.find_checkpoint(self.manifest, segment.checkpoint)

    def find_checkpoint_problem(self, segment: Segment) -> str:
        """Return why a run cannot begin at the segment's checkpoint; empty if it can."""
        path, name = self.find_checkpoint(segment), f"the checkpoint {segment.checkpoint}"
        if path is None:
            return f"{name} is not in the store"
        is_other = segment.checkpoint_sha and manifests.hash_checkpoint(path) != segment.checkpoint_sha
        return f"{name} is not the one that was recorded: its content has changed" if is_other else ""

    def build_segment_spec(
        self, name: str, segment: Segment, *, beyond: int | None, number: int, variant: str | None = None
    ) -> RunSpec:
        """Build the run of a check or, with `variant` (`""`: none), of a replica. Both never have the same seeds."""
        is_check, start = variant is None, segment.start_step
        seed = number + (_CHECK_SEEDS if is_check else 0) if self.changes_seeds else None
        text = self.build_check_command(self.find_checkpoint(segment) or segment.checkpoint, start, beyond or 0, seed)
        params = {"mode": "check" if is_check else "replica", "start_step": start, "replica": number}
        return self.build_spec(name, text, params | ({"variant": variant} if variant else {}))

    @property
    def changes_seeds(self) -> bool:
        return any(rule.kind == "unmatched" for rule in self.test.rules)

    def count_recorded_checks(self, golden: Golden) -> int:
        """Return the highest number of a check's run that a rebase recorded: later checks use the seeds after it."""
        if golden.is_gathered or not self.changes_seeds:
            return 0
        found: Any = golden.provenance.get("check_runs", golden.recordings)  # older goldens do not state it
        return int(found)

    def build_spec(self, name: str, text: str, params: Mapping[str, Any]) -> RunSpec:
        test = self.test
        commands = (Command(COMMAND, text),)
        log_name, other = _LOG_NAMES[test.stream]
        step = (Pattern("step", test.step.regex),) if test.step else ()
        return RunSpec(
            id=spec_id(commands, params),
            name=name,
            params=params,
            commands=commands,
            resources=test.resources,
            patterns=(*step, *test.metrics, *test.files),
            timeout_s=test.timeout_s,
            env=test.env,
            code=CodePolicy("live"),
            log_name=log_name,
            log_stream=test.stream,
            other_log_name=other,
        )

    def hide_command(self, text: str) -> str:
        """Return a command with its secrets hidden, as the run's record has it."""
        return hide_spec(self.build_spec("", text, {}), self.settings.secrets).commands[0].text

    def load_golden(self, how_to: str | None = None) -> Golden:
        """Load the golden. Raises UsageError if only one of golden and file has checkpoints."""
        golden = manifests.load_manifest(self.manifest, self.test.name, how_to or self.hint_to_gather())
        from_start = all(not segment.checkpoint for segment in golden.segments)
        if golden.segments and from_start is not self.test.from_start:
            words = ("begins at step 0", "names") if from_start else ("begins at checkpoints", "does not name")
            message = f"the golden recording {words[0]}, and {self.options.file} {words[1]} checkpoints"
            raise UsageError(message, f"record it again: assay golden gather {self.options.build_arguments()}")
        return golden

    def hint_to_gather(self) -> str:
        return self.hint_to_use() or f"gather it first: assay golden gather {self.options.build_arguments()}"

    def hint_to_use(self) -> str:
        """Return how to use the golden next to the file, where its program runs, if no other store is chosen."""
        folder, name = os.path.split(self.options.file)
        store = os.path.join(folder, DEFAULT_STORE)
        if self.options.store != DEFAULT_STORE or self.options.is_harness or not _list_names(self.use_store(store)):
            return ""
        command = f"cd {shlex.quote(folder)} && assay golden check {replace(self.options, file=name).build_arguments()}"
        return f"there is one in {store}; use it in the folder of the file, as in: {command}"

    def run_segments(self, specs: Sequence[RunSpec], hooks: RunHooks) -> Report:
        options = self.options
        return run_specs(
            self.study,
            self.location,
            specs,
            hooks,
            slots=options.slots,
            farm=self.farm,
            settings=self.settings,
            grace_s=options.grace_s,
            command_line=options.command_line,
        )

    def describe_locations(self) -> list[str]:
        """Describe the folder in which the program runs, how that folder was found, and the folder of the runs."""
        runs = os.path.relpath(self.location.dir)
        shown = self.location.dir if runs.startswith(os.pardir) else os.path.join(os.curdir, runs)
        folder = f"program's folder: {self.folder} ({self.folder_from})"
        chosen = [self.chosen] if self.chosen else []
        return [*([folder] if self.is_original else []), f"runs: {shown}", *chosen]

    def choose_checkpoints(self) -> GoldenContext:
        """Choose a checkpoint folder in which nothing that a golden needs is overwritten."""
        return replace(self, checkpoints=manifests.choose_checkpoint_dir(self.manifest, self.checkpoints))

    def check_store(self) -> None:
        """Raise UsageError, before a long training, if the store cannot be created or written."""
        try:
            os.makedirs(self.store if self.test.from_start else self.checkpoints, exist_ok=True)
        except OSError as error:
            message = f"the store {self.store} cannot be created: {error.strerror}"
            raise UsageError(message, "choose another: -s DIR") from None
        if not os.access(self.store, os.W_OK | os.X_OK):
            raise UsageError(f"the store {self.store} cannot be written", "choose another: -s DIR")


def choose_tests(file: GoldenFile, names: Sequence[str]) -> tuple[GoldenTest, ...]:
    """Return the tests that the command names; without names, all tests."""
    known = [test.name for test in file.tests]
    for name in names:
        if name not in known:
            raise NotFoundError("test", name, known)
    return tuple(test for test in file.tests if not names or test.name in names)


def build_contexts(file: GoldenFile, options: GoldenOptions) -> list[GoldenContext]:
    """Build one context for each test that the command names."""
    settings = load_settings(os.getcwd(), os.environ)
    return [build_context(file, test, options, settings) for test in choose_tests(file, options.tests)]


def build_context(file: GoldenFile, test: GoldenTest, options: GoldenOptions, settings: Settings) -> GoldenContext:
    # names become names of files and folders, which must be inside the store and the root
    if not is_study_name(test.name, from_file=True):
        raise UsageError(f"{test.name!r} cannot name a study", STUDY_NAME_RULE)
    if "/" in options.manifest_name or not options.manifest_name.isprintable():
        hint = "give a file name, without a folder: --store DIR"
        raise UsageError(f"{options.manifest_name!r} cannot be the end of a manifest's name", hint)
    folder, found = resolve_folder(file, test)
    name, live = STUDY_PREFIX + test.name, CodePolicy("live")
    study = Study(name, "native", file.source, folder, (), (), resources=test.resources, code=live)
    if file.study is not None:
        study = replace(file.study, name=name, code=live, checks=(), retries=0, stop=())
        test = replace(test, command=_render_native(file.study))
    test = replace(test, timeout_s=options.timeout_s or test.timeout_s, env=(*test.env, *options.env))
    root, _ = choose_root(options.root, study.root, settings)
    store = os.path.abspath(options.store)
    checkpoints = os.path.join(store, manifests.CHECKPOINT_DIR)
    if len(file.tests) > 1:  # tests would overwrite each other's checkpoints
        checkpoints = os.path.join(checkpoints, test.name)
    return GoldenContext(
        test=test,
        folder=folder,
        folder_from=found,
        store=store,
        manifest=manifests.manifest_path(store, test.name, options.manifest_name),
        checkpoints=checkpoints,
        study=study,
        location=StudyLocation(root, study.name),
        farm=choose_farm(study, options.on, settings),
        settings=settings,
        options=options,
        config_hash=file.config_hash,
        is_original=file.dialect == "convergence",
    )


def _render_native(study: Study) -> str:
    """Return the command of a golden study. Raises ConfigError if the study has several runs or commands."""
    runs = build_plan(study).runs
    if len(runs) != 1 or len(runs[0].commands) != 1:
        what = f"{len(runs)} runs" if len(runs) != 1 else f"{len(runs[0].commands)} commands"
        hint = "a golden recording is of one training: give every parameter one value, and one command"
        raise ConfigError([Problem(f"this file defines {what}", "golden", None, hint)])
    command, private = runs[0].commands[0], runs[0].private
    return command.text if private is None else private.commands.get(command.name, command.text)


def resolve_folder(file: GoldenFile, test: GoldenTest) -> tuple[str, str]:
    """Return the folder in which the program runs, and how that folder was found."""
    if file.study is not None:
        return file.study.folder, "the working directory"
    config_folder = os.path.dirname(file.path)
    root = find_git_root(config_folder)
    tried = [(root, "the git root of the file")] if root else []
    tried += [(config_folder, "the file's folder"), (os.getcwd(), "the working directory")]
    paths = [(os.path.normpath(os.path.join(base, test.directory or ".")), how) for base, how in tried]
    scripts = [word for word in test.executable if word.endswith((".py", ".sh")) or word.startswith("./")]
    for path, how in paths:  # without `directory` the folder that has the program's files is used
        has_program = all(os.path.exists(os.path.join(path, script)) for script in scripts)
        if os.path.isdir(path) and (test.directory or has_program):
            return path, how
    if not test.directory:
        return config_folder, "the file's folder"
    message, key = f"there is no folder {test.directory!r}", f"{test.name}.directory"
    raise ConfigError([Problem(message, key, test.position, f"looked for: {', '.join(path for path, _ in paths)}")])


def _build_command(
    test: GoldenTest, flags: Sequence[FlagSpec], values: Mapping[str, str], further: Sequence[str] = ()
) -> str:
    words: list[str] = []
    for flag in flags:
        value = values.get(flag.name) if flag.is_set else flag.value
        if flag.key.endswith("=") and value is not None:
            words.append(f"{flag.key}{value}")
        elif value is not None or not flag.is_set:  # a seed that is not requested has no value
            words += [flag.key, *([] if value is None else [value])]
    start = test.command if test.command is not None else " ".join(map(shlex.quote, test.executable))
    return " ".join([start, *map(shlex.quote, [*words, *further])])


def build_run(entry: Entry, last_step: int | None, early: str | None = None) -> SegmentRun:
    outcome = entry.outcome
    elapsed = None
    if outcome and outcome.started_at and outcome.ended_at:
        elapsed = max(0.0, outcome.ended_at - outcome.started_at)
    reason = outcome.reason if outcome else "it was not started"
    return SegmentRun(entry.dir, entry.state, reason, elapsed, last_step, early)


def build_stamp() -> str:
    """Return a stamp that distinguishes the runs of one call from those of another."""
    import secrets

    return time.strftime("%Y%m%d-%H%M%S") + "-" + secrets.token_hex(2)


# ---------------------------------------------------------------- which golden of several is used


def find_image(farm: Farm | None) -> str | None:
    """Return the container image of the runs: the farm's or, without a farm, the one of this process."""
    named = farm.options.get("container") if farm else None
    found = [named] if farm else [os.environ.get(name) for name in _IMAGE_VARIABLES]
    return next((os.path.basename(str(each)) for each in found if each), None)


def build_key(origin: Mapping[str, Any]) -> dict[str, str]:
    """Build the key of a provenance, or of an environment as runs record it."""
    gpus, torch = list_gpus(origin), (origin.get("packages") or {}).get("torch")
    gpu = (" and ".join(sorted({*gpus})) or "no GPU") if gpus is not None else None
    known = {"GPU": gpu, "torch": torch, "image": origin.get("image")}
    return {name: str(value) for name, value in known.items() if value}


def describe_key(key: Key) -> str:
    """Describe a key as `NVIDIA H100, torch 2.5.1`."""
    return ", ".join(value if name == "GPU" else f"{name} {value}" for name, value in key.items()) or "unknown"


def find_other(one: Key, other: Key) -> list[str]:
    """Return the names that have a value in both keys, if the values differ."""
    return [name for name in one if name in other and one[name] != other[name]]


def name_golden(context: GoldenContext) -> GoldenContext:
    """Choose the golden that a gathering with --environment writes."""
    name = context.options.environment
    if name is not None and (not name.isprintable() or not name or {*"/@"} & {*name}):
        raise UsageError(f"{name!r} cannot name an environment", "it becomes a part of a file's name, as in h100")
    return context if name in (None, DEFAULT) else _use(context, f"{name}{_MARK}{context.options.manifest_name}")


def choose_golden(context: GoldenContext) -> GoldenContext:
    """Choose the golden that --environment names, else the only golden, else the golden of the current environment."""
    names = _list_names(context)
    wanted = context.options.environment
    if wanted is None and len(names) < 2:
        return _use(context, *names.values()) if names else context
    keys = {
        name: build_key(manifests.load_manifest(_use(context, each).manifest, context.test.name).provenance)
        for name, each in names.items()
    }
    if wanted is not None:
        chosen, why = [wanted] if wanted in names else [name for name in names if wanted in name], "--environment"
        if not chosen:
            raise NotFoundError("environment", wanted, list(names))
    else:
        here = _load_key(context)
        fitting = {name: len(here.keys() & key.keys()) for name, key in keys.items() if not find_other(here, key)}
        chosen = [name for name, count in fitting.items() if count == max(fitting.values())]
        why = f"this environment is {describe_key(here)}"
    if len(chosen) != 1:
        choices = [f"--environment {shlex.quote(name)}  # {describe_key(keys[name])}" for name in chosen or names]
        what = f"{context.options.address or context.options.store} has {len(choices)} goldens of {context.test.name}"
        raise UsageError(f"{what} that may be meant: {why}", "\n  ".join(["one of:", *choices]))
    note = f"environment: {chosen[0]} ({describe_key(keys[chosen[0]])}), of {len(names)} goldens in the store; {why}"
    return replace(_use(context, names[chosen[0]]), chosen=note if wanted is None else note.rpartition(";")[0])


def _list_names(context: GoldenContext) -> dict[str, str]:
    """Return the environments of a test's goldens, each with the end of the file's name."""
    end, prefix = context.options.manifest_name, f"{context.test.name}_"
    found = [os.path.basename(path) for path in manifests.list_manifests(context.store)]
    ends = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    names = {each.removesuffix(_MARK + end): each for each in sorted(ends) if each.endswith(_MARK + end)}
    return {DEFAULT: end, **names} if end in ends else names


def _use(context: GoldenContext, manifest_name: str) -> GoldenContext:
    path = manifests.manifest_path(context.store, context.test.name, manifest_name)
    options = replace(context.options, manifest_name=manifest_name, environment=DEFAULT)  # the name has the environment
    return replace(context, manifest=path, options=options)


def _load_key(context: GoldenContext) -> Key:
    """Build the key of the runs that would be started. The GPUs and packages of a farm's nodes are unknown."""
    if context.farm is not None:
        return build_key({"image": find_image(context.farm)})
    found = load_environment(context.folder, ())
    packages = found.job_packages or found.packages
    gpus = [asdict(gpu) for gpu in found.gpus]
    return build_key({"hardware": {"gpus": gpus}, "packages": packages, "image": find_image(None)})

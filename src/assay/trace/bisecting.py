"""`assay trace bisect`: finds the step, module and operation that first differ, in three executions of each side."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from assay.code.checkout import Checkouts, commit_work_tree, load_commit, open_checkouts
from assay.code.snapshot import take_snapshot
from assay.config.places import choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, ExitCode, InfrastructureError, UsageError
from assay.follow.api import Entry, StudyLocation, show_command
from assay.follow.locations import show_path
from assay.launch.api import (
    Origin,
    RunHooks,
    SideOptions,
    build_bare_study,
    build_side_command,
    check_paths,
    find_study_location,
    run_specs,
)
from assay.record.checkpoints import list_checkpoints
from assay.show.console import Console
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import load_lines
from assay.trace.comparing import compare, load_recording
from assay.trace.judge.calls import Call, Opinion, Parting, find_parting, find_unknown, walk_tensors
from assay.trace.judge.difference import OUTERMOST, Comparison, First
from assay.trace.recording import COMMAND, STUDY, TraceStep, check_target, describe_nothing, trace_spec
from assay.trace.records import list_traces
from assay.trace.settings import TraceSettings, parse_steps
from assay.values import layout
from assay.values.document import Commands, Document, Facts, Notes, Section, Span, Text
from assay.values.options import argument, json_option, option, quiet_option, root_option
from assay.values.plain import build_plain
from assay.values.run import Command, RunSpec, spec_id
from assay.values.study import CHECKPOINT_FILES, CodePolicy, Farm, Resources
from assay.values.verdict import VerdictKind

SIDES = ("a", "b")
CHECKPOINT = "{checkpoint}"
_SNAPSHOT = CodePolicy("snapshot", link_ignored=False)
_WITH_OPS = ("module", "gradient", "nonfinite")  # kinds of a first difference that operations can explain
_LIMIT_S = 600  # for repro.py
_FIGURES = re.compile(r"by (\S+); computed.*\n.*A (\S+), B (\S+); in float64 B differs from A by (\S+)")


class TraceBisectRequest(SideOptions):
    command: tuple[str, ...] = argument("-- COMMAND...", multiple=True)
    b_command: str | None = option("--b-command", metavar="TEXT", help="Side b: this command line in place of COMMAND.")
    steps: tuple[int, ...] = option(
        "--steps",
        default=tuple(range(1, 101)),
        metavar="N-N",
        parse=parse_steps,
        help="Steps to search, counted from 1.  [default: 1-100]",
    )
    resume: str | None = option(
        "--resume", metavar="WORDS", help="Arguments that make the command continue from its {checkpoint}."
    )
    output: str | None = option("-o", "--output", metavar="DIR", help="Folder of repro.py.  [default: in the run of B]")
    root: str | None = root_option()
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print verdict, step, module, op and all runs as JSON.")


class BisectInterruptedError(AssayError):
    exit_code = ExitCode.INTERRUPTED


class NothingRecordedError(UsageError):
    """A side was executed, and recorded no trace."""


@dataclass(frozen=True, slots=True)
class SideCode:
    """The code that a side executes: a snapshot and the folder in it, or the current files."""

    title: str = "the files as they are"
    hash: str | None = None
    commit: str | None = None
    inside: str = os.curdir


@dataclass(frozen=True, slots=True)
class Stage:
    what: str
    runs: tuple[str, str]  # run directories
    found: Comparison


@dataclass(frozen=True, slots=True)
class Repro:
    """The folder of repro.py, if it was written. `opinion`: what it found; None with the reason in `problem`."""

    folder: str | None
    opinion: Opinion | None = None
    problem: str = ""


class Bisector:
    """Executes both sides until the operation is found; its attributes are the findings and how they were made."""

    def __init__(
        self, request: TraceBisectRequest, console: Console, folder: str = os.curdir,
        env: tuple[tuple[str, str], ...] = (), inputs: str = "",
    ) -> None:  # fmt: skip
        """Prepare both sides. `env`: additional variables. `inputs`: a path in the commands that is not code."""
        self._request, self._console, self._folder = request, console, os.path.abspath(folder)
        self._env, self._inputs = env, inputs
        self._settings: Settings = load_settings(os.getcwd(), os.environ)
        self._location: StudyLocation = find_study_location(STUDY, request.root, self._settings)
        self._study = build_bare_study(STUDY, "assay trace bisect", self._folder)
        self._farm: Farm | None = choose_farm(self._study, request.on, self._settings)
        words = request.command, (request.b_command,) if request.b_command else request.command
        self.codes = self._keep_codes(words)
        sides = zip(SIDES, words, (request.a_env, request.b_env), strict=True)
        self.commands = {side: build_side_command(own, prefix, self.codes[side].inside) for side, own, prefix in sides}
        self.stages: list[Stage] = []
        self.parting: Parting | None = None
        self.repro: Repro | None = None
        self.notes: list[str] = []
        self.skipped = 0  # steps before the checkpoint from which the later executions began

    @property
    def began(self) -> First | None:
        return self.stages[0].found.first

    @property
    def finest(self) -> Stage:
        """The stage of the modules, or of the step alone; operations only explain its finding."""
        return self.stages[min(1, len(self.stages) - 1)]

    def run(self) -> Bisector:
        steps = self._execute("steps", TraceSettings(self._request.steps, "step"))
        first = steps.found.first
        if first is None or steps.found.other_precision:
            return self
        step, words = first.step, self._find_checkpoint(steps, first.step)
        modules = self._execute(f"modules of step {step}", TraceSettings((step - self.skipped,)), words)
        first = modules.found.first
        if first is None:
            self.notes.append(f"step {step} differs in the first execution and not in the second")
        elif first.kind in _WITH_OPS and not modules.found.other_precision:
            keep = tuple(map(glob.escape, choose_modules(modules.found, first)))
            settings = TraceSettings((step - self.skipped,), "op", keep=keep)
            self._find_operation(self._execute(f"operations of {first.module}", settings, words, modules), step)
        return self

    def _find_operation(self, stage: Stage, step: int) -> None:
        a, b = (list_traces(each) for each in stage.runs)
        for folders in zip(a, b, strict=False):
            calls = [load_lines(os.path.join(folder, "calls.jsonl")) for folder in folders]
            if parting := find_parting(*calls):
                target = self._request.output or os.path.join(stage.runs[1], "repro")
                title = f"{parting.module or OUTERMOST} in step {step}: {parting.text}"
                self.parting, self.repro = parting, write_repro(parting, folders, target, title)
                return
        self.notes.append("no operation that was recorded differs: the difference is inside of a compiled region")

    # ------------------------------------------------------------ executions

    def _execute(self, what: str, settings: TraceSettings, words: str = "", before: Stage | None = None) -> Stage:
        """Execute both sides. `before`: the stage whose finding this execution only has to explain."""
        number = len(self.stages) + 1
        self._console.message(f"execution {number} of at most 3, both sides: {what}")
        specs = {side: self._build_spec(side, number, settings, words) for side in SIDES}
        codes = [(specs[side].id, self.codes[side]) for side in SIDES if self.codes[side].hash]
        origins = {key: Origin(None, code_hash=code.hash, commit=code.commit) for key, code in codes}
        study = replace(self._study, code=_SNAPSHOT, resources=Resources()) if origins else self._study
        hooks = RunHooks(console=self._console, owns_process=True, tick_s=0.1, steps=(TraceStep(),))
        report = run_specs(
            study, self._location, list(specs.values()), hooks, farm=self._farm, settings=self._settings,
            command_line=tuple(sys.argv), origins=origins,
        )  # fmt: skip
        if report.interrupted:
            raise BisectInterruptedError(f"interrupted by {report.interrupted}")
        if report.problem:
            raise InfrastructureError(report.problem)
        entries = {entry.spec.name: entry for entry in report.entries}
        a, b = (self._check_run(side, entries[specs[side].name]) for side in SIDES)
        found = before.found if before is not None else compare(load_recording(a), load_recording(b))
        self.stages.append(Stage(what, (a, b), found))
        return self.stages[-1]

    def _check_run(self, side: str, entry: Entry) -> str:
        """Check that a run has a trace. A program that fails after its recorded steps is judged by these."""
        if not list_traces(entry.dir):
            logs = f"see what it printed: {show_command(['logs'], self._location, entry.spec.name)}"
            text = f"side {side} is {entry.state}, nothing was recorded: {describe_nothing(entry.dir)}"
            raise NothingRecordedError(text, logs)
        return entry.dir

    def _build_spec(self, side: str, number: int, settings: TraceSettings, words: str) -> RunSpec:
        name = f"bisect-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}-{number}{side}"
        commands, params = (Command(COMMAND, f"{self.commands[side]} {words}".strip()),), {"name": name}
        spec = RunSpec(id=spec_id(commands, params), name=name, params=params, commands=commands, env=self._env)
        return trace_spec(replace(spec, code=_SNAPSHOT) if self.codes[side].hash else spec, settings)

    def _find_checkpoint(self, stage: Stage, step: int) -> str:
        """Return the words that start both sides from A's last checkpoint before a step: A and B are equal up to it."""
        if not self._request.resume:
            return ""
        written = [each for each in list_checkpoints(stage.runs[0], CHECKPOINT_FILES) if each.numbers]
        before = [(each.numbers[-1], each.path) for each in written if each.numbers[-1] < step]
        if not before:
            self.notes.append(f"A wrote no checkpoint before step {step}: all executions began at the beginning")
            return ""
        self.skipped, path = max(before)
        return self._request.resume.replace(CHECKPOINT, shlex.quote(os.path.join(stage.runs[0], path)))

    # ------------------------------------------------------------ code

    def _keep_codes(self, words: Sequence[Sequence[str]]) -> dict[str, SideCode]:
        """Use the current files for both sides, or copies of their git trees if a revision or a farm is named."""
        revisions = (self._request.a_rev, self._request.b_rev)
        if not (any(revisions) or self._farm):
            return dict.fromkeys(SIDES, SideCode())
        texts = [each for command in words for each in command]
        check_paths([each.replace(self._inputs, "") if self._inputs else each for each in texts], self._folder)
        meta = os.path.join(self._location.dir, layout.STUDY_META_DIR)
        with open_checkouts(self._folder, meta, lambda trees: self._console.message(f"waiting for {trees}")) as trees:
            sides = zip(SIDES, revisions, strict=True)
            return {side: self._keep_code(trees, revision, meta) for side, revision in sides}

    def _keep_code(self, trees: Checkouts, revision: str | None, meta: str) -> SideCode:
        secret = self._settings.secrets.file_patterns
        if revision is None:
            commit, title = commit_work_tree(trees.open("side"), self._location.root, secret), "the files as they are"
        else:
            commit = load_commit(trees.repository, revision)
            title = f"{commit.short} {commit.subject}"
        trees.enter("side", commit)
        snapshot = take_snapshot(trees.open("side").path, os.path.join(meta, layout.CODE_STORE_DIR), link=False)
        return SideCode(title, snapshot.hash, commit.sha, trees.inside[0])


def choose_modules(found: Comparison, first: First) -> list[str]:
    """Return the module of the first difference and those that contain it, whose own code runs between modules; for a
    gradient also the module with the gradient before it, so that the code between the two counts as well."""
    parts = [] if first.module == OUTERMOST else first.module.split(".")
    paths = [".".join(parts[:count]) for count in range(len(parts) + 1)]
    keys = [found.a.keys[int(point)] for point in found.compared.point[: max(0, first.index)]]
    before = [key[1] for key in keys if key[0] == "backward"]
    return [*paths, *(before[-1:] if first.phase == "backward" else ())]


# ---------------------------------------------------------------- one operation alone: repro.py


def write_repro(parting: Parting, folders: tuple[str, str], target: str, title: str) -> Repro:
    """Write a repro and execute it once. `folders`: the traces of the two sides, which contain the tensors."""
    sides = list(zip("ab", (parting.a, parting.b), folders, strict=True))
    for letter, call, _ in sides:
        unknown = find_unknown([call["args"], call["kwargs"], call["result"]]) if call else "no further operation"
        if unknown or call is None:
            return Repro(None, problem=f"no repro.py: side {letter} has {unknown}")
    os.makedirs(target, exist_ok=True)
    for letter, call, folder in sides:
        _write_call(call or {}, os.path.join(folder, "kept.bin"), os.path.join(target, letter))
    text = files("assay.trace").joinpath("repro_template.txt").read_text(encoding="utf-8")
    path = os.path.join(target, "repro.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("TITLE", title.replace("\\", "/").replace('"', "'")))
    return _run_repro(path, str(parting.call.get("executable")))


def _write_call(call: Call, kept: str, path: str) -> None:
    """Write a call to `path`.json and its tensors, each once, to `path`.bin."""
    own: Any = json.loads(json.dumps({name: call[name] for name in ("op", "args", "kwargs", "result")}))
    written: dict[str, int] = {}
    with open(kept, "rb") as source, open(f"{path}.bin", "wb") as file:
        for tensor in walk_tensors(own):
            source.seek(tensor["offset"])
            if tensor["hash"] not in written:
                written[tensor["hash"]] = file.tell()
                file.write(source.read(tensor["bytes"]))
            tensor["offset"] = written[tensor["hash"]]
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(own, file)


def _run_repro(path: str, executable: str) -> Repro:
    """Execute the repro with the interpreter of side B, if that is on this machine."""
    python, folder = executable if os.path.exists(executable) else sys.executable, os.path.dirname(path)
    try:
        done = subprocess.run([python, path], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Repro(folder, problem=f"float64 was not computed: {error}")
    if found := _FIGURES.search(done.stdout):
        return Repro(folder, Opinion(*map(float, found.groups())))
    lines = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()
    has_reason = lines[-1].startswith("float64 ")  # the operation has no kernel for float64
    return Repro(folder, problem=lines[-1] if has_reason else f"float64 was not computed: {lines[-1]}")


# ---------------------------------------------------------------- the command and its document


def bisect(request: TraceBisectRequest, console: Console) -> int:
    """Find which operation of which module, in which step, made two executions of a program differ.

    \b
    assay trace bisect --b-command 'python train.py --fused' -- python train.py
    assay trace bisect --a-rev HEAD~1 -- python train.py

    Each side is executed at most three times: to find the step, the module, and the operation. The operation's inputs
    are kept with a repro.py that shows the difference alone, and how far each side is from float64.

    Exit code 0: equal bit for bit. 3: not equal, or undecided.
    """
    if request.output:
        check_target(request.output, "-o")
    if not (request.a_rev or request.b_rev or request.b_command) and request.a_env == request.b_env:
        hint = "name what is not the same: --b-command 'python train.py --fused', --a-rev HEAD~1 or --b-env new-venv"
        raise UsageError("both sides are the same", hint)
    if request.resume and CHECKPOINT not in request.resume:
        raise UsageError(f"--resume {request.resume!r} has no {CHECKPOINT}", f"as in --resume '--resume {CHECKPOINT}'")
    found = Bisector(request, console.quieted(request.quiet or request.as_json)).run()
    document, verdict = build_bisect_document(found)
    console.write_document(document, as_json=request.as_json)
    return int(verdict.exit_code)


def build_bisect_document(found: Bisector) -> tuple[Document, VerdictKind]:
    verdict, answer = judge_bisection(found)
    blocks = [
        Section((Text((Span(str(verdict), str(verdict)), f": {answer}"), role="answer"),)),
        Section((Facts([*_list_facts(found)], folds=False),)),
        Section((Notes(found.notes),), "Also"),
        Section((Commands([*list_commands(found)]),)),
    ]
    return Document(f"{verdict} trace bisect", blocks, facts=_build_facts(found, verdict, answer)), verdict


def judge_bisection(found: Bisector) -> tuple[VerdictKind, str]:
    """Judge the finest finding: an operation, a module or another cause, or a step."""
    stage, began = found.finest.found, found.began
    if stage.first is None and began is not None:
        return VerdictKind.INCONCLUSIVE, f"{began.text}; executed once more nothing differs there"
    kind, text = stage.kind, stage.verdict.findings[0].message if stage.verdict.findings else "nothing was compared"
    if found.parting is None or began is None:
        return kind, text
    return kind, f"{found.parting.module or OUTERMOST} in step {began.step}: {found.parting.text}"


def _list_facts(found: Bisector) -> Iterator[tuple[str, str]]:
    for side in SIDES:
        yield side.upper(), f"{found.commands[side]} ({found.codes[side].title})"
    if found.began is not None:
        again = f", executed again from the checkpoint of step {found.skipped}" if found.skipped else ""
        yield "step", f"{found.began.step}{again}"
    if len(found.stages) > 1 and (first := found.finest.found.first):
        yield "module", first.text
    if found.parting is not None:
        yield "operation", f"{found.parting.call['op']} ({found.parting.call['phase']})"
        sources = dict.fromkeys(str(call["source"]) for call in (found.parting.a, found.parting.b) if call)
        yield "source", " in A, ".join(sources) + (" in B" if len(sources) > 1 else "")
    if found.repro is not None:
        yield "float64", found.repro.opinion.text if found.repro.opinion else found.repro.problem
    yield "executions", f"{len(found.stages)} of each side"


def list_commands(found: Bisector) -> Iterator[tuple[str, str]]:
    if found.repro is not None and found.repro.folder:
        path = show_path(os.path.join(found.repro.folder, "repro.py"))
        yield "this operation alone", f"python {shlex.quote(path)}"
    if found.began is not None:
        runs = " ".join(shlex.quote(show_path(each)) for each in found.finest.runs)
        yield "everything around it", f"assay trace diff {runs}"


def _build_facts(found: Bisector, verdict: VerdictKind, answer: str) -> dict[str, object]:
    began, parting, repro = found.began, found.parting, found.repro
    module = found.finest.found.first if len(found.stages) > 1 else None
    return {
        "verdict": str(verdict),
        "answer": answer,
        "step": began.step if began else None,
        "first": build_plain(module or began),
        "module": (parting.module or OUTERMOST) if parting else module.module if module else None,
        "op": parting.call["op"] if parting else None,
        "kind": parting.kind if parting else module.kind if module else None,
        "opinion": build_plain(repro.opinion) if repro else None,
        "repro": repro.folder if repro else None,
        "executions": [{"what": stage.what, "runs": list(stage.runs)} for stage in found.stages],
        "notes": found.notes,
    }

"""Builds artifacts: steps run in a worker process for each target, and only if the store lacks their result.

A step's key is everything that its result depends on: the input bytes, the tools and their versions, the flags. A
changed model, tool or flag changes the key, so an outdated result is never served. Failures are never stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from glob import escape, iglob
from typing import Any, Self

from assay.errors import UsageError
from assay.models.backends.base import BackendError
from assay.models.backends.onnx_backend import find_external
from assay.models.backends.registry import build_backend
from assay.models.flow.step_files import DumpFolders, keep_failure
from assay.models.graph.graph import load_model, write_model
from assay.models.graph.onnx_library import find_least_ir
from assay.models.profiles import finish_profiles
from assay.models.store.artifacts import ArtifactStore, StoredArtifact
from assay.models.store.entry import build_key, hash_file
from assay.models.trace import Slice
from assay.models.values.model import Job, Step, StepLimits, StepOutcome, Target
from assay.models.values.tensors import TensorSpec
from assay.models.worker_process import WorkerProcess
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.locks import LOCK_FILE, try_lock_file
from assay.values.plain import build_plain, parse_plain

_UNREPEATABLE = ("ir_dir", "profile_dir")  # fields of a job: dumps come from executing a tool, never from the store

_IR_TOO_NEW = re.compile(
    r"IR version \d+ is newer than .* knows \((?P<most>\d+)\)"
    r"|ir_version \d+ is higher than the checker's \((?P<checked>\d+)\)"
)


@dataclass(frozen=True, slots=True)
class Product:
    """A file or folder, and the hash of its content."""

    path: str
    sha: str


@dataclass(frozen=True, slots=True)
class Dumps:
    """Folders for files that tools write next to their result; each has one sub-folder per case (`DumpFolders`)."""

    ir_dir: str | None = None
    compile_profile_dir: str | None = None
    run_profile_dir: str | None = None
    name: str | None = None  # name of the sub-folder, if several chips are tested and the case's name is not unique


@dataclass(frozen=True, slots=True)
class Wants:
    """The outputs that a run has to produce."""

    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...] = ()
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of one case on one target, up to the first that failed."""

    steps: tuple[StepOutcome, ...] = ()
    outputs: str = ""  # folder of tensors; empty if a step failed

    @property
    def failed(self) -> StepOutcome | None:
        return next((step for step in self.steps if not step.is_ok), None)


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder with a file that is locked while its process lives; those of killed processes are removed."""

    _PREFIX = "assay-model-"

    def __init__(self) -> None:
        for path in iglob(os.path.join(escape(tempfile.gettempdir()), f"{self._PREFIX}*", LOCK_FILE)):
            with suppress(OSError):  # the folder may be another user's
                abandoned = try_lock_file(path, create=False)
                if abandoned is not None:
                    shutil.rmtree(os.path.dirname(path), ignore_errors=True)
                    os.close(abandoned)
        super().__init__(prefix=self._PREFIX, ignore_cleanup_errors=True)
        self._lock: int | None = None
        with suppress(OSError):  # on a file system without locks, nothing is removed
            while self._lock is None:
                os.makedirs(self.name, 0o700, exist_ok=True)  # another process may just have removed it as abandoned
                self._lock = try_lock_file(os.path.join(self.name, LOCK_FILE))

    def cleanup(self) -> None:
        super().cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@dataclass(slots=True)
class ArtifactBuilder:
    """Builds a process's artifacts. `explain_to` gets the reason of each hit or miss; `live` shows tools' output;
    inputs of failed steps are kept in `failure_dir`; `slices` are the executed steps with their times."""

    store: ArtifactStore
    limits: StepLimits = field(default_factory=StepLimits)
    recompute: bool = False
    live: bool = False
    explain_to: Callable[[str], None] | None = None
    dumps: Dumps = field(default_factory=Dumps)  # dumps of the tested target; the reference has none
    failure_dir: str = ""
    slices: list[Slice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # notes about inputs of back ends, and about dumps
    _ir_limits: dict[str, int] = field(default_factory=dict)  # target → the newest IR version that it accepts
    _held: list[list[StoredArtifact]] = field(default_factory=lambda: [[]])
    _workers: dict[str, WorkerProcess] = field(default_factory=dict)
    _tools: dict[str, Future[Mapping[str, str]]] = field(default_factory=dict)
    _starting: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "assay-start"))
    _since: float = field(default_factory=time.time)
    _folders: DumpFolders = field(default_factory=DumpFolders)
    _scratch: Scratch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        wait(self._tools.values())
        list(self._starting.map(WorkerProcess.close, self._workers.values()))  # in parallel: closing takes a while
        self._workers.clear()
        self._starting.shutdown()  # at the end: a worker dies with the thread that started it
        self.store.close()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def forget(self, target: Target) -> None:
        """End the worker of a target, which frees its memory for other targets."""
        worker = self._workers.pop(_name_target(target), None)
        if worker is not None:
            worker.close()

    @property
    def scratch(self) -> str:
        """A temporary folder that is removed with the builder."""
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.name

    def make_folder(self, hint: str = "x") -> str:
        return tempfile.mkdtemp(prefix=f"{hint}-", dir=self.scratch)

    @contextmanager
    def borrowing(self) -> Iterator[None]:
        """Release artifacts taken from the store in this block at its end: their paths are invalid from then on."""
        self._held.append([])
        try:
            yield
        finally:
            for artifact in self._held.pop():
                artifact.close()

    @contextmanager
    def changing(self, **values: Any) -> Iterator[None]:
        """Set these fields to other values in this block."""
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def keeping(self) -> AbstractContextManager[None]:
        """Keep artifacts taken in this block until the builder is closed, also inside of `borrowing`."""
        return self.changing(_held=self._held[:1])

    def forgetting(self) -> AbstractContextManager[None]:
        """Keep no files of steps that fail in this block, in which failures are expected."""
        return self.changing(failure_dir="")

    def begin_again(self) -> None:
        """If `recompute` is set, treat everything that was made up to now as outdated."""
        self._since = time.time()

    def begin(self, *targets: Target) -> None:
        """Start the workers of targets in the background: loading a compiler takes a while."""
        for target in targets:
            name = _name_target(target)
            if name not in self._tools:
                worker = self._find_worker(target)
                self._tools.setdefault(name, self._starting.submit(worker.identity))

    def find_tools(self, target: Target) -> Mapping[str, str]:
        """Return the versions of a target's tools. Raises MissingExtraError or InfrastructureError without them."""
        self.begin(target)
        return self._tools[_name_target(target)].result()

    def compute(self, target: Target, model: Product, inputs: Product, wants: Wants, case: str) -> Work:
        """Perform all steps: import, compile and run."""
        made = self.prepare(target, model, case)
        if made.failed is not None:
            return made
        artifact = Product(made.steps[-1].path, made.steps[-1].key) if made.steps else self._lower(target, model)
        ran = self.run(target, artifact, inputs, wants, case)
        return Work((*made.steps, ran), ran.path if ran.is_ok else "")

    def prepare(self, target: Target, model: Product, case: str) -> Work:
        """Perform every step before the run."""
        made = self._prepare(target, self._lower(target, model), case)
        too_new = _IR_TOO_NEW.search(made.failed.message) if made.failed is not None else None
        if too_new is None or _name_target(target) in self._ir_limits:
            return made
        self._ir_limits[_name_target(target)] = int(too_new["most"] or too_new["checked"])
        lowered = self._lower(target, model)
        return made if lowered is model else self._prepare(target, lowered, case)

    def _lower(self, target: Target, model: Product) -> Product:
        """Return the model with the newest IR version that the target supports, if the model needs no newer version."""
        most = self._ir_limits.get(_name_target(target))
        if most is None:
            return model
        try:
            proto = load_model(model.path, external=False)
        except UsageError:
            return model  # the target reports the error
        if proto.ir_version <= most or find_external(model.path) or find_least_ir(proto) > most:
            return model
        done = f"the model's IR version {proto.ir_version} was lowered to {most} for {target.name}"
        self._note(f"{done}: it uses nothing newer")
        proto.ir_version = most
        path = os.path.join(self.make_folder("lowered"), os.path.basename(model.path))
        write_model(proto, path)
        return load_product(path)

    def _prepare(self, target: Target, model: Product, case: str) -> Work:
        source, steps = model, []
        for step in build_backend(target).steps:
            if step is Step.RUN:
                break
            outcome = self.build(target, step, source, case)
            steps.append(outcome)
            if not outcome.is_ok:
                break
            source = Product(outcome.path, outcome.key)
        return Work(tuple(steps))

    def build(self, target: Target, step: Step, source: Product, case: str) -> StepOutcome:
        """Perform one step before the run: import or compile."""
        compiles = step is Step.COMPILE
        job = Job(
            step,
            source.path,
            "",
            case=case,
            ir_dir=self._sub_folder(self.dumps.ir_dir, case, step, source) if compiles else None,
            profile_dir=self._sub_folder(self.dumps.compile_profile_dir, case, step, source) if compiles else None,
        )
        return self._obtain(target, job, {"source": source.sha, "flags": list(target.compile_flags)})

    def run(self, target: Target, artifact: Product, inputs: Product, wants: Wants, case: str) -> StepOutcome:
        profile_dir = self._sub_folder(self.dumps.run_profile_dir, case, Step.RUN, inputs)
        job = Job(
            Step.RUN, artifact.path, "", inputs=inputs.path, outputs=wants.outputs, output_specs=wants.specs,
            case=case, repeats=wants.repeats, profile_dir=profile_dir,
        )  # fmt: skip
        parts = {"source": artifact.sha, "flags": list(target.run_flags), "inputs": inputs.sha}
        return self._obtain(target, job, {**parts, "outputs": list(wants.outputs), "repeats": wants.repeats})

    def _obtain(self, target: Target, job: Job, parts: Mapping[str, Any]) -> StepOutcome:
        begun = self._tools.get(_name_target(target))
        if begun is not None:
            wait([begun])  # a worker answers one request at a time
        whole = {
            "what": str(job.step),
            "case": job.case,
            "backend": target.backend,
            "options": build_plain(target.options),
            "tools": dict(self._find_worker(target).identity(job.step)),
            **parts,
        }  # `tools` are only those of this step: a board that is off must not fail the compilation
        key = build_key(whole)
        again = any(getattr(job, name) is not None for name in _UNREPEATABLE)
        if self.explain_to is not None:
            self.explain_to(f"{job.case} {target.name} {job.step}: {self._explain(whole, again=again)}")
        failed: list[StepOutcome] = []

        def build(folder: str) -> dict[str, Any] | None:
            outcome = self._work(target, replace(job, folder=folder))
            if not outcome.is_ok:
                failed.append(keep_failure(self.failure_dir, target, replace(job, folder=folder), outcome))
                return None
            facts: dict[str, Any] = build_plain(replace(outcome, path=os.path.relpath(outcome.path, folder)))
            return facts

        since = self._since if self.recompute else None
        artifact, made = self.store.make(key, whole, build, recompute=again, made_since=since)
        is_old = not made and since is None  # results made since `since`, such as the reference's, count as new
        found = None if artifact is None else _build_outcome(artifact, cached=is_old)
        if artifact is not None and found is None:  # written by another version of Assay: treat as damaged
            artifact.close()
            artifact, made = self.store.make(key, whole, build, recompute=True)
            found = None if artifact is None else _build_outcome(artifact, cached=False)
        if artifact is None or found is None:
            return failed[-1]
        self._held[-1].append(artifact)
        return finish_profiles(job, found)

    def _explain(self, whole: Mapping[str, Any], *, again: bool) -> str:
        if again:
            return "miss: dumps are written only while it is made"
        if not self.recompute:
            return self.store.explain(whole)
        entry = self.store.load(build_key(whole))
        if entry is None:
            return "miss: there is none"
        with entry:
            is_new = entry.made_at >= self._since
        return "hit: made again just now" if is_new else "miss: everything is made again"

    def _work(self, target: Target, job: Job) -> StepOutcome:
        if job.ir_dir is not None:
            self._folders.clear(job.ir_dir)
        outcome = self._find_worker(target).work(job, self.limits)
        if job.ir_dir is not None:
            if outcome.is_ok and not any(files for _, _, files in os.walk(job.ir_dir)):
                has_place = "{ir_dir}" in str(target.options.get("compile") or "{ir_dir}")
                why = "" if has_place else ": there is no {ir_dir} in its compile command"
                self._note(f"--debug-ir: {target.name} wrote no intermediate representation{why}")
            self._folders.note(job.ir_dir)
        end_ns = time.time_ns()
        begun_ns = end_ns - max(0, round(outcome.elapsed_s * 1e9))  # the start of a worker does not count
        facts = {"ending": str(outcome.ending), "times_s": list(outcome.times_s)}
        self.slices.append(Slice((target.name, str(job.step)), job.case, begun_ns, end_ns, facts))
        return outcome

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _find_worker(self, target: Target) -> WorkerProcess:
        name = _name_target(target)
        if name not in self._workers:
            self._workers[name] = WorkerProcess(target, folder=self.make_folder("worker"), live=self.live)
        return self._workers[name]

    def _sub_folder(self, base: str | None, case: str, step: Step, given: Product) -> str | None:
        return None if base is None else self._folders.choose(base, self.dumps.name or case, step, given.sha)


def _build_outcome(artifact: StoredArtifact, *, cached: bool) -> StepOutcome | None:
    """Return the outcome of a step from the store; None if it cannot be read."""
    try:
        outcome = parse_plain(StepOutcome, artifact.facts)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    path = os.path.normpath(os.path.join(artifact.folder, outcome.path))
    return replace(outcome, path=path, key=artifact.key, cached=cached)


def _name_target(target: Target) -> str:
    """Return a hash of the whole target: two targets may have one name in ids, and different flags."""
    return hashlib.sha256(repr(build_plain(target)).encode()).hexdigest()


def load_product(path: str) -> Product:
    """Return a model's file with the hash of its bytes and of the external data next to it. Raises UsageError."""
    try:
        others = find_external(path)
    except BackendError as error:
        raise UsageError(error.message, error.hint or None) from None
    folder = os.path.dirname(os.path.abspath(path))
    total = hashlib.sha256()
    for each in (path, *(os.path.join(folder, name) for name in others)):
        total.update(bytes.fromhex(hash_file(each)))
    return Product(path, total.hexdigest())

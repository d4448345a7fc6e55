"""Where artifacts are made: each step of a back end by a worker of its own, and only when the store has none.

A step's key is everything that its result depends on: the bytes that go in, the tools and their versions, the flags. A
changed model, tool or flag is another key, so nothing old is ever served. What failed is never kept.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Self

from assay.flows.model.profiling import finish_profiles
from assay.probe.backends.registry import build_backend
from assay.probe.keeper import Keeper
from assay.record.artifacts import Artifact, ArtifactStore, build_key
from assay.values.model import Job, Limits, Step, StepOutcome, Target
from assay.values.plain import build_plain, parse_plain
from assay.values.tensors import TensorSpec

_UNREPEATABLE = ("ir_dir", "profile_dir")  # of a job: dumps are written by doing the work, not by remembering it


@dataclass(frozen=True, slots=True)
class Product:
    """A file or folder, and what it is made of."""

    path: str
    sha: str


@dataclass(frozen=True, slots=True)
class Dumps:
    """Folders for what tools tell beside their result; one sub-folder per case is made in each."""

    ir_dir: str | None = None
    compile_profile_dir: str | None = None
    run_profile_dir: str | None = None
    name: str | None = None  # of the sub-folder, where the case's own will not do: it may be tested for several chips


@dataclass(frozen=True, slots=True)
class Wants:
    """What a run is to produce."""

    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...] = ()
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of one case on one target, up to the first that failed."""

    steps: tuple[StepOutcome, ...] = ()
    outputs: str = ""  # folder of tensors; empty where a step failed

    @property
    def failed(self) -> StepOutcome | None:
        return next((step for step in self.steps if not step.is_ok), None)


@dataclass(slots=True)
class Workshop:
    """One per process. `say` hears why each artifact was a hit or a miss; `live` shows the tools' own output."""

    store: ArtifactStore
    limits: Limits = field(default_factory=Limits)
    recompute: bool = False
    live: bool = False
    say: Callable[[str], None] | None = None
    dumps: Dumps = field(default_factory=Dumps)
    _keepers: dict[str, Keeper] = field(default_factory=dict)
    _tools: dict[str, Future[Mapping[str, str]]] = field(default_factory=dict)
    _starting: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "assay-start"))
    _since: float = field(default_factory=time.time)
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        wait(self._tools.values())
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers.clear()
        self._starting.shutdown()  # behind them: a worker dies with the thread that started it
        self.store.close()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def forget(self, target: Target) -> None:
        """End its worker: another target needs the memory."""
        keeper = self._keepers.pop(_name_target(target), None)
        if keeper is not None:
            keeper.close()

    @property
    def scratch(self) -> str:
        """A folder that goes with us."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="assay-model-")
        return self._scratch.name

    def make_folder(self, hint: str = "x") -> str:
        return tempfile.mkdtemp(prefix=f"{hint}-", dir=self.scratch)

    def begin_again(self) -> None:
        """With `recompute`: what was made up to now counts as old."""
        self._since = time.time()

    # ------------------------------------------------------------ steps

    def begin(self, *targets: Target) -> None:
        """Start their workers side by side: loading a compiler takes a while, and there is other work meanwhile."""
        for target in targets:
            name = _name_target(target)
            if name not in self._tools:
                keeper = self._keeper(target)
                self._tools.setdefault(name, self._starting.submit(keeper.identity))

    def find_tools(self, target: Target) -> Mapping[str, str]:
        """Names and versions. Raises MissingExtraError or InfrastructureError where the target cannot be had."""
        self.begin(target)
        return self._tools[_name_target(target)].result()

    def compute(self, target: Target, model: Product, inputs: Product, wants: Wants, case: str) -> Work:
        """Import, compile and run."""
        made = self.prepare(target, model, case)
        if made.failed is not None:
            return made
        artifact = Product(made.steps[-1].path, made.steps[-1].key) if made.steps else model
        ran = self.run(target, artifact, inputs, wants, case)
        return Work((*made.steps, ran), ran.path if ran.is_ok else "")

    def prepare(self, target: Target, model: Product, case: str) -> Work:
        """Every step before the run."""
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
        """Import or compile."""
        compiles = step is Step.COMPILE
        job = Job(
            step,
            source.path,
            "",
            case=case,
            ir_dir=self._sub_folder(self.dumps.ir_dir, case) if compiles else None,
            profile_dir=self._sub_folder(self.dumps.compile_profile_dir, case) if compiles else None,
        )
        return self._obtain(target, job, {"source": source.sha, "flags": list(target.compile_flags)})

    def run(self, target: Target, artifact: Product, inputs: Product, wants: Wants, case: str) -> StepOutcome:
        job = Job(
            Step.RUN,
            artifact.path,
            "",
            inputs=inputs.path,
            outputs=wants.outputs,
            output_specs=wants.specs,
            case=case,
            repeats=wants.repeats,
            profile_dir=self._sub_folder(self.dumps.run_profile_dir, case),
        )
        parts = {
            "source": artifact.sha,
            "flags": list(target.run_flags),
            "inputs": inputs.sha,
            "outputs": list(wants.outputs),
            "repeats": wants.repeats,
        }
        return self._obtain(target, job, parts)

    # ------------------------------------------------------------ the store

    def _obtain(self, target: Target, job: Job, parts: Mapping[str, Any]) -> StepOutcome:
        whole = {
            "what": str(job.step),
            "case": job.case,
            "backend": target.backend,
            "options": build_plain(target.options),
            "tools": dict(self.find_tools(target)),
            **parts,
        }
        key = build_key(whole)
        if self.say is not None and not self.recompute:
            self.say(f"{job.case} {target.name} {job.step}: {self.store.explain(whole)}")
        failed: list[StepOutcome] = []

        def build(folder: str) -> dict[str, Any] | None:
            outcome = self._keeper(target).work(replace(job, folder=folder), self.limits)
            if not outcome.is_ok:
                failed.append(outcome)
                return None
            path = os.path.relpath(outcome.path, folder)
            facts: dict[str, Any] = build_plain(replace(outcome, path=path))
            return facts

        again = any(getattr(job, name) is not None for name in _UNREPEATABLE)
        since = self._since if self.recompute else None
        artifact, made = self.store.make(key, whole, build, recompute=again, made_since=since)
        if artifact is None:
            return failed[-1]
        return finish_profiles(job, _build_outcome(artifact, key, cached=not made))

    def _keeper(self, target: Target) -> Keeper:
        name = _name_target(target)
        if name not in self._keepers:
            self._keepers[name] = Keeper(target, folder=self.make_folder("worker"), live=self.live)
        return self._keepers[name]

    def _sub_folder(self, base: str | None, case: str) -> str | None:
        if base is None:
            return None
        folder = os.path.join(os.path.abspath(base), self.dumps.name or case)
        os.makedirs(folder, exist_ok=True)
        return folder


def _build_outcome(artifact: Artifact, key: str, *, cached: bool) -> StepOutcome:
    outcome = parse_plain(StepOutcome, artifact.facts)
    return replace(outcome, path=os.path.normpath(os.path.join(artifact.folder, outcome.path)), key=key, cached=cached)


def _name_target(target: Target) -> str:
    """Two targets may have one name in ids, and different flags."""
    return hashlib.sha256(repr(build_plain(target)).encode()).hexdigest()


def hash_model(path: str, others: tuple[str, ...] = ()) -> str:
    """Of the file and of the external data beside it."""
    total = hashlib.sha256()
    for each in (path, *others):
        with open(each, "rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()

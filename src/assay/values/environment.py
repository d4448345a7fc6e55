"""The machine and the sources of a run."""

from __future__ import annotations

from collections.abc import Mapping

from assay.system.fast_dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GitState:
    commit: str
    branch: str | None
    dirty: bool
    diff: str = ""  # the diff of tracked files against the commit
    untracked: tuple[str, ...] = ()  # names only


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    subject: str
    author: str
    authored_at: str  # ISO 8601, with the author's zone

    @property
    def short(self) -> str:
        return self.sha[:12]


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    uuid: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Environment:
    """The provenance of a run. Results that were measured with different values of `fingerprint` are not comparable."""

    host: str
    user: str
    os: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    git: GitState | None = None
    command_line: tuple[str, ...] = ()
    fingerprint: str = ""
    job_python: str | None = None  # the `python` on PATH, if it is not the one that runs Assay
    job_packages: Mapping[str, str] = field(default_factory=dict)  # the packages of `job_python`

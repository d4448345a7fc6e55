"""What PerfZero's flags ask for, and where its workspace keeps things.

<workspace>/
    site-packages/<repository>/     what --git_repos checked out
    output/<execution id>/          one execution
        perfzero.log                its output, and the summary
        perfzero_summary.json       the summary alone
        process_info.log            what its processes used over time, a line of JSON each
        proto_<Class>.<method>      what TensorFlow's report_benchmark wrote
        profiler_data/              where TensorBoard's profile tab looks
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.bench.api import BenchExecution, BenchMethod, BenchReport, ProfileWindow
from assay.errors import ExitCode

HARNESS = "perfzero"
SUMMARY_FILE = "perfzero_summary.json"
LOG_FILE = "perfzero.log"
PROCESS_FILE = "process_info.log"
PLOT_FILE = "process_info.pdf"
PROFILE_DIR = "profiler_data"
DEFAULT_WORKSPACE = "workspace"
DEFAULT_DATA_DIR = "/data"
ENV_PREFIX = "PERFZERO_"

_USER = re.compile(r"(?<=://)[^/@\s]+@")


def hide_secrets(text: str) -> str:
    """A URL may carry a password or a token: `https://token@host/x` is recorded as `https://***@host/x`."""
    return _USER.sub("***@", text)


@dataclass(frozen=True, slots=True)
class Workspace:
    path: str  # absolute

    @property
    def site_packages(self) -> str:
        return os.path.join(self.path, "site-packages")

    @property
    def output(self) -> str:
        return os.path.join(self.path, "output")


@dataclass(frozen=True, slots=True)
class GitRepo:
    """`url;branch;hash`. A branch may also be a tag, as git itself takes it."""

    url: str
    branch: str | None = None
    commit: str | None = None

    @property
    def name(self) -> str:
        """The folder: the last part of the address without its suffix."""
        last = re.split(r"[/:]", self.url.rstrip("/"))[-1]
        return last.rsplit(".", 1)[0] or last


@dataclass(frozen=True, slots=True)
class Download:
    """`url;relative path;sha256:…`."""

    url: str
    path: str  # absolute
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """A repository in site-packages as it was when the benchmarks ran."""

    url: str
    branch: str
    commit: str
    dirty: bool = False  # files differ from the commit
    local_commits: int = 0  # that are in no repository that it was fetched from


@dataclass(frozen=True, slots=True)
class PerfzeroJob:
    """One call of the command."""

    methods: tuple[BenchMethod, ...]
    workspace: Workspace
    folder: str  # where it was called, and where methods are looked for first
    trials: int = 1
    repos: tuple[GitRepo, ...] = ()
    use_cached: bool = False
    python_path: tuple[str, ...] = ()  # absolute
    downloads: tuple[Download, ...] = ()  # those of --gcs_downloads first
    data_dir: str = DEFAULT_DATA_DIR
    build_label: str | None = None
    execution_label: str | None = None
    platform_name: str | None = None
    system_name: str | None = None
    execution_id: str | None = None
    output_url: str | None = None
    scratch_url: str | None = None
    bigquery_project: str | None = None
    bigquery_table: str | None = None
    key_url: str | None = None
    windows: tuple[ProfileWindow, ...] = ()
    upload_methods: tuple[str, ...] = ()
    tpu: Mapping[str, Any] | None = None
    constructor_args: Mapping[str, Any] = field(default_factory=dict)
    class_type: Literal["tf_benchmark"] | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)  # all that have a value, for the summary
    # beyond the original
    timeout_s: float | None = None
    python: str | None = None
    root: str | None = None
    slots: tuple[str, ...] | None = None
    profiler: Literal["auto", "framework", "py-spy"] = "auto"
    refuse_contaminated: bool = False
    foreign_limit: float = 0.1


@dataclass(frozen=True, slots=True)
class JobContext:
    """What is the same for every execution of a call."""

    job: PerfzeroJob
    packages: Mapping[str, Package] = field(default_factory=dict)
    harness: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of the preparations by name, and of each execution by trial, method and part."""

    setup: Mapping[str, float] = field(default_factory=dict)
    executions: Mapping[tuple[int, str], Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PerfzeroReport:
    bench: BenchReport
    executions: tuple[BenchExecution, ...]  # those that have a summary
    times: Times = field(default_factory=Times)
    problems: tuple[str, ...] = ()  # of uploads and of the disk

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.worst({self.bench.exit_code, *([ExitCode.INTERNAL] if self.problems else [])})


@dataclass(slots=True)
class Clock:
    """How long each operation took, by the original's names."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[operation] = round(time.monotonic() - begin, 3)

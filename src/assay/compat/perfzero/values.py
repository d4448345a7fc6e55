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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from assay.bench.api import BenchExecution, BenchReport, BenchRequest
from assay.errors import ExitCode, UsageError

HARNESS = "perfzero"
SUMMARY_FILE = "perfzero_summary.json"
LOG_FILE = "perfzero.log"
PROCESS_FILE = "process_info.log"
PLOT_FILE = "process_info.pdf"
PROFILE_DIR = "profiler_data"
DEFAULT_WORKSPACE = "workspace"
SITE_PACKAGES = "site-packages"
DEFAULT_DATA_DIR = "/data"
ENV_PREFIX = "PERFZERO_"

_DIGEST_OF_LENGTH = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_USER = re.compile(r"(?<=://)[^/@\s]+@")


def hide_secrets(text: str) -> str:
    """A URL may carry a password or a token: `https://token@host/x` is recorded as `https://***@host/x`."""
    return _USER.sub("***@", text)


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
class Checksum:
    algorithm: str
    hex: str


def parse_checksum(text: str) -> Checksum:
    """`sha256:HEX`, or HEX alone, whose length determines the algorithm."""
    algorithm, colon, digits = text.strip().rpartition(":")
    expected = _DIGEST_OF_LENGTH.get(len(digits))
    algorithm = algorithm.lower().replace("-", "") if colon else expected or ""
    if not expected or algorithm != expected or not re.fullmatch(r"[0-9a-fA-F]+", digits):
        raise UsageError(
            f"{text!r} is not a checksum",
            "write sha256:HEX, or the HEX of a md5, sha1, sha256 or sha512 (32, 40, 64, 128 digits)",
        )
    return Checksum(algorithm, digits.lower())


@dataclass(frozen=True, slots=True)
class Download:
    """`url;relative path;sha256:…`."""

    url: str
    path: str  # absolute
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class DownloadRetry:
    """How often a download over http is tried again. Progress resets the count of attempts."""

    attempts: int = 5
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    timeout_s: float = 60.0
    report_s: float = 10.0  # between two lines about how far a long download is
    sleep: Callable[[float], None] = time.sleep


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
    """One call of the command: the benchmarks, what they need, and where results go besides the run directories."""

    bench: BenchRequest
    workspace: str  # absolute
    repos: tuple[GitRepo, ...] = ()
    use_cached: bool = False
    downloads: tuple[Download, ...] = ()  # those of --gcs_downloads first
    build_label: str | None = None
    platform_name: str | None = None
    system_name: str | None = None
    output_url: str | None = None
    bigquery_project: str | None = None
    bigquery_table: str | None = None
    key_url: str | None = None
    upload_methods: tuple[str, ...] = ()
    tpu: Mapping[str, Any] | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)  # all that have a value, for the summary
    packages: Mapping[str, Package] = field(default_factory=dict)  # once they are checked out
    harness: Mapping[str, Any] = field(default_factory=dict)

    @property
    def site_packages(self) -> str:
        return os.path.join(self.workspace, SITE_PACKAGES)


@dataclass(frozen=True, slots=True)
class PerfzeroReport:
    bench: BenchReport
    executions: tuple[BenchExecution, ...]  # those that have a summary
    setup_s: Mapping[str, float] = field(default_factory=dict)  # of each preparation
    execution_s: Mapping[tuple[int, str], Mapping[str, float]] = field(default_factory=dict)  # by trial and method
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

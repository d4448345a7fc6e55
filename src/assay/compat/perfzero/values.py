"""The values of PerfZero's flags, and the layout of its workspace.

<workspace>/
    site-packages/<repository>/     repositories of --git_repos
    output/<execution id>/          the files of one execution
        perfzero.log                the benchmark's output, and the summary
        perfzero_summary.json       only the summary
        process_info.log            the resources of the benchmark's processes over time, as lines of JSON
        proto_<Class>.<method>      the output of TensorFlow's report_benchmark
        profiler_data/              the folder for TensorBoard's profile tab
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

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
    """Hide passwords and tokens in URLs: `https://token@host/x` becomes `https://***@host/x`."""
    return _USER.sub("***@", text)


def is_url(text: str) -> bool:
    """Return whether the text begins like a URL and can be split, which an unclosed bracket prevents."""
    try:
        return urlsplit(text) is not None and re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:/*[^/\s]", text) is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class GitRepo:
    """A repository of the form `url;branch;hash`. As in git, the branch may also be a tag."""

    url: str
    branch: str | None = None
    commit: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the folder: the last part of the address without its suffix."""
        last = re.split(r"[/:]", self.url.rstrip("/"))[-1]
        return last.rsplit(".", 1)[0] or last


@dataclass(frozen=True, slots=True)
class Checksum:
    algorithm: str
    hex: str


def parse_checksum(text: str) -> Checksum:
    """Parse `sha256:HEX`, or HEX without a prefix, whose length determines the algorithm."""
    algorithm, colon, digits = text.strip().rpartition(":")
    expected = _DIGEST_OF_LENGTH.get(len(digits))
    algorithm = algorithm.lower().replace("-", "") if colon else expected or ""
    if not expected or algorithm != expected or not re.fullmatch(r"[0-9a-fA-F]+", digits):
        hint = "write sha256:HEX, or the HEX of a md5, sha1, sha256 or sha512 (32, 40, 64, 128 digits)"
        raise UsageError(f"{text!r} is not a checksum", hint)
    return Checksum(algorithm, digits.lower())


@dataclass(frozen=True, slots=True)
class Download:
    """A download of the form `url;relative path;sha256:…`."""

    url: str
    path: str  # absolute
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class DownloadRetry:
    """Settings for retries of a download over HTTP. Progress resets the count of attempts."""

    attempts: int = 5
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0
    timeout_s: float = 60.0
    report_s: float = 10.0  # between two lines about the progress of a long download
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Package:
    """The state of a repository in site-packages when the benchmarks ran."""

    url: str
    branch: str
    commit: str
    dirty: bool = False  # whether files differ from the commit
    local_commits: int = 0  # commits that no remote repository has


@dataclass(frozen=True, slots=True)
class PerfzeroJob:
    """One call of the command: the benchmarks, their requirements, and targets of results besides run directories."""

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
    flags: Mapping[str, Any] = field(default_factory=dict)  # all flags with a value, for the summary
    packages: Mapping[str, Package] = field(default_factory=dict)  # set after the checkout
    harness: Mapping[str, Any] = field(default_factory=dict)

    @property
    def site_packages(self) -> str:
        return os.path.join(self.workspace, SITE_PACKAGES)


@dataclass(frozen=True, slots=True)
class PerfzeroReport:
    bench: BenchReport
    executions: tuple[BenchExecution, ...]  # executions with a summary
    setup_s: Mapping[str, float] = field(default_factory=dict)  # seconds of each preparation
    execution_s: Mapping[tuple[int, str], Mapping[str, float]] = field(default_factory=dict)  # by trial and method
    problems: tuple[str, ...] = ()  # errors of uploads and of the disk

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.worst({self.bench.exit_code, *([ExitCode.INTERNAL] if self.problems else [])})


@dataclass(slots=True)
class Clock:
    """Measures the seconds of each operation, under the original's names."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[operation] = round(time.monotonic() - begin, 3)

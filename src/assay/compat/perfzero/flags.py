"""PerfZero's flags, parsed from strings. Errors about a value name its flag.

An empty value counts as no value, since wrappers pass `--output_gcs_url=""`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from assay.bench.api import BenchMethod, BenchRequest, check_python, parse_method, parse_windows
from assay.compat.perfzero.values import (
    DEFAULT_DATA_DIR,
    DEFAULT_WORKSPACE,
    ENV_PREFIX,
    SITE_PACKAGES,
    Download,
    GitRepo,
    PerfzeroJob,
    hide_secrets,
    is_url,
    parse_checksum,
)
from assay.errors import UsageError
from assay.system.files import parse_json
from assay.values.units import parse_slots, parse_timeout

T = TypeVar("T")

_FOREIGN_LIMIT = 0.1
_DOWNLOAD_FORM = (
    "write URL, URL;NAME or URL;NAME;sha256:CHECKSUM; a comma inside a URL is %2C; "
    "a file of this machine is file:///PATH, /PATH or ./PATH"
)


def parse_flags(flags: Mapping[str, Any], folder: str, environ: Mapping[str, str]) -> PerfzeroJob:
    """Parse the flags, which the command line gives by name: strings, booleans, and lists of strings for repeatable
    flags. `folder`: the current folder, in which methods are searched first."""
    given = _Flags(flags)
    workspace = os.path.abspath(os.path.join(folder, given.text("workspace") or DEFAULT_WORKSPACE))
    data_dir = os.path.abspath(os.path.join(folder, given.text("root_data_dir") or DEFAULT_DATA_DIR))
    project = given.text("bigquery_project_name")
    table = given.parse("bigquery_dataset_table_name", _parse_table)
    if bool(project) != bool(table):
        one, missing = ("project", "dataset_table") if project else ("dataset_table", "project")
        message = f"--bigquery_{one}_name is given and --bigquery_{missing}_name is not"
        raise UsageError(message, "give both, or neither")
    tpu = given.parse("tpu_parameters", _parse_tpu)
    python = check_python(given.text("python"))
    python_path = (os.path.join(workspace, SITE_PACKAGES, part) for part in given.parts("python_path"))
    bench = BenchRequest(
        methods=parse_methods(given.texts("benchmark_methods")),
        trials=int(given.parse("benchmark_num_trials", _parse_trials) or 1),
        timeout_s=parse_timeout(given.text("timeout")),
        label=given.text("execution_label"),
        folder=folder,
        root=given.text("root"),
        slots=given.parse("slots", parse_slots),
        python=os.path.abspath(python) if python is not None and os.sep in python else python,
        python_path=tuple(map(os.path.normpath, python_path)),
        data_dir=data_dir,
        tpu=tpu["name"] if tpu else None,
        constructor_args=given.parse("perfzero_constructor_args", _parse_object) or {},
        class_type="tf_benchmark" if given.parse("benchmark_class_type", _parse_class_type) else None,
        output_root=os.path.join(workspace, "output"),
        scratch_url=given.parse("scratch_gcs_url", _parse_url),
        execution_id=given.parse("execution_id", _parse_execution_id),
        profile=given.parse("profiler_enabled_time", parse_windows) or (),
        profiler=cast("Any", given.parse("profiler", _parse_profiler) or "auto"),
        profile_in_output=True,
        refuse_contaminated=bool(flags.get("refuse_contaminated")),
        foreign_limit=_FOREIGN_LIMIT if (limit := given.parse("foreign_limit", _parse_fraction)) is None else limit,
    )
    sources = ((flag, part) for flag in ("gcs_downloads", "data_downloads") for part in given.parts(flag))
    downloads = (_named(flag, _parse_download, part, data_dir) for flag, part in sources)
    uploads = "result_upload_methods"
    methods = (_named(uploads, _parse_upload_method, part) for part in given.parts(uploads))
    return PerfzeroJob(
        bench=bench,
        workspace=workspace,
        repos=parse_repos(given.parts("git_repos")),
        use_cached=bool(flags.get("use_cached_site_packages")),
        downloads=tuple(downloads),
        build_label=given.text("ml_framework_build_label"),
        platform_name=given.text("platform_name"),
        system_name=given.text("system_name"),
        output_url=given.parse("output_gcs_url", _parse_url),
        bigquery_project=project,
        bigquery_table=table,
        key_url=given.parse("gcloud_key_file_url", _parse_url),
        upload_methods=tuple(methods),
        tpu=tpu,
        env_vars={key: environ[key] for key in sorted(environ) if key.startswith(ENV_PREFIX)},
        flags=build_flags(flags),
    )


class _Flags:
    def __init__(self, flags: Mapping[str, Any]) -> None:
        self._flags = flags

    def text(self, name: str) -> str | None:
        value = self._flags.get(name)
        return str(value).strip() or None if value is not None else None

    def parse(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return the flag's value parsed by `parse`, or None if it has no value."""
        text = self.text(name)
        return None if text is None else _named(name, parse, text)

    def texts(self, name: str) -> list[str]:
        """Return all values of a repeatable flag."""
        value = self._flags.get(name)
        given = [value] if isinstance(value, str) else list(value or ())
        return [text for text in given if text.strip()]

    def parts(self, name: str) -> Iterator[str]:
        """Yield the parts of a flag's values, which commas separate."""
        for text in self.texts(name):
            yield from (part.strip() for part in text.split(",") if part.strip())


def _named(flag: str, parse: Callable[..., T], *arguments: str) -> T:
    """Call `parse`, and add the flag's name to its errors."""
    try:
        return parse(*arguments)
    except UsageError as error:
        raise UsageError(f"--{flag}: {error.message}", error.hint) from None


def _expect(pattern: str, refusal: str, hint: str) -> Callable[[str], str]:
    """Return a parser that accepts strings that match the pattern and refuses all others."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise UsageError(f"{text!r} {refusal}", hint)
        return text

    return parse


_parse_trials = _expect("0*[1-9][0-9]*", "is not a count", "write a number from 1")
_parse_table = _expect(r"[\w-]+\.[\w-]+", "is not a table", "write dataset.table")
_parse_upload_method = _expect(r"[^\W\d]\w*(\.[^\W\d]\w*)+", "is not a function", "write module.function")
_parse_profiler = _expect("auto|framework|py-spy", "is not known", "it is auto, framework or py-spy")
_parse_class_type = _expect("tf_benchmark", "is not known", "it is tf_benchmark, or left out")
_parse_execution_id = _expect(
    r"(?!\.\.?$)[\w.+:@-]{1,100}", "cannot be the name of a folder", "use letters, digits, dots and dashes"
)


def build_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags with a value as the summary records them; commas join the values of repeated flags."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        joined = ",".join(value) if isinstance(value, list) and name != "benchmark_methods" else value
        found[name] = hide_secrets(joined) if isinstance(joined, str) else joined
    if "gcloud_key_file_url" in found:  # a signed address gives access to the key
        found["gcloud_key_file_url"] = re.sub(r"\?.*", "?***", found["gcloud_key_file_url"])
    if str(found.get("benchmark_num_trials", "")).isdecimal():
        found["benchmark_num_trials"] = int(found["benchmark_num_trials"])  # PerfZero's summaries have a number
    return found


# ---------------------------------------------------------------- methods


def parse_methods(texts: Sequence[str]) -> tuple[BenchMethod, ...]:
    """Parse repeated or comma-separated methods. A comma in brackets belongs to a regular expression."""
    parts = [part for text in texts for part in _split_outside_brackets(text)]
    if not parts:
        hint = "write --benchmark_methods=module.Class.method, or …filter:REGEX"
        raise UsageError("--benchmark_methods does not name a benchmark", hint)
    return tuple(_named("benchmark_methods", _parse_method, part) for part in parts)


def _parse_method(text: str) -> BenchMethod:
    if "." not in text:  # PerfZero has no suites
        raise UsageError(f"{text!r}: its module is missing", "write module.Class.method")
    return parse_method(text)


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


# ---------------------------------------------------------------- repositories and downloads


def parse_repos(parts: Iterable[str]) -> tuple[GitRepo, ...]:
    """Parse `url;branch;hash`, where branch and hash are optional. Refuse two repositories with the same folder."""
    found: dict[str, GitRepo] = {}
    for part in parts:
        repo = _named("git_repos", _parse_repo, part)
        other = found.setdefault(repo.name, repo)
        if other != repo:
            old, new = hide_secrets(other.url), hide_secrets(repo.url)
            both = f"--git_repos: {old} and {new} would both be checked out into {repo.name!r}"
            message = both if other.url != repo.url else f"--git_repos names {new} twice"
            raise UsageError(message, "run them in two calls, each with its own --workspace")
    return tuple(found.values())


def _parse_repo(part: str) -> GitRepo:
    fields = [field.strip() for field in part.split(";")]
    repo = GitRepo(fields[0], *(field or None for field in fields[1:3]))
    if len(fields) > 3 or not fields[0] or repo.name in ("", ".", "..") or fields[0].startswith("-"):
        hint = "write URL, URL;BRANCH or URL;BRANCH;HASH, in quotes for the shell"
        raise UsageError(f"{hide_secrets(part)!r} is not a repository", hint)
    for ref in (repo.branch, repo.commit):
        if ref is not None and (ref.startswith("-") or re.search(r"[\s~^?*\[\\]|\.\.", ref)):
            raise UsageError(f"{ref!r} is not a branch, tag or hash")
    return repo


def _parse_download(part: str, data_dir: str) -> Download:
    fields = [field.strip() for field in part.split(";")]
    source, name, checksum = (*fields, "", "")[:3]
    url = source.removesuffix("*").rstrip("/")  # `/` and `/*` mark a folder
    if url.startswith(("/", "./", "../", "~/")):
        url = f"file://{quote(os.path.abspath(os.path.expanduser(url)))}"
    if len(fields) > 3 or not is_url(url):
        raise UsageError(f"{hide_secrets(part)!r} is not a download", _DOWNLOAD_FORM)
    if url.lower().startswith(("http:", "https:")) and url != source:
        hint = "name each file; folders come from gs://, s3://, az:// and file://"
        raise UsageError(f"{hide_secrets(source)} is not a file: a folder cannot be fetched over http", hint)
    if not name:
        last = os.path.basename(urlsplit(url).path)
        name = unquote(last) if url.startswith("file:") else last
    if not name:
        raise UsageError(f"{hide_secrets(url)} has no name to be kept under", "write URL;NAME")
    path = os.path.normpath(os.path.join(data_dir, name))
    if not path.startswith(os.path.join(data_dir, "")):
        raise UsageError(f"{name!r} would be kept outside {data_dir}", "name a path inside --root_data_dir")
    return Download(url, path, parse_checksum(checksum) if checksum else None)


# ---------------------------------------------------------------- values of single flags


def _parse_url(text: str) -> str:
    if not is_url(text):
        raise UsageError(
            f"{hide_secrets(text)!r} is not a URL", "such as gs://bucket/folder, s3://bucket/folder or file:///folder"
        )
    return text.rstrip("/")


def _parse_object(text: str) -> dict[str, Any]:
    hint = """such as '{"name": "value"}'"""
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", hint) from None
    if not isinstance(found, dict):
        raise UsageError("it must be a JSON object", hint)
    return found


def _parse_tpu(text: str) -> dict[str, Any]:
    found = _parse_object(text)
    if not isinstance(found.get("name"), str):
        raise UsageError("it has no `name`", """such as --tpu_parameters='{"name": "my-tpu"}'""")
    return found


def _parse_fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise UsageError(f"{text!r} is not a fraction", "write a number from 0 to 1")
    return fraction

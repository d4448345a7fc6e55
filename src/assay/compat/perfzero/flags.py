"""PerfZero's flags: texts → what they ask for. Every bad value is named with its flag.

An empty value means what no value means: wrappers pass `--output_gcs_url=""`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote, urlsplit

from assay.bench.api import BenchMethod, BenchRequest, ProfileWindow, check_python, parse_method, parse_windows
from assay.compat.perfzero.values import (
    DEFAULT_DATA_DIR,
    DEFAULT_WORKSPACE,
    ENV_PREFIX,
    Download,
    GitRepo,
    PerfzeroJob,
    Workspace,
    hide_secrets,
)
from assay.errors import UsageError, did_you_mean
from assay.system.files import parse_json
from assay.values.units import parse_duration, parse_slots

Flags = Mapping[str, Any]

_CHECKSUM = re.compile(r"(?:(?:md5|sha1|sha256|sha512):)?[0-9a-f]{32,128}", re.IGNORECASE)
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
Profiler = Literal["auto", "framework", "py-spy"]
_PROFILERS: tuple[Profiler, ...] = get_args(Profiler)
_DOWNLOAD_FORM = (
    "write URL, URL;NAME or URL;NAME;sha256:CHECKSUM; a comma inside a URL is %2C; "
    "a file of this machine is file:///PATH, /PATH or ./PATH"
)


def parse_flags(flags: Flags, folder: str, environ: Mapping[str, str]) -> PerfzeroJob:
    """`flags` by name, as the command line gave them: texts, lists of texts where a flag may be repeated, booleans."""
    workspace = Workspace(os.path.abspath(os.path.join(folder, _text(flags, "workspace") or DEFAULT_WORKSPACE)))
    data_dir = os.path.abspath(os.path.join(folder, _text(flags, "root_data_dir") or DEFAULT_DATA_DIR))
    project, table = _parse_bigquery(flags)
    tpu = _parse_tpu(flags)
    return PerfzeroJob(
        bench=_parse_bench(flags, folder, workspace, data_dir, str(tpu["name"]) if tpu else None),
        workspace=workspace,
        repos=parse_repos(_texts(flags, "git_repos")),
        use_cached=bool(flags.get("use_cached_site_packages")),
        downloads=(
            *parse_downloads(_texts(flags, "gcs_downloads"), data_dir, "gcs_downloads"),
            *parse_downloads(_texts(flags, "data_downloads"), data_dir, "data_downloads"),
        ),
        build_label=_text(flags, "ml_framework_build_label"),
        platform_name=_text(flags, "platform_name"),
        system_name=_text(flags, "system_name"),
        output_url=_parse_url(flags, "output_gcs_url"),
        bigquery_project=project,
        bigquery_table=table,
        key_url=_parse_url(flags, "gcloud_key_file_url"),
        upload_methods=_parse_upload_methods(flags),
        tpu=tpu,
        env_vars={key: environ[key] for key in sorted(environ) if key.startswith(ENV_PREFIX)},
        flags=build_flags(flags),
    )


def _parse_bench(flags: Flags, folder: str, workspace: Workspace, data_dir: str, tpu: str | None) -> BenchRequest:
    """`folder`: where the command was called, and where methods are looked for first."""
    slots, site = _text(flags, "slots"), workspace.site_packages
    return BenchRequest(
        methods=parse_methods(_texts(flags, "benchmark_methods")),
        trials=_parse_trials(flags),
        timeout_s=_parse_timeout(flags),
        label=_text(flags, "execution_label"),
        folder=folder,
        root=_text(flags, "root"),
        slots=parse_slots(slots) if slots else None,
        python=_parse_python(flags),
        python_path=tuple(
            os.path.normpath(os.path.join(site, part)) for part in _split([_text(flags, "python_path") or ""])
        ),
        data_dir=data_dir,
        tpu=tpu,
        constructor_args=_parse_object(flags, "perfzero_constructor_args") or {},
        class_type=_parse_class_type(flags),
        output_root=workspace.output,
        scratch_url=_parse_url(flags, "scratch_gcs_url"),
        execution_id=_parse_execution_id(flags),
        profile=_parse_profile(flags),
        profiler=_parse_profiler(flags),
        profile_in_output=True,
        refuse_contaminated=bool(flags.get("refuse_contaminated")),
        foreign_limit=_parse_share(flags),
    )


# ---------------------------------------------------------------- texts


def _text(flags: Flags, name: str) -> str | None:
    value = flags.get(name)
    return str(value).strip() or None if value is not None else None


def _texts(flags: Flags, name: str) -> list[str]:
    """Every text of a flag that may be repeated."""
    value = flags.get(name)
    given = [value] if isinstance(value, str) else list(value or ())
    return [text for text in given if text.strip()]


def build_flags(flags: Flags) -> dict[str, Any]:
    """As the summary keeps them: what has a value; repeated ones joined, as they may be written in one."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        joined = ",".join(value) if isinstance(value, list) and name != "benchmark_methods" else value
        found[name] = _hide(name, joined) if isinstance(joined, str) else joined
    if str(found.get("benchmark_num_trials", "")).isdecimal():
        found["benchmark_num_trials"] = int(found["benchmark_num_trials"])  # a number in PerfZero's summaries
    return found


def _hide(name: str, text: str) -> str:
    """A signed address of a key is as good as the key."""
    hidden = hide_secrets(text)
    return re.sub(r"\?.*", "?***", hidden) if name == "gcloud_key_file_url" else hidden


def _split(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield from (part.strip() for part in text.split(",") if part.strip())


# ---------------------------------------------------------------- methods


def parse_methods(texts: Sequence[str]) -> tuple[BenchMethod, ...]:
    """Repeated or comma-joined; a comma inside a bracket belongs to a regular expression."""
    found = [_parse_method(part) for text in texts for part in _split_outside_brackets(text)]
    if not found:
        raise UsageError(
            "--benchmark_methods does not name a benchmark",
            "write --benchmark_methods=module.Class.method, or …filter:REGEX",
        )
    return tuple(found)


def _parse_method(text: str) -> BenchMethod:
    if text.strip() and "." not in text:  # PerfZero has no suites
        raise UsageError(f"--benchmark_methods: {text!r}: its module is missing", "write module.Class.method")
    try:
        return parse_method(text)
    except UsageError as error:
        raise UsageError(f"--benchmark_methods: {error.message}", error.hint) from None


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _parse_trials(flags: Flags) -> int:
    text = _text(flags, "benchmark_num_trials") or "1"
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise UsageError(f"--benchmark_num_trials {text!r} is not a count", "write a number from 1")
    return int(text)


def _parse_execution_id(flags: Flags) -> str | None:
    text = _text(flags, "execution_id")
    if text is not None and (not re.fullmatch(r"[\w.+:@-]+", text) or text in (".", "..") or len(text) > 100):
        raise UsageError(
            f"--execution_id {text!r} cannot be the name of a folder", "use letters, digits, dots and dashes"
        )
    return text


def _parse_class_type(flags: Flags) -> Literal["tf_benchmark"] | None:
    text = _text(flags, "benchmark_class_type")
    if text not in (None, "tf_benchmark"):
        raise UsageError(f"--benchmark_class_type {text!r} is not known", "it is tf_benchmark, or left out")
    return "tf_benchmark" if text else None


# ---------------------------------------------------------------- what is brought in


def parse_repos(texts: Sequence[str]) -> tuple[GitRepo, ...]:
    """`url;branch;hash`, branch and hash being optional. Two cannot share a folder."""
    found: dict[str, GitRepo] = {}
    for part in _split(texts):
        repo = _parse_repo(part)
        other = found.setdefault(repo.name, repo)
        if other != repo:
            raise UsageError(
                f"--git_repos: {hide_secrets(other.url)} and {hide_secrets(repo.url)} would both be checked out into "
                f"{repo.name!r}" if other.url != repo.url else f"--git_repos names {hide_secrets(repo.url)} twice",
                "run them in two calls, each with its own --workspace",
            )  # fmt: skip
    return tuple(found.values())


def _parse_repo(part: str) -> GitRepo:
    fields = [field.strip() for field in part.split(";")]
    repo = GitRepo(fields[0], *(field or None for field in fields[1:3]))
    if len(fields) > 3 or not fields[0] or repo.name in ("", ".", "..") or fields[0].startswith("-"):
        raise UsageError(
            f"--git_repos: {hide_secrets(part)!r} is not a repository",
            "write URL, URL;BRANCH or URL;BRANCH;HASH, in quotes for the shell",
        )
    for ref in (repo.branch, repo.commit):
        if ref is not None and (ref.startswith("-") or re.search(r"[\s~^?*\[\\]|\.\.", ref)):
            raise UsageError(f"--git_repos: {ref!r} is not a branch, tag or hash")
    return repo


def parse_downloads(texts: Sequence[str], data_dir: str, flag: str) -> tuple[Download, ...]:
    return tuple(_parse_download(part, data_dir, flag) for part in _split(texts))


def _parse_download(part: str, data_dir: str, flag: str) -> Download:
    fields = [field.strip() for field in part.split(";")]
    url = _parse_source(fields[0])
    if len(fields) > 3 or not _is_url(url):
        raise UsageError(f"--{flag}: {hide_secrets(part)!r} is not a download", _DOWNLOAD_FORM)
    if url.lower().startswith(("http:", "https:")) and url != fields[0]:
        raise UsageError(
            f"--{flag}: {hide_secrets(fields[0])} is not a file: a folder cannot be fetched over http",
            "name each file; folders come from gs://, s3://, az:// and file://",
        )
    name = fields[1] if len(fields) > 1 and fields[1] else _parse_name(url)
    checksum = fields[2] if len(fields) > 2 and fields[2] else None
    if checksum is not None and not _CHECKSUM.fullmatch(checksum):
        raise UsageError(f"--{flag}: {checksum!r} is not a checksum", "write sha256: and its 64 digits")
    if not name:
        raise UsageError(f"--{flag}: {hide_secrets(url)} has no name to be kept under", "write URL;NAME")
    return Download(url, _parse_target(name, data_dir, flag), checksum)


def _parse_name(url: str) -> str:
    name = os.path.basename(urlsplit(url).path)
    return unquote(name) if url.startswith("file:") else name


def _parse_source(text: str) -> str:
    """What follows a folder's name does not belong to it; a path of this machine is a URL, too."""
    plain = text.removesuffix("*").rstrip("/")
    if plain.startswith(("/", "./", "../", "~/")):
        return f"file://{quote(os.path.abspath(os.path.expanduser(plain)))}"
    return plain


def _parse_target(name: str, data_dir: str, flag: str) -> str:
    path = os.path.normpath(os.path.join(data_dir, name))
    if not path.startswith(os.path.join(data_dir, "")):
        raise UsageError(f"--{flag}: {name!r} would be kept outside {data_dir}", "name a path inside --root_data_dir")
    return path


def _is_url(text: str) -> bool:
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:/*[^/\s]", text) is not None


# ---------------------------------------------------------------- where results go


def _parse_url(flags: Flags, name: str) -> str | None:
    text = _text(flags, name)
    if text is not None and not _is_url(text):
        raise UsageError(
            f"--{name} {text!r} is not a URL", "such as gs://bucket/folder, s3://bucket/folder or file:///folder"
        )
    return text.rstrip("/") if text else None


def _parse_bigquery(flags: Flags) -> tuple[str | None, str | None]:
    project, table = _text(flags, "bigquery_project_name"), _text(flags, "bigquery_dataset_table_name")
    if bool(project) != bool(table):
        given, missing = ("project", "dataset_table") if project else ("dataset_table", "project")
        raise UsageError(
            f"--bigquery_{given}_name is given and --bigquery_{missing}_name is not", "give both, or neither"
        )
    if table is not None and not re.fullmatch(r"[\w-]+\.[\w-]+", table):
        raise UsageError(f"--bigquery_dataset_table_name {table!r} is not a table", "write dataset.table")
    return project, table


def _parse_upload_methods(flags: Flags) -> tuple[str, ...]:
    found = tuple(_split([_text(flags, "result_upload_methods") or ""]))
    for text in found:
        if not _DOTTED.fullmatch(text):
            raise UsageError(f"--result_upload_methods: {text!r} is not a function", "write module.function")
    return found


# ---------------------------------------------------------------- the benchmarks' own


def _parse_profile(flags: Flags) -> tuple[ProfileWindow, ...]:
    text = _text(flags, "profiler_enabled_time")
    if text is None:
        return ()
    try:
        return parse_windows(text)
    except UsageError as error:
        raise UsageError(f"--profiler_enabled_time: {error.message}", error.hint) from None


def _parse_object(flags: Flags, name: str) -> dict[str, Any] | None:
    text = _text(flags, name)
    if text is None:
        return None
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--{name} is not JSON: {error}", f"""such as --{name}='{{"name": "value"}}'""") from None
    if not isinstance(found, dict):
        raise UsageError(f"--{name} must be a JSON object", f"""such as --{name}='{{"name": "value"}}'""")
    return found


def _parse_tpu(flags: Flags) -> dict[str, Any] | None:
    found = _parse_object(flags, "tpu_parameters")
    if found is not None and not isinstance(found.get("name"), str):
        raise UsageError("--tpu_parameters has no name", """such as --tpu_parameters='{"name": "my-tpu"}'""")
    return found


# ---------------------------------------------------------------- beyond the original


def _parse_timeout(flags: Flags) -> float | None:
    text = _text(flags, "timeout")
    seconds = parse_duration(text) if text is not None else None
    if text is not None and not seconds:
        raise UsageError(f"--timeout {text} is not a duration", "such as 90s, 30m, 2h or 1h30m")
    return seconds


def _parse_python(flags: Flags) -> str | None:
    text = check_python(_text(flags, "python"))
    return os.path.abspath(text) if text is not None and os.sep in text else text


def _parse_profiler(flags: Flags) -> Profiler:
    text = _text(flags, "profiler") or "auto"
    for known in _PROFILERS:
        if text == known:
            return known
    raise UsageError(f"--profiler {text!r} is not known", did_you_mean(text, _PROFILERS))


def _parse_share(flags: Flags) -> float:
    text = _text(flags, "foreign_limit") or "0.1"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--foreign_limit {text!r} is not a fraction", "write a number from 0 to 1")
    return share

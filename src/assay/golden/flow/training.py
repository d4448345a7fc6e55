"""The training that a golden is recorded from: a new run or an interrupted one, its lock, its provenance."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.golden import manifests
from assay.golden.flow.segments import (
    GoldenContext,
    build_gather_command,
    build_spec,
    build_stamp,
)
from assay.golden.judge.drift import build_rule_facts
from assay.observe.environment import list_installed, load_git
from assay.record import run_directory
from assay.stage.tree import FileEntry, Selection, load_tree
from assay.study.api import Entry, FoundRun, RunHooks, StopOptions, first_program, stop
from assay.system.locks import hold_file
from assay.values.run import RunSpec

_SEED = re.compile(r"(?:^|\s)-{0,2}([\w.-]*seed[\w.-]*)[= ](\S+)", re.IGNORECASE)


# What counts as code without git: programs and their settings, not the data and logs that a program writes.
_CODE = re.compile(
    r".*\.(pyx?|pxd|ipynb|(ba)?sh|pl|r|jl|lua|[jt]s|rs|go|java|c|cc|cpp|cxx|cuh?|h|hpp|so|ya?ml|json|toml|cfg|ini|conf|gin)",
    re.IGNORECASE | re.DOTALL,
)
# Of a terminal or a session, not of a training; and ours.
_SESSION = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM.*|COLORTERM|COLUMNS|LINES|LS_COLORS|PS\d|PROMPT.*|HIST.*|DISPLAY|WAYLAND_.*|WINDOW.*|STY"
    r"|TMUX.*|SSH_.*|XDG_.*|DBUS_.*|VSCODE_.*|GPG_.*|INVOCATION_ID|JOURNAL_STREAM|PYTEST_.*|ASSAY_.*|NO_COLOR|FORCE_COLOR"
)
GATHER_PREFIX = "gather-"
LOCK_SUFFIX = ".lock"


def build_origin(context: GoldenContext, text: str) -> dict[str, str]:
    """What a training is started from, as hashes: runs with the same ones and the same command are interchangeable."""
    return {"code": _hash(_load_code(context, text)), "environment": _hash(_load_surroundings(context, text))}


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _load_code(context: GoldenContext, text: str) -> list[Any]:
    """The repository's state, the code in the program's folder, and the files that the command names."""
    git = load_git(context.folder)
    exclude = (context.location.root, context.store)
    try:
        tree = load_tree(context.folder, Selection(exclude=exclude))
    except UsageError:  # a part that cannot be read: never equal
        return [secrets.token_hex(8)]
    code = {file.path for folder in tree.walk() for file in folder.files if _is_code(file)}
    names = sorted(code | _find_named(context, text))
    files = [(name, manifests.hash_checkpoint(os.path.join(context.folder, name))) for name in names]
    return [context.folder, [git.commit, git.diff] if git else None, files]


def _is_code(file: FileEntry) -> bool:
    has_suffix = "." in os.path.basename(file.path)
    return _CODE.fullmatch(file.path) is not None or (file.executable and not has_suffix)


def _find_named(context: GoldenContext, text: str) -> set[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return {word for word in words if os.path.isfile(os.path.join(context.folder, word))}


def _load_surroundings(context: GoldenContext, text: str) -> list[Any]:
    variables: Mapping[str, str] = {name: value for name, value in os.environ.items() if not _SESSION.fullmatch(name)}
    program = first_program(text)
    if program and os.sep in program:
        program = os.path.join(context.folder, program)
    versions = {name: list_installed(name) for name in ("python", "python3", program or "python")}
    return [
        os.uname().nodename,
        dict(variables),
        list(context.test.env),
        versions,
        context.farm.name if context.farm else None,
    ]


def build_provenance(context: GoldenContext, entry: Entry) -> dict[str, object]:
    """The provenance of a golden: enough to explain why a later one differs."""
    environment = run_directory.load_environment(entry.dir) or {}
    git = environment.get("git") or {}
    text = entry.spec.commands[0].text
    return {
        "gathered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.get("commit"),
        "branch": git.get("branch"),
        "dirty": git.get("dirty"),
        "packages": environment.get("job_packages") or environment.get("packages") or {},
        "python": environment.get("python"),
        "host": environment.get("host"),
        "os": environment.get("os"),
        "hardware": {
            "cpu": environment.get("cpu"),
            "cpu_count": environment.get("cpu_count"),
            "gpus": environment.get("gpus"),
            "driver": environment.get("driver"),
        },
        "fingerprint": environment.get("fingerprint"),
        "seeds": {name.lstrip("-"): value for name, value in _SEED.findall(text)},
        "config": context.options.file,
        "config_hash": context.config_hash,
        "rules": build_rule_facts(context.test.rules),
        "variants": {variant.name: variant.title for variant in context.test.variants},
        "command": text,
        "run": entry.dir,
    }


def choose_training(context: GoldenContext, hooks: RunHooks) -> tuple[RunSpec, list[str]]:
    """The training that an interrupted or killed gathering left, where it was started from the same code, command and
    environment; otherwise a new one, after ending processes that still write into the same checkpoint folder."""
    text = build_gather_command(context)
    origin = build_origin(context, text)
    spec = build_spec(context, f"{GATHER_PREFIX}{build_stamp()}", text, {"mode": "gather", **origin})
    notes: list[str] = []
    for path in reversed(list(run_directory.find_run_dirs(context.location.dir))):
        name, found = os.path.basename(path), _load_open(path, context)
        if found is None:
            continue
        if found.id == spec.id:
            return replace(spec, name=name), notes
        notes.append(_end(context, path, f"{name} is not continued: {_describe_difference(found, spec)}"))
        hooks.console.warning(notes[-1])
    return spec, notes


def _load_open(path: str, context: GoldenContext) -> RunSpec | None:
    """The spec of an unfinished gathering into the same folder."""
    if not os.path.basename(path).startswith(GATHER_PREFIX):
        return None
    try:
        spec = run_directory.load_record(path).spec
    except (OSError, FormatError):
        return None
    last = run_directory.load_history(path).last
    words = [word.rstrip(os.sep) for word in spec.commands[0].text.replace("=", " ").split()]
    if last is None or shlex.quote(context.checkpoints) not in words:
        return None
    is_open = last.outcome is None or (last.stop is not None and last.stop.kind == "interrupt")
    return spec if is_open else None


def _describe_difference(found: RunSpec, spec: RunSpec) -> str:
    parts = [name for name in ("code", "environment") if found.params.get(name) != spec.params[name]]
    parts += ["command"] if found.commands != spec.commands else []
    return f"the {' and the '.join(parts)} {'have' if len(parts) > 1 else 'has'} changed"


def _end(context: GoldenContext, path: str, why: str) -> str:
    """Stop a training of ours; nothing to do for one that was interrupted. Raises if it may still be writing."""
    last = run_directory.load_history(path).last
    if last is None or last.outcome is not None:
        return why
    stopped = stop([FoundRun(context.location, path)], (), StopOptions(context.options.grace_s, why)).runs[0]
    if not stopped.is_well:
        raise InfrastructureError(f"{why}; and it cannot be ended: {stopped.text}")
    return f"{why}; {stopped.text}"


@contextlib.contextmanager
def lock_store(context: GoldenContext) -> Iterator[None]:
    """One gathering at a time records into a manifest. The kernel releases the lock however its owner ends."""

    def refuse(fd: int) -> None:
        owner = os.pread(fd, 200, 0).decode("utf-8", "replace") or "another process"
        hint = f"wait for it, or end it: assay stop {context.location.name}"
        raise UsageError(f"{owner} gathers {context.test.name} into {context.store} now", hint)

    with hold_file(context.manifest + LOCK_SUFFIX, refuse, required=False) as fd:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield

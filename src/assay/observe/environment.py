"""Records the machine and the code of a study once, without starting an interpreter."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

from assay.observe.devices import Devices
from assay.system.fast_dataclasses import replace
from assay.system.files import blake2b, list_names, try_text
from assay.system.git import find_git_root, find_reason, read_git
from assay.system.processes import load_cpu_fields
from assay.values.environment import Environment, GitState, Gpu
from assay.values.notify import Notify, ignore
from assay.values.secrets import DEFAULT_RULES, SecretRules, hide_arguments, hide_diff

_KEY_PACKAGE_NAMES = """
    accelerate cupy datasets deepspeed diffusers flax iree-base-compiler iree-base-runtime jax jaxlib keras
    lightgbm lightning numba numpy onnx onnxruntime onnxruntime-gpu openvino optax pandas poptorch
    pytorch-lightning scikit-learn scipy tensorboard tensorboardx tensorflow tensorrt timm tokenizers torch
    torchaudio torchvision transformers triton xgboost
"""
KEY_PACKAGES = frozenset(_KEY_PACKAGE_NAMES.split())
DIFF_LIMIT_BYTES = 1 << 20
UNTRACKED_LIMIT = 200
GIT_TIMEOUT_S = 20

_DISTRIBUTION = r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info"


def load_environment(
    folder: str | os.PathLike[str],
    command_line: Sequence[str],
    devices: Devices | None = None,
    rules: SecretRules = DEFAULT_RULES,
    known: Iterable[str] = (),
    complain: Notify = ignore,
) -> Environment:
    """Return the environment. `folder`: the study's code; `command_line`: as typed; `known`: the study's secret values.
    Secrets in the command line and in the diff are hidden."""
    devices = devices if devices is not None else Devices()
    gpus = devices.list()
    driver = devices.driver() if gpus else None
    packages = load_packages(sys.path)
    job_python, job_packages = _load_job_python(os.environ.get("PATH"))
    cpu, cpu_count = load_cpu(), os.cpu_count() or 1
    python = ".".join(map(str, sys.version_info[:3]))
    git, known = load_git(folder, complain), tuple(known)
    if git is not None and git.diff:
        git = replace(git, diff=hide_diff(git.diff, rules, known))
    return Environment(
        host=os.uname().nodename,
        user=_load_user(),
        os=_load_os(),
        cpu=cpu,
        cpu_count=cpu_count,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=python,
        packages=packages,
        gpus=gpus,
        driver=driver,
        git=git,
        command_line=hide_arguments(command_line, rules, known),
        fingerprint=build_fingerprint(
            cpu=cpu, cpu_count=cpu_count, gpus=gpus, driver=driver, python=python, packages=job_packages or packages
        ),
        job_python=job_python,
        job_packages=job_packages,
    )


def build_fingerprint(
    *, cpu: str, cpu_count: int, gpus: Iterable[Gpu], driver: str | None, python: str, packages: Mapping[str, str]
) -> str:
    """Return a hash that is equal on equal hardware and software: results with the same hash are comparable."""
    hardware = [cpu, cpu_count, [(gpu.name, gpu.memory_bytes) for gpu in gpus], driver]
    software = [python.split(".")[:2], sorted(packages.items())]
    text = json.dumps([hardware, software])
    return blake2b(text.encode(), digest_size=8).hexdigest()


def load_cpu() -> str:
    """Return the model of the first processor."""
    fields = load_cpu_fields()
    maker = fields.get("CPU implementer")
    part = "" if maker is None else f"implementer {maker} part {fields.get('CPU part', '')}"
    return fields.get("model name") or fields.get("cpu") or f"{os.uname().machine} {part}".strip()


def _load_os() -> str:
    system = os.uname()
    kernel = f"{system.sysname} {system.release} {system.machine}"
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', try_text("/etc/os-release", "replace"), re.MULTILINE)
    return f"{match[1]}, {kernel}" if match else kernel


def _load_user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, a user may have no name
        return str(os.getuid())


def load_packages(paths: Iterable[str]) -> dict[str, str]:
    """Return the versions of KEY_PACKAGES from the names of metadata folders: nothing is opened or imported."""
    found: dict[str, str] = {}
    for path in paths:
        for folder in sorted(list_names(path or ".")):
            match = re.fullmatch(_DISTRIBUTION, folder) if folder.endswith("-info") else None
            name = re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""
            if match and name in KEY_PACKAGES:
                found.setdefault(name, match["version"])  # Python imports the first one on the path
    return dict(sorted(found.items()))


def list_installed(program: str | None) -> list[str]:
    """List the metadata folders of an interpreter's packages, whose names have the versions; empty if not found."""
    found = shutil.which(program) if program else None
    if found is None:
        return []
    folders = _site_folders(os.path.dirname(os.path.dirname(os.path.abspath(found))), os.path.basename(found))
    return sorted(name for folder in folders for name in list_names(folder) if name.endswith("-info"))


def _load_job_python(search_path: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the `python` that a job would start and its packages; None and {} if it is Assay's own interpreter."""
    program = shutil.which("python", path=search_path) or shutil.which("python3", path=search_path)
    if program is None:
        return None, {}
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(program)))
    if os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        return None, {}
    return program, load_packages(_site_folders(prefix, os.path.basename(os.path.realpath(program))))


def _site_folders(prefix: str, program: str) -> list[str]:
    """Return the package folders of the interpreter `program` under this prefix; its name may contain the version."""
    version = re.search(r"\d\.\d+", program)
    library = os.path.join(prefix, "lib")
    names = [f"python{version[0]}"] if version else sorted(n for n in list_names(library) if n.startswith("python3."))
    folders = [os.path.join(library, name, kind) for name in names for kind in ("site-packages", "dist-packages")]
    if prefix == "/usr":  # Debian's own interpreter has more folders
        local = [os.path.join("/usr/local/lib", name, "dist-packages") for name in names]
        folders = [*local, *folders, "/usr/lib/python3/dist-packages"]
    return folders


def load_git(folder: str | os.PathLike[str], complain: Notify = ignore) -> GitState | None:
    """Return the state of git; None outside a repository, before its first commit, and if git fails (reported)."""
    if find_git_root(os.path.realpath(folder)) is None:
        return None
    status = _git(folder, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", complain=complain)
    if status is None:
        return None
    state = parse_git_status(status.decode(errors="surrogateescape"))
    if state is None or not state.dirty:
        return state
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color", "--no-textconv", limit=DIFF_LIMIT_BYTES) or b""
    text = diff[:DIFF_LIMIT_BYTES].decode(errors="replace")
    if len(diff) > DIFF_LIMIT_BYTES:
        text += f"\n[cut off after {DIFF_LIMIT_BYTES} bytes]\n"
    return replace(state, diff=text)


def parse_git_status(text: str) -> GitState | None:
    """Parse the output of `git status --porcelain=v2 --branch -z`. New files do not make the state dirty."""
    headers: dict[str, str] = {}
    untracked: list[str] = []
    is_dirty = False
    entries = iter(text.split("\0"))
    for entry in entries:
        if entry.startswith("# "):
            key, _, value = entry[2:].partition(" ")
            headers[key] = value
        elif entry.startswith("? "):
            # the name is escaped: one that is not UTF-8 would make invalid JSON
            untracked.append(entry[2:].encode(errors="surrogateescape").decode(errors="backslashreplace"))
        elif entry:
            is_dirty = True
            if entry.startswith("2 "):
                next(entries, None)  # the entry of a rename is followed by the old name
    commit = headers.get("branch.oid", "(initial)")
    if commit == "(initial)":
        return None
    branch = headers.get("branch.head", "(detached)")
    return GitState(
        commit, None if branch == "(detached)" else branch, is_dirty, untracked=tuple(untracked[:UNTRACKED_LIMIT])
    )


def _git(folder: str | os.PathLike[str], *arguments: str, limit: int = -1, complain: Notify = ignore) -> bytes | None:
    path = os.fspath(folder)
    output, messages = read_git(path, *arguments, limit=limit, timeout_s=GIT_TIMEOUT_S)
    if output is None and messages:
        complain(f"git cannot read {path}, so no commit is recorded: {find_reason(messages)}")
    return output

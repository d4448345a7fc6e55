"""`assay doctor`: shows which parts work on this machine, and how to install the others."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from assay import plugins
from assay.config.settings import load_settings
from assay.errors import AssayError, ExitCode
from assay.execute.slots import slots_directory
from assay.follow.locations import nearest_parent
from assay.observe.devices import Devices
from assay.plugins import Folder, Part, PluginProblem, Program
from assay.record.importers.registry import find_importer_problems
from assay.show import formatting
from assay.show.console import Console
from assay.show.terminal_report import fold
from assay.system import processes
from assay.system.files import cache_dir, can_clone
from assay.system.terminal import paint
from assay.values.options import Group, Request, find_option_mistake, find_request, json_option, root_option

Grade = Literal["ok", "note", "missing", "broken"]

_OLDEST_PYTHON = (3, 11, 4)
_OLDEST_BASH = (4, 4)  # the first version with `mapfile -d`
_NETWORK_NAMES = "nfs nfs4 cifs smb3 smbfs afs 9p fuse.sshfs lustre gpfs beegfs ceph glusterfs fuse.glusterfs"
_NETWORK_SYSTEMS = frozenset(_NETWORK_NAMES.split())
_LITTLE_ROOM = 1 << 30
_EXTRAS = (Part("pandas", "frames", "assay.runs(...).to_pandas()"), Part("numpy", "demo", "assay demo"))


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The result of a check. `missing`: an optional part is not installed; `broken`: a required part does not work."""

    name: str
    grade: Grade
    text: str
    hint: str = ""


Diagnosis = dict[str, tuple[Diagnostic, ...]]  # heading → its results


def examine(root: str | None = None, group: Group | None = None) -> Diagnosis:
    return {
        "Needed": tuple(_examine_needed()),
        "Places": tuple(_examine_places(root)),
        "GPUs": tuple(_examine_gpus()),
        "Optional parts": tuple(map(_examine_part, _EXTRAS)),
        **{f"Plug-in {name}": found for name, found in _examine_plugins(group)},
    }


def is_well(diagnosis: Diagnosis) -> bool:
    return not any(finding.grade == "broken" for findings in diagnosis.values() for finding in findings)


def _examine_needed() -> Iterator[Diagnostic]:
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:3] >= _OLDEST_PYTHON:
        yield Diagnostic("python", "ok", f"{python}, {sys.executable}")
    else:
        yield Diagnostic("python", "broken", python, "Assay needs Python 3.11.4 or newer")
    bash = "install bash 4.4 or newer, earlier on PATH"
    yield _examine_program("bash", "runs are bash scripts", bash, needed=True, oldest=_OLDEST_BASH)
    yield _examine_program("timeout", "time limits of runs", "install GNU coreutils", needed=True)
    yield _examine_program("git", "commits in the provenance of runs", "install git", needed=False)
    proc = "mount /proc (containers: without hidepid)"  # /proc shows whether a run is alive, and its use of resources
    yield _try(processes.PROC, processes.check_proc, "readable", "cannot be read", proc)
    refusal, linux = "the kernel refuses pidfd_open", "Linux 5.3 or newer is needed"
    yield _try("pidfd", _poll_pidfd, f"Linux {os.uname().release}", refusal, linux)
    year = time.gmtime().tm_year  # boards without a battery have a clock at the epoch, which makes ages and names wrong
    if year < 2024:
        yield Diagnostic("clock", "broken", f"it is {year} on this machine", "set the clock")
    else:
        yield Diagnostic("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return the first number with a dot in a program's output as a tuple; None if there is no such number."""
    match = re.search(r"(\d+(?:\.\d+)+)", text)
    return tuple(map(int, match[1].split("."))) if match else None


def _get_output(arguments: list[str]) -> str:
    try:
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout or result.stderr


def _examine_program(
    name: str, use: str, hint: str, *, needed: bool, question: str = "--version", oldest: tuple[int, ...] = ()
) -> Diagnostic:
    path = shutil.which(name)
    if path is None:
        return Diagnostic(name, "broken" if needed else "missing", f"not found ({use})", hint)
    number = parse_version(_get_output([path, question])) or ()
    text = f"{'.'.join(map(str, number))}, {path}" if number else path
    return Diagnostic(name, "broken", text, hint) if number < oldest else Diagnostic(name, "ok", text)


def _try(
    name: str, attempt: Callable[[], object], text: str, wrong: str, hint: str, bad: Grade = "broken"
) -> Diagnostic:
    """Call `attempt`; if it raises OSError, `wrong` is the text before the system's error message."""
    try:
        attempt()
    except OSError as error:
        return Diagnostic(name, bad, f"{wrong}: {error.strerror}", hint)
    return Diagnostic(name, "ok", text)


def _poll_pidfd() -> None:
    descriptor = os.pidfd_open(os.getpid())
    try:
        with select.epoll() as poll:
            poll.register(descriptor, select.EPOLLIN)
    finally:
        os.close(descriptor)


def _examine_places(root: str | None) -> Iterator[Diagnostic]:
    try:
        chosen = os.path.abspath(root) if root else load_settings(os.getcwd(), os.environ).root
    except AssayError as error:
        yield Diagnostic("settings", "broken", error.message, error.hint or "")
        return
    yield _examine_folder("output root", chosen, "choose another: --root DIR or ASSAY_ROOT")
    parent = nearest_parent(chosen)
    if os.path.isdir(parent):
        yield from _examine_disk(parent)
    yield _examine_folder("cache", cache_dir(os.environ), "set ASSAY_CACHE_DIR to a local folder", needed=False)
    try:
        yield Diagnostic("slots", "ok", f"{slots_directory()}, {len(os.sched_getaffinity(0))} CPUs")
    except AssayError as error:
        yield Diagnostic("slots", "broken", error.message, error.hint or "set ASSAY_SLOTS_DIR to a folder of your own")


def _examine_folder(name: str, path: str, hint: str, *, needed: bool = True) -> Diagnostic:
    """Check that a folder can be written, or its nearest existing parent; the folder is not created."""
    parent = nearest_parent(path)
    bad: Grade = "broken" if needed else "note"
    if not os.path.isdir(parent):
        return Diagnostic(name, bad, f"{parent} is not a folder", hint)
    text = path if parent == path else f"{path} (will be created)"
    return _try(
        name, lambda: tempfile.TemporaryFile(dir=parent).close(), text, f"{parent} cannot be written", hint, bad
    )


def _examine_disk(folder: str) -> Iterator[Diagnostic]:
    kind, space = processes.find_file_system(folder), os.statvfs(folder)
    if kind in _NETWORK_SYSTEMS:
        yield Diagnostic("file system", "note", f"{kind}: a network file system; copies of code take longer")
    else:
        copies = "code is shared, not copied (reflinks)" if can_clone(folder) else "code is copied (no reflinks)"
        yield Diagnostic("file system", "ok", f"{kind or 'unknown'}: {copies}")
    free = space.f_bavail * space.f_frsize
    is_little = free < _LITTLE_ROOM
    hint = "runs fail when the disk is full" if is_little else ""
    yield Diagnostic("room", "note" if is_little else "ok", f"{formatting.render_size(free)} free", hint)


def _examine_gpus() -> Iterator[Diagnostic]:
    devices = Devices()
    gpus = devices.list()
    if not gpus:
        yield Diagnostic("GPUs", "note", f"{devices.reason or 'none found'}; runs use the CPU")
        return
    for gpu in gpus:
        free = formatting.render_size(devices.free_memory(gpu.index))
        yield Diagnostic(
            f"GPU {gpu.index}", "ok", f"{gpu.name}, {formatting.render_size(gpu.memory_bytes)}, {free} free"
        )
    if driver := devices.driver():
        yield Diagnostic("driver", "ok", driver)


def _examine_part(part: Part) -> Diagnostic:
    """Find the version of a package without importing it: importing OpenVINO alone would take seconds."""
    try:
        return Diagnostic(part.package, "ok", f"{version(part.package)} ({part.use})")
    except PackageNotFoundError:
        return Diagnostic(part.package, "missing", f"for {part.use}", f"pip install 'assay[{part.extra}]'")


def _examine_plugins(group: Group | None) -> Iterator[tuple[str, tuple[Diagnostic, ...]]]:
    problems: dict[str, list[Diagnostic]] = {}
    for each in (*plugins.find_problems(), *_find_option_problems(group), *find_importer_problems()):
        problems.setdefault(each.name, []).append(Diagnostic(each.name, "note", each.text, "it is left out"))
    for plugin in plugins.find_plugins().values():
        found = (*problems.pop(plugin.name, ()), *map(_examine_need, plugin.doctor))
        yield plugin.name, found or (Diagnostic(plugin.name, "ok", "loaded"),)
    for name, left_out in problems.items():
        yield name, tuple(left_out)


def _find_option_problems(group: Group | None) -> Iterator[PluginProblem]:
    """Yield a problem for each option of a plug-in that its command cannot accept."""
    for path in plugins.merge("options") if group else ():
        found: Any = group
        with suppress(AssayError, AttributeError, KeyError):
            for word in path.split():
                found = plugins.load(found.commands[word][0])
        request = find_request(found)
        for plugin, further in plugins.load_all("options", path):
            mistake = find_option_mistake(request, further) if request else "there is no such command"
            if mistake:
                yield PluginProblem(plugin.name, f"options of {path!r}: {mistake}")
            elif request:
                request = request.extend([further])


def _examine_need(need: Part | Program | Folder) -> Diagnostic:
    """Check one need of a plug-in; a mistake in the plug-in's declaration becomes a note."""
    name, hint = str(getattr(need, need.__slots__[0])), str(getattr(need, "hint", ""))
    try:
        "".join(getattr(need, each) for each in need.__slots__)  # raises TypeError if an attribute is not a string
        if isinstance(need, Part):
            return _examine_part(need)
        if isinstance(need, Program):
            return _examine_program(name, need.use, hint, needed=False, question=need.question)
        path = os.path.abspath(plugins.load(need.find)(os.environ, os.getcwd()))
        return _examine_folder(name, path, hint, needed=False)
    except AssayError as error:
        return Diagnostic(name, "note", error.message, error.hint or hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 any error of a plug-in
        return Diagnostic(name, "note", f"{need}: {type(error).__name__}: {error}", hint)


_MARKS = {
    "ok": ("✓", "+", "green"),
    "note": ("·", ".", "yellow"),
    "missing": ("○", "-", "dim"),
    "broken": ("✗", "x", "red"),
}


class DoctorRequest(Request):
    as_json: bool = json_option()
    root: str | None = root_option()


def doctor(request: DoctorRequest, console: Console, group: Group) -> int:
    """Show what works on this machine, and how to get the rest. Exit code 1: something needed does not work."""
    diagnosis = examine(request.root, group)
    if request.as_json:
        findings = [
            {"group": heading, "name": each.name, "grade": each.grade, "text": each.text, "hint": each.hint or None}
            for heading, found in diagnosis.items()
            for each in found
        ]
        console.write_json({"is_well": is_well(diagnosis), "findings": findings})
    else:
        console.write("".join(f"{line}\n" for line in _render(diagnosis, console)))
    return int(ExitCode.OK if is_well(diagnosis) else ExitCode.FAILED)


def _render(diagnosis: Diagnosis, console: Console) -> Iterator[str]:
    column = max(len(each.name) for found in diagnosis.values() for each in found)
    indent = " " * (column + 6)
    room = None if console.width is None else console.width - len(indent)
    for group, found in diagnosis.items():
        yield paint(group, "bold") if console.color else group
        for each in found:
            nice, ascii_mark, style = _MARKS[each.grade]
            mark = ascii_mark if console.is_plain else nice
            first, *rest = [*fold(each.text, room), *(fold(each.hint, room) if each.hint else [])]
            yield f"  {paint(mark, style) if console.color else mark} {formatting.pad(each.name, column)}  {first}"
            yield from (f"{indent}{line}" for line in rest)
        yield ""
    yield "everything that is needed works" if is_well(diagnosis) else "something that is needed does not work"

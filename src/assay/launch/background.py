"""`--detach`: the supervisor goes on alone."""

from __future__ import annotations

import os
import select

from assay.follow.locations import StudyLocation, show_command
from assay.record import presence
from assay.show.console import Console
from assay.values import layout

_BEGIN_S = 10.0  # how long the command that was called waits for its supervisor: a farm may take longer
_waiting: list[int] = []  # in a supervisor that has not begun yet: the pipe that the command waits for


def go_to_background(location: StudyLocation, console: Console) -> bool:
    """Fork; True in the supervisor that goes on alone, with its output in a file.

    In the command that was called it returns False once the runs that have a slot are started: what is typed next, such
    as `assay stop STUDY/RUN`, finds their directories.
    """
    os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
    log = os.path.join(location.dir, layout.STUDY_META_DIR, layout.SUPERVISOR_LOG)
    hints = [show_command([word], location) for word in ("ls", "stop")]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        presence.announce(location.dir, pid)
        select.select([reader], [], [], _BEGIN_S)
        os.close(reader)
        console.print(f"supervisor {pid} runs in the background; its output is in {os.path.relpath(log)}")
        console.print(f"next: {hints[0]}")
        console.print(f"      {hints[1]}")
        return False
    os.close(reader)
    _waiting.append(writer)
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    return True


def note_begun() -> None:
    """The slots are filled, or there is nothing to start: the command that was called may end."""
    while _waiting:
        os.close(_waiting.pop())

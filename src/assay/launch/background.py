"""`--detach`: the supervisor goes on alone."""

from __future__ import annotations

import os

from assay.follow.locations import StudyLocation, show_command
from assay.record import presence
from assay.show.console import Console
from assay.values import layout


def go_to_background(location: StudyLocation, console: Console) -> bool:
    """Fork; True in the supervisor that goes on alone, with its output in a file."""
    os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
    log = os.path.join(location.dir, layout.STUDY_META_DIR, layout.SUPERVISOR_LOG)
    hints = [show_command([word], location) for word in ("ls", "stop")]
    pid = os.fork()
    if pid:
        presence.announce(location.dir, pid)
        console.print(f"supervisor {pid} runs in the background; its output is in {os.path.relpath(log)}")
        console.print(f"next: {hints[0]}")
        console.print(f"      {hints[1]}")
        return False
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    return True

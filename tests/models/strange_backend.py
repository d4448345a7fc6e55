"""A back end that does whatever a test asks for, by the case's name: what the worker has to survive."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from assay.errors import InfrastructureError, MissingExtraError
from assay.models.backends.base import Backend, BackendError, Made
from assay.models.values.model import StepEnding

ENDLESS = ["sleep", "1000"]


def note_pids(job, *pids):
    aside = Path(job.folder, "pids.aside")
    aside.write_text(" ".join(map(str, pids)))
    aside.rename(Path(job.folder, "pids"))


class StrangeBackend(Backend):
    def identity(self):
        trouble = self.target.options.get("trouble")
        if trouble == "extra":
            raise MissingExtraError("the target 'strange'", "strange")
        if trouble == "board":
            raise InfrastructureError("no answer from the board", "switch it on")
        if trouble == "crash":
            os.abort()
        if trouble == "bug":
            raise ValueError("a bug of ours")
        return {"strange": "1.0", "pid": str(os.getpid())}

    def identify_step(self, step):
        if self.target.options.get("trouble") == "run" and step == "run":
            raise InfrastructureError("no answer from the board")
        return {"step": str(step), **self.identity()}

    def perform(self, job):
        return getattr(self, "do_" + job.case)(job)

    def close(self):
        mark = self.target.options.get("closed")
        if mark:
            Path(mark).write_text("closed")

    def make(self, job, text="made"):
        path = os.path.join(job.folder, "artifact")
        Path(path).write_text(text)
        return Made(path, "strange --make", times_s=(0.25,))

    def do_fine(self, job):
        return self.make(job, str(os.getpid()))

    def do_talk(self, job):
        os.write(1, b'{"outcome": {"step": "run", "ending": "ok"}}\n{"died": 0}\n\xff\x00 garbage')
        print("from print")
        os.system("echo from a child; echo to stderr >&2")
        return self.make(job)

    def do_flood(self, job):
        os.write(2, b"first words\n")
        block = b"x" * (1 << 20)
        for _ in range(1 if job.case == "flood" else 100_000):
            os.write(1, block)
        os.write(2, b"last words\n")
        return self.make(job)

    do_flood_without_end = do_flood

    def do_ask(self, job):
        return self.make(job, repr(sys.stdin.buffer.raw.read(10)))

    def do_refuse(self, job):
        raise BackendError(
            "no such operator: Foo", ending=StepEnding.UNSUPPORTED, command="strange x", stderr="Foo?", hint="no Foo"
        )

    def do_infrastructure(self, job):
        raise InfrastructureError("the board is off", "switch it on")

    def do_bug(self, job):
        raise ZeroDivisionError("division by zero\nand more")

    def do_exit(self, job):
        sys.exit("gone")

    def do_hard_exit(self, job):
        os._exit(7)

    def do_abort(self, job):
        os.write(2, b"Assertion failed: x > 0\n")
        os.abort()

    def do_segfault(self, job):
        ctypes.string_at(0)

    def do_suicide(self, job):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_half_line(self, job):
        for fd in range(3, 100):
            try:
                os.write(fd, b'{"outcome": {"step"')
            except OSError:
                continue
        os.abort()

    def do_hang(self, job):
        while True:
            time.sleep(60)

    def do_announce_and_hang(self, job):
        self.announce(f"strange --case {job.case}")
        os.write(2, b"still here\n")
        note_pids(job, os.getpid())
        self.do_hang(job)

    def do_announce_and_abort(self, job):
        self.announce("strange --first")
        self.announce("strange --second")
        os.abort()

    def do_announce_and_err(self, job):
        self.announce("strange --err")
        raise InfrastructureError("the board is off")

    def do_announce_and_refuse(self, job):
        self.announce("strange --other")
        self.do_refuse(job)

    def do_hang_deaf(self, job):
        """Holds the interpreter's lock, and ignores what can be ignored."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        note_pids(job, os.getpid())
        while True:
            ctypes.PyDLL(None).pause()

    def do_hang_children(self, job):
        """Children in the same session, in one of their own, and an orphan."""
        plain = subprocess.Popen(ENDLESS)
        apart = subprocess.Popen(ENDLESS, start_new_session=True)
        orphan = subprocess.run(
            ["sh", "-c", "setsid sleep 1000 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True
        )
        note_pids(job, os.getpid(), plain.pid, apart.pid, int(orphan.stdout))
        self.do_hang(job)

    def do_leave_child(self, job):
        """Ends well, and leaves a process behind."""
        child = subprocess.Popen(ENDLESS, start_new_session=True)
        return self.make(job, str(child.pid))

    def do_crash_with_children(self, job):
        note_pids(job, subprocess.Popen(ENDLESS, start_new_session=True).pid)
        os.abort()

    def do_eat(self, job):
        eaten = []
        while True:
            eaten.append(os.urandom(1) * (8 << 20))

    def do_eat_in_child(self, job):
        code = "x = []\nwhile True: x.append(b'y' * (8 << 20))"
        subprocess.run([sys.executable, "-SE", "-c", code], check=True)
        return self.make(job)

    def do_gulp(self, job):
        bytearray(1 << 45)

    def do_gulp_native(self, job):
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    def do_gulp_politely(self, job):
        raise BackendError("runner ended with exit code 1", stderr="Traceback …\nMemoryError\n")

    def do_elsewhere(self, job):
        path = os.path.join(os.path.dirname(job.folder), "outside")
        Path(path).write_text("x")
        return Made(path)

    def do_nothing(self, job):
        return Made(os.path.join(job.folder, "missing"), "strange --nothing")

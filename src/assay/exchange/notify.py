"""Messages to commands and webhooks: at the end of a study, at its first failure, for a new best run.

A receiver cannot harm a run: each receiver has its own thread, no run waits for a receiver, and the failures of a
receiver become one warning at the end.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http.client import responses
from tempfile import TemporaryFile
from typing import Any

from assay.errors import AssayError, UsageError
from assay.follow.entry import Event
from assay.launch.live_view import Leader
from assay.launch.prepared import Prepared, Report
from assay.launch.report import describe_outcome
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings, Supervisor
from assay.show.formatting import clean, shorten
from assay.system.fast_dataclasses import replace
from assay.system.http_post import NotHttpError, is_web_address, post
from assay.values.secrets import HIDDEN, SecretRules, hide_text
from assay.values.state import State

LIMIT_S = 10.0  # limit of delivering one message
BEST_EVERY_S = 30.0  # at most one message in this time reports a new best run
NO_RECEIVER = "none"  # `none` as the only receiver overrides the settings
_ADDRESS = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_LONGEST = 1900  # characters of a message: Discord takes 2000
_IN_ENVIRONMENT = ("event", "study", "run", "message", "exit_code")  # fields that a command gets as ASSAY_EVENT, …
_MAIN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that the main thread may block
_FAILED = (State.FAILED, State.TIMEOUT, State.LOST, State.DAMAGED)

Message = Mapping[str, Any]  # a message as JSON


# ---------------------------------------------------------------- receivers


def check_receivers(receivers: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the receivers without `none`. Raise UsageError for an invalid receiver; `where` begins the message."""
    for each in receivers:
        if not each.strip():
            hint = "give a shell command, or an address that begins with http"
            raise UsageError(f"{where}: the receiver is empty", hint)
        is_address = _ADDRESS.match(each) is not None
        if not is_address and re.match(r"[a-z][a-z0-9+.-]*://", each, re.IGNORECASE):
            scheme = each.partition("://")[0]
            raise UsageError(f"{where}: {scheme}:// is not supported", "an address begins with http:// or https://")
        if is_address and (not is_web_address(each) or re.search(r"\s", each)):
            raise UsageError(f"{where}: {hide_receiver(each)} is not a valid address", "as in https://host/path")
    return tuple(each for each in receivers if each != NO_RECEIVER)


def hide_receiver(receiver: str, rules: SecretRules | None = None) -> str:
    """Return the receiver as messages show it, without a webhook's path, which is enough to write to the webhook."""
    address = _ADDRESS.match(receiver)
    if address is None:
        return hide_text(receiver, rules) if rules else hide_text(receiver)
    host = address[2].rpartition("@")[2]
    return f"{address[1]}://{host}/{HIDDEN}" if address[3].strip("/") else f"{address[1]}://{host}"


def drop_flag(words: Sequence[str]) -> tuple[str, ...]:
    """Remove `--notify WHERE` from a command line that is recorded, or printed where others may read it."""
    pairs = zip(("", *words), words, strict=False)
    return tuple(word for before, word in pairs if "--notify" not in (before, word.partition("=")[0]))


class _RefusedError(Exception):
    """The reason why a receiver did not accept a message."""


Started = Callable[[subprocess.Popen[bytes]], None]


def _post(address: str, message: Message) -> None:
    body = json.dumps(message).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "assay"}
    try:
        status, _ = post(address, body, headers, LIMIT_S)
    except TimeoutError:
        raise _RefusedError(_late()) from None
    except NotHttpError as error:
        raise _RefusedError(f"its answer is not HTTP ({error.kind})") from None
    if status // 100 != 2:
        moved = " (redirects are not followed)" if status // 100 == 3 else ""
        raise _RefusedError(f"it answered {status} {responses.get(status, '')}{moved}")


def _late() -> str:
    return f"no answer within {LIMIT_S:g} s"


def _call(command: str, message: Message, started: Started) -> None:
    """Run a command in its own process group, so that all its processes can be killed, but in this process's session:
    processes of other sessions count as left over from a job."""
    texts = {name: "" if message[name] is None else str(message[name]).replace("\0", "") for name in _IN_ENVIRONMENT}
    environment = {**os.environ, **{f"ASSAY_{name.upper()}": text for name, text in texts.items()}}
    with TemporaryFile() as errors:  # background processes of the command would keep a pipe open
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _MAIN_SIGNALS)  # the child inherits the mask
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _MAIN_SIGNALS)
        started(process)
        try:
            process.communicate(json.dumps(message).encode(), timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            raise _RefusedError(f"not finished within {LIMIT_S:g} s") from None
        if process.returncode:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2048))
            last = clean(errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2])
            raise _RefusedError(f"exit code {process.returncode}" + (f": {shorten(last, 200)}" if last else ""))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _Receiver:
    """One receiver and its thread, which starts with the first message."""

    def __init__(self, receiver: str, shown: str) -> None:
        self.shown = shown
        self.failures: list[str] = []
        self.sent = 0
        self._receiver = receiver
        self._is_given_up = False
        self._process: subprocess.Popen[bytes] | None = None  # process of the command for the last message
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="assay-notify")

    def put(self, message: Message) -> None:
        self._waiting.put(message)
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread can be started
                self.failures.append(str(error))

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _MAIN_SIGNALS)
        while (message := self._waiting.get()) is not None and not self._is_given_up:
            try:
                if _ADDRESS.match(self._receiver):
                    _post(self._receiver, message)
                else:
                    _call(self._receiver, message, self._remember_process)
                self.sent += 1
            except _RefusedError as error:
                self.failures.append(str(error))
            except OSError as error:  # there is no shell, or no process can be started
                self.failures.append(str(error.strerror or error))
            except Exception as error:  # noqa: BLE001 no error may harm a run
                self.failures.append(f"{type(error).__name__}: {error}")

    def _remember_process(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._is_given_up:
            _kill(process)

    def is_done(self, until: float) -> bool:
        """Wait until the time `until` at most, and return whether all messages were sent or refused."""
        if self._thread.ident is None:
            return True
        self._waiting.put(None)
        self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Send nothing more, and kill a running command."""
        self._is_given_up = True
        if self._process is not None and self._process.returncode is None:
            _kill(self._process)


# ---------------------------------------------------------------- a study


class Notifier:
    """Decides which events of a study are sent, and never waits before `finish`."""

    def __init__(self, receivers: Sequence[str], study: str, folder: str, rules: SecretRules) -> None:
        self._study, self._folder, self._rules = study, folder, rules
        self._receivers = [_Receiver(each, hide_receiver(each, rules)) for each in receivers]
        self._has_failed = False
        self._has_begun = False
        self._leader: Leader | None = None  # the best run that has not been sent yet
        self._best_at = -BEST_EVERY_S

    def listen(self, event: Event) -> None:
        self._has_begun = True
        entry = event.entry
        if event.kind != "ended" or entry.state not in _FAILED or self._has_failed:
            return
        self._has_failed = True
        outcome = entry.outcome
        reason = f": {outcome.reason}" if outcome and outcome.reason else ""
        text = f"{self._study}: {entry.spec.name} is the first run that did not succeed: {entry.state}{reason}"
        self._put("failure", text, run=entry.spec.name, exit_code=outcome.exit_code if outcome else None)

    def send_best(self, leader: Leader | None) -> None:
        """Send the newest best run, at most one in `BEST_EVERY_S`."""
        if leader is not None and leader.is_new:
            self._leader = leader
        if self._leader is None or time.monotonic() < self._best_at + BEST_EVERY_S:
            return
        leader, self._leader, self._best_at = self._leader, None, time.monotonic()
        text = f"{self._study}: best of this call: {leader.run} {leader.render_value()}"
        self._put("best", text, run=leader.run, best=build_best(leader))

    def finish(self, text: str, exit_code: int, more: Mapping[str, Any] | None = None) -> list[str]:
        """Report the end of the study, if a run began, wait until messages are sent, and return the failures."""
        if self._has_begun:
            self._put("end", text, exit_code=exit_code, **(more or {}))
        until = time.monotonic() + LIMIT_S + 1.0
        notes = []
        for each in self._receivers:
            if failures := [*([] if each.is_done(until) else [_late()]), *reversed(each.failures)]:
                total = each.sent + len(failures)
                count = "" if total == 1 else f" ({len(failures)} of {total} messages)"
                notes.append(f"notify: {each.shown} did not take the message{count}: {clean(failures[0])}")
        return notes

    def close(self) -> None:
        """Send nothing more, and kill running commands."""
        for receiver in self._receivers:
            receiver.give_up()

    def _put(self, event: str, text: str, *, run: str | None = None, exit_code: int | None = None, **more: Any) -> None:
        text = shorten(hide_text(text, self._rules), _LONGEST)
        message = {
            "event": event,
            "study": self._study,
            "run": run,
            "message": text,
            "exit_code": exit_code,
            "dir": self._folder,
            "host": os.uname().nodename,
            "time": time.time(),
            **more,
            "text": text,  # field that Slack and Mattermost show
            "content": text,  # field that Discord shows
        }
        for receiver in self._receivers:
            receiver.put(message)


def build_best(leader: Leader) -> dict[str, Any]:
    return {"run": leader.run, "metric": leader.goal.metric, "direction": leader.goal.direction, "value": leader.value}


# ---------------------------------------------------------------- the step of a run


class NotifyStep(RunStep):
    """`assay run --notify`: reports events of the study to the receivers."""

    _notifier: Notifier | None = None
    _context: RunContext
    _began: float

    def prepare(self, prepared: Prepared) -> Prepared:
        """Remove receivers from the recorded command line, since the address of a webhook is enough to write to it."""
        options = prepared.options
        return replace(prepared, options=replace(options, command_line=drop_flag(options.command_line)))

    def check(self, prepared: Prepared) -> None:
        _choose_receivers(prepared)

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        location, rules = context.prepared.location, context.prepared.settings.secrets
        notifier = Notifier(_choose_receivers(context.prepared), location.name, location.dir, rules)
        self._notifier, self._context, self._began = notifier, context, time.time()
        draw = loop.draw

        def draw_too(supervisor: Supervisor) -> None:
            draw(supervisor)
            notifier.send_best(self._leader)

        return replace(loop, draw=draw_too)

    def listen(self, event: Event) -> None:
        if self._notifier is not None:
            self._notifier.listen(event)

    def end(self, outcome: Report | BaseException) -> Iterable[str]:
        if self._notifier is None:
            return ()
        try:
            if isinstance(outcome, Report):
                return self._notifier.finish(*self._describe(outcome))
            if isinstance(outcome, AssayError):
                study = self._context.prepared.location.name
                return self._notifier.finish(f"{study}: {outcome.message}", int(outcome.exit_code))
            return ()
        finally:
            self._notifier.close()

    @property
    def _leader(self) -> Leader | None:
        return self._context.best.leader if self._context.best is not None else None

    def _describe(self, report: Report) -> tuple[str, int, dict[str, Any]]:
        leader, elapsed_s = self._leader, time.time() - self._began
        text = describe_outcome(report, elapsed_s)
        text += f"; interrupted by {report.interrupted}" if report.interrupted else ""
        text += f"; {report.problem}" if report.problem else ""
        text += f"; best: {leader.run} {leader.render_value()}" if leader else ""
        more = {
            "states": {str(state): count for state in State if (count := report.count(state))},
            "elapsed_s": elapsed_s,
            "interrupted": report.interrupted,
            "best": build_best(leader) if leader else None,
        }
        return text, int(report.exit_code), more


def _choose_receivers(prepared: Prepared) -> tuple[str, ...]:
    """Return the receivers of the option, else the receivers of the settings."""
    asked, settings = prepared.options.extras.get("notify"), prepared.settings
    return check_receivers(asked or settings.notify, "--notify" if asked else f"notify in {settings.notify_from}")

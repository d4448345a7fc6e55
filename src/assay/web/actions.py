"""Actions of the pages: each action executes commands of Assay in processes of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from assay.errors import UsageError
from assay.system.files import parse_json
from assay.values import layout
from assay.web.routes import TEXT, Routes, Schema, record, ref, send
from assay.web.site import get_site, load_study
from assay.web.snapshots import StudySnapshot

ROUTES = Routes()
_LIMIT_S = 60.0
_EARLY_S = 1.0
_MOST_RUNS = 100
_MOST_SHOWN = 5
_LONGEST_TEXT = 10_000
_ACTIONS = ("stop", "rerun", "tag", "untag", "note")
_WISH: Schema = {
    "type": "object",
    "required": ["action"],
    "properties": {
        "action": {"enum": list(_ACTIONS)},
        "runs": {"type": "array", "items": TEXT, "maxItems": _MOST_RUNS},
        "text": {"type": "string", "maxLength": _LONGEST_TEXT},
    },
}


@ROUTES.json(
    "/api/studies/{study}/actions",
    "act",
    ref("Action"),
    method="POST",
    refusals=(400, 404, 409),
    body={"application/json": {"schema": ref("Wish")}},
    schemas={"Wish": _WISH, "Action": record(command=TEXT, code={"type": "integer"}, said=TEXT)},
)
async def act(request: Request) -> Response:
    """Stop, repeat, tag or untag runs, or write a note; without runs the whole study"""
    body = await request.body()
    return await run_in_threadpool(_act, request, body)


def _act(request: Request, body: bytes) -> Response:
    snapshot = load_study(request)
    action, runs, text = _read(body, snapshot)
    commands = build_commands(snapshot, action, runs, text)
    shown = "\n".join(shlex.join(["assay", *words]) for words in commands[:_MOST_SHOWN])
    code, said = 0, ""
    for words in commands:
        code, said = _start(snapshot, words) if action == "rerun" else call(words)
        if code:
            break
    get_site(request).snapshots.refresh(snapshot.slug)
    return send({"command": shown, "code": code, "said": said}, 200 if code == 0 else 409)


def _read(body: bytes, snapshot: StudySnapshot) -> tuple[str, list[str], str]:
    try:
        value: Any = parse_json(body.decode())
    except ValueError:
        value = None
    fields = value if isinstance(value, dict) else {}
    action, runs, text = fields.get("action"), fields.get("runs", []), fields.get("text", "")
    if action not in _ACTIONS:
        raise UsageError(f"there is no action {action!r}", f"there are {', '.join(_ACTIONS)}")
    if not isinstance(runs, list) or not all(isinstance(run, str) for run in runs) or len(runs) > _MOST_RUNS:
        raise UsageError(f"runs is not a list of at most {_MOST_RUNS} names")
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT or "\0" in text:
        raise UsageError(f"text is not a text of at most {_LONGEST_TEXT} characters")
    for run in runs:
        snapshot.get_row(run)
    return action, runs, text.strip()


def build_commands(snapshot: StudySnapshot, action: str, runs: Sequence[str], text: str) -> list[list[str]]:
    """Return the commands of an action, which name runs by path: a name could be parsed as an option or another run."""
    targets = [os.path.join(snapshot.location.dir, run) for run in runs] or [snapshot.location.dir]
    if action == "stop":
        return [["stop", "--", *targets]]
    if action == "rerun":
        return [["rerun", "--plain", "--", *targets]]
    if not text:
        raise UsageError("a note needs a text" if action == "note" else "which tag?")
    if action == "note":
        return [["note", "--", target, text] for target in targets]
    tags = text.replace(",", " ").split()
    if action == "tag":
        return [["tag", "--", target, *tags] for target in targets]
    return [["tag", *(f"--remove={tag}" for tag in tags), "--", target] for target in targets]


def call(words: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "assay", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 4, f"it was not finished after {_LIMIT_S:g} s"
    return done.returncode, (done.stdout + done.stderr).strip()[-4000:]


def _start(snapshot: StudySnapshot, words: Sequence[str]) -> tuple[int, str]:
    """Start a supervisor that outlives the server; return its exit code, or 0 if it is running, and its output."""
    folder = os.path.join(snapshot.location.dir, layout.STUDY_META_DIR)
    path = os.path.join(folder, layout.SUPERVISOR_LOG)
    try:
        os.makedirs(folder, exist_ok=True)
        log = open(path, "ab")  # noqa: SIM115 closed below
    except OSError as error:
        return 4, f"{path}: {error.strerror}"
    with log:
        begins = log.tell()
        argv = [sys.executable, "-P", "-m", "assay", *words]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    code = None
    try:
        code = process.wait(_EARLY_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True).start()  # reaps the process when it ends
    with open(path, encoding="utf-8", errors="replace") as file:
        file.seek(begins)
        said = file.read(4000).strip()
    if code is None:
        return 0, f"started; its output is in {layout.STUDY_META_DIR}/{layout.SUPERVISOR_LOG}\n{said}".strip()
    return (code if code not in (0, 1) else 0), said or f"it ended with exit code {code}"

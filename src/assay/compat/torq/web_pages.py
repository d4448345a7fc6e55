"""The routes for sessions of Torq's tests: the path to which Torq's client sends, and the address that it prints."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from assay.compat.torq.dashboard import MANIFEST
from assay.compat.torq.session_runs import store_session
from assay.errors import NotFoundError
from assay.exchange.api import LIMITS, RefusedUploadError, StoredRun, find_sender, take_upload, unpack
from assay.web.api import (
    BINARY,
    COUNT,
    TEXT,
    Operation,
    Pages,
    Site,
    build_address,
    get,
    get_site,
    post,
    record,
    ref,
    send,
)

_CHUNK = 1 << 20
_MOST_HEAD = 1 << 16  # the most bytes that the headers of one part of a form may have


async def take_session(request: Request) -> Response:
    """Store a session from a form with the archive as its field `file`, as Torq's client sends it."""
    return await take_upload(request, _store_session)


def _store_session(request: Request, site: Site, path: str, aside: str) -> tuple[Sequence[StoredRun], Response]:
    archive = os.path.join(aside, "archive")
    _extract_file(path, request.headers.get("content-type", ""), archive)
    unpacked = os.path.join(aside, "session")
    unpack(archive, unpacked, LIMITS)
    folder, made_at = os.path.join(aside, "runs"), _find_time(archive)
    session = store_session(unpacked, folder, site.roots[0], made_at, find_sender(request))
    number = f"{session.study}~{session.id}"
    link = f"{str(request.base_url).rstrip('/')}/test-sessions/{number}/"
    is_new = any(each.is_new for each in session.runs)
    return session.runs, send({"id": number, "link": link, "runs": len(session.runs)}, 201 if is_new else 200)


def _find_time(archive: str) -> float:
    with zipfile.ZipFile(archive) as file:
        try:
            return time.mktime((*file.getinfo(MANIFEST).date_time, 0, 0, -1))
        except (KeyError, ValueError, OverflowError):
            return 0.0


def _extract_file(path: str, kind: str, target: str) -> None:
    """Write the field `file` of a form (RFC 7578) to `target` without loading it into memory."""
    import mmap

    found = re.search(r'multipart/form-data;.*\bboundary="?([^";,\s]{1,70})"?', kind, re.IGNORECASE)
    if found is None:
        wanted = "a form (multipart/form-data) with the archive as its field `file`"
        raise RefusedUploadError(f"the body must be {wanted}", 415)
    mark = b"--" + found[1].encode("ascii", "replace")
    if os.path.getsize(path) == 0:
        raise RefusedUploadError("the form is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        at = body.find(mark)
        while at >= 0:
            begin = at + len(mark)
            head = body.find(b"\r\n\r\n", begin, begin + _MOST_HEAD)
            end = body.find(b"\r\n" + mark, begin)
            if head < 0 or end < head + 2:
                break
            if re.search(rb'(?i)\bname="?file"?\s*(;|\r|$)', body[begin:head]):
                with open(target, "wb") as part:
                    part.writelines(body[start : min(end, start + _CHUNK)] for start in range(head + 4, end, _CHUNK))
                return
            at = end + 2
    raise RefusedUploadError("the form has no whole field `file`")


def show_session(request: Request) -> Response:
    """Redirect from the address of a session that Torq's client and pytest print."""
    study, _, session = request.path_params["session"].rpartition("~")
    site = get_site(request)
    if not study or study not in site.snapshots.find_locations():
        raise NotFoundError("session", request.path_params["session"])
    return RedirectResponse(build_address("models", study, "sessions", session), 303)


_FORM = {"type": "object", "required": ["file"], "properties": {"file": BINARY}}
_UPLOAD = Operation(
    "uploadTorqSession",
    "Store a session of Torq's tests: a form with the zip archive as its field `file`; each test becomes a run",
    ref("TorqSession"),
    refusals=(400, 409, 415),
    more=(201,),
    body={"multipart/form-data": {"schema": _FORM}},
    schemas={"TorqSession": record(id=TEXT, link=TEXT, runs=COUNT)},
)
PAGES = Pages(
    [
        post("/api/test-sessions/upload_zip/", take_session, _UPLOAD, scope="upload"),
        get("/test-sessions/{session}/", show_session),
    ]
)

"""Results from CI and boards: a zip archive of run directories, or a session of Torq's tests at its own address."""

from __future__ import annotations

import os
import re
import time
import zipfile
from collections.abc import Callable, Iterable

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from assay.compat.torq.dashboard import MANIFEST
from assay.compat.torq.session_runs import store_session
from assay.errors import NotFoundError
from assay.exchange.receive import Limits, RefusedUploadError, Sender, StoredRun, make_aside, store_archive, unpack
from assay.web.answers import send
from assay.web.interface import Pages
from assay.web.routes import get, post
from assay.web.security import TOKEN_KEY, Limit
from assay.web.site import Site, build_address, get_site

LIMITS = Limits()
RATE = Limit(600)  # uploads of one address within a minute: a session of tests sends one for each
_KINDS = ("application/zip", "application/x-zip-compressed", "application/octet-stream")
_CHUNK = 1 << 20
_MOST_HEAD = 1 << 16  # of a part of a form


async def take_runs(request: Request) -> Response:
    """The body is the archive."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HTTPException(415, f"the body must be a zip archive, as {_KINDS[0]}")
    return await _take(request, _store_runs)


async def take_session(request: Request) -> Response:
    """A form with the archive as its field `file`, as Torq's client sends it."""
    return await _take(request, _store_session)


async def _take(request: Request, store: Callable[[Request, Site, str, str], Response]) -> Response:
    address = request.client.host if request.client else ""
    if RATE.is_reached(address):
        raise HTTPException(429, f"more than {RATE.most} uploads within a minute; try again in a minute")
    RATE.note(address)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > LIMITS.body:
        raise HTTPException(413, f"at most {LIMITS.body} bytes are taken at once")
    site = get_site(request)
    making = make_aside(site.roots[0])
    aside = await run_in_threadpool(making.__enter__)
    try:
        path = os.path.join(aside, "body")
        await _save(request, path)
        return await run_in_threadpool(store, request, site, path, aside)
    except ClientDisconnect:
        raise HTTPException(400, "the upload ended before its end; nothing of it was stored") from None
    except RefusedUploadError as error:
        return send({"error": error.message, "hint": error.hint or ""}, error.status)
    except OSError as error:  # a full disk
        return send({"error": f"the upload cannot be stored: {error.strerror or error}", "hint": ""}, 507)
    finally:
        await run_in_threadpool(making.__exit__, None, None, None)  # thousands of files may have to go


async def _save(request: Request, path: str) -> None:
    size = 0
    with await run_in_threadpool(open, path, "wb") as file:
        async for block in request.stream():
            size += len(block)
            if size > LIMITS.body:
                raise RefusedUploadError(f"at most {LIMITS.body} bytes are taken at once", 413)
            await run_in_threadpool(file.write, block)


# ---------------------------------------------------------------- run directories


def _store_runs(request: Request, site: Site, path: str, aside: str) -> Response:
    stored = store_archive(path, aside, site.roots[0], LIMITS, _find_sender(request))
    _refresh(site, stored)
    base = str(request.base_url).rstrip("/")
    runs = [
        {
            "study": each.study,
            "run": each.run,
            "is_new": each.is_new,
            "link": base + build_address("studies", each.study, "runs", each.run),
        }
        for each in stored
    ]
    studies = list(dict.fromkeys(each.study for each in stored))
    link = runs[0]["link"] if len(runs) == 1 else base + build_address("studies", *studies[: len(studies) == 1])
    return send({"runs": runs, "link": link}, 201 if any(each.is_new for each in stored) else 200)


def _find_sender(request: Request) -> Sender:
    address, token = request.client.host if request.client else "", request.scope.get(TOKEN_KEY)
    return Sender(address, token.title, token.prefix) if token else Sender(address)


def _refresh(site: Site, stored: Iterable[StoredRun]) -> None:
    """So that the link that is answered shows them."""
    for study in dict.fromkeys(each.study for each in stored):
        site.snapshots.refresh(study)


# ---------------------------------------------------------------- Torq


def _store_session(request: Request, site: Site, path: str, aside: str) -> Response:
    archive = os.path.join(aside, "archive")
    _cut_file(path, request.headers.get("content-type", ""), archive)
    unpacked = os.path.join(aside, "session")
    unpack(archive, unpacked, LIMITS)
    folder, made_at = os.path.join(aside, "runs"), _find_time(archive)
    session = store_session(unpacked, folder, site.roots[0], made_at, _find_sender(request))
    _refresh(site, session.runs)
    number = f"{session.study}~{session.id}"
    link = f"{str(request.base_url).rstrip('/')}/test-sessions/{number}/"
    is_new = any(each.is_new for each in session.runs)
    return send({"id": number, "link": link, "runs": len(session.runs)}, 201 if is_new else 200)


def _find_time(archive: str) -> float:
    with zipfile.ZipFile(archive) as file:
        try:
            return time.mktime((*file.getinfo(MANIFEST).date_time, 0, 0, -1))
        except (KeyError, ValueError, OverflowError):
            return 0.0


def _cut_file(path: str, kind: str, target: str) -> None:
    """The field `file` of a form (RFC 7578), of which nothing is held in memory."""
    import mmap

    found = re.search(r'multipart/form-data;.*\bboundary="?([^";,\s]{1,70})"?', kind, re.IGNORECASE)
    if found is None:
        raise RefusedUploadError(
            "the body must be a form (multipart/form-data) with the archive as its field `file`", 415
        )
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
    """Torq's client prints this address, and so does pytest."""
    study, _, session = request.path_params["session"].rpartition("~")
    site = get_site(request)
    if not study or study not in site.snapshots.find_locations():
        raise NotFoundError("session", request.path_params["session"])
    return RedirectResponse(build_address("models", study, "sessions", session), 303)


ROUTES = [
    post("/api/uploads", take_runs, scope="upload"),
    post("/api/test-sessions/upload_zip/", take_session, scope="upload"),
    get("/test-sessions/{session}/", show_session),
]
PAGES = Pages(ROUTES)

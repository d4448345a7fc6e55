"""Uploads of results from CI and boards: a zip archive of run directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from assay.exchange.receive import RefusedUploadError, Sender, StoredRun, UploadLimits, make_aside, store_archive
from assay.web import api as web
from assay.web.api import Site

LIMITS = UploadLimits()
RATE = web.Limit(600)  # uploads from one address within a minute: a session of tests sends one for each test
_KINDS = ("application/zip", "application/x-zip-compressed", "application/octet-stream")


Store = Callable[[Request, Site, str, str], tuple[Sequence[StoredRun], Response]]
"""(request, site, path of the body, a folder that is deleted afterwards) -> what was stored, and the answer."""


async def take_runs(request: Request) -> Response:
    """Store the runs of the zip archive in the request's body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HTTPException(415, f"the body must be a zip archive, as {_KINDS[0]}")
    return await take_upload(request, _store_runs)


async def take_upload(request: Request, store: Store) -> Response:
    address = request.client.host if request.client else ""
    if RATE.is_reached(address):
        raise HTTPException(429, f"more than {RATE.most} uploads within a minute; try again in a minute")
    RATE.note(address)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > LIMITS.body:
        raise HTTPException(413, f"at most {LIMITS.body} bytes are taken at once")
    site = web.get_site(request)
    making = make_aside(site.roots[0])
    aside = await run_in_threadpool(making.__enter__)
    try:
        path = os.path.join(aside, "body")
        await _save(request, path)
        return await run_in_threadpool(_store, store, request, site, path, aside)
    except ClientDisconnect:
        raise HTTPException(400, "the upload was cut off; nothing of it was stored") from None
    except RefusedUploadError as error:
        return web.send({"error": error.message, "hint": error.hint or ""}, error.status)
    except OSError as error:  # for example a full disk
        return web.send({"error": f"the upload cannot be stored: {error.strerror or error}", "hint": ""}, 507)
    finally:
        await run_in_threadpool(making.__exit__, None, None, None)  # removing the unpacked files may take long


def _store(store: Store, request: Request, site: Site, path: str, aside: str) -> Response:
    stored, answer = store(request, site, path, aside)
    for study in dict.fromkeys(each.study for each in stored):  # the link in the answer shows the new runs
        site.snapshots.refresh(study)
    return answer


async def _save(request: Request, path: str) -> None:
    size = 0
    with await run_in_threadpool(open, path, "wb") as file:
        async for block in request.stream():
            size += len(block)
            if size > LIMITS.body:
                raise RefusedUploadError(f"at most {LIMITS.body} bytes are taken at once", 413)
            await run_in_threadpool(file.write, block)


# ---------------------------------------------------------------- run directories


def _store_runs(request: Request, site: Site, path: str, aside: str) -> tuple[Sequence[StoredRun], Response]:
    stored = store_archive(path, aside, site.roots[0], LIMITS, find_sender(request))
    base = str(request.base_url).rstrip("/")
    links = [base + web.build_address("studies", each.study, "runs", each.run) for each in stored]
    runs = [{**each._asdict(), "link": link} for each, link in zip(stored, links, strict=True)]
    studies = list(dict.fromkeys(each.study for each in stored))
    link = links[0] if len(links) == 1 else base + web.build_address("studies", *studies[: len(studies) == 1])
    return stored, web.send({"runs": runs, "link": link}, 201 if any(each.is_new for each in stored) else 200)


def find_sender(request: Request) -> Sender:
    address, token = request.client.host if request.client else "", request.scope.get(web.TOKEN_KEY)
    return Sender(address, token.title, token.prefix) if token else Sender(address)


# ---------------------------------------------------------------- the routes

_STORED = web.record(study=web.TEXT, run=web.TEXT, is_new=web.FLAG, link=web.TEXT)
_UPLOAD = web.Operation(
    "upload",
    "Store the runs of a zip archive of STUDY/RUN/FILE; 200: all runs existed already",
    web.ref("Upload"),
    refusals=(400, 409, 415),
    more=(201,),
    body={"application/zip": {"schema": web.BINARY}, "application/octet-stream": {"schema": web.BINARY}},
    schemas={"Upload": web.record(runs=web.many(_STORED), link=web.TEXT)},
)
PAGES = web.Pages([web.post("/api/uploads", take_runs, _UPLOAD, scope="upload")])

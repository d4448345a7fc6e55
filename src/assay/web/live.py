"""Changes of studies as server-sent events: after an event an open page requests its parts again."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from assay.errors import NotFoundError
from assay.values.state import State
from assay.web.routes import Routes
from assay.web.site import get_site
from assay.web.snapshots import Snapshots

ROUTES = Routes()
_MOST_LISTENERS = 200
_MOST_OF_ONE = 100  # listeners at one address
_LOOK_S = 0.4  # time between two checks whether a study changed or the server is ending
_LOOKS_OF_ALL = 5  # the list of all studies is checked after this many times `_LOOK_S`
_PAUSE_S = 10.0  # after this time without an event a comment is sent, which shows whether the client still listens
_STARTED = time.time()  # pages compare this time and the version, since each server counts versions from 1

_open: Counter[str] = Counter()  # address → number of listeners


@ROUTES.page("/events")
async def send_events(request: Request) -> Response:
    """Send an event for each change of a study (`/events?study=NAME`), or of any study (`/events`)."""
    snapshots, slug = get_site(request).snapshots, request.query_params.get("study", "")
    if slug:
        await run_in_threadpool(snapshots.load, slug)  # raises NotFoundError if there is no such study
    address = request.client.host if request.client else ""
    if _open.total() >= _MOST_LISTENERS or _open[address] >= _MOST_OF_ONE:
        return PlainTextResponse("too many pages are open\n", 503)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    return StreamingResponse(_follow(request, slug, address), media_type="text/event-stream", headers=headers)


async def _follow(request: Request, slug: str, address: str) -> AsyncIterator[str]:
    """Yield the state after each change. A slow client skips states that are no longer the newest."""
    snapshots, before, sent_at = get_site(request).snapshots, None, -math.inf
    _open[address] += 1
    try:
        while not snapshots.is_ending and not await request.is_disconnected():
            is_due = time.monotonic() - sent_at > _PAUSE_S
            now = await _look(snapshots, slug, asks=is_due)
            if now not in (None, before):
                yield f"event: {'study' if slug else 'studies'}\ndata: {json.dumps(now)}\n\n"
                before, sent_at = now, time.monotonic()
            elif is_due:
                yield ": still here\n\n"
                sent_at = time.monotonic()
            for _ in range(1 if slug else _LOOKS_OF_ALL):
                if not snapshots.is_ending:
                    await asyncio.sleep(_LOOK_S)
    except NotFoundError:  # the study was deleted
        return
    finally:
        _open[address] -= 1
        if not _open[address]:
            del _open[address]


async def _look(snapshots: Snapshots, slug: str, *, asks: bool) -> dict[str, Any] | None:
    """Return the current state of a study, or of all studies if `slug` is empty. With `asks` the study is loaded and
    counts as requested; without `asks` the result is None for a study that is not in memory."""
    if not slug:
        known = await run_in_threadpool(snapshots.load_studies)
        found = {word: [_name(row.counts), row.last_activity] for word, (_, row) in known.items()}
        return {"started": _STARTED, "studies": found}
    snapshot = await run_in_threadpool(snapshots.load, slug) if asks else snapshots.peek(slug)
    if snapshot is None:
        return None
    return {
        "study": snapshot.slug,
        "started": _STARTED,
        "version": snapshot.version,
        "counts": _name(snapshot.counts),
        "is_running": snapshot.is_running,
    }


def _name(counts: Mapping[State, int]) -> dict[str, int]:
    return {str(state): count for state, count in counts.items()}

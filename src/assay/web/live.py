"""What changes while a page is looked at, as server-sent events: the page then asks for the parts that it shows."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from assay.errors import NotFoundError
from assay.web.routes import Routes
from assay.web.site import Site, get_site
from assay.web.snapshots import StudySnapshot

ROUTES = Routes()
_MOST_LISTENERS = 200
_MOST_OF_ONE = 100  # of one address
_MOST_WAITING = 8  # events that a client has not taken; one that is slower is dropped, and its browser connects again
_LOOK_S = 0.4  # between two looks whether the server is to end
_PAUSE_S = 10.0  # a line without meaning shows whether the client is still there
_LISTED_S = 2.0  # between two looks at all studies
_STARTED = time.time()  # versions begin again with the server, and a page must not take one for the other

_open: Counter[str] = Counter()  # listeners of each address


@ROUTES.page("/events")
async def send_events(request: Request) -> Response:
    """`/events?study=NAME`: an event for each change of the study; `/events`: for each change of any of them."""
    site = get_site(request)
    slug = request.query_params.get("study", "")
    snapshot = await run_in_threadpool(site.snapshots.load, slug) if slug else None
    address = request.client.host if request.client else ""
    if _open.total() >= _MOST_LISTENERS or _open[address] >= _MOST_OF_ONE:
        return PlainTextResponse("too many pages are open\n", 503)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    events = _follow_all(request, site) if snapshot is None else _follow(request, site, snapshot)
    if request.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    return StreamingResponse(_count(events, address), media_type="text/event-stream", headers=headers)


async def _count(events: AsyncIterator[str], address: str) -> AsyncIterator[str]:
    _open[address] += 1
    try:
        async for event in events:
            yield event
    finally:
        _open[address] -= 1
        if not _open[address]:
            del _open[address]


async def _follow(request: Request, site: Site, snapshot: StudySnapshot) -> AsyncIterator[str]:
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[StudySnapshot](_MOST_WAITING)

    def put(after: StudySnapshot) -> None:
        with suppress(asyncio.QueueFull):  # one that takes nothing holds no more tables; it is dropped when it does
            waiting.put_nowait(after)

    def hear(_before: StudySnapshot, after: StudySnapshot) -> None:
        if after.slug == snapshot.slug:
            loop.call_soon_threadsafe(put, after)

    forget = site.snapshots.listen(hear)
    try:
        yield render_event(snapshot)
        told_at = time.monotonic()
        while waiting.qsize() < _MOST_WAITING and await _goes_on(request, site):
            try:
                yield render_event(await asyncio.wait_for(waiting.get(), _LOOK_S))
                told_at = time.monotonic()
            except TimeoutError:
                if time.monotonic() - told_at > _PAUSE_S:
                    try:
                        await run_in_threadpool(site.snapshots.load, snapshot.slug)  # the page is still open
                    except NotFoundError:
                        return  # it was deleted
                    yield ": still here\n\n"
                    told_at = time.monotonic()
    finally:
        forget()


async def _follow_all(request: Request, site: Site) -> AsyncIterator[str]:
    before, told_at = None, 0.0
    while await _goes_on(request, site):
        known = await run_in_threadpool(site.snapshots.load_studies)
        now = {slug: [_name(row.counts), row.last_activity] for slug, (_, row) in known.items()}
        if now != before:
            yield _render("studies", {"started": _STARTED, "studies": now})
            before, told_at = now, time.monotonic()
        elif time.monotonic() - told_at > _PAUSE_S:
            yield ": still here\n\n"
            told_at = time.monotonic()
        for _ in range(int(_LISTED_S / _LOOK_S)):
            if not site.snapshots.is_ending:
                await asyncio.sleep(_LOOK_S)


async def _goes_on(request: Request, site: Site) -> bool:
    return not site.snapshots.is_ending and not await request.is_disconnected()


def render_event(snapshot: StudySnapshot) -> str:
    value = {
        "study": snapshot.slug,
        "started": _STARTED,
        "version": snapshot.version,
        "counts": _name(snapshot.counts),
        "is_running": snapshot.is_running,
    }
    return _render("study", value)


def _name(counts: Any) -> dict[str, int]:
    return {str(state): count for state, count in counts.items()}


def _render(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"

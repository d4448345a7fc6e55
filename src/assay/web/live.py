"""What changes while a page is looked at, as server-sent events: the page then asks for the parts that it shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from assay.web.routes import get
from assay.web.site import Site, get_site
from assay.web.snapshots import Snapshot

_MOST_LISTENERS = 200
_MOST_WAITING = 50  # events that a client has not taken; one that is slower is dropped, and its browser connects again
_PAUSE_S = 10.0  # a line without meaning shows whether the client is still there

_open: set[object] = set()


async def send_events(request: Request) -> Response:
    """`/events?study=NAME`: an event for each change of the study."""
    site = get_site(request)
    slug = request.query_params.get("study", "")
    snapshot = await run_in_threadpool(site.snapshots.load, slug)
    if len(_open) >= _MOST_LISTENERS:
        return PlainTextResponse("too many pages are open\n", 503)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_follow(request, site, snapshot), media_type="text/event-stream", headers=headers)


async def _follow(request: Request, site: Site, snapshot: Snapshot) -> AsyncIterator[str]:
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[Snapshot]()

    def hear(_before: Snapshot, after: Snapshot) -> None:
        if after.slug == snapshot.slug:
            loop.call_soon_threadsafe(waiting.put_nowait, after)

    forget = site.snapshots.listen(hear)
    mark = object()
    _open.add(mark)
    try:
        yield render_event(snapshot)
        while waiting.qsize() < _MOST_WAITING and not await request.is_disconnected():
            try:
                yield render_event(await asyncio.wait_for(waiting.get(), _PAUSE_S))
            except TimeoutError:
                await run_in_threadpool(site.snapshots.load, snapshot.slug)  # somebody still looks at it
                yield ": still here\n\n"
    finally:
        _open.discard(mark)
        forget()


def render_event(snapshot: Snapshot) -> str:
    counts = {str(state): count for state, count in snapshot.counts.items()}
    value = {"study": snapshot.slug, "version": snapshot.version, "counts": counts, "is_running": snapshot.is_running}
    return f"event: study\ndata: {json.dumps(value)}\n\n"


ROUTES = [get("/events", send_events)]

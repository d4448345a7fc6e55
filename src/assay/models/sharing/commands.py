"""`assay model cache push` and `pull`."""

from __future__ import annotations

import os

from assay.errors import ExitCode
from assay.exchange.api import open_remote
from assay.models.sharing.artifacts import find_artifacts, pull_artifacts, push_artifacts
from assay.models.store.artifacts import ArtifactStore, choose_store_folder
from assay.show.console import Console
from assay.show.formatting import render_count, render_size
from assay.values.options import Request, option, quiet_option


class PushArtifactsRequest(Request):
    to: str = option("--to", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder.")
    check: bool = option(
        "--check", default=False, help="Ask the store for every file; one that is damaged there is sent again."
    )
    quiet: bool = quiet_option()


def push(request: PushArtifactsRequest, console: Console) -> int:
    """Send to a shared place what is kept here and not there. Killed, the same call goes on."""
    remote = open_remote(request.to, console.quieted(request.quiet).message)
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        sent = [each for each in push_artifacts(store, remote, check=request.check) if each.is_new or each.sent]
    size = render_size(sum(each.sent_bytes for each in sent))
    console.print(f"sent {render_count(len(sent), 'artifact')}, {size} to {request.to}")
    return int(ExitCode.OK)


class PullArtifactsRequest(Request):
    address: str = option(
        "--from", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder."
    )
    quiet: bool = quiet_option()


def pull(request: PullArtifactsRequest, console: Console) -> int:
    """Fetch from a shared place what is there and not here, as far as ASSAY_CACHE_LIMIT has room for it.

    What comes is used as if it had been made here: fetch only from a place whose writers you trust.
    """
    remote = open_remote(request.address, console.quieted(request.quiet).message)
    with ArtifactStore(choose_store_folder(os.environ, os.getcwd())) as store:
        found, left = find_artifacts(store, remote)
        size = sum(each.bytes for each in pull_artifacts(store, remote, found))
    console.print(f"fetched {render_count(len(found), 'artifact')}, {render_size(size)} from {request.address}")
    if left:
        console.warning(f"there is no room for {left} more: ASSAY_CACHE_LIMIT is {render_size(store.limit_bytes)}")
    return int(ExitCode.OK)

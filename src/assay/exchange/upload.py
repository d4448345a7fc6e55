"""Sends finished runs to an `assay serve` that others read, with the standard library only."""

from __future__ import annotations

import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from assay.errors import InfrastructureError, UsageError
from assay.exchange.store.manifests import CODE_TREE, OF_ARRIVAL
from assay.exchange.store.mirror import list_folder
from assay.follow.locations import find_studies
from assay.follow.run_status import load_status
from assay.record.run_directory import find_run_dirs, write_outcome
from assay.show.console import Console
from assay.show.formatting import clean, render_count, render_size
from assay.system.files import parse_json
from assay.system.http_post import ProxyError, is_web_address, post
from assay.values.options import Request, argument, json_option, option, quiet_option, root_option, where_option
from assay.values.state import State

if TYPE_CHECKING:
    from assay.values.where import Where

ENV_SERVER, ENV_TOKEN = "ASSAY_SERVER", "ASSAY_TOKEN"
_PATH = "/api/uploads"
ATTEMPTS = 3
_MOST_CODE = 20 << 20  # bytes of a run's copy of the code; a larger copy is not sent
_BATCH_BYTES, _BATCH_FILES = 256 << 20, 10_000  # limits of one archive, before compression
_LONGEST_REFUSAL = 300  # characters of the server's error


class UploadServer(NamedTuple):
    url: str  # without a slash at the end
    token: str

    @property
    def name(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def __repr__(self) -> str:
        return f"UploadServer({self.name})"


class OutgoingRun(NamedTuple):
    """A run to send."""

    study: str
    dir: str

    @property
    def key(self) -> str:
        return f"{self.study}/{os.path.basename(self.dir)}"


class UploadRefusedError(InfrastructureError):
    """The server has answered and does not accept the runs."""


class Uploaded(NamedTuple):
    runs: list[dict[str, Any]]  # the server's answer: study, run, is_new, link
    links: list[str]
    bytes: int
    notes: list[str]  # notes about files that were left out


def find_server(flag: str | None, env: Mapping[str, str]) -> UploadServer:
    """Return the server to use. Raise UsageError if its address or token is missing or invalid; print no token."""
    url = flag or env.get(ENV_SERVER, "").strip()
    if not url:
        raise UsageError("no server is given", f"name one with --server or {ENV_SERVER}, as http://lab:8666")
    parts = urlsplit(url) if is_web_address(url) else None
    if parts is None or parts.username or parts.query or parts.fragment:
        raise UsageError("the server's address is not a plain http:// or https:// address", "such as http://lab:8666")
    given = env.get(ENV_TOKEN, "").strip()
    if not given:
        hint = (
            "the token is after `#token=` in what `assay serve` printed, in the file that it named, "
            "or in the file of its --tokens"
        )
        raise UsageError(f"uploading needs a token: {ENV_TOKEN} is not set", hint)
    if not given.isascii() or not given.isprintable() or " " in given:
        raise UsageError(f"{ENV_TOKEN} is not a token: it holds characters that a token never has")
    return UploadServer(url.rstrip("/"), given)


def find_finished(root: str) -> Iterator[str]:
    """Yield the directories of all finished runs below a root."""
    for study in find_studies(root):
        for run_dir in find_run_dirs(os.path.join(root, study)):
            if load_status(run_dir).state.is_over:
                yield run_dir


# ---------------------------------------------------------------- sending


def upload_runs(
    targets: Sequence[OutgoingRun],
    server: UploadServer,
    sleep: Callable[[float], None] = time.sleep,
    attempts: int = ATTEMPTS,
) -> Uploaded:
    """Upload runs in few archives. Raise InfrastructureError if the server does not answer or refuses them."""
    runs: list[dict[str, Any]] = []
    links: dict[str, None] = {}
    notes: list[str] = []
    size = 0
    for batch in list(_build_batches(targets, notes)):
        with tempfile.TemporaryFile(prefix="assay-upload-") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6, strict_timestamps=False) as archive:
                for target, names in batch:
                    for name in names:
                        archive.write(os.path.join(target.dir, name), f"{target.key}/{name}")
            size += file.seek(0, os.SEEK_END)
            try:
                answer = _send(server, file, sleep, attempts)
            except InfrastructureError as error:
                sent = f" ({len(runs)} runs were sent before)" if runs else ""
                raise type(error)(error.message + sent, error.hint) from None
        runs += answer["runs"]
        links[str(answer["link"])] = None
    return Uploaded(runs, list(links), size, notes)


def _send(server: UploadServer, file: IO[bytes], sleep: Callable[[float], None], attempts: int) -> dict[str, Any]:
    """Send an archive; try again if the server does not answer, reports an error of its own or is too busy."""
    failed = f"the runs could not be sent to {server.name}"
    headers = {"Content-Type": "application/zip", "Accept": "application/json"}
    headers["Authorization"] = f"Bearer {server.token}"
    for attempt in range(attempts):
        if attempt:
            sleep(2.0**attempt)
        try:
            status, answer = post(f"{server.url}{_PATH}", file, headers)
        except ProxyError as error:
            raise InfrastructureError(str(error), error.hint) from None
        except OSError as error:
            problem = f"it does not answer: {clean(str(error)) or type(error).__name__}"
            hint = "is `assay serve` running there, and is the address right?"
            failure = InfrastructureError(f"{failed}: {problem}", hint)
            continue
        if status in (200, 201):
            return _read_answer(server, answer)
        said = answer.decode("utf-8", "replace").strip()
        with suppress(ValueError, KeyError, TypeError):
            said = str(parse_json(said)["error"])
        failure = UploadRefusedError(f"{failed}: it refuses: {clean(f'{status} {said[:_LONGEST_REFUSAL]}'.strip())}")
        if status < 500 and status != 429:
            break
    raise failure


def _read_answer(server: UploadServer, body: bytes) -> dict[str, Any]:
    with suppress(ValueError, KeyError, TypeError):
        answer = parse_json(body)
        if all(isinstance(run, dict) for run in answer["runs"]) and isinstance(answer["link"], str):
            return {**answer, "link": clean(answer["link"])}
    raise InfrastructureError(f"{server.name} is not an `assay serve`: its answer has no link")


# ---------------------------------------------------------------- packing


def _build_batches(targets: Sequence[OutgoingRun], notes: list[str]) -> Iterator[list[tuple[OutgoingRun, list[str]]]]:
    """Yield the runs of each archive, with the names of their files."""
    batch: list[tuple[OutgoingRun, list[str]]] = []
    files = size = 0
    for target in targets:
        sizes = _choose_files(target, notes)
        more = sum(sizes.values())
        if batch and (size + more > _BATCH_BYTES or files + len(sizes) > _BATCH_FILES):
            yield batch
            batch, files, size = [], 0, 0
        batch.append((target, [*sizes]))
        files, size = files + len(sizes), size + more
    if batch:
        yield batch


def _choose_files(target: OutgoingRun, notes: list[str]) -> dict[str, int]:
    """Return the files to send with their sizes: no secrets, no links, no code that is too large, no files about how
    the run came here."""
    # only the time of a file, which is not sent, shows when a script's own run ended: write the outcome first
    status = load_status(target.dir)
    if status.outcome is not None and status.state in (State.DONE, State.FAILED):
        with suppress(OSError):
            write_outcome(target.dir, status.outcome)
    sizes: dict[str, int] = {}
    for name in list_folder(target.dir)[0]:
        if name.partition("/")[0] in OF_ARRIVAL:
            continue
        if not name.isprintable() or "\\" in name:
            notes.append(f"{target.key}: {name!a} was left out: its name is not plain text")
            continue
        sizes[name] = os.path.getsize(os.path.join(target.dir, name))
    code = {name for name in sizes if CODE_TREE.fullmatch(name.partition("/")[0]) and "/" in name}
    if sum(sizes[name] for name in code) > _MOST_CODE:
        notes.append(f"{target.key}: its copy of the code is larger than {_MOST_CODE >> 20} MiB and was left out")
        sizes = {name: size for name, size in sizes.items() if name not in code}
    return sizes


# ---------------------------------------------------------------- the command


class UploadRequest(Request):
    names: tuple[str, ...] = argument("NAME...", multiple=True)
    server: str | None = option("--server", metavar="URL", help="Where `assay serve` runs.  [default: ASSAY_SERVER]")
    where: Where | None = where_option()
    quiet: bool = quiet_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def upload(request: UploadRequest, console: Console) -> int:
    """Send finished runs to an `assay serve` that others read, and print the link.

    NAME is a study, STUDY/RUN, or a pattern such as 'STUDY/lr=0.1*'. The token is read from ASSAY_TOKEN. Secrets are
    never sent. Runs that the server has already are not changed.
    """
    from assay.reading.choosing import find_chosen_runs

    console = console.quieted(request.quiet or request.as_json)
    server = find_server(request.server, os.environ)
    runs = find_chosen_runs(request.names, request.where, request.root)
    finished = [run for run in runs if load_status(run.dir).state.is_over]
    for run in runs:
        if run not in finished:
            console.message(f"{run.key} is not finished and was left out; send it when it is")
    if not finished:
        raise UsageError("there is no finished run to send", "list the runs: assay ls STUDY")
    sent = upload_runs([OutgoingRun(run.location.name, run.dir) for run in finished], server)
    for note in sent.notes:
        console.warning(note)
    if request.as_json:
        console.write_json({"runs": sent.runs, "links": sent.links, "bytes": sent.bytes, "notes": sent.notes})
        return 0
    new = sum(bool(run.get("is_new")) for run in sent.runs)
    console.message(f"sent {render_count(len(sent.runs), 'run')}, {render_size(sent.bytes)}: {new} new there")
    for link in sent.links:
        console.print(link)
    return 0

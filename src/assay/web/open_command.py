"""`assay open`: find or start a server for this folder, and open the browser."""

from __future__ import annotations

import fnmatch
import os
import sys
import time
from urllib.parse import quote

from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.follow.api import find_patterns, find_roots
from assay.record.folders import find_run_dirs
from assay.show.console import Console
from assay.show.formatting import escape_html
from assay.system.files import cache_dir, read_end, write_atomic
from assay.system.processes import host_name, process_start, spawn_session
from assay.system.terminal import is_terminal
from assay.values.options import Request, argument, root_option
from assay.values.run import build_command
from assay.web.command import PORT, Server, build_path, check_parts, list_servers, listen

_LONGEST_S = 60.0  # limit of waiting for a started server to answer
_LOG = "serve.log"
_HINT = "start it yourself: assay serve"


class OpenRequest(Request):
    name: str | None = argument("[STUDY|RUN]", required=False)
    root: str | None = root_option()


def open_page(request: OpenRequest, console: Console) -> int:
    """Open the page of all studies, of STUDY or of RUN in the browser.

    A running server that shows this folder is used, else a server is started in the background. Without a display the
    address is printed.
    """
    check_parts()
    roots, page = _find_page(request.name, request.root)
    # use the newest server that shows all of `roots`
    fitting = [each for each in list_servers() if set(roots) <= set(each.roots)]
    server = max(fitting, key=lambda each: each.start, default=None)
    if server is None:
        server = _start_server(roots)
        kill = build_command(["kill", str(server.pid)])
        console.print(f"started the server, process {server.pid}; to end it: {kill}")
    address = server.address + page
    with_token = f"{address}#token={server.secret}" if server.secret else address
    console.print(f"open  {with_token if is_terminal(console.out) else address}")
    displays = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    has_display = sys.platform == "darwin" or any(map(os.environ.get, displays))
    if has_display and not _open_browser(server, with_token):
        console.error("no browser could be started: open the address yourself, or name one in BROWSER")
    elif not has_display and os.environ.get("SSH_CONNECTION"):
        tunnel = f"{server.port}:127.0.0.1:{server.port}"
        console.print(f"      from your own machine first: {build_command(['ssh', '-L', tunnel, host_name()])}")
    return 0


# ---------------------------------------------------------------- what to open


def _find_page(name: str | None, root: str | None) -> tuple[list[str], str]:
    """Return the roots that the server must show, and the path of the page without its first slash."""
    if name is None:
        return [os.path.realpath(each) for each in find_roots(root).all], ""
    (location, *others), patterns = find_patterns([name], root)
    if others:
        raise UsageError(f"{name!r} names runs of several studies", "name one run: assay open STUDY/RUN")
    roots, page = [os.path.realpath(location.root)], f"studies/{quote(location.name)}"
    if not patterns:
        return roots, page
    pattern, known = patterns[0][1], [os.path.basename(path) for path in find_run_dirs(location.dir)]
    found = [pattern] if pattern in known else fnmatch.filter(known, pattern)
    if not found:
        raise NotFoundError("run", pattern, known)
    if len(found) > 1:
        raise UsageError(f"{pattern!r} names {len(found)} runs", f"choose one of: {', '.join(found[:6])}")
    return roots, f"{page}/runs/{quote(found[0])}"


# ---------------------------------------------------------------- the server


def _start_server(roots: list[str], port: int = PORT) -> Server:
    log = os.path.join(cache_dir(os.environ), _LOG)
    try:
        os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
        write_atomic(log, "", 0o600)
    except OSError as error:
        raise InfrastructureError(f"{log} cannot be written: {error.strerror}", _HINT) from error
    known = [word for root in roots if os.path.isdir(root) for word in ("--root", root)]
    try:
        listen("127.0.0.1", port).close()
    except UsageError:
        port = 0  # any free port
    words = ["-P", "-m", "assay", "serve", "--port", str(port), *known]
    pid = spawn_session([sys.executable, *words], os.environ, log)
    end = time.monotonic() + _LONGEST_S
    while process_start(pid) is not None and time.monotonic() < end:
        found = next((each for each in list_servers() if each.pid == pid), None)
        if found is not None:
            return found
        time.sleep(0.05)
    printed = read_end(log, 2000).strip() or f"it did not answer within {_LONGEST_S:.0f} s"
    if port and "cannot listen on" in printed:  # another server has taken the port since
        return _start_server(roots, 0)
    raise InfrastructureError(f"the server could not be started: {printed}", _HINT)


# ---------------------------------------------------------------- the browser


def _open_browser(server: Server, address: str) -> bool:
    """Open an address; an address with a token is passed in a private file, as others can read command lines."""
    import webbrowser

    if server.secret:
        path = build_path(server, "html")  # the server removes this file when it ends
        url = escape_html(address)
        content = f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Assay</a>\n'
        write_atomic(path, content, 0o600)
        address = f"file://{quote(path)}"
    return webbrowser.open(address)

"""`assay serve`, and the list of the servers that this user runs on this machine."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.plugins import describe_error, find_plugins, load
from assay.show.console import Console
from assay.system.files import cache_dir, list_names, parse_json, read_text, write_atomic
from assay.system.processes import boot_id, is_alive, own_start
from assay.system.terminal import is_terminal
from assay.values.hooks import PluginProblem
from assay.values.options import Request, option
from assay.values.run import build_command

if TYPE_CHECKING:
    from types import FrameType

    from assay.web.security import AccessToken

PORT = 8666
_SHORTEST_TOKEN = 16
_M_ARENA_MAX = -8  # a constant of malloc.h


class ServeRequest(Request):
    root: tuple[str, ...] = option(
        "--root", multiple=True, metavar="DIR", help="Where studies are; may be given again.  [default: as `assay ls`]"
    )
    index: str | None = option("--index", metavar="ADDRESS", help="The index to read, as ASSAY_INDEX names it.")
    host: str = option("--host", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on.")
    port: int = option("--port", type=int, minimum=0, maximum=65535, default=PORT, metavar="N", help="0: a free port.")
    names: tuple[str, ...] = option(
        "--name", multiple=True, metavar="NAME", help="Another name of this server; may be given again."
    )
    tokens: str | None = option(
        "--tokens",
        metavar="FILE",
        help="Tokens, one a line: write|read|upload|upload:PREFIX TOKEN.  [default: a new one]",
    )
    tls_cert: str | None = option("--tls-cert", metavar="FILE", help="Serve https, with this certificate (PEM).")
    tls_key: str | None = option("--tls-key", metavar="FILE", help="Key of --tls-cert.  [default: in --tls-cert]")


def serve(request: ServeRequest, console: Console) -> int:
    """Show studies, goldens, benchmarks and models in the browser, until Ctrl-C.

    Reading needs no token on this machine; stopping, repeating, tagging and uploading need the token that is printed.
    """
    if request.index is not None:
        os.environ["ASSAY_INDEX"] = request.index
    check_parts()
    import ctypes

    with suppress(OSError, AttributeError):  # the C library is not glibc
        # two memory arenas: by default each thread has its own, and cannot use memory that another thread freed
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    import uvicorn

    from assay.follow.api import find_roots, open_index, show_path
    from assay.web import connections
    from assay.web.app import build_app
    from assay.web.limited_patterns import limit_patterns
    from assay.web.security import AccessToken, is_loopback
    from assay.web.site import Site

    for root in request.root:
        if not os.path.isdir(root):
            raise UsageError(f"there is no folder {root}", f"make it: {build_command(('mkdir', '-p'), [root])}")
    roots = tuple(os.path.abspath(root) for root in request.root) or tuple(find_roots(None).all)
    if request.index is not None:  # refuse an unreachable index now, not on every page
        with open_index(roots[0]):
            pass
    _check_tls(request.tls_cert, request.tls_key)
    tokens = load_tokens(request.tokens)
    given = os.environ.pop("ASSAY_TOKEN", None)  # runs that a page starts must not inherit the token
    is_local = is_loopback(request.host)
    if not is_local and not tokens:
        hint = "set ASSAY_TOKEN, or write tokens into a file and name it with --tokens"
        raise UsageError(f"on {request.host} others can reach this server, so it needs a token of yours", hint)
    tokens = tokens or (AccessToken(secrets.token_urlsafe(24)),)
    listening = listen(request.host, request.port)
    port = listening.getsockname()[1]
    names = {"localhost", "127.0.0.1", "::1", request.host, socket.gethostname(), *request.names}
    shown = f"[{request.host}]" if ":" in request.host else request.host
    if request.host in ("0.0.0.0", "::"):  # noqa: S104 compared, not used: the server listens on all addresses
        shown = socket.gethostname()
        with suppress(OSError):
            names |= {str(info[4][0]) for info in socket.getaddrinfo(shown, None)}
    site = Site(roots, tokens, is_open=is_local, hosts=tuple(names))
    app = build_app(site)
    console.print(f"studies of {', '.join(map(show_path, roots))}")
    if not is_local and not request.tls_cert:
        console.warning(f"traffic to and from {request.host} is not encrypted, nor are tokens: see --tls-cert")
    address = f"{'https' if request.tls_cert else 'http'}://{shown}:{port}/"
    secret = "" if request.tokens or given else next((each.text for each in tokens if each.scope == "write"), "")
    config = uvicorn.Config(
        app,
        log_config=None,  # uvicorn's configuration closes every handler of this process, and the stream of absl's one
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        http=connections.GuardedProtocol,  # based on h11, which limits the size of headers
        ws="none",
        proxy_headers=False,  # a forged header could give each guess of a token another address
        limit_concurrency=connections.MOST,
        ssl_certfile=request.tls_cert,
        ssl_keyfile=request.tls_key,
    )

    class PageServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """End the event streams of open pages first: the server would wait for them."""
            site.snapshots.end()
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # connections cut now are not errors
            super().handle_exit(sig, frame)

    with limit_patterns(), noted(roots, address, secret), _announce(address, secret, port, console):
        PageServer(config).run([listening])
    return 0


@contextmanager
def _announce(address: str, secret: str, port: int, console: Console) -> Iterator[None]:
    """Print the address and the token; write the token to a file if output is redirected, since others may read it."""
    if not secret or is_terminal(console.out):
        console.print(f"open  {address}{f'#token={secret}' if secret else ''}")
        if secret:
            console.print(
                "      anyone with this address may stop and repeat runs; without `#token=…` it only shows them"
            )
        yield
        return
    path = os.path.join(cache_dir(os.environ), f"serve-{port}.token")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, f"{secret}\n", 0o600)
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}", "set ASSAY_TOKEN instead") from error
    try:
        console.print(f"open  {address}")
        console.print(f"      the token that stopping and repeating runs needs: {build_command(['cat'], [path])}")
        yield
    finally:
        with suppress(OSError):
            os.remove(path)


def check_parts() -> None:
    """Raise UsageError if the libraries or the files of the page are not installed."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise MissingExtraError("the page", "web")
    from assay.web import assets

    if missing := assets.find_missing():
        hint = f"get them, with a network: {assets.build_remedy()}"
        raise UsageError(f"files of the page are missing: {', '.join(missing)}", hint)


def find_page_problems() -> Iterator[PluginProblem]:
    """Yield, for `assay doctor`, the pages of plug-ins that cannot be served, with the reason."""
    if find_spec("starlette") is None:
        return
    from assay.web.interface import find_mistake
    from assay.web.site import find_bad_templates

    for plugin in find_plugins().values():
        for text in plugin.pages:
            try:
                pages = load(text)
                mistake = find_mistake(pages)
                mistakes = [f"{text}: {each}" for each in ([mistake] if mistake else find_bad_templates(pages))]
            except InfrastructureError as error:
                mistakes = [error.message]
            except (Exception, SystemExit) as error:  # noqa: BLE001 a foreign value may raise any error
                mistakes = [f"{text}: {describe_error(error)}"]
            yield from (PluginProblem(plugin.name, each) for each in mistakes)


def load_tokens(path: str | None) -> tuple[AccessToken, ...]:
    """Load tokens from a file, else from ASSAY_TOKEN; an option would show a token to every user of the machine."""
    from assay.values.study import is_study_name
    from assay.web.security import ALLOWS, AccessToken

    if path is None:
        text = os.environ.get("ASSAY_TOKEN", "").strip()
        found = [("ASSAY_TOKEN", ["write", text])] if text else []
    else:
        try:
            with open(path, encoding="utf-8") as file:
                _check_private(path, os.fstat(file.fileno()))
                content = [line.split() for line in file if line.strip() and not line.startswith("#")]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the tokens in {path} cannot be read: {error}") from error
        found = [(f"{path}: entry {number}", words) for number, words in enumerate(content, 1)]
    tokens = []
    for where, words in found:
        scope, bound, prefix = words[0].partition(":")  # `upload:PREFIX` limits the names of studies
        if len(words) != 2 or scope not in ALLOWS or (bound and (scope != "upload" or not is_study_name(prefix))):
            raise UsageError(f"{where} is not `write|read|upload|upload:PREFIX TOKEN`")
        if len(words[1]) < _SHORTEST_TOKEN or not words[1].isascii():
            hint = 'make one: python3 -c "import secrets; print(secrets.token_urlsafe(24))"'
            raise UsageError(f"{where}: a token has at least {_SHORTEST_TOKEN} plain characters", hint)
        tokens.append(AccessToken(words[1], scope, prefix))  # type: ignore[arg-type]
    return tuple(tokens)


def _check_private(path: str, status: os.stat_result) -> None:
    """Refuse a file that others can use, as ssh does; a group may use a file that another user such as root owns."""
    others = 0o077 if status.st_uid == os.getuid() else 0o007
    if stat.S_ISREG(status.st_mode) and status.st_mode & others:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise UsageError(f"{path} can be used by others: its mode is {mode}", build_command(["chmod", "600"], [path]))


def _check_tls(cert: str | None, key: str | None) -> None:
    import asyncio.constants
    import ssl

    from assay.web.connections import HEADERS_S

    if cert is None:
        if key is not None:
            raise UsageError("--tls-key needs its certificate", "name it: --tls-cert FILE")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: "")
        _check_private(key or cert, os.stat(key or cert))
    except (OSError, ValueError) as error:  # includes SSLError, and a key with a password, which cannot be entered
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise UsageError(f"{cert}, {key or 'with the key in it'}: not a certificate and its key: {why}") from error
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HEADERS_S  # until the handshake ends, no protocol limits a connection


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {host}, port {port}: {why}", "any free port: --port 0") from error
    return listening


# ---------------------------------------------------------------- the servers of this user on this machine


class Server(NamedTuple):
    """A running server, as its file in the cache describes it."""

    pid: int
    start: int
    boot: str
    roots: list[str]
    address: str  # ends with a slash
    secret: str = ""  # the token, if the server generated it

    @property
    def port(self) -> str:
        return self.address.rstrip("/").rpartition(":")[2]


@contextmanager
def noted(roots: tuple[str, ...], address: str, secret: str) -> Iterator[None]:
    """List this server in the cache while the context is open; errors are ignored."""
    server = Server(os.getpid(), own_start(), boot_id(), [os.path.realpath(root) for root in roots], address, secret)
    path = build_path(server, "json")
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_atomic(path, json.dumps(server._asdict()), 0o600)
    try:
        yield
    finally:
        for each in (path, build_path(server, "html")):
            with suppress(OSError):
                os.remove(each)


def build_path(server: Server, suffix: str) -> str:
    return os.path.join(cache_dir(os.environ), f"serve-{server.port}.{suffix}")


def list_servers() -> Iterator[Server]:
    """Yield the servers that are alive. Files that are damaged or of another version are ignored."""
    folder = cache_dir(os.environ)
    for name in sorted(list_names(folder)):
        if name.startswith("serve-") and name.endswith(".json"):
            with suppress(OSError, ValueError, TypeError):
                server = Server(**parse_json(read_text(os.path.join(folder, name))))
                if is_alive(server.pid, server.start, server.boot):
                    yield server

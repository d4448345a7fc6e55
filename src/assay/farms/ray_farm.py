"""The resources that a farm of the kind ray requests, and its cluster's address: strings and numbers, without Ray."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.values.study import Farm

LOCAL = "local"
_REACH_S = 5.0
_ANSWER_S = 10.0
# the first bytes that a client of gRPC sends; Ray's head answers them with its own settings
_GRPC_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_DASHBOARD_PORTS = {"http": 80, "https": 443}
_CLUSTER_HINT = "start one (`ray start --head`), or correct `address`"
_DASHBOARD_HINT = (
    "it is a process of the head node: `pip install 'ray[default]'` there, then "
    "`ray start --head --dashboard-host=0.0.0.0`; or correct `address`"
)

Nodes = Sequence[Mapping[str, float]]


def build_options(farm: Farm) -> dict[str, Any]:
    """Return the resources that Ray reserves for one job, as options of a task."""
    given = farm.options
    options: dict[str, Any] = {"num_cpus": given.get("cpus", 1), "num_gpus": given.get("gpus", 0)}
    if given.get("memory"):
        options["memory"] = given["memory"]
    if given.get("resources"):
        options["resources"] = dict(given["resources"])
    return options


def build_demand(farm: Farm) -> dict[str, float]:
    """Return the demand in the terms in which Ray lists the resources of its nodes."""
    options = build_options(farm)
    demand = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options.get("memory", 0)}
    return {name: float(amount) for name, amount in {**demand, **options.get("resources", {})}.items() if amount}


def check_amounts(farm: Farm) -> None:
    for name, amount in build_demand(farm).items():
        if amount > 1 and name in ("GPU", "CPU") and amount != int(amount):
            raise UsageError(f"the farm {farm.name} asks for {amount:g} {name}s: above 1, Ray gives whole ones only")


def can_give(nodes: Nodes, farm: Farm) -> bool:
    """Return whether one of the nodes has all requested resources once it is free."""
    demand = build_demand(farm)
    return any(all(node.get(name, 0.0) >= amount for name, amount in demand.items()) for node in nodes)


def refuse_demand(nodes: Nodes, farm: Farm, cluster: str) -> UsageError:
    """Build the error for a demand that no node can ever meet, or that no node can meet while other jobs run."""
    demand, free = build_demand(farm), "free " if can_give(nodes, farm) else ""
    found = "; ".join(sorted({_render_amounts(node, demand) for node in nodes})) or "no node"
    return UsageError(
        f"no node of the Ray cluster ({cluster}) has {free}what the farm {farm.name} asks for: "
        f"{_render_amounts(demand, demand)}",
        f"its nodes have: {found}; change the farm's section, or add a node",
    )


def _render_amounts(amounts: Mapping[str, float], names: Iterable[str]) -> str:
    shown = {name: amounts.get(name, 0.0) for name in names}
    return ", ".join(
        f"{f'{each / 1e9:.3g} GB' if name == 'memory' else f'{each:g}'} {name}" for name, each in shown.items()
    )


# ---------------------------------------------------------------- the cluster's address


def choose_address(farm: Farm) -> str:
    """Return the farm's address, else that in RAY_ADDRESS, else `local`: a cluster that the supervisor starts."""
    return str(farm.options.get("address") or os.environ.get("RAY_ADDRESS") or LOCAL)


def is_jobs_address(address: str) -> bool:
    """Return whether this is the address of a dashboard, which takes Ray Jobs from machines outside the cluster."""
    return address.startswith(("http://", "https://"))


def require_ray(address: str) -> None:
    if find_spec("ray") is None:
        raise MissingExtraError("a farm of the kind ray", "ray")
    if is_jobs_address(address) and find_spec("aiohttp") is None:
        raise MissingExtraError(f"Ray Jobs ({address})", "ray")


def check_address(address: str) -> None:
    if address in (LOCAL, "auto"):
        return
    if "://" in address and not is_jobs_address(address):
        problem = f"the Ray address {address!r} is not supported: Ray's client ends its jobs when it is disconnected"
        hint = "write the dashboard's address, as in http://10.0.0.1:8265, or `auto` on a machine of the cluster"
        raise UsageError(problem, hint)
    if reason := _reach(*_parse_address(address)):
        noun, hint = ("dashboard", _DASHBOARD_HINT) if is_jobs_address(address) else ("cluster", _CLUSTER_HINT)
        raise InfrastructureError(f"there is no Ray {noun} at {address}: {reason}", hint)


def find_absence(address: str) -> str:
    """Return why the HOST:PORT or dashboard of a cluster cannot be reached; empty if it can."""
    try:
        return _reach(*_parse_address(address))
    except UsageError as error:
        return error.message


def _parse_address(address: str) -> tuple[str, int, bytes, bool]:
    """Return host and port of a head or a dashboard, a request that it answers, and whether it takes only TLS."""
    if not is_jobs_address(address):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            hint = "write `auto`, `local`, HOST:PORT as in 10.0.0.1:6379, or the dashboard's address as in"
            raise UsageError(f"{address!r} is not a Ray address", f"{hint} http://10.0.0.1:8265")
        is_plain = os.environ.get("RAY_USE_TLS", "0") in ("", "0")  # with TLS the head does not answer plain text
        return host, int(port), _GRPC_HELLO if is_plain else b"", False
    try:
        parts = urlsplit(address)
        name, number = parts.hostname, parts.port or _DASHBOARD_PORTS[parts.scheme]
    except ValueError:
        name = None
    if not name:
        raise UsageError(f"{address!r} is not the address of a Ray dashboard", "write it as in http://10.0.0.1:8265")
    return name, number, f"HEAD / HTTP/1.0\r\nHost: {name}\r\n\r\n".encode(), parts.scheme == "https"


def _reach(host: str, port: int, question: bytes, uses_tls: bool) -> str:
    """Return why a server does not answer a request, or "". A frozen process takes connections, but does not answer."""
    try:
        with socket.create_connection((host.strip("[]"), port), _REACH_S) as connection:
            connection.settimeout(_ANSWER_S)
            if uses_tls:  # an error of TLS is an answer too: Ray's client itself checks the certificate
                import ssl

                with contextlib.suppress(ssl.SSLError):
                    ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
            elif question:
                connection.sendall(question)
                connection.recv(1)
    except UnicodeError:  # the host has an empty label, as in a..b, or a label that is too long
        return "the name of its host is not valid"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ""

"""The resources that a farm of the kind ray requests, and its cluster's address: texts and numbers, without Ray."""

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
# what a client of gRPC sends first; Ray's head answers it with settings of its own
_GRPC_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_DASHBOARD_PORTS = {"http": 80, "https": 443}

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
    """Return whether one of these nodes has all requested resources once it is free."""
    demand = build_demand(farm)
    return any(all(node.get(name, 0.0) >= amount for name, amount in demand.items()) for node in nodes)


def refuse_demand(nodes: Nodes, farm: Farm, cluster: str) -> UsageError:
    """Build the error for a demand that no node can ever meet, or that none can meet while others use the nodes."""
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


# ---------------------------------------------------------------- where


def choose_address(farm: Farm) -> str:
    """Return the farm's own address, else that in Ray's variable; without either a cluster of our own is used."""
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
    if is_jobs_address(address):
        _check_dashboard(address)
        return
    if "://" in address:
        raise UsageError(
            f"the Ray address {address!r} is not supported: Ray's client ends its jobs when it is disconnected",
            "write the dashboard's address, as in http://10.0.0.1:8265, or `auto` on a machine of the cluster",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(
            f"{address!r} is not a Ray address",
            "write `auto`, `local`, HOST:PORT as in 10.0.0.1:6379, or the dashboard's address as in http://10.0.0.1:8265",
        )
    hint = "start one (`ray start --head`), or correct `address`"
    _reach(host, int(port), f"there is no Ray cluster at {address}", hint, _build_hello())


def find_absence(address: str) -> str:
    """Return why the HOST:PORT or dashboard of a cluster cannot be reached; empty if it can."""
    try:
        if is_jobs_address(address):
            _check_dashboard(address)
        else:
            host, _, port = address.rpartition(":")
            _reach(host, int(port), "", "", _build_hello())
    except _UnreachableError as error:
        return error.reason
    except UsageError as error:
        return error.message
    return ""


class _UnreachableError(InfrastructureError):
    def __init__(self, what: str, reason: str, hint: str) -> None:
        super().__init__(f"{what}: {reason}", hint)
        self.reason = reason


def _build_hello() -> bytes:
    """Return what Ray's head answers; a head with TLS (RAY_USE_TLS) would not answer plain text."""
    return b"" if os.environ.get("RAY_USE_TLS", "0") not in ("", "0") else _GRPC_HELLO


def _check_dashboard(address: str) -> None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _DASHBOARD_PORTS[parts.scheme]
    except ValueError:
        host, port = None, 0
    if not host:
        raise UsageError(f"{address!r} is not the address of a Ray dashboard", "write it as in http://10.0.0.1:8265")
    hint = (
        "it is a process of the head node: `pip install 'ray[default]'` there, then "
        "`ray start --head --dashboard-host=0.0.0.0`; or correct `address`"
    )
    question = f"HEAD / HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    _reach(host, port, f"there is no Ray dashboard at {address}", hint, question, tls=parts.scheme == "https")


def _reach(host: str, port: int, what: str, hint: str, question: bytes, *, tls: bool = False) -> None:
    """Check that a server answers a request at all: the port of a frozen process takes connections."""
    try:
        with socket.create_connection((host.strip("[]"), port), _REACH_S) as connection:
            connection.settimeout(_ANSWER_S)
            if tls:  # whether the certificate is valid is Ray's client's affair: its refusal is an answer too
                import ssl

                with contextlib.suppress(ssl.SSLError):
                    ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
            elif question:
                connection.sendall(question)
                connection.recv(1)
    except (OSError, OverflowError) as error:
        raise _UnreachableError(what, getattr(error, "strerror", None) or str(error), hint) from error

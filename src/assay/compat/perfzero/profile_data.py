"""profiler_data/ as TensorBoard's profile tab expects it.

    plugins/profile/<session>/<host>.xplane.pb        what the tab opens; TensorFlow writes it there by itself
    plugins/profile/<session>/<host>.trace.json.gz    the same for Chrome's about:tracing and ui.perfetto.dev

Every window is a session. Traces of torch, py-spy and of our own sampler come as plain Chrome traces and are put there;
for TensorFlow's the Chrome trace is made.
"""

from __future__ import annotations

import gzip
import json
import os
from datetime import datetime

from assay.compat.perfzero.xplane import render_xspace
from assay.compat.perfzero.xplane_trace import build_trace

_PLANE, _TRACE = ".xplane.pb", ".trace.json.gz"


def arrange_profiles(folder: str, host: str) -> list[str]:
    """Move the Chrome traces in the folder to where they belong; what could not be read, in words, stays."""
    problems = [problem for plane in _find_bare_planes(folder) if (problem := _add_trace(plane))]
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json"):
            problem = _arrange(folder, name, host)
            problems += [problem] if problem else []
    return problems


def _find_bare_planes(folder: str) -> list[str]:
    """Those that have no Chrome trace beside."""
    found = [os.path.join(base, name) for base, _, names in os.walk(folder) for name in names if name.endswith(_PLANE)]
    return sorted(path for path in found if not os.path.exists(path.removesuffix(_PLANE) + _TRACE))


def _add_trace(plane: str) -> str | None:
    try:
        with open(plane, "rb") as file:
            trace = build_trace(file.read())
    except (OSError, ValueError) as error:
        return f"the profile {plane} has no Chrome trace beside: {error}"
    with gzip.open(plane.removesuffix(_PLANE) + _TRACE, "wt", compresslevel=5, encoding="utf-8") as packed:
        json.dump(trace, packed)
    return None


def _arrange(folder: str, name: str, host: str) -> str | None:
    source = os.path.join(folder, name)
    try:
        with open(source, "rb") as file:
            data = file.read()
        trace = json.loads(data)
    except (OSError, ValueError) as error:
        return f"the profile {source} cannot be read: {error}"
    session = _make_session(folder, source, name.removesuffix(".json"))
    with gzip.open(os.path.join(session, host + _TRACE), "wb", compresslevel=5) as packed:
        packed.write(data)
    space = render_xspace(trace, host)
    if space is not None:
        with open(os.path.join(session, host + _PLANE), "wb") as plane:
            plane.write(space)
    os.unlink(source)
    return None


def _make_session(folder: str, source: str, what: str) -> str:
    """Named by the time, as TensorFlow's are, and by who took it: `2026_03_01_12_00_00_torch-1`."""
    moment = datetime.fromtimestamp(os.stat(source).st_mtime)  # noqa: DTZ006 local time, as TensorFlow does
    session = os.path.join(folder, "plugins", "profile", f"{moment:%Y_%m_%d_%H_%M_%S}_{what}")
    os.makedirs(session)
    return session

"""profiler_data/ as TensorBoard's profile tab expects it.

    plugins/profile/<session>/<host>.xplane.pb        what the tab opens; TensorFlow writes it there by itself
    plugins/profile/<session>/<host>.trace.json.gz    the same for Chrome's about:tracing and ui.perfetto.dev

Every window is a session. Traces of torch, py-spy and of our own sampler come as plain Chrome traces and are put there.
"""

from __future__ import annotations

import gzip
import json
import os
from datetime import datetime

from assay.show.xplane import render_xspace


def arrange_profiles(folder: str, host: str) -> list[str]:
    """Move the Chrome traces in the folder to where they belong; what could not be read, in words, stays."""
    problems = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json"):
            problem = _arrange(folder, name, host)
            problems += [problem] if problem else []
    return problems


def _arrange(folder: str, name: str, host: str) -> str | None:
    source = os.path.join(folder, name)
    try:
        with open(source, "rb") as file:
            data = file.read()
        trace = json.loads(data)
    except (OSError, ValueError) as error:
        return f"the profile {source} cannot be read: {error}"
    session = _make_session(folder, source, name.removesuffix(".json"))
    with gzip.open(os.path.join(session, f"{host}.trace.json.gz"), "wb", compresslevel=5) as packed:
        packed.write(data)
    space = render_xspace(trace, host)
    if space is not None:
        with open(os.path.join(session, f"{host}.xplane.pb"), "wb") as plane:
            plane.write(space)
    os.unlink(source)
    return None


def _make_session(folder: str, source: str, what: str) -> str:
    """Named by the time, as TensorFlow's are, and by who took it: `2026_03_01_12_00_00_torch-1`."""
    moment = datetime.fromtimestamp(os.stat(source).st_mtime)  # noqa: DTZ006 local time, as TensorFlow does
    session = os.path.join(folder, "plugins", "profile", f"{moment:%Y_%m_%d_%H_%M_%S}_{what}")
    os.makedirs(session)
    return session

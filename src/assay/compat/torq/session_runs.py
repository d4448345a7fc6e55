"""Sessions of Torq's tests in the form of Torq's client: each test becomes a run of Assay.

The study is named after the test plan. A run's name begins with the session, and its parameters allow following a test
over sessions: `assay sum torq-nightly --where 'test == "test_mlp"'`. Measurements are metrics; the failure's log and
the profile are files of the run. An archive makes the same runs whenever it is sent.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from assay.compat.torq.dashboard import MANIFEST
from assay.exchange.api import RefusedUploadError, Sender, StoredRun, place_runs
from assay.record import run_directory
from assay.system.fast_dataclasses import asdict
from assay.system.files import parse_json, write_new
from assay.values import layout
from assay.values.run import Outcome, RunSpec, spec_id
from assay.values.state import State
from assay.values.study import CodePolicy

_PREFIX = "torq-"  # prefix of the names of studies
_FAILED = ("failed", "nxpass", "error")
_OUTCOMES = ("passed", "skipped", "xfail", "xpass", *_FAILED)
_FACTS = ("git_branch", "batch_name", "workflow_url", "test_plan")
_LOG, _PROFILE = "test.log", "profile"
_MOST_NAME = 150
_HUGE = 2**63  # the limit of integers in the index


class SessionManifest(NamedTuple):
    study: str
    id: str
    runs: list[StoredRun]


def is_study(name: str) -> bool:
    """Return whether a study of this name may hold sessions."""
    return name.startswith(_PREFIX)


def store_session(folder: str, aside: str, root: str, made_at: float, sender: Sender = Sender()) -> SessionManifest:  # noqa: B008 immutable
    """Store the session that was unpacked into `folder`. `made_at`: the archive's time, which `folder` lacks."""
    manifest = _load_manifest(folder)
    study = f"{_PREFIX}{_clean(str(manifest.get('test_plan') or 'tests'))}"
    batch = str(manifest.get("batch_name") or "default")
    session = _digest(json.dumps([manifest.get("workflow_url"), batch], sort_keys=True))
    names: list[tuple[str, str]] = []
    for test in manifest["test_runs"]:
        wanted = "-".join(str(test.get(key) or "") for key in ("module", "name", "parameters")).strip("-")
        # a name gets a hash if characters had to be replaced or cut
        name = f"{session}-{_clean(wanted)}{'' if _clean(wanted) == wanted else f'-{_digest(wanted)}'}"
        if (study, name) in names:
            raise RefusedUploadError(f"{MANIFEST}: the test {name.partition('-')[2]} is there twice")
        names.append((study, name))
        _write_run(os.path.join(aside, study, name), manifest, test, session, folder, made_at)
    sender.mark(names, aside)
    return SessionManifest(study, session, place_runs(names, aside, root))


def _load_manifest(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, MANIFEST), "rb") as file:
            content = parse_json(file.read())
        json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate is not text
    except (FileNotFoundError, IsADirectoryError) as error:
        raise RefusedUploadError(f"the archive has no {MANIFEST}") from error
    except (ValueError, RecursionError) as error:
        raise RefusedUploadError(f"{MANIFEST} cannot be read: {error}") from error
    tests = content.get("test_runs") if isinstance(content, dict) else None
    if not isinstance(tests, list) or not tests or not all(isinstance(test, dict) for test in tests):
        raise RefusedUploadError(f"{MANIFEST} contains no test_runs")
    for test in tests:
        if test.get("outcome") not in _OUTCOMES or not isinstance(test.get("name"), str):
            raise RefusedUploadError(f"{MANIFEST}: a test without a name, or with the outcome {test.get('outcome')!r}")
        if not all(isinstance(test.get(key, {}), dict) for key in ("measurements", "metadata")):
            raise RefusedUploadError(f"{MANIFEST}: measurements and metadata are objects")
    return dict(content)


def _write_run(
    path: str, manifest: Mapping[str, Any], test: Mapping[str, Any], session: str, folder: str, made_at: float
) -> None:
    facts = {key: manifest[key] for key in _FACTS if manifest.get(key)}
    given = {"module": test.get("module"), "test": test["name"], "parameters": test.get("parameters")}
    own = {**{key: value for key, value in given.items() if value}, "session": session}
    more = {**test.get("metadata", {}), **facts}
    further = {str(key): _plain(value) for key, value in more.items() if key not in own}
    params = {**own, **further, "outcome": test["outcome"]}
    log = _find_file(folder, test.get("failure_log_file"))
    profile = _find_file(folder, test.get("profiling_file"))
    state = State.FAILED if test["outcome"] in _FAILED else State.DONE
    phase = f"in {test['failed_phase']}" if test.get("failed_phase") else ""
    reason = " ".join(filter(None, (test["outcome"] if state is State.FAILED else "", phase)))
    name = os.path.basename(path)
    record = run_directory.RunRecord(
        RunSpec(spec_id((), {"tool": "torq", "id": name}), name, params, (), code=CodePolicy("live")),
        os.path.basename(os.path.dirname(path)),
        _digest(name) + session[:4],
        made_at,
        workdir=".",
        commit=str(manifest["git_commit"]) if manifest.get("git_commit") else None,
        origin={"tool": "torq", "id": name, "name": name, "path": MANIFEST, "issue": test.get("linked_issue")},
    )

    def fill(aside: str) -> None:
        outcome = Outcome(state, 1, reason=reason, started_at=made_at, ended_at=made_at)
        write_new(os.path.join(aside, layout.numbered_name("outcome", 1)), json.dumps(asdict(outcome)))
        numbers = {str(key): _number(value) for key, value in test.get("measurements", {}).items()}
        lines = [{"step": 0, key: value} for key, value in numbers.items() if value is not None]
        if lines:
            os.mkdir(os.path.join(aside, layout.METRICS_DIR))
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            write_new(os.path.join(aside, layout.METRICS_DIR, "a1-r0-torq.jsonl"), text)
        if log is not None:
            shutil.copyfile(log, os.path.join(aside, _LOG))
        if profile is not None:
            os.mkdir(os.path.join(aside, _PROFILE))
            shutil.copyfile(profile, os.path.join(aside, _PROFILE, os.path.basename(profile)))

    run_directory.write_run_dir(path, record, None, fill)


def _find_file(folder: str, name: object) -> str | None:
    """Return the path of a file from the archive; refuse paths outside of it."""
    if not name:
        return None
    path = os.path.normpath(os.path.join(folder, str(name).replace("\0", "?")))
    if not path.startswith(os.path.join(os.path.normpath(folder), "")) or not os.path.isfile(path):
        raise RefusedUploadError(f"{MANIFEST} names the file {str(name)[:200]!r}, which the archive does not have")
    return path


def _plain(value: object) -> object:
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= _HUGE):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value, default=str)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        raise RefusedUploadError(f"{MANIFEST}: a measurement is too large for a number") from None


def _clean(text: str) -> str:
    return re.sub(r"[^\w.+=,@-]+", "_", text)[:_MOST_NAME].strip("._-").encode()[:200].decode("utf-8", "ignore") or "x"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()

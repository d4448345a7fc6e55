"""Manifests: a golden recording on disk.

Version 1 is the format of the original harness: one JSON object with `ckpt_logs` alone. Version 2 keeps `ckpt_logs` for
the original harness, and adds the keys `format`, `test`, `complete`, `steps_per_segment`, `provenance`, `noise`,
`replicas`, `variants`, `checkpoints`, `history`, `steps_beyond`, `repeats_start`, `counts`. Version 3 is written only
for a golden without checkpoints: the one segment of such a golden has `"checkpoint": null`, which version 2 refuses.

`counts` states what the file contains. A file that contains less than its `counts` is damaged: a deleted segment would
not be checked, and a metric without its replicas would be judged by less. A file without `counts`, of the original
harness or of an earlier Assay, is damaged if it refers to segments or replicas that it lacks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from assay.errors import AssayError, ExitCode, FormatError, InfrastructureError, UsageError
from assay.golden.values import Golden, Segment, Track
from assay.system.files import write_atomic

VERSION = 3
WITH_CHECKPOINTS = 2  # the format that is enough for a golden whose segments begin at checkpoints
CHECKPOINT_DIR = "ckpts"
PARTIAL_SUFFIX = ".partial"  # the end of a recording's name until its gathering has ended well
_REMEDY = "gather it again, or bring it back from a copy"
_UNLABELLED = "0"  # the label that the original harness writes for a metric without labels
_OBJECTS = dict.fromkeys(("files", "hardware", "packages", "rules", "seeds", "variants"), dict | None)

Labels = dict[str, tuple[Track, ...]]


def manifest_path(store: str, test: str, name: str) -> str:
    return os.path.join(store, f"{test}_{name}")


def load_manifest(path: str, test: str, how_to: str | None = None) -> Golden:
    """Load a golden. Raises UsageError, with `how_to` as its hint, if none exists, FormatError if it is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        hint = how_to or "gather it first: assay golden gather FILE"
        raise UsageError(f"there is no golden recording {path}", hint) from None
    except UnicodeDecodeError:
        raise _damaged(path, "it is not text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return parse_manifest(text, path, test)


def parse_manifest(text: str, file: str, test: str) -> Golden:
    content = _parse_object(text, file)
    version = content.get("format", 1)
    if type(version) is not int or version < 1:
        raise _damaged(file, f"its version is {version!r}")
    if version > VERSION:
        formats = f"format {version}; this one reads up to {VERSION}"
        message = f"{file}: a newer Assay wrote this golden recording ({formats})"
        raise FormatError(message, "upgrade: pip install --upgrade assay")
    gaps: list[tuple[str, int]] = []
    try:
        found = {key: _parse_segment(content, key, gaps) for key in _get(content, "ckpt_logs")}
        _check_counts(content, found)
        segments = sorted(found.values(), key=lambda segment: segment.start_step)
        provenance = _get(content, "provenance")
        _check_types(provenance, {"check_runs": int, **_OBJECTS}, "provenance")
        _check_types(provenance.get("hardware") or {}, {"gpus": list | None}, "provenance.hardware")
        history = tuple(_check_object(each, "an entry of history") for each in content.get("history", ()))
        for each in history:
            _check_types(each, {"from": dict, "to": dict}, "history")
            for moved in (_get(each, "effects"), _get(each, "since_first"), *_get(each, "first_levels").values()):
                _check_types(moved, dict.fromkeys(moved, int | float), "history")
        return Golden(
            test=str(content.get("test", test)),
            segments=tuple(segments),
            version=version,
            steps_per_segment=int(content.get("steps_per_segment", 0)),
            provenance=provenance,
            noise={name: float(value) for name, value in _get(content, "noise").items()},
            history=history,
            complete=bool(content.get("complete", True)),
            steps_beyond=None if content.get("steps_beyond") is None else int(content["steps_beyond"]),
            repeats_start=content.get("repeats_start") if isinstance(content.get("repeats_start"), bool) else None,
            gaps=tuple(gaps),
        )
    except _BrokenError as error:
        raise _damaged(file, str(error)) from None
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None


class _BrokenError(Exception):
    """Something in a manifest is not valid."""


def _parse_object(text: str, file: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise _damaged(file, "it is empty") from None
        rest = text[error.pos :].strip()  # empty, or the beginning of true, false or null
        if not rest or (error.pos and rest.isalpha()) or "Unterminated" in error.msg:
            raise _damaged(file, "it is truncated: the text ends in the middle") from None
        raise _damaged(file, f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise _damaged(file, "it is nested too deeply") from None
    if not isinstance(content, dict) or "ckpt_logs" not in content:
        raise _damaged(file, "it contains no `ckpt_logs`: this is not a manifest")
    return content


def _damaged(file: str, what: str) -> FormatError:
    return FormatError(f"{file}: this golden recording is damaged: {what}", _REMEDY)


def _get(content: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return the object at the path `keys`, or an empty object."""
    found = content
    for number, key in enumerate(keys, 1):
        found = _check_object(found.get(key, {}), ".".join(keys[:number]))
    return found


def _check_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _BrokenError(f"{where} is not an object")
    return value


def _check_types(found: Mapping[str, Any], types: Mapping[str, Any], where: str) -> None:
    for key, wanted in types.items():
        if key in found and not isinstance(found[key], wanted):
            raise _BrokenError(f"{where}: {key} is {found[key]!r}")


def _parse_segment(content: Mapping[str, Any], key: str, gaps: list[tuple[str, int]]) -> Segment:
    where, log = f"ckpt_logs.{key}", _get(content, "ckpt_logs", key)
    checkpoint = log.get("checkpoint", "")
    if checkpoint is None and content.get("format") == VERSION:
        checkpoint = ""
    elif not isinstance(checkpoint, str) or not checkpoint:
        raise _BrokenError(f"{where} does not name a checkpoint")
    tracks = _parse_results(_check_object(log.get("results"), f"{where}.results"), where, gaps)
    for metric in _get(content, "replicas", key):
        for label, runs in _get(content, "replicas", key, metric).items():
            recorded = tracks.get(metric, {}).get(label, ())
            if recorded or runs:
                tracks.setdefault(metric, {})[label] = (*recorded, *(_parse_track(run) for run in runs))
    variants = {
        name: {
            metric: {label: _parse_track(run) for label, run in _get(content, "variants", key, name, metric).items()}
            for metric in _get(content, "variants", key, name)
        }
        for name in _get(content, "variants", key)
    }
    sha = _get(content, "checkpoints", key).get("sha")
    return Segment(_parse_step(log.get("start_step", key), where), checkpoint, tracks, sha, variants)


def _count_contents(segment: Segment) -> dict[str, Any]:
    tracks = [run for _, _, runs in segment.walk() for run in runs]
    tracks += [run for metrics in segment.variants.values() for labels in metrics.values() for run in labels.values()]
    return {
        "recordings": segment.replicas,
        "variants": sorted(segment.variants),
        "values": sum(len(track.steps) for track in tracks),
    }


def _check_counts(content: Mapping[str, Any], segments: Mapping[str, Segment]) -> None:
    """Raise an error if the file contains less than its `counts` state."""
    if content.get("counts") is None:
        _check_traces(content, segments)
        return
    stated = _check_object(_get(content, "counts").get("segments"), "counts.segments")
    for key in stated:
        expected = _get(content, "counts", "segments", key)
        if key not in segments:
            raise _BrokenError(f"it states {len(stated)} segments and lacks segment {key}")
        found = _count_contents(segments[key])
        if found["recordings"] < expected["recordings"]:
            stated_as = f"it states {expected['recordings']} recordings of segment {key}"
            raise _BrokenError(f"{stated_as} and holds {found['recordings']}")
        if lost := sorted(set(expected["variants"]) - set(found["variants"])):
            raise _BrokenError(f"it lacks the variant {lost[0]} of segment {key}")
        if found["values"] < expected["values"]:
            raise _BrokenError(f"it states {expected['values']} values of segment {key} and holds {found['values']}")


def _check_traces(content: Mapping[str, Any], segments: Mapping[str, Segment]) -> None:
    """Raise an error if a file without counts has parts of a lost segment, or noise without its replicas."""
    for part in ("checkpoints", "replicas", "variants"):
        if lost := sorted(set(_get(content, part)) - set(segments)):
            raise _BrokenError(f"it lacks segment {lost[0]}, which `{part}` names")
    has_more = any(segment.replicas > 1 or segment.variants for segment in segments.values())
    if _get(content, "noise") and not has_more:
        raise _BrokenError("it states the noise of replicas and contains no replica")


def _parse_step(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise _BrokenError(f"{where} has the step {value!r}, not a whole number") from None


def _parse_results(results: Mapping[str, Any], where: str, gaps: list[tuple[str, int]]) -> dict[str, Labels]:
    """Turn step → metric → label → text into metric → label → one Track."""
    texts: dict[str, dict[str, list[tuple[int, str]]]] = {}
    for step_text, metrics in results.items():
        step = _parse_step(step_text, f"{where}.results")
        for metric, labels in _check_object(metrics, f"{where}.results.{step_text}").items():
            for label, text in (labels if isinstance(labels, dict) else {_UNLABELLED: labels}).items():
                if text is None:  # the original harness writes null for a step line without the metric
                    gaps.append((metric, step))
                    continue
                texts.setdefault(metric, {}).setdefault(label, []).append((step, str(text)))
    tracks: dict[str, Labels] = {}
    for metric, found in texts.items():
        is_alone = list(found) == [_UNLABELLED]  # the only value of a metric has no label of its own
        tracks[metric] = {"" if is_alone else label: (_build_track(rows),) for label, rows in found.items()}
    return tracks


def _build_track(rows: Sequence[tuple[int, str]]) -> Track:
    ordered = sorted(rows)
    texts = tuple(text for _, text in ordered)
    try:
        values = tuple(float(text) for text in texts)
    except ValueError as error:
        raise _BrokenError(f"a recorded value is not a number: {error}") from None
    return Track(tuple(step for step, _ in ordered), values, texts)


def _parse_track(run: Mapping[str, Any]) -> Track:
    texts = tuple(str(text) for text in run["values"])
    return Track(tuple(int(step) for step in run["steps"]), tuple(float(text) for text in texts), texts)


def render_manifest(golden: Golden) -> str:
    segments = dict(zip(_build_keys(golden.segments), golden.segments, strict=True))
    content = {
        "ckpt_logs": {key: _render_segment(segment) for key, segment in segments.items()},
        "format": VERSION if any(not segment.checkpoint for segment in golden.segments) else WITH_CHECKPOINTS,
        "test": golden.test,
        "complete": golden.complete,
        "steps_per_segment": golden.steps_per_segment,
        **({} if golden.steps_beyond is None else {"steps_beyond": golden.steps_beyond}),
        **({} if golden.repeats_start is None else {"repeats_start": golden.repeats_start}),
        "counts": {"segments": {key: _count_contents(segment) for key, segment in segments.items()}},
        "provenance": dict(golden.provenance),
        "noise": dict(golden.noise),
        "replicas": {key: _render_replicas(segment) for key, segment in segments.items()},
        "variants": {key: _render_tracks(segment.variants) for key, segment in segments.items() if segment.variants},
        "checkpoints": {key: {"sha": segment.checkpoint_sha} for key, segment in segments.items()},
        "history": [dict(item) for item in golden.history],
    }
    return render_lines(content) + "\n"


# For each key, the depth from which an object is one line: a step, a checkpoint, a part of a rebase's entry.
_LINES = {"ckpt_logs": 4, "counts": 3, "provenance": 3, "replicas": 5, "variants": 6, "checkpoints": 2, "history": 3}


def render_lines(value: Any, depth: int = 0, limit: int = 2) -> str:
    """Render short JSON that is readable in diffs: a line for each step, and for each list of numbers."""
    is_flat = isinstance(value, list) and not any(isinstance(each, dict | list) for each in value)
    if not isinstance(value, dict | list) or not value or depth >= limit or is_flat:
        return json.dumps(value, ensure_ascii=False, default=str)
    inner, items = "    " * (depth + 1), list[str]()
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        name = f"{json.dumps(str(key), ensure_ascii=False)}: " if isinstance(value, dict) else ""
        items.append(f"{inner}{name}{render_lines(each, depth + 1, limit if depth else _LINES.get(str(key), limit))}")
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n" + ",\n".join(items) + f"\n{'    ' * depth}{ends[1]}"


def _build_keys(segments: Iterable[Segment]) -> list[str]:
    """Return the start step of each segment as its key; a second segment of one step gets a suffix, to keep both."""
    keys: list[str] = []
    for segment in segments:
        key, count = str(segment.start_step), 1
        while key in keys:
            count += 1
            key = f"{segment.start_step}#{count}"
        keys.append(key)
    return keys


def _render_segment(segment: Segment) -> dict[str, Any]:
    results: dict[int, dict[str, dict[str, str]]] = {}
    for metric, label, runs in segment.walk():
        for step, text in zip(runs[0].steps, _texts(runs[0]), strict=True):
            results.setdefault(step, {}).setdefault(metric, {})[label or _UNLABELLED] = text
    ordered = {str(step): results[step] for step in sorted(results)}
    return {"checkpoint": segment.checkpoint or None, "start_step": segment.start_step, "results": ordered}


def _render_replicas(segment: Segment) -> Any:
    """Render all recordings but the first, of metrics that have several."""
    found = {name: {label: runs[1:] for label, runs in labels.items()} for name, labels in segment.tracks.items()}
    return _render_tracks({name: labels for name, labels in found.items() if any(labels.values())})


def _render_tracks(value: Any) -> Any:
    """Render tracks in nested mappings and lists, whatever the keys are."""
    if isinstance(value, Track):
        return {"steps": list(value.steps), "values": _texts(value)}
    if isinstance(value, Mapping):
        return {key: _render_tracks(each) for key, each in value.items()}
    return [_render_tracks(each) for each in value]


def _texts(track: Track) -> list[str]:
    return list(track.texts) if track.texts else [repr(value) for value in track.values]


def write_manifest(path: str, golden: Golden) -> None:
    """Replace a manifest atomically. Raises BadRecordingError if judged values of a complete golden are not finite."""
    if golden.complete and (broken := find_not_finite(golden, golden.rules)):
        raise BadRecordingError(f"this recording cannot be used: {broken[0]}", f"{path} is left as it was")
    _write(path, render_manifest(golden))


def _write(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise InfrastructureError(f"the golden recording {path} cannot be written: {error.strerror}") from error


def write_offset(path: str, golden: Golden) -> None:
    """Add how the program counts to a manifest of any version; the recording itself does not change."""
    with open(path, encoding="utf-8") as file:
        content = _parse_object(file.read(), path)
    content |= {"steps_beyond": golden.steps_beyond, "repeats_start": golden.repeats_start}
    if golden.version > 1:
        keys = _build_keys(golden.segments)
        counts = {key: _count_contents(segment) for key, segment in zip(keys, golden.segments, strict=True)}
        content["counts"] = {"segments": counts}
    _write(path, render_lines(content) + "\n")


class BadRecordingError(AssayError):
    """A recording that must not become a golden."""

    exit_code = ExitCode.FAILED


def find_not_finite(golden: Golden, metrics: Collection[str]) -> list[str]:
    """List the first value of each track of these metrics that is not finite: `segment 9 loss is nan at step 11`."""
    found = []
    for segment in golden.segments:
        for metric, label, runs in segment.walk():
            name = f"segment {segment.start_step} {metric} {label}".strip()
            for run in runs if metric in metrics else ():
                rows = zip(run.steps, run.values, _texts(run), strict=True)
                bad = next(((step, text) for step, value, text in rows if not math.isfinite(value)), None)
                if bad is not None:
                    found.append(f"{name} is {bad[1]} at step {bad[0]}")
    return list(dict.fromkeys(found))


def list_manifests(store: str) -> list[str]:
    """List every manifest in a store, whatever its name: archived, partial and damaged manifests, too."""
    try:
        paths = [entry.path for entry in os.scandir(store) if entry.is_file()]
    except OSError:
        return []
    found = []
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb") as file:  # an unreadable file counts as a manifest
            if b'"ckpt_logs"' not in file.read(4096):
                continue
        found.append(path)
    return sorted(found)


def load_references(manifest: str) -> set[str] | None:
    """Return the checkpoints that a manifest refers to; None if it cannot be read."""
    try:
        with open(manifest, encoding="utf-8") as file:
            logs = json.load(file)["ckpt_logs"].values()
        named = [str(log["checkpoint"]) for log in logs if log["checkpoint"] is not None]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {path for name in named if (path := find_checkpoint(manifest, name)) is not None}


def choose_checkpoint_dir(manifest: str, wanted: str) -> str:
    """Return `wanted` or, if a manifest of the store has checkpoints there, a folder below it that no manifest uses.
    The choice depends on the store's manifests alone, so that an interrupted gathering continues in its folder."""
    store = os.path.dirname(os.path.abspath(manifest))
    others = [path for path in list_manifests(store) if path != os.path.abspath(manifest) + PARTIAL_SUFFIX]
    used = [load_references(path) for path in others]
    stem, known = os.path.basename(manifest).removesuffix(".json"), {path for each in used for path in each or ()}
    folder, number = wanted, 1
    while any(path == folder or path.startswith(folder + os.sep) for path in known) or (
        None in used and os.path.isdir(folder) and os.listdir(folder)
    ):
        folder, number = os.path.join(wanted, stem if number == 1 else f"{stem}-{number}"), number + 1
    return folder


def remove_checkpoints(manifest: str, old: Iterable[str]) -> None:
    """Remove checkpoints of a golden that was replaced, if no manifest of the store refers to them any more."""
    store = os.path.dirname(os.path.abspath(manifest))
    references = [load_references(path) for path in list_manifests(store)]
    if None in references:
        return
    kept = {path for found in references if found is not None for path in found}
    base = os.path.join(store, CHECKPOINT_DIR)
    for path in old:
        around = path + os.sep
        if path.startswith(base + os.sep) and not any(
            path == each or each.startswith(around) or path.startswith(each + os.sep) for each in kept
        ):
            _remove(path, base)


def _remove(path: str, base: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        while (path := os.path.dirname(path)) != base:
            os.rmdir(path)
    except OSError:
        return  # the folder has other files, or the path was removed already: the golden is not affected


def find_checkpoint(manifest: str, checkpoint: str) -> str | None:
    """Find the checkpoint's path, relative to the manifest or, as in the original harness, to the checkpoint folder.
    The path of a segment that begins with the training is empty."""
    if not checkpoint:
        return ""
    folder = os.path.dirname(os.path.abspath(manifest))
    for base in (folder, os.path.join(folder, CHECKPOINT_DIR)):
        path = os.path.normpath(os.path.join(base, checkpoint))
        if os.path.lexists(path):
            return path
    return None


def hash_checkpoint(path: str) -> str | None:
    """Return the hash of a file, or of all files of a folder with their names; None if a file cannot be read."""
    digest = hashlib.sha256()
    inner = [os.path.relpath(os.path.join(base, name), path) for base, _, files in os.walk(path) for name in files]
    try:
        for name in sorted(inner) if os.path.isdir(path) else [""]:
            digest.update(f"{name}\0".encode("utf-8", "surrogateescape") if name else b"")
            with open(os.path.join(path, name) if name else path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)
    except OSError:
        return None
    return f"sha256:{digest.hexdigest()}"

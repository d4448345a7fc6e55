"""Goldens of several environments in one store: `TEST_NAME@…manifest.json` next to `TEST_…manifest.json`.

A golden's environment is what its provenance states: GPU, torch, container image. What it does not state fits all: a
golden of the original, or an imported one, is used everywhere.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.golden import manifests
from assay.golden.flow.segments import GoldenContext
from assay.observe.environment import load_environment
from assay.system.fast_dataclasses import asdict, replace
from assay.values.study import Farm

DEFAULT = "default"  # the golden whose file has no name of an environment
_MARK = "@"
_IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")

Key = Mapping[str, str]  # GPU, torch, image: those that are known


def find_image(farm: Farm | None) -> str | None:
    """The container image of the runs: the farm's, or the one that this process is in."""
    named = farm.options.get("container") if farm else None
    found = [named] if farm else [os.environ.get(name) for name in _IMAGE_VARIABLES]
    return next((os.path.basename(str(each)) for each in found if each), None)


def build_key(origin: Mapping[str, Any]) -> dict[str, str]:
    """The key of a provenance, or of an environment as runs record it."""
    hardware, packages = origin.get("hardware"), origin.get("packages")
    gpus = hardware.get("gpus") if isinstance(hardware, Mapping) else None
    torch = packages.get("torch") if isinstance(packages, Mapping) else None
    names = sorted({str(gpu.get("name") if isinstance(gpu, Mapping) else gpu) for gpu in gpus or ()})
    gpu = (" and ".join(names) or "no GPU") if gpus is not None else None
    known = {"GPU": gpu, "torch": torch, "image": origin.get("image")}
    return {name: str(value) for name, value in known.items() if value}


def describe_key(key: Key) -> str:
    """Describe a key as `NVIDIA H100, torch 2.5.1`."""
    return ", ".join(value if name == "GPU" else f"{name} {value}" for name, value in key.items()) or "unknown"


def find_other(one: Key, other: Key) -> list[str]:
    """Return what both keys state, but state differently."""
    return [name for name in one if name in other and one[name] != other[name]]


def name_golden(context: GoldenContext) -> GoldenContext:
    """The golden that a gathering with --environment writes."""
    name = context.options.environment
    if name is not None and (not name.isprintable() or not name or {*"/@"} & {*name}):
        raise UsageError(f"{name!r} cannot name an environment", "it becomes a part of a file's name, as in h100")
    return context if name in (None, DEFAULT) else _use(context, f"{name}{_MARK}{context.options.manifest_name}")


def choose_golden(context: GoldenContext) -> GoldenContext:
    """Choose the golden that --environment names, else the only one, else the one whose environment is this one."""
    names = _list_names(context)
    wanted = context.options.environment
    if wanted is None and len(names) < 2:
        return _use(context, *names.values()) if names else context
    keys = {
        name: build_key(manifests.load_manifest(_use(context, each).manifest, context.test.name).provenance)
        for name, each in names.items()
    }
    if wanted is not None:
        chosen, why = [wanted] if wanted in names else [name for name in names if wanted in name], "--environment"
        if not chosen:
            raise NotFoundError("environment", wanted, list(names))
    else:
        here = _load_key(context)
        fitting = {name: len(here.keys() & key.keys()) for name, key in keys.items() if not find_other(here, key)}
        chosen = [name for name, count in fitting.items() if count == max(fitting.values())]
        why = f"this environment is {describe_key(here)}"
    if len(chosen) != 1:
        choices = [f"--environment {shlex.quote(name)}  # {describe_key(keys[name])}" for name in chosen or names]
        what = f"{context.options.address or context.options.store} has {len(choices)} goldens of {context.test.name}"
        raise UsageError(f"{what} that may be meant: {why}", "\n  ".join(["one of:", *choices]))
    note = f"environment: {chosen[0]} ({describe_key(keys[chosen[0]])}), of {len(names)} goldens in the store; {why}"
    return replace(_use(context, names[chosen[0]]), chosen=note if wanted is None else note.rpartition(";")[0])


def _list_names(context: GoldenContext) -> dict[str, str]:
    """The environments of a test's goldens, and the ends of their files' names."""
    end, prefix = context.options.manifest_name, f"{context.test.name}_"
    found = [os.path.basename(path) for path in manifests.list_manifests(context.store)]
    ends = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    names = {each.removesuffix(_MARK + end): each for each in sorted(ends) if each.endswith(_MARK + end)}
    return {DEFAULT: end, **names} if end in ends else names


def _use(context: GoldenContext, manifest_name: str) -> GoldenContext:
    path = manifests.manifest_path(context.store, context.test.name, manifest_name)
    options = replace(context.options, manifest_name=manifest_name, environment=DEFAULT)  # of that name: it is chosen
    return replace(context, manifest=path, options=options)


def _load_key(context: GoldenContext) -> Key:
    """The key of the runs that would be started. What a farm's nodes have is not known here."""
    if context.farm is not None:
        return build_key({"image": find_image(context.farm)})
    found = load_environment(context.folder, ())
    packages = found.job_packages or found.packages
    gpus = [asdict(gpu) for gpu in found.gpus]
    return build_key({"hardware": {"gpus": gpus}, "packages": packages, "image": find_image(None)})

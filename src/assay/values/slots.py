"""How slots are written, on the command line and in settings."""

from __future__ import annotations

import re

from assay.errors import UsageError

CPU = "cpu"
_DEVICE = re.compile(r"\d+|(?:GPU|MIG)-[\w/.:-]+")  # as CUDA_VISIBLE_DEVICES has them
_SLIP = re.compile(r"(?P<kind>cpus?|gpu|cuda)\W*(?P<number>\d+)", re.IGNORECASE | re.ASCII)


def parse_slots(text: str) -> tuple[str, ...]:
    """`0,1` → two slots; `0+1,2` → a slot of two GPUs and one of one; `cpu:4` → four CPU slots."""
    labels: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, count = part.partition(":")
        if kind == CPU:
            labels += [CPU] * _parse_count(count or "1", part)
        else:
            labels.append(",".join(_check_device(device, part) for device in part.split("+")))
    if not labels:
        raise UsageError(f"no slot in {text!r}", "write for example --slots 0,1 or --slots cpu:4")
    return tuple(labels)


def _parse_count(text: str, part: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"bad slot {part!r}", "write cpu:N with N at least 1")
    return int(text)


def _check_device(device: str, part: str) -> str:
    name = device.strip()
    if not name.isascii() or not _DEVICE.fullmatch(name):
        hint = "a slot is a GPU's number such as 0 or its GPU-… or MIG-… id, several as 0+1, or cpu:N"
        raise UsageError(f"bad slot {part!r}", _guess(name) or hint)
    return name


def _guess(name: str) -> str | None:
    match = _SLIP.fullmatch(name)
    if match is None:
        return None
    meant = f"{CPU}:{match['number']}" if match["kind"].lower().startswith(CPU) else match["number"]
    return f"did you mean {meant}?"


def parse_slot_flags(slots: str | None, jobs: int | None) -> tuple[str, ...] | None:
    if slots is not None and jobs is not None:
        raise UsageError("--slots and --jobs set the same thing", "give one of them")
    if jobs is not None:
        slots = f"cpu:{jobs}"
    return parse_slots(slots) if slots is not None else None

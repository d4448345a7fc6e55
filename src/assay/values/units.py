"""Parse durations, sizes and slots as people write them, on the command line and in settings."""

from __future__ import annotations

import re

from assay.errors import UsageError

CPU = "cpu"
_DEVICE = r"\d+|(?:GPU|MIG)-[\w/.:-]+"  # a GPU's number or id, as in CUDA_VISIBLE_DEVICES
_SLIP = r"(?ia)(?P<kind>cpus?|gpu|cuda)\W*(?P<number>\d+)"

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION_UNITS |= {"d": 86400.0, "w": 7 * 86400.0, "y": 365.25 * 86400.0}
_DURATION_PART = r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdwy])\s*"
_SIZE = r"(\d+(?:\.\d+)?)\s*(?:([kKmMgGtT])([iI]?))?[bB]?"
_SIZE_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_duration(text: str) -> float | None:
    """Parse `2h`, `1h30m`, `90s`, `1.5d`, `90` to seconds; None if it is not a duration."""
    stripped = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", stripped):
        return float(stripped)
    parts = re.findall(_DURATION_PART, stripped)
    if not parts or re.sub(_DURATION_PART, "", stripped):
        return None
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_size(text: str) -> int | None:
    """Parse `10GB` (powers of 1000), `10GiB` (powers of 1024), `512` to bytes; None if it is not a size."""
    match = re.fullmatch(_SIZE, text.strip())
    if match is None:
        return None
    power = _SIZE_POWERS[match[2].lower()] if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def parse_timeout(text: str | None, flag: str = "--timeout") -> float | None:
    seconds = parse_duration(text) if text is not None else None
    if text is not None and not seconds:
        raise UsageError(f"{flag} {text!r} is not a duration", f"write for example {flag} 90s, 30m, 2h or 1h30m")
    return seconds


def parse_slots(text: str) -> tuple[str, ...]:
    """Parse `0,1` to two slots; `0+1,2` to a slot of two GPUs and one of one; `cpu:4` to four CPU slots."""
    labels: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, _, text_count = part.partition(":")
        if kind == CPU:
            count = text_count or "1"
            if not count.isdigit() or int(count) < 1:
                raise UsageError(f"bad slot {part!r}", "write cpu:N with N at least 1")
            labels += [CPU] * int(count)
        else:
            labels.append(",".join(_check_device(device, part) for device in part.split("+")))
    if not labels:
        raise UsageError(f"no slot in {text!r}", "write for example --slots 0,1 or --slots cpu:4")
    return tuple(labels)


def _check_device(device: str, part: str) -> str:
    name = device.strip()
    if not name.isascii() or not re.fullmatch(_DEVICE, name):
        hint = "a slot is a GPU's number such as 0 or its GPU-… or MIG-… id, several as 0+1, or cpu:N"
        if slip := re.fullmatch(_SLIP, name):
            meant = f"{CPU}:{slip['number']}" if slip["kind"].lower().startswith(CPU) else slip["number"]
            hint = f"did you mean {meant}?"
        raise UsageError(f"bad slot {part!r}", hint)
    return name


def parse_slot_flags(slots: str | None, jobs: int | None) -> tuple[str, ...] | None:
    if slots is not None and jobs is not None:
        raise UsageError("--slots and --jobs set the same thing", "give one of them")
    if jobs is not None:
        slots = f"cpu:{jobs}"
    return parse_slots(slots) if slots is not None else None

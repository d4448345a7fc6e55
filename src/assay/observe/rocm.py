"""AMD's accelerators, as `rocm-smi` names them; asked once per process, since it takes half a second to answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

TIMEOUT_S = 20.0
_QUESTIONS = ("--showproductname", "--showdriverversion", "--json")
_NAMES = ("card series", "device name", "card model", "card sku")  # the first that says more than a number


@dataclass(frozen=True, slots=True)
class Accelerators:
    models: tuple[str, ...] = ()
    driver: str = ""


def load_accelerators() -> Accelerators:
    """None of them where there is no `rocm-smi` on PATH, or where it does not answer."""
    program = shutil.which("rocm-smi")
    return _ask(program) if program else Accelerators()


@cache
def _ask(program: str) -> Accelerators:
    try:
        done = subprocess.run(
            [program, *_QUESTIONS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Accelerators()
    return parse_accelerators(done.stdout.decode("utf-8", "replace"))


def parse_accelerators(text: str) -> Accelerators:
    """`{"card0": {"Card series": …}, "system": {"Driver version": …}}`, with warnings before it at times. The keys have
    been spelt in several ways."""
    try:
        content = json.loads(text[text.index("{") :])
    except ValueError:
        return Accelerators()
    if not isinstance(content, dict):
        return Accelerators()
    cards = {int(match[1]): fields for name, fields in content.items() if (match := re.fullmatch(r"card(\d+)", name))}
    system = _lower(content.get("system"))
    return Accelerators(tuple(_name(cards[number]) for number in sorted(cards)), system.get("driver version", ""))


def _name(fields: Any) -> str:
    known = _lower(fields)
    told = [known[key] for key in _NAMES if known.get(key, "N/A") != "N/A"]
    return next((name for name in told if not name.startswith("0x")), told[0] if told else "AMD GPU")


def _lower(fields: Any) -> dict[str, str]:
    items = fields.items() if isinstance(fields, Mapping) else ()
    return {str(key).strip(": ").lower(): str(value).strip() for key, value in items}

"""What differs between the search that a study has and the one that its file asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from assay.record.search_file import SearchFile


def find_changes(known: SearchFile, new: SearchFile) -> list[str]:
    """List what differs, a line each; where the trials begin may differ."""
    facts = [(_list_facts(known), _list_facts(new))]
    facts += [
        (_name_params(index, len(known.space), old), _name_params(index, len(known.space), other))
        for index, (old, other) in enumerate(zip(known.space, new.space, strict=False))
    ]
    lines = [line for old, other in facts for line in _compare(old, other)]
    if len(known.space) != len(new.space):
        lines.append(f"sweep: {len(known.space)} items → {len(new.space)}")
    return lines


def _list_facts(file: SearchFile) -> dict[str, Any]:
    directions = {f"direction of {each.metric}": each.direction for each in file.objectives}
    commands = {f"command {name}": text for name, text in file.commands.items()}
    metrics = ", ".join(each.metric for each in file.objectives)
    return {"sampler": file.sampler, "metric": metrics, **directions, "seed": file.seed, "at": file.at, **commands}


def _name_params(index: int, count: int, params: Mapping[str, Any]) -> dict[str, Any]:
    return {f"sweep[{index}].{name}" if count > 1 else name: value for name, value in params.items()}


def _compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield f"{name}: removed"
        elif name not in old:
            yield f"{name}: added"
        elif json.dumps(old[name]) != json.dumps(new[name]):
            is_hash = name.startswith("command ")
            yield f"{name}: changed" if is_hash else f"{name}: {_show(old[name])} → {_show(new[name])}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""`.assay/search.json`: which search the trials of a study belong to, as its first call found it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from assay.errors import FormatError
from assay.record.formats import FORMATS, build_damage, read_versioned, stamp
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_text, write_atomic
from assay.values import layout
from assay.values.plain import WrongTypeError, build_plain, parse_strict
from assay.values.study import At, Objective, Sampler


@dataclass(frozen=True, slots=True)
class SearchFile:
    sampler: Sampler
    objectives: tuple[Objective, ...]
    seed: int
    at: At
    space: tuple[Mapping[str, Any], ...]  # each sweep's parameters
    commands: Mapping[str, str]  # name -> hash of its text
    first: int = 0  # the number of its first trial: what an earlier search did not count any more

    def find_changes(self, new: SearchFile) -> list[str]:
        """What differs in another file, a line each; not where its trials begin."""
        facts = [(self._list_facts(), new._list_facts())]
        facts += [
            (_name_params(index, len(self.space), old), _name_params(index, len(self.space), other))
            for index, (old, other) in enumerate(zip(self.space, new.space, strict=False))
        ]
        lines = [line for old, other in facts for line in _compare(old, other)]
        if len(self.space) != len(new.space):
            lines.append(f"sweep: {len(self.space)} items → {len(new.space)}")
        return lines

    def _list_facts(self) -> dict[str, Any]:
        directions = {f"direction of {each.metric}": each.direction for each in self.objectives}
        commands = {f"command {name}": text for name, text in self.commands.items()}
        metrics = ", ".join(each.metric for each in self.objectives)
        return {"sampler": self.sampler, "metric": metrics, **directions, "seed": self.seed, "at": self.at, **commands}


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


def load_search(study_dir: str) -> SearchFile | None:
    """None where no search was begun. Raises FormatError where the file is damaged."""
    path = find_search_file(study_dir)
    try:
        fields = read_versioned(read_text(path), "search", path)
        return parse_strict(SearchFile, fields)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    except KeyError as error:
        raise build_damage(path, f"{error} is missing", FORMATS["search"]) from error
    except WrongTypeError as error:
        raise build_damage(path, str(error), FORMATS["search"]) from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise build_damage(path, "its content does not have the form of a search", FORMATS["search"]) from error


def write_search(study_dir: str, search: SearchFile) -> None:
    write_atomic(find_search_file(study_dir), json.dumps(stamp(build_plain(search), "search")), repair=True)


def find_search_file(study_dir: str) -> str:
    return os.path.join(study_dir, layout.STUDY_META_DIR, layout.SEARCH_FILE)

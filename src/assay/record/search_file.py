"""`.assay/search.json`: the search that the trials of a study belong to, as its first call defined it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
    space: tuple[Mapping[str, Any], ...]  # parameters of each sweep
    commands: Mapping[str, str]  # name -> hash of its text
    first: int = 0  # the number of its first trial: earlier ones belong to other searches


def load_search(study_dir: str) -> SearchFile | None:
    """Load the search of a study; None if there is none. Raise FormatError if the file is damaged."""
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

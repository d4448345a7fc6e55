"""Outputs that other tools wrote: `.npz` and `.npy` files, Polygraphy's JSON, and raw dumps with a list of their names.

Polygraphy's `--save-outputs` writes `{"lst": [[RUNNER, [{"outputs": {NAME: ARRAY}}]]]}`, with an entry per iteration;
ARRAY is `{"array": BASE64}` of a `.npy` file, in newer versions below `"values"`. `index.json` lists raw files:
`[{"name": "logits", "file": "logits.bin", "dtype": "float32", "shape": [1, 10]}]`.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, NoReturn

from assay.errors import UsageError
from assay.models.graph.tensorfile import LIST_FILE, load_array, load_arrays
from assay.models.libraries import np
from assay.system.fast_dataclasses import dataclass

INDEX_NAMES = (LIST_FILE, "index.json")
_PAIRS = (("reference", "target"), ("expected", "actual"))
_FORMS = "a .npz file, Polygraphy's JSON, or a folder of .npy files or of raw files with an index.json"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of one side, by sample; each sample has its arrays by name."""

    name: str
    samples: tuple[Mapping[str, Any], ...]


def load_both(first: str, second: str | None) -> tuple[Outputs, Outputs]:
    """Load the outputs of both sides, from two files or folders, or from one that has both. Raises UsageError."""
    if second is not None:
        return _load_only(first), _load_only(second)
    if os.path.isdir(first):
        stems = {os.path.splitext(name)[0]: os.path.join(first, name) for name in sorted(os.listdir(first))}
        for mine, theirs in _PAIRS:
            if mine in stems and theirs in stems:
                return _load_only(stems[mine]), _load_only(stems[theirs])
        hint = "keep them with --keep-outputs, or name both: assay model judge expected.npz actual.npz"
        raise UsageError(f"{first} has neither outputs of a check nor reference.npz and target.npz", hint)
    found = load_outputs(first)
    if len(found) == 1:
        raise UsageError(
            f"{first} has the outputs of one runner: {found[0].name}", "name the file of the other one, too"
        )
    if len(found) > 2:
        _refuse_runners(first, found, "save the outputs of two: the first is what should be")
    return found[0], found[1]


def _load_only(path: str) -> Outputs:
    found = load_outputs(path)
    if len(found) > 1:
        _refuse_runners(path, found, f"save each one's, or judge the two of one file: assay model judge {quote(path)}")
    return found[0]


def _refuse_runners(path: str, found: Sequence[Outputs], hint: str) -> NoReturn:
    names = ", ".join(each.name for each in found)
    raise UsageError(f"{path} has the outputs of {len(found)} runners: {names}", hint)


def load_outputs(path: str) -> list[Outputs]:
    """Load the outputs of each runner in a file; only Polygraphy's files may have several."""
    name = os.path.splitext(os.path.basename(os.path.normpath(path)))[0]
    if os.path.isdir(path):
        found = _load_folder(path)
    elif path.endswith(".json"):
        return _load_polygraphy(path)
    elif path.endswith(".npz"):
        found = load_arrays(path)
    elif os.path.exists(path):
        found = {name: load_array(path)}
    else:
        raise UsageError(f"there is no {path}", f"give {_FORMS}")
    if not found:
        raise UsageError(f"{path} contains no tensor", f"give {_FORMS}")
    return [Outputs(name, (found,))]


def _load_folder(path: str) -> dict[str, Any]:
    index = next((name for name in INDEX_NAMES if os.path.exists(os.path.join(path, name))), None)
    if index is not None:
        return dict(_load_listed(path, os.path.join(path, index)))
    files = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if other := next((name for name in files if not name.endswith(".npy")), None):
        hint = "name the folder of one sample; raw files need an index.json; remove what is not an output"
        raise UsageError(f"{path} has {other}, which is not a .npy file and would not be compared", hint)
    return {os.path.splitext(name)[0]: load_array(os.path.join(path, name)) for name in files}


def _load_listed(folder: str, index: str) -> Iterator[tuple[str, Any]]:
    content = _load_json(index)
    rows = content.get("tensors") if isinstance(content, dict) else content
    seen: set[str] = set()
    for number, row in enumerate(rows if isinstance(rows, list) else [None]):
        try:
            name, file = str(row["name"]), str(row["file"])
            dtype, shape = row.get("dtype"), row.get("shape")
            sizes = None if shape is None else [int(dim) for dim in shape]
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UsageError(
                f"{index}: entry {number} does not name a tensor",
                'write [{"name": "logits", "file": "logits.bin", "dtype": "float32", "shape": [1, 10]}]',
            ) from None
        if name in seen:
            raise UsageError(f"{index}: entry {number} names {name} again", "give each tensor a name of its own")
        seen.add(name)
        yield name, load_array(os.path.join(folder, file), dtype, sizes)


def _load_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", f"give {_FORMS}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable JSON: {error}") from error


def _load_polygraphy(path: str) -> list[Outputs]:
    content = _load_json(path)

    def parse(value: Any) -> Any:
        array = base64.b64decode(value.get("values", value)["array"], validate=True)
        return np.lib.format.read_array(io.BytesIO(array), allow_pickle=False)

    try:
        found = [
            Outputs(str(name), tuple({each: parse(value) for each, value in turn["outputs"].items()} for turn in turns))
            for name, turns in content["lst"]
        ]
    except (TypeError, KeyError, ValueError, AttributeError, EOFError, binascii.Error) as error:
        hint = "polygraphy run MODEL … --save-outputs FILE writes one"
        raise UsageError(f"{path} does not have the form of Polygraphy's outputs: {error}", hint) from error
    if not found or not all(each.samples and all(each.samples) for each in found):
        raise UsageError(f"{path} has a runner without outputs")
    return found

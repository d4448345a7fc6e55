"""Manifests, which list the content of each folder in a store. Every manifest is validated here before it is used.

<address>/studies/<study>/study.json        kind study: tags, verdicts, sets of runs and files of the study
<address>/studies/<study>/code/<hash>.json  kind code: a snapshot of the study's code
<address>/studies/<study>/runs/<run>.json   kind run
<address>/folders/<name>.json               kind folder: any other folder, such as a store of golden recordings
<address>/caches/<cache>/<key>.json         kind artifact: an entry of a cache, such as that of models
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from assay.errors import FormatError
from assay.system.files import parse_json
from assay.values import layout
from assay.values.layout import RUN_FILE, SECRETS_FILE
from assay.values.state import State
from assay.values.study import is_study_name

FORMAT = 1
STUDIES, FOLDERS, CACHES = "studies", "folders", "caches"
CODE_TREE = re.compile(rf"{layout.CODE_DIR}(\.\d+)?")  # a folder in a run's directory with the code of an attempt
OF_ARRIVAL = (layout.RECEIVED_FILE, layout.RECEIVED_DIR)  # files about how a run came to this machine
_LONGEST_NAME = 180  # characters of a quoted part of a key; a name on this machine may have 255 bytes
_LARGEST = 2**63 - 1  # the largest size or time in a file system
_CODE_HASH = re.compile("[0-9a-f]{8,128}")
_DIGEST = re.compile("[0-9a-f]{64}")
_UID = re.compile("[0-9a-f]{12}")
_SET_FILE = re.compile(r"set\.\d+\.json")
_SHARED_NAMES = (layout.TAGS_FILE, layout.CODES_FILE, layout.SEARCH_FILE, layout.VERDICTS_FILE, "triage.jsonl")
_RUN_FACTS: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "attempt": int,
    "params": dict,
    "title": (str, type(None)),
    "tags": list,
    "metrics": dict,
    "stamp": (int, float),
}


_Each = TypeVar("_Each")


class Stored(NamedTuple):
    bytes: int
    sha256: str
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FolderManifest:
    """A folder in the store. `trees` maps inner folders that other folders share to the hashes of their listings."""

    kind: str
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Stored] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()  # empty folders

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def rename_files(manifest: FolderManifest, change: Callable[[str], str | None]) -> FolderManifest:
    """Return the manifest with files, links and folders renamed, without the names for which `change` returns None."""

    def pick(named: Mapping[str, _Each]) -> dict[str, _Each]:
        return {new: each for name, each in named.items() if (new := change(name)) is not None}

    empty = tuple(new for name in manifest.empty if (new := change(name)) is not None)
    return replace(manifest, files=pick(manifest.files), links=pick(manifest.links), empty=empty)


# ---------------------------------------------------------------- keys


def build_key(*parts: str) -> str:
    """Return the key of a manifest, whose parts are quoted, so that no part leads elsewhere or is a pattern."""
    return "/".join(map(_quote, parts)) + ".json"


def _quote(part: str) -> str:
    quoted = urllib.parse.quote(os.fsencode(part), safe="=,+~")
    if quoted.strip(".") == "":
        quoted = quoted.replace(".", "%2E")
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[: _LONGEST_NAME - 40]}~{hashlib.sha256(os.fsencode(part)).hexdigest()[:32]}"


def read_part(part: str) -> str | None:
    """Return the name that a part of a key encodes, or None if it may be only the start of a long name."""
    return None if len(part) == _LONGEST_NAME - 7 else urllib.parse.unquote(part, errors="surrogateescape")


def object_key(sha256: str) -> str:
    return f"objects/{sha256[:2]}/{sha256}"


def find_key(kind: str, name: str, key: str) -> str | None:
    """Return the key that a manifest must have (for an artifact, in the cache of `key`), or None if the kind is unknown
    or the name is not valid for the kind."""
    study, _, rest = name.partition("/")
    own = {"run": "runs", "code": "code"}.get(kind)
    if own is not None:
        is_run = is_single_name(rest) and not rest.startswith(".")
        is_good = is_study_name(study) and (is_run if kind == "run" else _CODE_HASH.fullmatch(rest))
        return build_key(STUDIES, study, own, rest) if is_good else None
    if kind == "study":
        return build_key(STUDIES, name, "study") if is_study_name(name) else None
    if kind == "folder":
        return build_key(FOLDERS, name) if is_single_name(name) else None
    if kind == "artifact":
        cache = key.removeprefix(CACHES + "/").partition("/")[0]
        return build_key(CACHES, cache, name) if _DIGEST.fullmatch(name) else None
    return None


def suggest_push(address: str, key: str) -> str:
    """Return a hint how to replace a damaged folder. Files and code of a study are sent with each of its runs."""
    parts = [name for part in key.removesuffix(".json").split("/") if (name := read_part(part)) is not None]
    if parts[0] not in (STUDIES, FOLDERS) or len(parts) == 1:
        return "send it again from where it is whole, with --check"
    name = "/".join((parts[1], *parts[3:])) if parts[2:3] == ["runs"] else parts[1]
    return f"send it again from where it is whole: assay push {shlex.quote(name)} --to {shlex.quote(address)} --check"


def is_single_name(name: str) -> bool:
    """Return whether a file or folder may be called `name`, which must be one part of a path."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


# ---------------------------------------------------------------- reading


def parse(text: bytes, where: str, again: str) -> FolderManifest:
    """Parse a manifest and check the types of its fields; `find_fault` checks their content. `again` is a hint."""
    try:
        content = parse_json(text)
        if (version := content["format"]) != FORMAT:
            raise FormatError(f"{where} has format {version!r}, this Assay reads {FORMAT}", "update Assay")
        files = {str(name): _parse_stored(*entry) for name, entry in content["files"].items()}
        links = {str(name): _check_text(target) for name, target in content["links"].items()}
        trees = {str(name): _check_text(sha, _DIGEST) for name, sha in content.get("trees", {}).items()}
        empty = tuple(map(_check_text, content.get("empty", ())))
        kind, folder = (_check_text(content[field]) for field in ("kind", "name"))
        return FolderManifest(kind, folder, dict(content["facts"]), files, links, trees, empty)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{where} is damaged: {_describe(error)}", again) from error


def _describe(error: Exception) -> str:
    if isinstance(error, ValueError):
        return str(error)
    return f"it has no {error}" if isinstance(error, KeyError) else "its fields are not those of a manifest"


def _parse_stored(size: object, sha: object, mode: object, mtime_ns: object) -> Stored:
    return Stored(_check_int(size, 0), _check_text(sha, _DIGEST), _check_int(mode, 0), _check_int(mtime_ns, -_LARGEST))


def _check_int(value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a number that a file can have here")
    return value


def _check_text(value: object, form: re.Pattern[str] | None = None) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a text")
    if form is not None and not form.fullmatch(value):
        raise ValueError("it has an invalid hash")
    return value


def render(manifest: FolderManifest) -> bytes:
    content = {"format": FORMAT, **{each.name: getattr(manifest, each.name) for each in fields(manifest)}}
    return json.dumps(content, sort_keys=True).encode("utf-8", "surrogateescape")


# ---------------------------------------------------------------- validation


def find_fault(manifest: FolderManifest, key: str) -> str | None:
    """Return why a manifest must not be used, as the end of a sentence about the manifest, or None. No manifest may
    make a machine that fetches it write, move or remove anything outside of the target."""
    if find_key(manifest.kind, manifest.name, key) != key:
        return f"holds the {manifest.kind!r} {manifest.name!r}, which does not belong there"
    if manifest.kind == "run" and (fact := _find_wrong_fact(manifest.facts)):
        return f"has {fact} = {manifest.facts.get(fact)!r:.80}, which is not valid"
    if manifest.kind == "run" and RUN_FILE not in manifest.files:
        return f"contains no {RUN_FILE}, so it is not a run"
    names = [*manifest.files, *manifest.links, *manifest.empty]
    wrong = (why for name in (*names, *manifest.trees) if (why := _find_wrong_name(name, manifest.kind)))
    return next(wrong, None) or _find_two_kinds(names)


def _find_wrong_name(name: str, kind: str) -> str | None:
    if not all(map(is_single_name, name.split("/"))):
        return f"holds the name {name!r}, which leads elsewhere"
    if name.rpartition("/")[2] == SECRETS_FILE:
        return f"holds {name!r}: secrets are never shared"
    if kind == "study" and not is_shared_of_study(name):
        return f"holds {name!r}, which is not a file of a study"
    return None


def is_shared_of_study(name: str) -> bool:
    """Return whether a file inside `.assay` is sent with the study, or is a folder of such files."""
    top, _, rest = name.partition("/")
    if top in (layout.FILES_DIR, layout.GOLDEN_DIR):
        return "/" not in rest
    return not rest and (top in _SHARED_NAMES or _SET_FILE.fullmatch(top) is not None)


def _find_two_kinds(names: Iterable[str]) -> str | None:
    folders, seen = find_folders(names), set[str]()
    for name in names:
        if name in folders or name in seen:
            return f"holds {name!r} as a file and as a {'folder' if name in folders else 'link'}"
        seen.add(name)
    return None


def _find_wrong_fact(facts: Mapping[str, Any]) -> str | None:
    uid, code, state = facts.get("uid"), facts.get("code"), facts.get("state", State.DONE)
    if not isinstance(uid, str) or (uid and not _UID.fullmatch(uid)):
        return "uid"
    if code is not None and not (isinstance(code, str) and _CODE_HASH.fullmatch(code)):
        return "code"
    if state not in list(State):
        return "state"
    return next((n for n, kind in _RUN_FACTS.items() if n in facts and not isinstance(facts[n], kind)), None)


def is_upload(facts: Mapping[str, Any]) -> bool:
    """Return whether a run was uploaded and not adopted: all its facts, even the uid, are only claims of the sender."""
    received = facts.get("received")
    return isinstance(received, dict) and received.get("how") == "upload" and "adopted_at" not in received


def find_folders(names: Iterable[str]) -> set[str]:
    """Return all folders that contain the files `names`."""
    return {name[:i] for name in names for i, letter in enumerate(name) if letter == "/"}


def leads_outside(name: str, target: str) -> bool:
    """Return whether a symbolic link may lead outside, also by `..` after a name that may be a link itself."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or "\0" in target or ".." in parts[ups:] or ups > name.count("/")

"""Targets: parses the value of `--target`, or `[tool.assay.targets.NAME]` in a settings file.

A target is given by its name, perhaps with a variant: `ort`, `ort:unoptimized`, `iree:vmvx`. Tables of settings files
take precedence. A table with a built-in name, or with `like`, starts from that target and changes the given keys.

A chip that a model is compiled for is a file, `tests/testdata/chips/<name>.json`: a table with `target`, the name that
the compiler knows, and perhaps `compile_flags` and `run_flags`. If `target` is `custom`, the table's other values
describe the hardware, and are joined to one string in the order of `_CUSTOM`. `<name>.group` lists chips, one per line;
`default.group`, if it exists, is used if no chip is requested.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from assay.config.fields import describe
from assay.config.settings import Settings, load_settings
from assay.config.source import Node, Problems
from assay.errors import ConfigError, InfrastructureError, NotFoundError, UsageError, check_known, did_you_mean
from assay.models.backends.base import OPTIONS
from assay.models.values.model import Target
from assay.system.fast_dataclasses import replace
from assay.system.files import parse_json
from assay.values.study import Problem

# The compiler and runner of Torq, as its own tests call them; found by TORQ_COMPILE and TORQ_RUN_MODULE, then in PATH.
TORQ: Mapping[str, Any] = {
    "input": "mlir",
    "artifact": "model.vmfb",
    "compile": [
        "torq-compile", "{model}", "-o", "{artifact}", "--torq-hw={chip}",
        ["--mlir-print-ir-after-all", "--mlir-print-ir-tree-dir={ir_dir}", "--mlir-elide-elementsattrs-if-larger=50"],
        ["--torq-enable-profiling", "--torq-dump-profiling={profile_dir}/{case}_compile.csv"],
        "{compile_flags}",
    ],
    "run": [
        "torq-run-module", "--device=torq", "--module={artifact}", "--torq_hw_type={hardware}",
        "--torq_profile={profile_dir}/{case}_runtime.csv", "{input_flags}", "{output_flags}", "{run_flags}",
    ],
    "input_format": "bin",
    "input_flag": "--input={type}=@{path}",
    "output_flag": "--output=@{path}",
    "hardware": "sim",
}  # fmt: skip

_BUILT_IN: dict[str, Target] = {
    "ort": Target("ort", "ort"),
    "ort:unoptimized": Target("ort:unoptimized", "ort", {"optimize": "none"}),
    "reference": Target("reference", "reference"),
    "openvino": Target("openvino", "openvino"),
    "iree": Target("iree", "iree", {"device": "llvm-cpu"}),
    "iree:llvm-cpu": Target("iree:llvm-cpu", "iree", {"device": "llvm-cpu"}),
    "iree:vmvx": Target("iree:vmvx", "iree", {"device": "vmvx"}),
    "torq": Target("torq", "command", TORQ),
    "torch": Target("torch", "torch"),
    "torch-compile": Target("torch-compile", "torch", {"optimize": "compile"}),
    "torch-bf16": Target("torch-bf16", "torch", {"precision": "bfloat16"}),
    "torch-cuda": Target("torch-cuda", "torch", {"device": "cuda"}),
}

_KINDS = {name: kind for options in OPTIONS.values() for name, kind in options.items()}
FLAGS = ("compile_flags", "run_flags")
KEYS = ("backend", "like", *_KINDS, *FLAGS)
_WORDS: dict[type, str] = {str: "a string", int: "a whole number", float: "a number", list: "a list", dict: "a table"}


def read_target_tables(settings: Settings) -> dict[str, Node]:
    """Return the tables `[tool.assay.targets.NAME]` by name, a project's and the user's. Raises ConfigError for a
    value that is not a table."""
    problems = Problems()
    found = {}
    for table in settings.tables.get("targets", ()):
        for key, node in (("targets", table), *((f"targets.{entry.key}", entry.node) for entry in table.items())):
            if node.kind != "mapping":
                message = f"must be {node.mapping_name}, not {describe(node)}"
                problems.add(message, key, node.position, "as in [tool.assay.targets.NAME]")
        found.update({entry.key: entry.node for entry in table.items()})
    problems.raise_if_any()
    return found


def parse_target(text: str, settings: Settings) -> Target:
    """Return the target of this name. Raises NotFoundError, or ConfigError for an invalid table."""
    name, tables = text.strip(), read_target_tables(settings)
    if name in tables:
        return _read(name, tables, ())
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    known = [*tables, *_BUILT_IN]
    base, colon, variant = name.partition(":")
    variants = [each.partition(":")[2] for each in known if each.startswith(f"{base}:")]
    if colon and variants:
        raise UsageError(f"the target {base} has no variant {variant!r}", did_you_mean(variant, variants))
    raise NotFoundError("target", name, known)


def list_target_names() -> list[str]:
    """Return all names, for the completion of `--target` in the shell."""
    return [*read_target_tables(load_settings(os.getcwd(), os.environ)), *_BUILT_IN]


def build_board_target(target: Target, address: str, *, port: int | None = None, key: str | None = None) -> Target:
    """Return the target, run on a board. Raises UsageError for a target that is not a command."""
    if target.backend not in ("command", "ssh"):
        raise UsageError(
            f"the target {target.name} runs in this machine, not on a board", "a board needs a run command"
        )
    given = {"address": address, "port": port, "key": key}
    options = {**target.options, **{name: value for name, value in given.items() if value is not None}}
    return replace(target, backend="ssh", options=options)


def _read(name: str, tables: Mapping[str, Node], seen: tuple[str, ...]) -> Target:
    """Read the target of a table; `seen`: targets whose `like` led to it. Raises ConfigError with every problem."""
    table = tables[name]
    content: Mapping[str, Any] = table.value
    problems = Problems()
    is_own = ":" in str(content.get("backend", ""))  # a user's module:Class has options of its own
    for entry in table.items():
        key, value = f"targets.{name}.{entry.key}", entry.node.value
        if entry.key in KEYS and (wanted := _find_wanted(entry.key, value)):
            problems.add(f"must be {wanted}, not {value!r}", key, entry.node.position)
        elif entry.key not in KEYS and not is_own:
            problems.add("unknown setting", key, entry.position, did_you_mean(entry.key, KEYS))
    try:
        base = _find_base(name, tables, seen)
    except ConfigError as error:
        problems.extend(error)
        base = None
    own = {key: _plain(value) for key, value in content.items() if key not in ("backend", "like", *FLAGS)}
    options = {**(base.options if base else {}), **own}
    backend = str(content.get("backend") or (base.backend if base else "command"))
    if backend == "command" and "address" in options:
        backend = "ssh"
    if backend in ("command", "ssh") or ":" in backend or "rewrite" in options:
        options["folder"] = os.path.dirname(table.position.file)
    if backend in OPTIONS:  # users' back ends report unknown options themselves
        known = OPTIONS["ssh" if backend == "command" else backend]  # the address of a command may come from a flag
        hint = f"it knows {', '.join(known)}" if known else "it has no options"
        for entry in (each for each in table.items() if each.key in _KINDS and each.key not in known):
            message = f"the {backend} back end has no such option"
            problems.add(message, f"targets.{name}.{entry.key}", entry.node.position, hint)
    problems.raise_if_any()
    flags = []
    for flag in FLAGS:
        value = content.get(flag, ())
        given = shlex.split(value) if isinstance(value, str) else map(str, value)
        flags.append((*getattr(base, flag, ()), *given))
    return Target(name, backend, options, *flags)


def _find_base(name: str, tables: Mapping[str, Node], seen: tuple[str, ...]) -> Target | None:
    node = tables[name].find("like")
    if node is None:
        return _BUILT_IN.get(name)
    like, key = str(node.value), f"targets.{name}.like"
    if like in seen or (like == name and name not in _BUILT_IN):
        text = f"the targets {' and '.join([*seen, name])} are like each other"
        raise ConfigError([Problem(text, key, node.position)])
    if like in tables and like != name:
        return _read(like, tables, (*seen, name))
    if like in _BUILT_IN:
        return _BUILT_IN[like]
    hint = did_you_mean(like, sorted({*tables, *_BUILT_IN}))
    raise ConfigError([Problem(f"there is no target {node.value!r}", key, node.position, hint)])


def _find_wanted(key: str, value: Any) -> str:
    """Describe the values that a key accepts; empty if the given value is valid."""
    if key in FLAGS:
        fits = isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))
        return "" if fits else "a string or a list of strings"
    kind = _KINDS.get(key, str)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if fits and (key in _KINDS or value.strip()):
        return ""
    return " or ".join(_WORDS.get(each, "true or false") for each in kinds)


def _plain(value: Any) -> Any:
    """Return the value with JSON-like content throughout: a target is sent to another process."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


DEFAULT_CHIP = "default"
ALL_CHIPS = "all"
_LATEST, _GROUP = "latest", ".group"
_CUSTOM = ("hw_id", "lram", "slice", "css", "nss", "dma_t", "dma_f", "triple", "cpu", "features")  # beginnings of keys


def choose_chips(text: str | None, folder: str) -> tuple[str, ...]:
    """Return the chips of a text: `a,b`, `all` (the newest of each kind) or a group; None means `default`, a name that
    needs no file: the compiler gets no flag for the chip. Raises UsageError."""
    chips, groups = (_list_stems(folder, suffix) for suffix in (".json", _GROUP))
    if text is None:
        text = DEFAULT_CHIP
    found: list[str] = []
    for word in filter(None, map(str.strip, text.split(","))):
        if word == ALL_CHIPS:
            found += _list_newest(folder, chips)
        elif word.removesuffix(_GROUP) in groups:
            found += _load_group(os.path.join(folder, word.removesuffix(_GROUP) + _GROUP), chips)
        elif word == DEFAULT_CHIP or word in chips:
            found.append(word)
        else:
            hint = None if chips or groups else f"there are no chips in {folder}"
            raise NotFoundError("chip", word, [*chips, *groups, DEFAULT_CHIP, ALL_CHIPS], hint)
    if not found:
        raise UsageError("which chips?", "as in --torq-chips a,b, or all, or a group's name")
    return tuple(dict.fromkeys(found))


def _list_newest(folder: str, chips: Sequence[str]) -> list[str]:
    """Return the newest chip of each kind, to which links such as `abc-latest.json` lead; without links, all chips."""
    if not chips:
        raise UsageError(f"there are no chips in {folder}", "a chip is a file there: NAME.json")
    newest = [name for name in chips if name.endswith(_LATEST)] or chips
    paths = [os.path.realpath(os.path.join(folder, f"{name}.json")) for name in newest]
    return sorted({os.path.splitext(os.path.basename(path))[0] for path in paths})


def _load_group(path: str, chips: Sequence[str]) -> list[str]:
    names = [line.partition("#")[0].strip() for line in _load_text(path).splitlines()]
    if not any(names):
        raise UsageError(f"{path} does not name a chip", "write one in each line")
    check_known(f"chip (of {os.path.basename(path)})", filter(None, names), [*chips, DEFAULT_CHIP])
    return [*filter(None, names)]


def _list_stems(folder: str, suffix: str) -> list[str]:
    try:
        return sorted(name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InfrastructureError(f"the folder of chips {folder} cannot be read: {error.strerror}") from error


def _load_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def load_chip(name: str, folder: str) -> dict[str, Any]:
    """Return the content of a chip's file; empty for a `default` that has no file. Raises UsageError."""
    path = os.path.join(folder, f"{name}.json")
    if name == DEFAULT_CHIP and not os.path.exists(path):
        return {}
    text = _load_text(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is broken JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("target", ""), str):
        raise UsageError(f"{path} is not a chip's file", 'it is a table with a target, as in {"target": "SL2610"}')
    return content


def name_chip(content: Mapping[str, Any]) -> str | None:
    """Return the value of `{chip}` for a compiler; None if the compiler gets none."""
    target = content.get("target")
    if target != "custom":
        return str(target) if target else None
    values = [next((str(content[key]) for key in content if key.startswith(start)), "") for start in _CUSTOM]
    return ":".join(values).rstrip(":")


def read_flags(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return `compile_flags` or `run_flags` of a chip."""
    value = content.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UsageError(f"{key} of a chip must be a list of texts")
    return tuple(value)

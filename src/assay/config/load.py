"""Loads a study file of any tool as a Study."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from assay import plugins
from assay.config.fields import LoadOptions
from assay.config.native import KEYS, parse_native, read_settings
from assay.config.source import Node, build_error, load_text, parse_documents
from assay.errors import ConfigError, InfrastructureError, UsageError
from assay.system.fast_dataclasses import replace
from assay.values.hooks import NATIVE, Dialect
from assay.values.study import Position, Study

__all__ = ["LoadOptions", "detect_dialect", "load_study"]

_HOW_TO = """a smallest file:
      study: demo
      command: python train.py --lr {lr}
      params: {lr: [0.1, 0.01]}
    `assay demo` shows a whole one at work"""
_COMMANDS = frozenset(("command", "commands"))
_OTHER_FILES = {
    ".py": "a Python script",
    ".sh": "a shell script",
    ".ipynb": "a notebook",
    ".toml": "a TOML file",
    ".md": "a text",
    ".csv": "a table",
    ".log": "a log",
}


def load_study(path: str, options: LoadOptions | None = None) -> Study:
    """Read and check a study. Raises UsageError for an unreadable file, ConfigError for invalid content."""
    options = options or LoadOptions()
    cwd = os.path.abspath(options.cwd or os.getcwd())
    asked = plugins.find_dialect(options.dialect) if options.dialect else None

    def describe() -> str:
        others = " and ".join(f"{dialect.name}'s" for dialect in reversed(plugins.find_dialects()))
        smallest = f"{_HOW_TO}; {others} files are read as well" if others else _HOW_TO
        return (asked.how_to if asked else "") or smallest

    text = load_text(os.path.join(cwd, path), path, describe) if options.text is None else options.text
    nodes = _parse(text, path, describe)
    dialect = asked or detect_dialect(nodes)
    if dialect.is_ours:
        return replace(parse_native(nodes, path, cwd, options), text=text)
    if not dialect.parser:
        raise _build_missing(f"no installed plug-in reads files of {dialect.name}", "", nodes[0].position)
    study: Study = plugins.load(dialect.parser)(parse_documents(text, path, flavour="originals"), path, options)
    if not isinstance(study, Study):
        raise InfrastructureError(f"{dialect.parser} returned {type(study).__name__}, not a Study")
    if options.settings:  # `--set`: Assay's settings, which a file of another tool cannot have
        study = read_settings(study, options.settings)
    return replace(study, text=text)


def _build_missing(message: str, key: str, position: Position) -> ConfigError:
    return build_error(message, position, plugins.DOCTOR_HINT, key)


def _parse(text: str, path: str, describe: Callable[[], str]) -> list[Node]:
    """Parse a study. If another kind of file was named by mistake, the error states that, not YAML's complaint."""
    kind = _OTHER_FILES.get(os.path.splitext(path)[1].lower())
    try:
        nodes = parse_documents(text, path, how_to=describe)
    except ConfigError:
        if kind is None:
            raise
        nodes = []
    if kind is None:
        return nodes
    keys = {entry.key for node in nodes for entry in node.items()}
    if keys & _COMMANDS or any(keys & (dialect.keys | dialect.weak_keys) for dialect in plugins.find_dialects()):
        return nodes
    raise UsageError(f"{path} is {kind}, not a study file", describe())


def detect_dialect(nodes: Sequence[Node]) -> Dialect:
    """Return the dialect by the keys of the first document that has any; a file of unknown kind is refused as native.
    Plug-ins are loaded only if the file is not clearly a native one."""
    first = next((node for node in nodes if node.kind == "mapping"), None)
    keys = {entry.key for entry in first.items()} if first else set()
    has_command = bool(keys & _COMMANDS)
    if first is None or (has_command and keys.issubset(KEYS)):
        return NATIVE
    known = plugins.find_dialects()
    if not known and keys and keys.isdisjoint(KEYS):
        message = "needs a plug-in that is not installed: none offers dialects, for study files of other tools"
        raise _build_missing(message, first.items()[0].key, first.items()[0].position)
    for dialect in known:
        if keys & dialect.keys or (keys & dialect.weak_keys and not has_command):
            return dialect
    return NATIVE

"""A file on disk → Study, whatever dialect it is written in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from assay.config.fields import LoadOptions
from assay.config.native import parse_native
from assay.config.source import Node, load_text, parse_documents
from assay.errors import ConfigError, UsageError
from assay.system.fast_dataclasses import replace
from assay.values.study import Dialect, Study

__all__ = ["LoadOptions", "detect_dialect", "load_study"]

_HOW_TO = """a smallest file:
      study: demo
      command: python train.py --lr {lr}
      params: {lr: [0.1, 0.01]}
    `assay demo` shows a whole one at work; runx's and mlrunner's files are read as well"""
_HOW_TO_RUNX = """a smallest file:
      CMD: python train.py
      HPARAMS:
        lr: [0.01, 0.02]"""
_HOW_TO_MLRUNNER = """a smallest file, another one is named with -y:
      template:
        train: python train.py [lr] --save-dir {_output}
      resource: [0, 1]
      ---
      lr: [0.1, 0.01]"""
_HOW_TOS = {"runx": _HOW_TO_RUNX, "mlrunner": _HOW_TO_MLRUNNER}
_DIALECTS = {  # other tools' files: loaded when one is read
    "runx": "assay.compat.runx.study_file:parse_runx",
    "mlrunner": "assay.compat.mlrunner.study_file:parse_mlrunner",
}
_RUNX_KEYS = frozenset(("CMD", "HPARAMS", "hparams"))
_MLRUNNER_KEYS = frozenset(("template",))
_NATIVE_COMMANDS = frozenset(("command", "commands"))
_ANY_COMMAND = _RUNX_KEYS | _MLRUNNER_KEYS | _NATIVE_COMMANDS | {"cmd"}
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
    """Reads and checks a study. Raises UsageError for a file that cannot be read, ConfigError for what is in it."""
    options = options or LoadOptions()
    cwd = os.path.abspath(options.cwd or os.getcwd())
    how_to = _HOW_TOS.get(options.dialect or "", _HOW_TO)
    text = load_text(os.path.join(cwd, path), path, how_to) if options.text is None else options.text
    nodes = _parse(text, path, how_to)
    dialect = options.dialect or detect_dialect(nodes)
    if dialect == "native":
        return replace(parse_native(nodes, path, cwd, options), text=text)
    module, _, attribute = _DIALECTS[dialect].partition(":")
    study: Study = getattr(import_module(module), attribute)(
        parse_documents(text, path, flavour="originals"), path, options
    )
    return replace(_set_ours(study, options), text=text)


def _parse(text: str, path: str, how_to: str) -> list[Node]:
    """Another kind of file was named by mistake: it is said what it is, not what YAML finds in it."""
    kind = _OTHER_FILES.get(os.path.splitext(path)[1].lower())
    try:
        nodes = parse_documents(text, path, how_to=how_to)
    except ConfigError:
        if kind is None:
            raise
        nodes = []
    if kind is None or (nodes and {entry.key for node in nodes for entry in node.items()} & _ANY_COMMAND):
        return nodes
    raise UsageError(f"{path} is {kind}, not a study file", how_to)


def _set_ours(study: Study, options: LoadOptions) -> Study:
    """`--set` for another tool's file: settings of ours that such a file cannot hold."""
    if not options.settings:
        return study
    from assay.config.native import read_settings

    return read_settings(study, options.settings)


def detect_dialect(nodes: Sequence[Node]) -> Dialect:
    """By the keys of the first document that has any; a file of no known kind counts as native and is refused there."""
    first = next((node for node in nodes if node.kind == "mapping"), None)
    keys = {entry.key for entry in first.items()} if first else set()
    if keys & _MLRUNNER_KEYS and not keys & _NATIVE_COMMANDS:
        return "mlrunner"
    if keys & _RUNX_KEYS or ("cmd" in keys and not keys & _NATIVE_COMMANDS):
        return "runx"
    return "native"

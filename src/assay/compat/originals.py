"""The files of runx, logx and mlrunner in a run directory, read and written in the format of these tools.

runx / logx       hparams.json   the parameters, JSON with four spaces
                  submit_cmd.sh, code/; and metrics.csv, which is read with the other metrics (observe/files)
mlrunner          param          YAML, sorted keys: _name, _output, _scripts, _time and the parameters
                  stat           YAML: command → running, finished or failed
                  log.<command>.<time>

A damaged file affects only the row of its run: `problems` names what could not be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from assay.config.source import parse_yaml_mapping
from assay.record.importers.registry import Importer
from assay.record.importers.sample import Sample, has_runs, holds
from assay.system.files import list_names, read_text, write_atomic
from assay.system.locks import locked
from assay.values.layout import HPARAMS_FILE, LOGX_METRICS_FILE, PARAM_FILE, STAT_FILE, SUBMIT_SCRIPT
from assay.values.run import FolderRun, State
from assay.values.study import Params, Value

MAX_NAME_BYTES = 240  # longest name of a directory; file systems allow 255, and temporary names need the rest
_LOGDIR = "LOGDIR"  # a placeholder in runx files for the run directory

StatWord = Literal["running", "finished", "failed"]

_MLRUNNER_LOG = re.compile(r"log\..+?\.(\d{8}\.\d{6})(?:\..+)?", re.DOTALL)
_STAT_LINE = re.compile(r"([A-Za-z_][\w-]*): (running|finished|failed)")
# words that YAML 1.1 does not read as a string: a command of this name needs quotes
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})


# ---------------------------------------------------------------- runs as the core reads them, where they are

RUNX = (Importer("runx", "folders of runx and logx (hparams.json, metrics.csv)", "folders", f"{__name__}:is_runx"),)
MLRUNNER = (Importer("mlrunner", "folders of mlrunner (param and stat)", "folders", f"{__name__}:is_mlrunner"),)


def is_runx(sample: Sample) -> bool:
    return has_runs(sample, lambda path: holds(path, HPARAMS_FILE) or holds(path, LOGX_METRICS_FILE))


def is_mlrunner(sample: Sample) -> bool:
    return has_runs(sample, lambda path: holds(path, PARAM_FILE))


def load_runx_folder(folder: str) -> FolderRun | None:
    """Load a directory with files of runx or logx, without the parameter `logdir`, which differs in every run."""
    if not any(os.path.exists(f"{folder}/{name}") for name in (HPARAMS_FILE, LOGX_METRICS_FILE)):
        return None
    problems: list[str] = []
    hparams = load_hparams(folder, problems) or load_submitted_params(folder)
    name = os.path.basename(folder)
    params = {key: value for key, value in hparams.items() if key != "logdir" or not str(value).endswith(name)}
    return FolderRun(params, State.DONE, problems=tuple(problems))


def load_mlrunner_folder(folder: str) -> FolderRun | None:
    """Load a directory with files of mlrunner. `running` counts as stopped, since the command's process is gone."""
    if not os.path.exists(f"{folder}/{PARAM_FILE}"):
        return None
    problems: list[str] = []
    params, stat = load_mlrunner_params(folder, problems), load_mlrunner_stat(folder, problems)
    finished = frozenset(command for command, word in stat.items() if word == "finished")
    is_done = bool(stat) and len(finished) == len(stat)
    state = State.FAILED if "failed" in stat.values() else State.DONE if is_done else State.STOPPED
    return FolderRun(params, state, finished, tuple(problems))


# ---------------------------------------------------------------- runx


def load_hparams(folder: str, problems: list[str] | None = None) -> dict[str, Value]:
    """Load hparams.json, or return {} if it is missing or unreadable, with the reason in `problems`."""
    problems = [] if problems is None else problems
    text = _load_text(folder, HPARAMS_FILE, problems)
    try:
        found = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{HPARAMS_FILE}: not JSON ({error})")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{HPARAMS_FILE}: a mapping was expected")
        return {}
    return found


def load_submitted_params(folder: str) -> dict[str, Value]:
    """Load the parameters of a run whose script gave none to logx, from the command that runx recorded."""
    text = _load_text(folder, SUBMIT_SCRIPT, [])
    try:
        words = shlex.split(text or "")
        inner = next((word for word in words if " --" in word), None)  # a farm's command contains the training command
        words = shlex.split(inner) if inner is not None else words
    except ValueError:
        return {}
    params: dict[str, Value] = {}
    for word in words:
        if word.startswith("--"):
            params[word[2:]] = True
        elif params:
            name = next(reversed(params))
            params[name] = _parse_word(word) if params[name] is True else f"{params[name]} {word}"
    return params


def _parse_word(word: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return word


def write_hparams(folder: str, params: Params, logdir: str) -> None:
    """Write hparams.json as logx does, with LOGDIR filled in, unless the file exists."""
    path = os.path.join(folder, HPARAMS_FILE)
    if not os.path.exists(path):
        write_atomic(path, json.dumps(fill_logdir(dict(params), logdir), indent=4, default=str, ensure_ascii=True))


def fill_logdir(value: Value, logdir: str) -> Value:
    """Replace LOGDIR by the run directory in all strings of a nested value."""
    if isinstance(value, str):
        return value.replace(_LOGDIR, logdir)
    if isinstance(value, list | tuple):
        return [fill_logdir(element, logdir) for element in value]
    if isinstance(value, dict):
        return {key: fill_logdir(element, logdir) for key, element in value.items()}
    return value


# ---------------------------------------------------------------- mlrunner


def load_mlrunner_params(folder: str, problems: list[str] | None = None) -> dict[str, Value]:
    """Load the parameters in `param`, without mlrunner's own keys, which begin with _."""
    param = _load_yaml_mapping(folder, PARAM_FILE, [] if problems is None else problems)
    return {str(key): value for key, value in param.items() if not str(key).startswith("_")}


def load_mlrunner_stat(folder: str, problems: list[str] | None = None) -> dict[str, StatWord]:
    """Load the word for each command: running, finished or failed. Return {} if `stat` is missing or unreadable."""
    problems = [] if problems is None else problems
    text = _load_text(folder, STAT_FILE, problems)
    if not text:
        return {}
    quick = [_STAT_LINE.fullmatch(line) for line in text.splitlines()]
    if all(quick) and not any(match[1].lower() in _YAML_WORDS for match in quick if match):
        return {match[1]: cast("StatWord", match[2]) for match in quick if match}
    found = parse_yaml_mapping(text, STAT_FILE, problems)
    bad = {key: word for key, word in found.items() if word not in get_args(StatWord)}
    problems.extend(f"{STAT_FILE}: {key}: {word!r} is not a state" for key, word in bad.items())
    return {str(key): cast("StatWord", word) for key, word in found.items() if key not in bad}


def find_newest_time(folder: str) -> str:
    """Return the newest time in names of logs such as `log.train.20220316.030151[.RUN]`, or ""."""
    return max((match[1] for name in list_names(folder) if (match := _MLRUNNER_LOG.fullmatch(name))), default="")


def write_mlrunner_param(
    folder: str, *, name: str, output: str, time: str, scripts: Mapping[str, str], params: Params
) -> None:
    """Write `param`, and keep scripts of other commands and parameters of other documents from an earlier start."""
    with locked(folder):
        merged = _load_yaml_mapping(folder, PARAM_FILE, [])
        earlier = merged.get("_scripts")
        merged |= params
        merged |= {"_name": name, "_output": output, "_time": time}
        merged["_scripts"] = {**(earlier if isinstance(earlier, dict) else {}), **scripts}
        write_atomic(os.path.join(folder, PARAM_FILE), _render_yaml(merged))


def write_mlrunner_stat(folder: str, stat: Mapping[str, StatWord]) -> None:
    """Write `stat`; commands that are only in the file keep their words."""
    with locked(folder):
        merged = {**load_mlrunner_stat(folder), **stat}
        lines = [f"{command}: {word}" for command, word in sorted(merged.items())]
        is_plain = all(map(_STAT_LINE.fullmatch, lines)) and not _YAML_WORDS & {key.lower() for key in merged}
        text = "".join(f"{line}\n" for line in lines) if is_plain else _render_yaml(merged)
        write_atomic(os.path.join(folder, STAT_FILE), text)


# ---------------------------------------------------------------- files


def _load_text(folder: str, name: str, problems: list[str]) -> str | None:
    try:
        return read_text(f"{folder}/{name}", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{name}: {error.strerror or error}")
        return None


def _load_yaml_mapping(folder: str, name: str, problems: list[str]) -> dict[Any, Value]:
    text = _load_text(folder, name, problems)
    return parse_yaml_mapping(text, name, problems) if text else {}


def _render_yaml(value: Mapping[str, Value]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(value), width=1_000_000, allow_unicode=True)
    return text

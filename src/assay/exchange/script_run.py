"""The run of a script that logs through another tool's interface, and the configuration that the script reports.

A script in a run of a study logs into that run: its parameters are the study's, and `script-config.json` has the
configuration. Any other script logs into a new run `<root>/<project>/<name>`, whose parameters are the configuration.
"""

from __future__ import annotations

import json
import os
import re
import time
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from assay import script
from assay.values import layout

_NAME_LIMIT, _NAME_BYTES = 100, 200  # limits of a folder's name: characters, and bytes as UTF-8
_said: set[tuple[str, str]] = set()


def say_once(who: str, topic: str, text: str) -> None:
    if (who, topic) not in _said:
        _said.add((who, topic))
        script.say(f"{who}: {text}")


class ScriptRun(NamedTuple):
    """The run that a script logs into. `dir` is empty if nothing can be recorded."""

    who: str  # the module of Assay that the script uses, for messages
    dir: str
    is_own: bool = False  # the run belongs to no study

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, on the first rank only. An error of the disk does not stop the script."""
        if not self.dir or script.find_rank() > 0:
            return
        from assay.values.secrets import hide_params

        try:
            plain = hide_params({name: build_plain(value) for name, value in config.items()})
            self.write_file(layout.CONFIG_FILE, plain)
            if self.is_own:
                self.write_file(layout.RUN_FILE, {**_load_record(self.dir), "params": plain})
        except (OSError, ValueError, RecursionError) as error:
            say_once(self.who, "write", f"the configuration cannot be written: {error}. The script goes on.")

    def write_file(self, name: str, content: Mapping[str, Any]) -> None:
        from assay.system.files import write_atomic

        write_atomic(os.path.join(self.dir, name), json.dumps(content) + "\n")  # in ASCII: a text may not be encodable

    def note_training(self, *, is_over: bool) -> None:
        """Record that a run without a study is training or has finished; other runs end with their command."""
        if self.is_own:
            script.note_training(self.dir, is_over=is_over)

    def end(self, code: object) -> None:
        """End the run with an exit code, or None for an unknown one. A code that is not a number counts as 1."""
        if self.is_own:
            number = script.build_number(code)
            script.end_adhoc_run(self.dir, None if code is None else 1 if number is None else int(number))

    def load_params(self) -> dict[str, Any]:
        """Load the parameters that the study gives the run, except for secret ones."""
        if self.is_own or not self.dir:
            return {}
        try:
            from assay.values.secrets import HIDDEN

            params = dict(_load_record(self.dir)["spec"]["params"])
            return {name: value for name, value in params.items() if value != HIDDEN}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def open_run(who: str, project: str | None, name: str | None) -> ScriptRun:
    """Return the run that this process is part of, or begin a new run, to which later logging goes; print its path."""
    inside = os.environ.get(layout.ENV_RUN_DIR)
    if inside:
        return ScriptRun(who, os.path.abspath(inside))
    script.close_stream()
    study = build_name(project or "") or layout.ADHOC_STUDY
    folder = build_name(name or "") or f"{time.strftime('%Y%m%d-%H%M%S')}-{script.build_random_name()}"
    try:
        path = script.begin_adhoc_run(study, folder)
    except OSError as error:
        say_once(who, "begin", f"the run cannot be recorded: {error}. The script goes on.")
        return ScriptRun(who, "")
    script.say(f"{who}: metrics go to {path}")
    return ScriptRun(who, path, is_own=True)


def build_name(text: str) -> str:
    """Turn a text into a name for a folder or a study: one visible part of a path, without control characters."""
    visible = "".join("/" if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char for char in text)
    name = re.sub(r"[/\\]+", "-", visible).strip(" .-")[:_NAME_LIMIT]
    return name.encode("utf-8", "replace")[:_NAME_BYTES].decode("utf-8", "ignore").rstrip()


def build_mapping(values: Any) -> dict[str, Any]:
    """Convert a mapping, an argparse namespace, a dataclass or any other object with attributes to a dict."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) and hasattr(values, "__dict__"):
        values = vars(values)
    try:
        return {str(name): value for name, value in dict(values).items()}
    except (TypeError, ValueError):  # `values` is, for example, the path of a file
        say_once("assay", "config", f"{values!r:.60} is not a mapping of names to values and is left out")
        return {}


def build_plain(value: Any) -> Any:
    """Convert a value to types of JSON, and other objects to their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if value == value else str(value)  # noqa: PLR0124 NaN
    if isinstance(value, Mapping):
        return {str(name): build_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [build_plain(each) for each in value]
    number = script.build_number(value)
    return str(value) if number is None else number


def find_numbers(who: str, data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield names and numbers; names in nested mappings are `outer/inner`. Other types of values are reported once."""
    for key, value in data.items():
        name = f"{prefix}{key}" or "unnamed"
        if isinstance(value, Mapping):
            yield from find_numbers(who, value, f"{name}/")
        elif (number := script.build_number(value)) is not None:
            yield name, number
        else:
            text = f"only numbers are recorded, not {type(value).__name__}; this and the like are left out"
            say_once(who, type(value).__name__, f"{name}: {text}")


def log_numbers(who: str, data: Mapping[str, Any], step: Any, prefix: str = "") -> None:
    """Log the values and the epoch that a trainer reports. Metrics `step` and `time` get the tool's name as prefix."""
    numbers: dict[str, Any] = dict(find_numbers(who, data))
    epoch, own = numbers.pop("epoch", None), f"{who.rpartition('.')[2]}/"
    named = {prefix + (own if name in ("step", "time") else "") + name: value for name, value in numbers.items()}
    script.log(named, step=step, epoch=epoch)


def _load_record(run_dir: str) -> dict[str, Any]:
    with open(os.path.join(run_dir, layout.RUN_FILE), encoding="utf-8", errors="surrogateescape") as file:
        return dict(json.load(file))

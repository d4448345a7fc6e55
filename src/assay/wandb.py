"""`import assay.wandb as wandb`: scripts for Weights & Biases run unchanged, and log into a run of Assay, offline.

    import assay.wandb as wandb

    run = wandb.init(project="line", config={"lr": 0.1})
    wandb.log({"loss": 0.25})

Numbers become series, as `assay.log` writes them, of the run that the script is part of, else of a new run
`<root>/<project>/<name>`, whose parameters are the config. Summary and tags are also in `wandb.json` of the run
directory; images, tables and artifacts are files in it. Nothing leaves the machine, and a failure to record does not
stop the training. `python -m assay.wandb script.py` runs a script whose own line is `import wandb`; a module (`-m`) or
a launcher such as torchrun may replace the script.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from fnmatch import fnmatchcase
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Self

from assay import script
from assay.exchange.script_run import ScriptRun, build_mapping, build_plain, find_numbers, open_run, say_once
from assay.exchange.wandb_media import (  # noqa: F401 names of wandb
    Artifact,
    Audio,
    Chart,
    Histogram,
    Html,
    Image,
    Media,
    MediaFiles,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
    find_media,
)
from assay.values import layout

__version__ = "0+assay"  # some programs print the version

_WHO = "assay.wandb"
_TAG_LIMIT = 100  # characters of a tag
_TAGS_VERSION = 1  # format of tags.json, as `assay tag` writes it
_NOT_DONE = {  # arguments of `init` without an effect, and why
    "resume": "a run that has ended is not continued: this one is new",
    "sync_tensorboard": "event files are not read here; a study reads them by `metrics: {NAME: {tensorboard: FOLDER}}`",
}
_RENAMED = {"time": "wandb/time"}  # names that each line of a series already has, and their replacements
_OTHERWISE = {  # names of wandb that are missing here, and what replaces them
    "Api": "read runs with assay.runs(STUDY): docs/reference/python.md",
    "sweep": "write a study file, with `params` or `search`: docs/reference/native-file.md",
    "agent": "assay run FILE runs every combination of a study: docs/reference/native-file.md",
    "controller": "assay run FILE runs every combination of a study: docs/reference/native-file.md",
    "restore": "files stay in the run directory: run.dir",
}


class Error(Exception):
    """The base of wandb's own errors."""


class UsageError(Error):
    """An error for a call in the wrong order."""


class CommError(Error):
    """An error that is never raised, as there is no server."""


# ---------------------------------------------------------------- config and summary


class _Values(MutableMapping[str, Any]):
    """Values by name, which can be used as items and as attributes."""

    _values: dict[str, Any]
    _changed: Callable[[dict[str, Any]], None]

    def __init__(self, values: dict[str, Any], changed: Callable[[dict[str, Any]], None]) -> None:
        self.__dict__.update(_values=values, _changed=changed)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._changed({})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_values", ()):
            return self._values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        from assay.errors import did_you_mean

        hint = did_you_mean(name, self._values)
        raise AttributeError(f"{name!r} is not set{f'; {hint}' if hint else ''}")

    __setattr__, __delattr__ = __setitem__, __delitem__

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, values: Any = (), /, allow_val_change: bool | None = None, **more: Any) -> None:  # noqa: ARG002
        """Update from a mapping, pairs, an argparse namespace or any object with attributes."""
        found = {**build_mapping(values), **more}
        self._values.update(found)
        self._changed(found)

    def setdefaults(self, values: Any) -> None:
        self.update({name: value for name, value in build_mapping(values).items() if name not in self._values})

    def as_dict(self) -> dict[str, Any]:
        return dict(self._values)


# ---------------------------------------------------------------- a run


class Run:
    """The run that `wandb.init` returns."""

    def __init__(self, place: ScriptRun, options: Mapping[str, Any]) -> None:
        self._place = place
        self._files = MediaFiles(place.dir, partial(say_once, _WHO))
        self._axes: dict[str, str] = {}  # pattern of metric names -> the metric that counts their steps
        self._folds: dict[str, str] = {}  # pattern of metric names -> min, max, mean or last, or several
        self._held: dict[str, float] = {}  # values with commit=False, which may be replaced until the step ends
        self._seen: dict[str, float] = {}  # the last value of each name
        self._counts: dict[str, int] = {}
        self._facts = {name: options.get(name) for name in ("project", "entity", "group", "job_type", "notes")}
        self._tags = tuple(options.get("tags") or ())
        self.id = str(options.get("id") or os.environ.get(layout.ENV_RUN_ID) or os.urandom(4).hex())
        self.name = str(options.get("name") or os.path.basename(place.dir) or "disabled")
        self.step = 0
        self.start_time = time.time()
        self.offline, self.resumed, self.disabled, self._is_over = True, False, not place.dir, False
        params = place.load_params()
        earlier = _earlier.get(place.dir) if place.dir else None  # the script's last run in this directory
        config = {**(earlier.config if earlier else {}), **build_mapping(options.get("config"))}
        for name, param in params.items():
            given = config.get(name, param)
            if build_plain(given) != param and str(given) != str(param):
                text = f"config.{name} is {given!r}; the parameter of the study is {param!r}"
                say_once(_WHO, f"config.{name}", f"{text}. The script goes on with its own value.")
        self.config: _Values = _Values({**params, **config}, lambda _changed: self._write_config())
        self.summary: _Values = _Values(dict(earlier.summary) if earlier else {}, self._log_summary)
        _earlier[place.dir] = self
        self._write_config()
        self._write()
        self._write_tags()
        atexit.register(self._leave)  # most scripts do not call `finish`

    @property
    def project(self) -> str:
        return str(self._facts["project"] or os.environ.get(layout.ENV_STUDY) or layout.ADHOC_STUDY)

    @property
    def notes(self) -> str:
        return str(self._facts["notes"] or "")

    @notes.setter
    def notes(self, text: str) -> None:
        self._facts["notes"] = text
        self._write()

    @property
    def tags(self) -> tuple[str, ...]:
        return self._tags

    @tags.setter
    def tags(self, tags: Any) -> None:
        self._tags = tuple(tags)
        self._write()

    @property
    def dir(self) -> str:
        """The folder for the script's own files, which stay with the run."""
        if not self._place.dir:
            import tempfile

            return tempfile.gettempdir()
        os.makedirs(self._files.dir, exist_ok=True)
        return self._files.dir

    @property
    def path(self) -> str:
        return f"{self.project}/{self.name}"

    @property
    def url(self) -> str:
        return f"file://{self._place.dir}"

    def get_url(self) -> str:
        return self.url

    def project_name(self) -> str:
        return self.project

    def __repr__(self) -> str:
        return f"<run {self.name!r} of {self.project!r} in {self._place.dir!r}>"

    # ------------------------------------------------------------ logging

    def log(
        self, data: Mapping[str, Any], step: Any = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Log numbers as points at the step; numbers in a nested mapping are called `outer/inner`."""
        del sync
        if not isinstance(data, Mapping):
            raise TypeError(f"wandb.log takes a dictionary of names with values, not {type(data).__name__}")
        if self._is_over and self._place.is_own:
            raise UsageError(f"the run {self.name} has finished; a process has one run at a time, by wandb.init()")
        if step is not None and not self._move_to(step):
            return
        self._held.update(find_numbers(_WHO, self._keep_media(data)))
        if commit is not False:
            self._release()
        if commit or (commit is None and step is None):
            self.step += 1

    def _keep_media(self, data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Write pictures, tables and the like to files, and return the rest of the data."""
        rest: dict[str, Any] = {}
        for key, value in data.items():
            if isinstance(value, Mapping):
                rest[key] = self._keep_media(value, f"{prefix}{key}/")
                continue
            found = [find_media(each) for each in value] if isinstance(value, list | tuple) else [find_media(value)]
            media = [each for each in found if each is not None]
            if not media:
                rest[key] = value
            elif self._place.dir:
                for number, each in enumerate(media):
                    self._files.keep(f"{prefix}{key}", each, self.step, f"-{number}" if len(media) > 1 else "")
        return rest

    def _move_to(self, step: Any) -> bool:
        """Set the step and return True, or return False for a smaller step than the last: W&B ignores such a call."""
        number = script.build_number(step)
        if number is None:
            say_once(_WHO, "step", f"step={step!r} is not a number; the call is counted instead")
            return True
        if int(number) < self.step:
            text = f"step={int(number)} is behind step {self.step}: this and the like are left out; steps only grow"
            say_once(_WHO, "step behind", text)
            return False
        if int(number) > self.step:
            self._release()
        self.step = int(number)
        return True

    def _release(self) -> None:
        """Log the held values: one line for each metric that counts steps."""
        numbers, self._held = self._held, {}
        self._fold(numbers)
        self._seen.update(numbers)
        lines: dict[float, dict[str, object]] = {}
        for name, value in numbers.items() if self._place.dir else ():
            axis = _find_pattern(self._axes, name)
            at = self._seen.get(axis, self.step) if axis else self.step
            lines.setdefault(at, {})[_RENAMED.get(name, name)] = value
        for at, values in lines.items():
            line_step = values.pop("step", None)  # the script's own `step` has precedence
            epoch = values.pop("epoch", None)
            if not values:  # only the counter itself was logged
                continue
            script.log(values, step=at if line_step is None else line_step, epoch=epoch)

    def _fold(self, numbers: Mapping[str, float]) -> None:
        """Update the summary with the last values, or with the aggregates that `define_metric` set."""
        values: dict[str, Any] = self.summary.__dict__["_values"]
        for name, value in numbers.items():
            folds = (_find_pattern(self._folds, name) or "last").split(",")
            count = self._counts[name] = self._counts.get(name, 0) + 1
            before = values.get(name) if count > 1 else None
            earlier: Any = before if isinstance(before, Mapping) else dict.fromkeys(folds, before)
            found = {fold: _combine(fold, earlier.get(fold), value, count) for fold in folds}
            values[name] = found if len(found) > 1 else found[folds[0]]

    def _log_summary(self, changed: Mapping[str, Any]) -> None:
        """Log values that the script sets in the summary as metrics of their own, so that tables show them."""
        given = {name: value for name, value in changed.items() if not isinstance(value, str)}
        numbers = dict(find_numbers(_WHO, given))
        if self._place.dir and numbers:
            taken = {*self._counts, *self._held, "step", "epoch", "time"}
            script.log({f"summary/{name}" if name in taken else name: value for name, value in numbers.items()})
        self._write()

    def define_metric(
        self, name: str, step_metric: Any = None, summary: str | None = None, goal: str | None = None, **_more: Any
    ) -> Media:
        """Use `step_metric` as the step of the metrics called `name`, which may be a pattern such as `val/*`."""
        if step_metric is not None:
            self._axes[name] = str(step_metric)
        best = "max" if goal == "maximize" else "min"
        words = [best if word.strip() == "best" else word.strip() for word in (summary or "").split(",")]
        if folds := [word for word in dict.fromkeys(words) if word in ("min", "max", "mean", "last")]:
            self._folds[name] = ",".join(folds)
        return Media()

    # ------------------------------------------------------------ the files of the run

    def _write_config(self) -> None:
        self._place.write_config(self.config)

    def _write(self) -> None:
        """Write wandb.json, which has the summary, the tags and other facts."""
        if not self._place.dir or script.find_rank() > 0:
            return
        from assay.values.secrets import hide_params

        facts = {name: value for name, value in self._facts.items() if value is not None}
        content = {**facts, "name": self.name, "tags": self.tags, "summary": self.summary}
        try:
            self._place.write_file(layout.WANDB_FILE, hide_params(build_plain(content)))
        except (OSError, ValueError) as error:
            say_once(_WHO, "write", f"the summary cannot be written: {error}. The script goes on.")

    def _leave(self) -> None:
        self._release()
        self._write()

    def _write_tags(self) -> None:
        """Write tags and notes in the format of `assay tag` and `assay note`, unless the run has some."""
        tags = [tag for tag in (re.sub(r"[\s,]+", "-", str(tag))[:_TAG_LIMIT] for tag in self._tags) if tag]
        notes = [{"at": self.start_time, "text": self.notes}] if self.notes else []
        if not self._place.dir or script.find_rank() > 0 or not (tags or notes):
            return
        from assay.system.files import publish

        try:
            content = {"format": _TAGS_VERSION, "tags": tags, "notes": notes}
            publish(os.path.join(self._place.dir, layout.TAGS_FILE), json.dumps(content) + "\n")
        except (OSError, ValueError) as error:
            say_once(_WHO, "write", f"tags cannot be written: {error}. The script goes on.")

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write all values, and end a run outside of a study: an exit code other than 0 is a failure."""
        global _run  # noqa: PLW0603
        del quiet
        self._leave()
        self._is_over = True
        atexit.unregister(self._leave)
        self._place.end(exit_code)
        if _run is self:
            _run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.finish(None if kind is None else script.find_code(error))

    # ------------------------------------------------------------ calls that need the service of W&B, and are accepted

    def watch(self, *_models: Any, **_options: Any) -> None:
        """Ignore the call: gradients are not recorded."""

    unwatch = log_code = mark_preempting = watch

    def save(self, *_arguments: Any, **_options: Any) -> list[str]:
        say_once(_WHO, "save", "save: files stay where they are; what is written to run.dir stays with the run")
        return []

    def alert(self, title: str, text: str = "", **_options: Any) -> None:
        script.say(f"assay.wandb: {title}: {text}")

    def log_artifact(
        self,
        artifact: Any,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 wandb's name
        aliases: Any = None,
        **_more: Any,
    ) -> Any:
        """Log an artifact, or the file or folder of a path as an artifact."""
        if not isinstance(artifact, Artifact):
            path, artifact = os.fspath(artifact), Artifact(name or os.path.basename(artifact), type or "unspecified")
            (artifact.add_dir if os.path.isdir(path) else artifact.add_file)(path)
        if self._place.dir:
            self._files.keep_artifact(artifact, aliases)
        return artifact

    link_artifact = upsert_artifact = log_artifact

    def log_model(self, path: Any, name: str | None = None, aliases: Any = None) -> None:
        self.log_artifact(path, name, "model", aliases)

    def use_artifact(self, name: Any, *_arguments: Any, **_options: Any) -> Any:
        raise UsageError(f"assay.wandb has no artifacts: give the script the path of {name!r} instead")

    use_model = use_artifact

    def __getattr__(self, name: str) -> Any:
        if name in ("entity", "group", "job_type"):
            return str(self._facts[name] or "")
        problem = f"assay.wandb: a run has no {name!r}; docs/how-to/use-with-wandb-lightning-transformers.md"
        raise AttributeError(problem)


def _find_pattern(patterns: Mapping[str, str], name: str) -> str | None:
    return patterns.get(name) or next((patterns[each] for each in patterns if fnmatchcase(name, each)), None)


def _combine(fold: str, before: Any, value: float, count: int) -> float:
    if fold == "last" or not isinstance(before, int | float) or before != before:  # noqa: PLR0124 NaN
        return value
    return {"min": min(before, value), "max": max(before, value), "mean": before + (value - before) / count}[fold]


# ---------------------------------------------------------------- the functions of the module

_run: Run | None = None
_earlier: dict[str, Run] = {}  # the last run of each directory


def init(
    project: str | None = None,
    *,
    config: Any = None,
    name: str | None = None,
    mode: str | None = None,
    settings: Any = None,
    reinit: Any = None,
    **options: Any,
) -> Run:
    """Begin logging: into the run that the script is part of, else into a new run. Further options are accepted."""
    global _run  # noqa: PLW0603
    if _run is not None:
        if reinit in (None, False, "default", "return_previous"):
            return _run
        _run.finish()
    wanted = build_mapping(settings)
    project = project or wanted.get("project") or os.environ.get("WANDB_PROJECT")
    name = name or wanted.get("run_name") or os.environ.get("WANDB_NAME")
    mode = mode or wanted.get("mode") or os.environ.get("WANDB_MODE")
    options |= {"project": project, "name": name, "config": config}
    if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        place = ScriptRun(_WHO, "")
    else:
        place = open_run(_WHO, project, name)
        for word in [word for word in _NOT_DONE if options.get(word) and (place.is_own or word != "resume")]:
            say_once(_WHO, word, f"{word}={options[word]!r}: {_NOT_DONE[word]}")
    _run = Run(place, options)
    return _run


def _get_run(call: str) -> Run:
    if _run is None:
        raise UsageError(f"call wandb.init() before {call}")
    return _run


def _call(name: str, /, *arguments: Any, **options: Any) -> Any:
    return getattr(_get_run(f"wandb.{name}"), name)(*arguments, **options)


_OF_RUN = ("log", "define_metric", "alert", "log_artifact", "use_artifact", "save")
log, define_metric, alert, log_artifact, use_artifact, save = (partial(_call, name) for name in _OF_RUN)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    if _run is not None:
        _run.finish(exit_code, quiet)


def login(*_arguments: Any, **_options: Any) -> bool:
    """Return True: there is no service to log in to."""
    return True


def watch(*_models: Any, **_options: Any) -> None:
    """Ignore the call: gradients are not recorded."""


unwatch = setup = teardown = require = watch


def termlog(text: str = "", *_arguments: Any, **_options: Any) -> None:
    script.say(f"assay.wandb: {text}")


termwarn = termerror = termlog


def _build_part(name: str, **content: Any) -> ModuleType:
    part = ModuleType(f"{_WHO}.{name}")
    part.__dict__.update(content)
    return part


util = _build_part("util", generate_id=lambda length=8: os.urandom(length).hex()[:length])
errors = _build_part("errors", Error=Error, UsageError=UsageError, CommError=CommError, AuthenticationError=CommError)


Settings = SimpleNamespace  # options of `init` as an object


# ---------------------------------------------------------------- media

Graph = Classes = BoundingBoxes2D = ImageMask = JoinedTable = Media  # accepted but not kept, with one message
AlertLevel = Media()


def _build_chart(name: str) -> Callable[..., Chart]:
    if name.startswith("__"):
        raise AttributeError(name)
    return partial(Chart, name)


plot = _build_part("plot", __getattr__=_build_chart)
plot_table = _build_chart("table")


def __getattr__(name: str) -> Any:
    if name == "run":
        return _run
    if name in ("config", "summary"):
        return getattr(_get_run(f"wandb.{name}"), name)
    from assay.errors import did_you_mean

    hint = _OTHERWISE.get(name) or did_you_mean(name, [*_OTHERWISE, *(each for each in globals() if each[0] != "_")])
    raise AttributeError(f"assay.wandb has no {name!r}{f'; {hint}' if hint else ''}")


def take_name() -> None:
    """Make `import wandb` and `import wandb.util` return this module from now on, whatever is installed."""
    for name in ("", *_PARTS):
        sys.modules[f"wandb{name}"] = sys.modules[f"{_WHO}{name}"]


_PARTS = {".util": util, ".errors": errors, ".plot": plot}  # parts that can be imported as modules
sys.modules.update({f"{_WHO}{name}": part for name, part in _PARTS.items()})


# ---------------------------------------------------------------- python -m assay.wandb

_USAGE = "usage: python -m assay.wandb (SCRIPT | -m MODULE | PROGRAM) [ARGUMENT]..."


def _run_below(arguments: list[str]) -> None:
    """Run a script, a module or a program so that `import wandb` finds this module, also in its child processes."""
    if not arguments or arguments in (["-m"], ["-h"], ["--help"]):
        script.say(_USAGE)
        raise SystemExit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exchange", "shim")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (shim, os.environ.get("PYTHONPATH"))))
    sys.path.insert(1, shim)  # multiprocessing passes this list to its processes
    if arguments[0] != "-m" and _is_program(arguments[0]):
        os.execvp(arguments[0], arguments)  # noqa: S606 a launcher such as torchrun
    import runpy

    sys.argv[:] = arguments[arguments[0] == "-m" :]
    if arguments[0] == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


def _is_program(name: str) -> bool:
    """Return whether to execute `name` as a program, not as a script or folder of Python."""
    import shutil

    if os.path.isdir(name) or (os.path.isfile(name) and (name.endswith(".py") or not os.access(name, os.X_OK))):
        return False
    if shutil.which(name) is None:
        script.say(f"assay.wandb: there is no script {name!r} here, and no program of this name on PATH\n{_USAGE}")
        raise SystemExit(2)
    return True


if __name__ == "__main__":
    from importlib import import_module

    import_module(_WHO).take_name()  # this file runs under another name
    _run_below(sys.argv[1:])

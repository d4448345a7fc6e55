"""Optuna's journal: the file of JournalStorage, one operation as JSON to a line; read without Optuna.

Trials are numbered across all studies in the order of their creation. Operations that Optuna ignores, such as one on a
trial that has ended, are ignored here too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from assay.exchange.importers.imported_run import (
    STILL_RUNNING,
    ImportedRun,
    ImportedRuns,
    build_series,
    opening,
    parse_moment,
    refuse,
)
from assay.record.importers.sample import Sample
from assay.system.fast_dataclasses import dataclass, field
from assay.system.files import parse_json
from assay.values.series import Direction, direction_of
from assay.values.state import State

_RUNNING, _COMPLETE, _PRUNED, _FAIL, _WAITING = range(5)
_STATES = {_COMPLETE: State.DONE, _PRUNED: State.PRUNED, _FAIL: State.FAILED, _RUNNING: State.STOPPED}
_REASONS = {_RUNNING: STILL_RUNNING, _PRUNED: "pruned by Optuna", _FAIL: "failed in Optuna"}
_NAMES_KEY = "study:metric_names"
_BY_STEP = "_by_step"  # suffix of the metric for an objective's intermediate values


@dataclass(slots=True)
class _Trial:
    number: int
    state: int = _RUNNING
    params: dict[str, Any] = field(default_factory=dict)
    values: list[float] | None = None
    intermediate: dict[int, float] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True)
class _Study:
    name: str
    directions: list[int]
    system_attrs: dict[str, Any] = field(default_factory=dict)
    trials: list[_Trial] = field(default_factory=list)


def is_journal(sample: Sample) -> bool:
    if sample.is_folder:
        return False
    try:
        first = parse_json(sample.first_line)
    except ValueError:
        return False
    return isinstance(first, dict) and {"op_code", "worker_id"} <= first.keys()


def load_journal(path: str) -> ImportedRuns:
    journal = _Journal()
    for number, operation in _load_operations(path):
        try:
            journal.apply(operation)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            refuse(path, f"it is not an operation of Optuna's journal ({problem})", number)
    waiting = sum(trial.state == _WAITING for trial in journal.trials)
    notes = [f"trials that had not begun, and were left out: {waiting}"] if waiting else []
    begun = ((study, trial) for study in journal.studies.values() for trial in study.trials if trial.state != _WAITING)
    return ImportedRuns(tuple(_build_run(study, trial) for study, trial in begun), tuple(notes))


def _load_operations(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with opening(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                operation = parse_json(line)
            except ValueError as error:
                torn = "" if line.endswith(b"\n") else "; the file ends in the middle of a line"
                what = "it is not text" if isinstance(error, UnicodeDecodeError) else "it is not JSON"
                refuse(path, what + torn, number)
            if not isinstance(operation, dict) or "op_code" not in operation:
                refuse(path, "it is not an operation of Optuna's journal (op_code is missing)", number)
            yield number, operation


class _Journal:
    def __init__(self) -> None:
        self.studies: dict[int, _Study] = {}
        self.trials: list[_Trial] = []  # trials of all studies
        self._created = 0  # number of studies, including deleted ones

    def apply(self, log: Mapping[str, Any]) -> None:
        """Apply one operation; `JournalOperation` in optuna.storages.journal defines the codes."""
        code = log["op_code"]
        if code == 0:
            name = log["study_name"]
            if name not in (study.name for study in self.studies.values()):
                self.studies[self._created] = _Study(str(name), [int(each) for each in log["directions"]])
                self._created += 1
        elif code == 1:
            self.studies.pop(log["study_id"], None)
        elif code == 3 and log["study_id"] in self.studies:
            self.studies[log["study_id"]].system_attrs.update(log["system_attr"])
        elif code == 4:
            self._create_trial(log)
        elif code in (5, 6, 7, 8):
            known = range(len(self.trials))
            trial = self.trials[log["trial_id"]] if log["trial_id"] in known else None
            if trial is not None and trial.state in (_RUNNING, _WAITING):
                self._change_trial(trial, code, log)
        elif code not in (2, 3, 9, 10):
            raise ValueError(f"op_code is {code!r}")

    def _create_trial(self, log: Mapping[str, Any]) -> None:
        study = self.studies.get(log["study_id"])
        if study is None:
            return
        given, by_step = log.get("params") or {}, log.get("intermediate_values") or {}
        trial = _Trial(
            len(study.trials),
            _check_state(log.get("state", _RUNNING)),
            {name: _parse_param(value, log["distributions"][name]) for name, value in given.items()},
            _parse_values(log),
            {int(step): _to_float(value) for step, value in by_step.items()},
            dict(log.get("user_attrs") or {}),
            *(_parse_time(log.get(name)) for name in ("datetime_start", "datetime_complete")),
        )
        self.trials.append(trial)
        study.trials.append(trial)

    def _change_trial(self, trial: _Trial, code: int, log: Mapping[str, Any]) -> None:
        if code == 5:
            trial.params[log["param_name"]] = _parse_param(log["param_value_internal"], log["distribution"])
        elif code == 6:
            state = _check_state(log["state"])
            if state == _RUNNING and trial.state != _RUNNING:
                trial.started_at = _parse_time(log.get("datetime_start"))
            trial.state = state
            trial.ended_at = _parse_time(log.get("datetime_complete")) or trial.ended_at
            trial.values = _parse_values(log) or trial.values
        elif code == 7:
            trial.intermediate[int(log["step"])] = _to_float(log["intermediate_value"])
        else:
            trial.user_attrs.update(log["user_attr"])


def _build_run(study: _Study, trial: _Trial) -> ImportedRun:
    directions: list[Direction] = ["min" if each == 1 else "max" for each in study.directions]
    names = _name_objectives(study, directions)
    texts = {name: value for name, value in trial.user_attrs.items() if not _is_number(value)}
    values = dict(zip(names, trial.values or [], strict=False))
    values |= {n: float(value) for n, value in trial.user_attrs.items() if _is_number(value) and n not in values}
    points = {}
    if trial.intermediate:  # Optuna allows intermediate values only with one objective
        steps = [(float(step), value, None) for step, value in sorted(trial.intermediate.items())]
        points[names[0] + _BY_STEP] = build_series([*steps])
    points |= {name: build_series([(None, value, trial.ended_at)]) for name, value in values.items()}
    return ImportedRun(
        id=f"{study.name}/{trial.number}",
        name=f"trial-{trial.number:04d}",
        study=study.name,
        state=_STATES[trial.state],
        params=trial.params,
        points=points,
        reason=_REASONS.get(trial.state, ""),
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        details={
            "directions": directions,
            "objectives": [f"{name}:{way}" for name, way in zip(names, directions, strict=True)],
            **({"user_attrs": texts} if texts else {}),
        },
    )


def _name_objectives(study: _Study, directions: list[Direction]) -> list[str]:
    """Return a name for each objective, with `_loss` or `_score` added if the name suggests the other direction."""
    count = len(directions)
    names = study.system_attrs.get(_NAMES_KEY)
    if not isinstance(names, list) or len(names) != count:
        names = ["objective"] if count == 1 else [f"objective_{index}" for index in range(count)]
    endings = {"min": "_loss", "max": "_score"}
    return [
        str(name) if direction_of(str(name)) == way else str(name) + endings[way]
        for name, way in zip(names, directions, strict=True)
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_state(state: Any) -> int:
    if type(state) is not int or state not in (*_STATES, _WAITING):
        raise ValueError(f"state is {state!r}")
    return state


def _parse_values(log: Mapping[str, Any]) -> list[float] | None:
    values = log.get("values")
    if values is None and log.get("value") is not None:
        values = [log["value"]]
    return [_to_float(value) for value in values] if values is not None else None


def _to_float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _parse_param(value: Any, distribution: str | Mapping[str, Any]) -> Any:
    """Parse Optuna's internal representation of a value, which is an index for a categorical parameter."""
    kind = json.loads(distribution) if isinstance(distribution, str) else distribution
    name, attributes = kind["name"], kind["attributes"]
    if name == "CategoricalDistribution":
        return attributes["choices"][int(value)]
    return int(value) if name.startswith("Int") else float(value)


def _parse_time(text: Any) -> float | None:
    return parse_moment(text) if isinstance(text, str) else None

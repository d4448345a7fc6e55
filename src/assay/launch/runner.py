"""Start runs that are not planned from a study file: golden segments, benchmark trials, model checks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from assay.config.settings import Settings, load_settings
from assay.follow.locations import StudyLocation, choose_root
from assay.launch.prepared import Origin, Prepared, Report, RunOptions, check_prepared
from assay.launch.sweep import RunHooks, run_study
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import Plan, RunSpec, State
from assay.values.study import CodePolicy, Farm, Resources, Study

if TYPE_CHECKING:
    from assay.launch.budget import Budget

# The Python of jobs on a farm: the one that submitted the job, if the node has it; else the node's, with Assay.
NODE_PYTHON = f'"$(command -v "${layout.ENV_PYTHON}" || echo python3)"'


def build_bare_study(name: str, source: str, folder: str) -> Study:
    """Build a study without commands and parameters. `source`: the command that needs the study, for messages."""
    return Study(name, "native", source, folder, (), (), resources=Resources(gpus=0), code=CodePolicy("live"))


def find_study_location(name: str, root: str | None, settings: Settings | None = None) -> StudyLocation:
    return StudyLocation(choose_root(root, None, settings or load_settings(os.getcwd(), os.environ))[0], name)


def run_specs(
    study: Study,
    location: StudyLocation,
    specs: Sequence[RunSpec],
    hooks: RunHooks,
    *,
    slots: tuple[str, ...] | None = None,
    farm: Farm | None = None,
    settings: Settings | None = None,
    grace_s: float = 10.0,
    command_line: tuple[str, ...] = (),
    origins: Mapping[str, Origin] = MappingProxyType({}),
    retry: frozenset[State] = frozenset(),
    budget: Budget | None = None,
) -> Report:
    """Run all specs, spread over the slots. `origins`: run id -> origin of its code; calls may share one `budget`."""
    options = RunOptions(study.source, slots=slots, grace_s=grace_s, command_line=command_line, old_code=True)
    options = replace(options, origins=origins, retry=retry, budget=budget)
    known = settings or load_settings(os.getcwd(), os.environ)
    prepared = Prepared(study, Plan(study, tuple(specs)), location, True, farm, known, options)
    check_prepared(prepared)
    return run_study(prepared, hooks)

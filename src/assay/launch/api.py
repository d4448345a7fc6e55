"""The names that other packages import from `launch`. A name's module is loaded when the name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.launch.budget import Budget
    from assay.launch.prepared import (
        Again,
        Origin,
        Prepared,
        Report,
        RunOptions,
        build_dry_lines,
        build_dry_rows,
        build_line,
        check_prepared,
        first_program,
        left_commands,
        wanted_commands,
    )
    from assay.launch.report import render_report
    from assay.launch.run_rules import Listen
    from assay.launch.runner import NODE_PYTHON, build_bare_study, find_study_location, run_specs
    from assay.launch.sides import SideOptions, build_side_command, check_paths
    from assay.launch.slot_choice import choose_slots
    from assay.launch.stop import stop
    from assay.launch.sweep import RunHooks, go_to_background, prepare, run_study

HOMES = {
    "assay.launch.budget": "Budget",
    "assay.launch.prepared": (
        "Again Origin Prepared Report RunOptions build_dry_lines build_dry_rows build_line check_prepared "
        "first_program left_commands wanted_commands"
    ),
    "assay.launch.report": "render_report",
    "assay.launch.runner": "NODE_PYTHON build_bare_study find_study_location run_specs",
    "assay.launch.sides": "SideOptions build_side_command check_paths",
    "assay.launch.slot_choice": "choose_slots",
    "assay.launch.stop": "stop",
    "assay.launch.run_rules": "Listen",
    "assay.launch.sweep": "RunHooks go_to_background prepare run_study",
}
__getattr__ = build_getattr(__name__, HOMES)

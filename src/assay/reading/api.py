"""The names that other packages import from `reading`. A name's module is loaded when the name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.reading.best import choose_best
    from assay.reading.choosing import FIELDS, choose_rows, match_rows
    from assay.reading.kept_table import KeptTable, remember
    from assay.reading.logs import find_log
    from assay.reading.ranking import choose_sort, differing_params, find_pareto_runs, sort_rows
    from assay.reading.run_reader import LoadedRuns, load_fresh_table, load_objectives, load_points, load_study_runs
    from assay.reading.summary import SummaryOptions, describe_unranked, leave_out_foreign, select_rows, summarise

HOMES = {
    "assay.reading.best": "choose_best",
    "assay.reading.choosing": "FIELDS choose_rows match_rows",
    "assay.reading.kept_table": "KeptTable remember",
    "assay.reading.logs": "find_log",
    "assay.reading.ranking": "choose_sort differing_params find_pareto_runs sort_rows",
    "assay.reading.run_reader": "LoadedRuns load_fresh_table load_objectives load_points load_study_runs",
    "assay.reading.summary": "SummaryOptions describe_unranked leave_out_foreign select_rows summarise",
}
__getattr__ = build_getattr(__name__, HOMES)

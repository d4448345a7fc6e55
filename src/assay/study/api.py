"""What other packages use of studies: run these specs, follow them, read their records. Names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.study.attempts import RetryPolicy
    from assay.study.background import go_to_background
    from assay.study.best import choose_best
    from assay.study.choosing import FIELDS, choose_rows, match_rows
    from assay.study.collect import Source, closing_quietly, find_sources
    from assay.study.compare_page import ComparePage, build_chosen_curves, build_comparison, pick_rows
    from assay.study.farms import LOCAL, choose_asked_farm, choose_farm
    from assay.study.kept_table import KeptTable, keep_made
    from assay.study.limited_process import LimitedProcess, limit_patterns
    from assay.study.locations import (
        FoundRun,
        StudyLocation,
        check_writable,
        choose_root,
        find_locations,
        find_patterns,
        find_roots,
        find_studies,
        show_command,
        show_path,
    )
    from assay.study.logs import find_log
    from assay.study.mlrunner_files import format_time, render_script
    from assay.study.notify import check_receivers
    from assay.study.opening import open_index, open_index_of
    from assay.study.page_facts import (
        build_comparisons,
        build_listing_facts,
        build_run_answer,
        build_series_facts,
        build_study_facts,
        build_table_csv,
        build_table_facts,
        count_failed_checks,
        load_verdicts,
    )
    from assay.study.page_view import TABS, StudyView
    from assay.study.prepared import (
        Again,
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
    from assay.study.ranking import (
        SortKey,
        best_values,
        choose_sort,
        differing_params,
        find_pareto_runs,
        sort_rows,
        sort_values,
    )
    from assay.study.receive import (
        Limits,
        RefusedUploadError,
        Sender,
        StoredRun,
        make_aside,
        place_runs,
        store_archive,
        unpack,
    )
    from assay.study.refresh import apply_changes, refresh_root, refresh_study
    from assay.study.report import build_study_report, render_report
    from assay.study.report_page import build_report
    from assay.study.run_files import (
        choose_log,
        find_default_log,
        find_file,
        find_image_kind,
        list_files,
        load_log,
        search_log,
        split_diff,
    )
    from assay.study.run_page import build_run_curves, build_run_page, choose_metrics, find_children, find_failure
    from assay.study.run_reader import LoadedRuns, load_fresh_table, load_objectives, load_points, load_study_runs
    from assay.study.run_status import load_states
    from assay.study.runner import NODE_PYTHON, build_bare_study, find_study_location, run_specs
    from assay.study.shared_folder import shared_folder
    from assay.study.slot_choice import choose_slots
    from assay.study.stop import StopOptions, stop
    from assay.study.study_page import (
        StudyTable,
        build_curves,
        build_examples,
        build_plots,
        build_table,
        choose_charts,
        choose_columns,
        count_not_finite,
        find_best,
        find_names,
        measure_pace,
    )
    from assay.study.summary import SummaryOptions, describe_unranked, leave_out_foreign, select_rows, summarise
    from assay.study.supervise import Entry, Event, Observer
    from assay.study.sweep import Listen, RunHooks, prepare, run_study
    from assay.study.upload import Target, find_finished, find_server, upload_runs
    from assay.study.verdicts import record_verdicts

HOMES = {
    "assay.study.attempts": "RetryPolicy",
    "assay.study.background": "go_to_background",
    "assay.study.best": "choose_best",
    "assay.study.choosing": "FIELDS choose_rows match_rows",
    "assay.study.compare_page": "ComparePage build_chosen_curves build_comparison pick_rows",
    "assay.study.collect": "Source closing_quietly find_sources",
    "assay.study.kept_table": "KeptTable keep_made",
    "assay.study.limited_process": "LimitedProcess limit_patterns",
    "assay.study.locations": (
        "FoundRun StudyLocation check_writable choose_root find_locations find_patterns find_roots find_studies "
        "show_command show_path"
    ),
    "assay.study.farms": "LOCAL choose_asked_farm choose_farm",
    "assay.study.logs": "find_log",
    "assay.study.mlrunner_files": "format_time render_script",
    "assay.study.notify": "check_receivers",
    "assay.study.opening": "open_index open_index_of",
    "assay.study.page_facts": (
        "build_comparisons build_listing_facts build_run_answer build_series_facts build_study_facts "
        "build_table_csv build_table_facts count_failed_checks load_verdicts"
    ),
    "assay.study.page_view": "TABS StudyView",
    "assay.study.prepared": (
        "Again Prepared Report RunOptions build_dry_lines "
        "build_dry_rows build_line check_prepared first_program left_commands wanted_commands"
    ),
    "assay.study.report": "build_study_report render_report",
    "assay.study.report_page": "build_report",
    "assay.study.ranking": "SortKey best_values choose_sort differing_params find_pareto_runs sort_rows sort_values",
    "assay.study.receive": "Limits RefusedUploadError Sender StoredRun make_aside place_runs store_archive unpack",
    "assay.study.refresh": "apply_changes refresh_root refresh_study",
    "assay.study.run_files": (
        "choose_log find_default_log find_file find_image_kind list_files load_log search_log split_diff"
    ),
    "assay.study.run_page": "build_run_curves build_run_page choose_metrics find_children find_failure",
    "assay.study.run_reader": "LoadedRuns load_fresh_table load_objectives load_points load_study_runs",
    "assay.study.run_status": "load_states",
    "assay.study.runner": "NODE_PYTHON build_bare_study find_study_location run_specs",
    "assay.study.shared_folder": "shared_folder",
    "assay.study.slot_choice": "choose_slots",
    "assay.study.stop": "StopOptions stop",
    "assay.study.study_page": (
        "StudyTable build_curves build_examples build_plots build_table choose_charts choose_columns count_not_finite "
        "find_best find_names measure_pace"
    ),
    "assay.study.summary": "SummaryOptions describe_unranked leave_out_foreign select_rows summarise",
    "assay.study.supervise": "Entry Event Observer",
    "assay.study.sweep": "Listen RunHooks prepare run_study",
    "assay.study.upload": "Target find_finished find_server upload_runs",
    "assay.study.verdicts": "record_verdicts",
}
__getattr__ = build_getattr(__name__, HOMES)

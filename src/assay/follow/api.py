"""The names that other packages import from `follow`. A name's module is loaded when the name is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.system.lazy import build_getattr

if TYPE_CHECKING:
    from assay.follow.attempts import RetryPolicy
    from assay.follow.collect import Source, closing_quietly, find_sources
    from assay.follow.entry import Entry, Event, Observer
    from assay.follow.limited_process import LimitedProcess
    from assay.follow.locations import (
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
    from assay.follow.opening import open_index, open_index_of
    from assay.follow.refresh import apply_changes, refresh_root, refresh_study
    from assay.follow.verdicts import record_verdicts

HOMES = {
    "assay.follow.attempts": "RetryPolicy",
    "assay.follow.collect": "Source closing_quietly find_sources",
    "assay.follow.entry": "Entry Event Observer",
    "assay.follow.limited_process": "LimitedProcess",
    "assay.follow.locations": (
        "FoundRun StudyLocation check_writable choose_root find_locations find_patterns find_roots "
        "find_studies show_command show_path"
    ),
    "assay.follow.opening": "open_index open_index_of",
    "assay.follow.refresh": "apply_changes refresh_root refresh_study",
    "assay.follow.verdicts": "record_verdicts",
}
__getattr__ = build_getattr(__name__, HOMES)

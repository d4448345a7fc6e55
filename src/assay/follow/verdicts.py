"""Store verdicts in the directory of their study and in the index."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from assay.errors import InfrastructureError
from assay.follow.locations import StudyLocation
from assay.follow.opening import open_index
from assay.follow.refresh import find_verdicts_file, read_verdicts
from assay.record.index.stored import Index
from assay.system.files import append_line
from assay.values import layout
from assay.values.plain import build_plain
from assay.values.verdict import Verdict


def record_verdicts(
    location: StudyLocation, source: str, verdicts: Mapping[Any, Verdict], index: Index | None = None
) -> list[str]:
    """Store verdicts by run name (None: the whole study). Return texts of warnings if they cannot be stored."""
    if not verdicts:
        return []
    facts = [{"run": run, **build_plain(verdict)} for run, verdict in verdicts.items()]
    try:
        os.makedirs(os.path.join(location.dir, layout.STUDY_META_DIR), exist_ok=True)
        append_line(find_verdicts_file(location), {"at": time.time(), "source": source, "verdicts": facts})
        if index is not None:
            read_verdicts(index, location)
        else:
            with open_index(location.root) as opened:
                read_verdicts(opened, location)
    except (InfrastructureError, OSError) as error:
        return [f"the verdict was not recorded: {error}"]
    return []

"""How long the runs of a study took: for the command and for the page."""

from assay.follow.api import StudyLocation, open_index_of
from assay.reading.api import load_fresh_table


def list_longest(location: StudyLocation, count: int) -> list[tuple[str, float]]:
    """(name, seconds), the longest first."""
    with open_index_of([location]) as index:
        rows = load_fresh_table(index, [location]).rows
    took = [(row.name, row.ended_at - row.started_at) for row in rows if row.started_at and row.ended_at]
    return sorted(took, key=lambda each: -each[1])[:count]

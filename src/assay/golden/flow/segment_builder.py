"""From a recording of the training's log to a segment of the golden: its values, and the checkpoint it starts from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from assay.golden import manifests
from assay.golden.flow.segments import GoldenContext
from assay.golden.recorder import Recording, Values
from assay.golden.values import Segment, Track


class SegmentBuilder:
    def __init__(self, context: GoldenContext, warn: Callable[[str], None]) -> None:
        self._scene = context
        self._warn = warn
        self._hashes: dict[str, str | None] = {}

    def build(self, recording: Recording, file_values: Values) -> Segment | None:
        tracks: dict[str, dict[str, tuple[Track, ...]]] = {}
        for metric in {name for name, _ in recording.values.found}:
            tracks[metric] = {label: (track,) for label, track in recording.values.tracks(metric).items()}
        for metric, track in self._cut_files(recording, file_values).items():
            tracks.setdefault(metric, {"": (track,)})
        if not tracks or recording.values.problems:
            return None
        path = self.find_saved(recording)
        if path is None:
            return None
        return Segment(recording.start_step, self._relative(path), _in_order(tracks, self._scene), self._hash(path))

    def _cut_files(self, recording: Recording, file_values: Values) -> Mapping[str, Track]:
        """What files say about the same steps."""
        limit = recording.limit if recording.limit is not None else recording.start_step + recording.length
        wanted = {rule.metric for rule in self._scene.test.rules}
        cut: dict[str, Track] = {}
        for metric in {name for name, _ in file_values.found} & wanted:
            track = file_values.tracks(metric)[""]
            rows = [
                row
                for row in zip(track.steps, track.values, track.texts, strict=True)
                if recording.start_step < row[0] <= limit
            ]
            if rows:
                cut[metric] = Track(*(tuple(column) for column in zip(*rows, strict=True)))
        return cut

    def find_saved(self, recording: Recording) -> str | None:
        """The checkpoint that a save line names; a pattern that cuts the path short is helped out."""
        named = recording.saved.path
        rest = recording.saved.rest
        longer = named + (rest.split()[0] if rest[:1].strip() else "")
        candidates = dict.fromkeys([longer, named, longer.rstrip("\"'.,;:)"), (named + rest).strip()])
        paths = [os.path.normpath(os.path.join(self._scene.folder, name)) for name in candidates if name]
        found = [path for path in paths if os.path.lexists(path)]
        inside = [path for path in found if path.startswith(self._scene.store + os.sep)]
        return next(iter(inside or found), None)

    def _relative(self, path: str) -> str:
        folder = os.path.dirname(self._scene.manifest)
        if path.startswith(folder + os.sep):
            return os.path.relpath(path, folder)
        self._warn(f"the checkpoint {path} lies outside the store: the golden cannot be moved to another machine")
        return path

    def _hash(self, path: str) -> str | None:
        if path not in self._hashes:
            self._hashes[path] = manifests.hash_checkpoint(path)
        return self._hashes[path]


def _in_order(tracks: Mapping[str, Any], context: GoldenContext) -> dict[str, Any]:
    """Metrics as the file lists them, whatever the log's order."""
    order = [pattern.metric for pattern in context.test.metrics]
    return dict(
        sorted(tracks.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
    )

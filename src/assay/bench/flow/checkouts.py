"""Where commits of a repository are checked out and built, beside the user's own tree."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from assay.bench.flow.run import find_bench_place
from assay.bench.values.execution import BenchRequest, BenchVariant
from assay.config.settings import load_settings
from assay.errors import UsageError
from assay.stage.checkout import Commit, build, find_repository, open_tree, switch
from assay.system.locks import hold
from assay.values import layout

TREES_DIR = "trees"
BISECT_DIR = "bisect"


@dataclass(frozen=True, slots=True)
class Checkouts:
    repository: str
    inside: str  # the folder that benchmarks run in, relative to the repository
    folder: str  # of the trees
    logs: str  # of searches
    build: str | None

    def check_out(self, side: str, commit: Commit) -> BenchVariant:
        """A tree at this commit; the same place every time, so that compiled parts can stay."""
        tree = open_tree(self.repository, os.path.join(self.folder, side))
        switch(tree, commit.sha, keep_ignored=self.build is not None)
        folder = os.path.normpath(os.path.join(tree.path, self.inside))
        if not os.path.isdir(folder):
            raise UsageError(f"commit {commit.short} has no folder {self.inside}")
        problem = build(tree, self.build, folder) if self.build else None
        if problem:
            raise UsageError(f"commit {commit.short} cannot be built: {problem}")
        return BenchVariant(f"{side}-{commit.short}", folder, commit.sha)


@contextmanager
def open_workshop(
    request: BenchRequest, build_command: str | None, tell: Callable[[str], None] = lambda _line: None
) -> Iterator[Checkouts]:
    """One call at a time: two would check out different commits in the same tree, and disturb each other's figures. The
    second waits."""
    folder = os.path.abspath(request.folder or os.getcwd())
    repository = find_repository(folder)
    place = find_bench_place(request.root, load_settings(os.getcwd(), os.environ))
    key = hashlib.blake2b(repository.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    meta = os.path.join(place.dir, layout.STUDY_META_DIR)
    trees = os.path.join(meta, TREES_DIR, key)
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(repository))
    taken = UsageError(f"another comparison or search is at work in {trees}", "choose another --root")
    with hold(trees, taken, lambda: tell(f"waiting for another comparison or search, at work in {trees}")):
        yield Checkouts(repository, inside, trees, os.path.join(meta, BISECT_DIR), build_command)

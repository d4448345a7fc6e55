"""`assay bench baseline`: names for executions that later ones are compared with."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Sequence

from assay.bench.flow.archive import find_location, load_executions
from assay.bench.flow.sides import choose_side
from assay.bench.records import Baseline, load_named, write_named
from assay.bench.values.execution import BenchExecution
from assay.code.checkout import find_repository, load_commit
from assay.errors import NotFoundError, UsageError
from assay.show.console import SILENT, Console

HEAD = "HEAD"


def set_baseline(name: str, what: str, root: str | None, console: Console = SILENT) -> Baseline:
    """Give a name to the executions that a label or commit has now."""
    if not re.fullmatch(r"[A-Za-z0-9][\w./+-]*", name):
        raise UsageError(f"{name!r} is not a name for a baseline", "use letters, digits and . _ / + -")
    location = find_location(root)
    found = _choose(load_executions(location, console=console), what)
    if not found:
        words = ["assay", "bench", "run", "METHOD", "--trials", "10", *(["--root", root] if root else [])]
        raise UsageError(
            f"there is no execution of {what} that could be a baseline: none succeeded, or all have local edits",
            f"execute some: `{shlex.join(words)}`",
        )
    commits = {each.commit for each in found}
    commit = next(iter(commits)) if len(commits) == 1 else None
    baseline = Baseline(what, tuple(os.path.basename(each.run_dir) for each in found), time.time(), commit)
    write_named(location.dir, Baseline, {**load_named(location.dir, Baseline), name: baseline})
    return baseline


def remove_baseline(name: str, root: str | None) -> None:
    """Remove the name. The executions stay."""
    known = load_named(find_location(root).dir, Baseline)
    if name not in known:
        raise NotFoundError("baseline", name, known)
    write_named(find_location(root).dir, Baseline, {key: each for key, each in known.items() if key != name})


def _choose(executions: Sequence[BenchExecution], what: str) -> list[BenchExecution]:
    """Choose the executions of a label or commit; of a commit those without local edits, which others lack."""
    good = [each for each in executions if each.result.is_measured and not each.void and not each.is_compared]
    if labelled := [each for each in good if each.label == what]:
        return labelled
    found = choose_side(good, what) or choose_side(good, load_commit(find_repository(os.getcwd()), what).sha)
    return [each for each in found if each.git is None or not each.git.diff]


def find_pinned(name: str, study_dir: str, executions: Sequence[BenchExecution]) -> list[BenchExecution]:
    """Return the executions of a baseline. Raises UsageError if they no longer exist."""
    known = load_named(study_dir, Baseline)
    if name not in known:
        hint = None if known else "set one: `assay bench baseline set NAME`"
        raise NotFoundError("baseline", name, known, hint)
    runs = set(known[name].runs)
    found = [each for each in executions if os.path.basename(each.run_dir) in runs]
    if not found:
        raise UsageError(f"no execution of the baseline {name} is there any more", f"`assay bench baseline set {name}`")
    return found

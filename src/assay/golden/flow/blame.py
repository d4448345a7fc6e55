"""`assay golden blame`: finds whether the code or the environment moved a metric. The golden's segments are run in four
cells, two revisions of the code in two environments.

A cell is repeated to measure its noise, unless its results equal those of another cell bit for bit.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

from assay.code.checkout import commit_work_tree, load_commit, open_checkouts
from assay.errors import UsageError
from assay.follow.api import Entry, StudyLocation
from assay.golden.config import load_golden_file
from assay.golden.flow.followers import describe_end, find_log
from assay.golden.flow.runs import add_recordings, find_lost_steps, follow_specs, is_whole
from assay.golden.flow.segments import (
    ENDED_WELL,
    GoldenContext,
    GoldenOptions,
    build_contexts,
    build_stamp,
    choose_golden,
)
from assay.golden.judge.contrasts import build_curves, find_allowed, measure_shift
from assay.golden.recorder import Values
from assay.golden.requests import BlameRequest
from assay.golden.results import BlameCell, BlameReport, Moved
from assay.golden.values import Golden, Rule, Segment
from assay.launch.api import Report, RunHooks, build_side_command, check_paths
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values import layout
from assay.values.run import RunSpec

REPEATS = 2

Weights = Mapping[str, int]
Job = tuple[str, int]  # the cell, the segment's index
# The contrasts that show each effect, the preferred one first; a cell is named by the letters of code and environment.
_PARTS: Mapping[str, Mapping[str, Weights]] = {
    "environment": {"": {"aa": -1, "ab": 1}, "code b": {"ba": -1, "bb": 1}},
    "code": {"": {"aa": -1, "ba": 1}, "environment b": {"ab": -1, "bb": 1}},
    "interaction": {"": {"aa": 1, "ab": -1, "ba": -1, "bb": 1}},
}


def blame_file(request: BlameRequest, options: GoldenOptions, hooks: RunHooks) -> tuple[BlameReport, ...]:
    contexts = [choose_golden(context) for context in build_contexts(load_golden_file(options.file), options)]
    environments = {"a": request.a_env, "b": request.b_env}
    _check_environments(environments, is_local=contexts[0].farm is None)
    done: list[BlameReport] = []
    for context in contexts:
        golden = context.load_golden()
        revisions = request.a_rev or find_commit(golden, "name the code of side a, as in --a-rev HEAD"), request.b_rev
        done.append(blame_test(context, golden, revisions, environments, hooks, request.repeats))
        if done[-1].interrupted:
            break
    return tuple(done)


def _check_environments(environments: Mapping[str, str], is_local: bool) -> None:
    if environments["a"] == environments["b"]:
        raise UsageError("both sides have the same environment", "name two, as in --a-env old-venv --b-env new-venv")
    for side, text in environments.items():
        program = shlex.split(text)[0] if text else "env"
        if is_local and "=" not in program and shutil.which(os.path.expanduser(program)) is None:
            hint = "name a virtual environment, or words before the command: 'env OMP_NUM_THREADS=1'"
            raise UsageError(f"--{side}-env: there is neither a folder nor a program {program!r}", hint)


def describe_environment(text: str) -> str:
    """Name a virtual environment by its folder, anything else as the user typed it."""
    name, _, folder = "".join(shlex.split(text)[1:2]).partition("=")
    return os.path.relpath(folder) if name == "VIRTUAL_ENV" else text or "as it is"


def find_commit(golden: Golden, hint: str) -> str:
    """Return the commit of a golden. Raises UsageError if the commit is unknown, or had uncommitted changes."""
    commit, what = golden.provenance.get("commit"), f"the golden recording of {golden.test}"
    if not commit:
        raise UsageError(f"{what} does not state the commit that it was made with", hint)
    if golden.provenance.get("dirty"):
        raise UsageError(f"{what} was made with changes that were not committed: git does not have its code", hint)
    return str(commit)


def blame_test(
    context: GoldenContext,
    golden: Golden,
    revisions: tuple[str, str | None],
    environments: Mapping[str, str],
    hooks: RunHooks,
    repeats: int = REPEATS,
) -> BlameReport:
    """Compare two revisions (None as the second: the working tree) in one environment or two."""
    rules = [rule for rule in context.test.rules if rule.metric in golden.metrics]
    if golden.steps_beyond is None or not rules:
        how = f"assay golden gather {context.options.build_arguments()}{' --counting' if rules else ''}"
        raise UsageError("the golden recording does not state how to run its segments", f"record it: {how}")
    check_paths([context.build_check_command("", 0)], context.folder)
    with _open_codes(context, revisions, hooks) as (codes, titles, problems):
        cells = [f"{code}{environment}" for code in titles for environment in environments]
        runs = _CellRuns(golden, rules, codes, environments, hooks)
        runs.problems |= {cell: problems[cell[0]] for cell in cells if cell[0] in problems}
        end = runs.run_all(cells, repeats)
    return BlameReport(
        context.test.name,
        titles,
        {side: describe_environment(text) for side, text in environments.items()},
        tuple(runs.describe(cell) for cell in cells),
        () if end else tuple(runs.judge(len(titles) > 1)),
        (context.chosen,) if context.chosen else (),
        end.interrupted if end else None,
        end.problem if end else None,
    )


@contextmanager
def _open_codes(
    context: GoldenContext, revisions: tuple[str, str | None], hooks: RunHooks
) -> Iterator[tuple[dict[str, GoldenContext], dict[str, str], dict[str, str]]]:
    """Yield the test in each side's checkout, the titles of the sides, and why sides cannot be run. A checkout has only
    files that git has; two equal commits are one side."""
    location = StudyLocation(context.location.root, f"{context.location.name}-blame")
    moved = replace(context, location=location, study=replace(context.study, name=location.name))
    meta = os.path.join(location.dir, layout.STUDY_META_DIR)
    with open_checkouts(context.folder, meta, lambda trees: hooks.console.message(f"waiting for {trees}")) as trees:
        commits = {"a": load_commit(trees.repository, revisions[0])}
        if revisions[1] is not None:
            commits["b"] = load_commit(trees.repository, revisions[1])
        else:
            work = commit_work_tree(trees.open("b"), context.location.root, context.settings.secrets.file_patterns)
            head = load_commit(trees.repository, "HEAD")
            title = f"the files as they are, on {head.short}"
            commits["b"] = work if work.sha == head.sha else replace(work, subject=title)
        if commits["a"].sha == commits["b"].sha:
            del commits["b"]
        codes: dict[str, GoldenContext] = {}
        problems: dict[str, str] = {}
        for side, commit in commits.items():
            try:
                folder = trees.enter(side, commit)
                codes[side] = replace(moved, folder=folder, study=replace(moved.study, folder=folder))
            except UsageError as error:
                problems[side] = error.message
        yield codes, {side: f"{commit.short} {commit.subject}" for side, commit in commits.items()}, problems


@dataclass(slots=True)
class _CellRuns:
    golden: Golden
    rules: Sequence[Rule]
    codes: Mapping[str, GoldenContext]
    environments: Mapping[str, str]
    hooks: RunHooks
    values: dict[str, dict[int, list[Values]]] = field(default_factory=dict)  # cell → segment → values of each run
    problems: dict[str, str] = field(default_factory=dict)

    def run_all(self, cells: Sequence[str], repeats: int) -> Report | None:
        """Run all cells. Return a report only if a run was interrupted or the infrastructure failed."""
        message, todo = self.hooks.console.message, [cell for cell in cells if cell not in self.problems]
        segments = render_count(len(self.golden.segments), "segment")
        message(f"running {render_count(len(todo), 'cell')} of code and environment, {segments} each")
        for number in range(1, repeats + 1):
            for side in self.codes:
                own = [cell for cell in todo if cell[0] == side]
                if own and (end := self._run_side(side, own, number)):
                    return end
            todo = [cell for cell in todo if cell not in self.problems]
            if number == 1:
                seen = {cell: self._build_signature(cell) for cell in todo}
                todo = [cell for cell in todo if list(seen.values()).count(seen[cell]) == 1]
                message(f"run again, for the noise: {', '.join(todo) or 'none, each is equal to another one'}")
        return None

    def _run_side(self, side: str, cells: Sequence[str], number: int) -> Report | None:
        stamp, context, count = build_stamp(), self.codes[side], range(len(self.golden.segments))
        jobs = {f"{cell}-{stamp}-{index}-{number}": (cell, index) for cell in cells for index in count}
        specs = {name: self._build_spec(context, name, job, number) for name, job in jobs.items()}
        try:
            report, logged = follow_specs(context, specs, self.hooks)
        except UsageError as error:  # nothing was started: a program does not exist in one cell or more
            if len(cells) > 1:
                return next(filter(None, (self._run_side(side, [cell], number) for cell in cells)), None)
            self.problems[cells[0]] = error.message.split("\n")[0]
            return None
        if report.interrupted or report.problem:
            return report
        for entry in report.entries:
            (cell, index), values = jobs[entry.spec.name], logged[entry.spec.name]
            if problem := self._find_problem(entry, self.golden.segments[index], values):
                self.problems.setdefault(cell, f"{problem}\nlog: {find_log(entry)}")
            self.values.setdefault(cell, {}).setdefault(index, []).append(values)
        return None

    def _build_spec(self, context: GoldenContext, name: str, job: Job, number: int) -> tuple[RunSpec, Segment]:
        cell, segment = job[0], self.golden.segments[job[1]]
        if problem := context.find_checkpoint_problem(segment):
            raise UsageError(problem)
        spec = context.build_segment_spec(name, segment, beyond=self.golden.steps_beyond, number=number)
        text = build_side_command((spec.commands[0].text,), self.environments[cell[1]])
        return context.build_spec(name, text, {**spec.params, "mode": "blame", "cell": cell}), segment

    def _find_problem(self, entry: Entry, segment: Segment, values: Values) -> str:
        if entry.state not in ENDED_WELL:
            return f"it failed: {describe_end(entry)}"
        found = [values.found.get(name, {}).items() for name in self._list_judged(segment)]
        rows = [(step, value, text) for each in found for step, (value, text) in each]
        bad = [f"it logs {text} at step {step}" for step, value, text in rows if not isfinite(value)]
        if not bad and is_whole(segment, values):
            return ""
        lost = [f"it logs no {metric} at step {step}" for metric, step in find_lost_steps(segment, values)]
        return [*bad, *values.problems, *lost, "its steps are not those of the golden"][0]

    def describe(self, cell: str) -> BlameCell:
        runs = min(map(len, self.values.get(cell, {}).values()), default=0)
        return BlameCell(cell[0], cell[1], runs, self.problems.get(cell, ""))

    def _list_judged(self, segment: Segment) -> list[tuple[str, str]]:
        judged = {rule.metric for rule in self.rules}
        return [(metric, label) for metric, label, _ in segment.walk() if metric in judged]

    def _build_segments(self, cell: str) -> list[Segment]:
        """Return a cell's runs as recordings of the golden's segments."""
        segments = enumerate(self.golden.segments)
        return [add_recordings(segment, self.values[cell][index], keep=False) for index, segment in segments]

    def _build_signature(self, cell: str) -> str:
        """Return a value that is equal for cells whose first runs have judged values that are equal bit for bit."""
        segments = [(each.tracks, self._list_judged(each)) for each in self._build_segments(cell)]
        return repr([tracks[metric][label][0].values for tracks, names in segments for metric, label in names])

    def judge(self, has_codes: bool) -> Iterator[Moved]:
        known = {cell: self._build_segments(cell) for cell in self.values if cell not in self.problems}
        is_known = {"environment": len(self.environments) > 1, "code": has_codes}
        is_known["interaction"] = all(is_known.values())
        for rule in self.rules:
            for curves in build_curves(known, rule) if known else ():
                for part, contrasts in _PARTS.items():
                    fitting = [where for where, weights in contrasts.items() if weights.keys() <= known.keys()]
                    shift = measure_shift(curves, contrasts[fitting[0]]) if fitting else None
                    if is_known[part]:
                        yield Moved(curves.name, part, shift, "".join(fitting[:1]), find_allowed(rule))

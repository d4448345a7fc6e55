"""The two sides of a comparison: which executions count, which of them can be compared, baselines, and checkouts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from assay.bench.flow.archive import find_location, load_executions
from assay.bench.judge.environments import describe_differences, match_environments, name_environments, shorten
from assay.bench.records import Baseline, load_named, write_named
from assay.bench.values.comparison import INTERRUPTED, PROFILED, SKIPPED, TAKEN_BY_ALL, Samples
from assay.bench.values.execution import BenchExecution, BenchRequest, BenchVariant
from assay.code.checkout import Checkouts, Commit, commit_work_tree, find_repository, load_commit, open_checkouts
from assay.config.settings import load_settings
from assay.errors import NotFoundError, UsageError, check_known, did_you_mean
from assay.show.console import SILENT, Console
from assay.show.formatting import render_count
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values import layout

Key = tuple[str, str]  # method, metric


@dataclass(frozen=True, slots=True)
class Executions:
    """The executions of one side. `aside`: executions that do not count for any metric."""

    name: str
    found: tuple[BenchExecution, ...]
    invalid: Mapping[Key, set[str]] = field(default_factory=dict)  # executions that were declared invalid
    aside: tuple[BenchExecution, ...] = ()

    @property
    def methods(self) -> list[str]:
        """Methods that have an execution, whether it counts or not."""
        return list(dict.fromkeys(execution.method for execution in (*self.found, *self.aside)))

    @property
    def identities(self) -> set[object]:
        """Identities of the executions, whatever file contains them; ids of other tools need not be unique."""
        return {(e.method, e.execution_id, e.started_at, *e.numbers.items()) for e in self.found}

    def put_aside(self, *, everything: bool) -> Executions:
        """Return this side without interrupted and skipped executions, and without profiled ones unless `everything` is
        set. Failed executions stay, since they are reported; a benchmark that both sides skip is not reported."""
        reasons = (INTERRUPTED,) if everything else (INTERRUPTED, PROFILED)
        found = tuple(e for e in self.found if _why_aside(e) not in (*reasons, SKIPPED))
        aside = tuple(e for e in self.found if _why_aside(e) in reasons)
        return replace(self, found=found, aside=(*self.aside, *aside))

    def count_aside(self, method: str | None = None) -> dict[str, int]:
        """Count the executions in `aside`, of one method or of all, by the reason why they do not count."""
        return dict(Counter(_why_aside(e) for e in self.aside if method in (None, e.method)))

    def good(self, method: str) -> list[BenchExecution]:
        return [e for e in self.found if e.method == method and e.result.is_measured and not e.refused]

    def having(self, key: Key) -> list[BenchExecution]:
        """Return the executions that count for this metric."""
        return [e for e in self.reporting(key) if e.execution_id not in self.invalid.get(key, ())]

    def is_invalid(self, execution: BenchExecution) -> bool:
        """Return whether an execution was declared invalid for any metric."""
        own = (ids for (method, _), ids in self.invalid.items() if method == execution.method)
        return any(execution.execution_id in ids for ids in own)

    def reporting(self, key: Key) -> list[BenchExecution]:
        return [e for e in self.good(key[0]) if key[1] in e.numbers]


def choose_side(executions: Iterable[BenchExecution], name: str) -> list[BenchExecution]:
    """Return the executions with the label `name`, or else those of the commit whose hash begins with `name`."""
    known = list(executions)
    by_label = [each for each in known if each.label == name]
    found = by_label or [each for each in known if each.commit and len(name) >= 4 and each.commit.startswith(name)]
    if not by_label and len(commits := sorted({each.commit for each in found if each.commit})) > 1:
        raise UsageError(f"{name} fits several commits: {', '.join(commits)}", "give more of its characters")
    return found


def list_names(executions: Iterable[BenchExecution]) -> set[str]:
    """List the labels and commits by which `choose_side` finds these executions."""
    return {name for each in executions for name in (each.label, (each.commit or "")[:12]) if name}


def _why_aside(execution: BenchExecution) -> str:
    if execution.void:
        return execution.void
    return PROFILED if execution.is_profiled and execution.result.is_measured else ""


@dataclass(frozen=True, slots=True)
class Duel:
    """One metric of one benchmark, in one environment if both sides have a common environment."""

    key: Key
    base: tuple[BenchExecution, ...]
    head: tuple[BenchExecution, ...]
    setup: str = ""  # what distinguishes the environment from others of this metric
    differences: tuple[str, ...] = ()  # differences of the environments, if none is common

    @property
    def subject(self) -> str:
        return " ".join(self.key) + (f" ({self.setup})" if self.setup else "")


def find_duels(key: Key, base: Executions, head: Executions, *, across: bool) -> list[Duel]:
    """Pair the executions to compare. `across`: compare all of base with all of head, whatever their environments."""
    ours, theirs = base.having(key), head.having(key)
    matches = () if across else match_environments(_list_environments(ours), _list_environments(theirs))
    duels = [Duel(key, _only(ours, a), _only(theirs, b), name, different) for a, b, name, different in matches]
    return duels or [Duel(key, tuple(ours), tuple(theirs))]


def _list_environments(executions: Iterable[BenchExecution]) -> dict[str, Mapping[str, str]]:
    return {execution.fingerprint: execution.setup for execution in executions}


def _only(executions: Iterable[BenchExecution], fingerprint: str) -> tuple[BenchExecution, ...]:
    return tuple(execution for execution in executions if execution.fingerprint == fingerprint)


def collect_samples(
    name: str, found: Sequence[BenchExecution], metric: str, *, everything: bool, in_turns: bool = False
) -> Samples:
    """Collect one value for each execution; from a single execution the raw samples, which are weaker evidence."""
    reasons = [() if everything else each.find_disturbance(metric, in_turns=in_turns) for each in found]
    if is_single(found, metric):
        samples = found[0].result.samples[metric]
        dirt = dict.fromkeys(range(len(samples)), reasons[0][0]) if reasons[0] else {}
        return Samples(samples, name, dirt, is_one_process=True)
    dirt = {number: each[0] for number, each in enumerate(reasons) if each}
    return Samples(tuple(e.numbers[metric] for e in found), name, dirt)


def is_single(found: Sequence[BenchExecution], metric: str) -> bool:
    return len(found) == 1 and len(found[0].result.samples.get(metric, ())) > 1


# ---------------------------------------------------------------- baselines: names for executions


def set_baseline(name: str, what: str, root: str | None, console: Console = SILENT) -> Baseline:
    """Give a name to the executions that a label or commit has now."""
    if not re.fullmatch(r"[A-Za-z0-9][\w./+-]*", name):
        raise UsageError(f"{name!r} is not a name for a baseline", "use letters, digits and . _ / + -")
    location = find_location(root)
    every = load_executions(location, console=console)
    good = [each for each in every if each.result.is_measured and not each.void and not each.is_compared]
    found = [each for each in good if each.label == what]
    if not any(each.label == what for each in every):  # a commit is represented by executions without local edits
        named = choose_side(good, what)
        try:
            named = named or choose_side(good, load_commit(find_repository(os.getcwd()), what).sha)
        except UsageError as error:
            hint = did_you_mean(what, list_names(good)) or error.hint
            raise UsageError(f"no execution has the label {what}, and {error.message}", hint) from None
        found = [each for each in named if each.git is None or not each.git.diff]
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
    """Remove the name of a baseline; its executions stay."""
    known = load_named(find_location(root).dir, Baseline)
    check_known("baseline", [name], known)
    write_named(find_location(root).dir, Baseline, {key: each for key, each in known.items() if key != name})


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


# ---------------------------------------------------------------- notes


def describe_code(duel: Duel) -> str:
    """Return the end of a sentence that begins with `the environments differ`."""
    codes = [{execution.code for execution in found} for found in (duel.base, duel.head)]
    if None in codes[0] | codes[1]:
        return "; whether the code does was not recorded"
    return "; the code is the same" if len(codes[0] | codes[1]) == 1 else " and so does the code"


def describe_environments(
    method: str, base: Executions, head: Executions, duels: Sequence[Duel], across: bool
) -> Iterator[str]:
    """Describe how the executions of a method were grouped, if that is not obvious."""
    sides = (base, head)
    keys = dict.fromkeys(duel.key for duel in duels)
    every = [list({id(e): e for key in keys for e in side.having(key)}.values()) for side in sides]
    names = name_environments(_list_environments([*every[0], *every[1]]))
    if across:
        yield from _describe_mixture(method, sides, every, names)
        return
    setups = list(dict.fromkeys(duel.setup for duel in duels))
    if len(setups) > 1:
        yield f"{method}: {len(setups)} environments, each compared by itself"
    if any(duel.differences for duel in duels):
        yield f"{method}: no environment is common to {base.name} and {head.name}; compare them with --across-setups"
    elif duels and names == {"": ""}:
        yield f"{method}: the environment was not recorded on either side"
    used = {id(e) for duel in duels for e in (*duel.base, *duel.head)}  # ids of executions may repeat across folders
    for side, found in zip(sides, every, strict=True):
        left = [e for e in found if id(e) not in used]
        for fingerprint in dict.fromkeys(execution.fingerprint for execution in left):
            what = f"{render_count(len(_only(left, fingerprint)), 'execution')} of {side.name} left out"
            yield f"{method}: {what}, environment missing on the other side: {names[fingerprint]}"


def _describe_mixture(
    method: str, sides: Sequence[Executions], every: Sequence[Sequence[BenchExecution]], names: Mapping[str, str]
) -> Iterator[str]:
    """Describe executions that are compared although their environments differ."""
    setups = [_list_environments(found) for found in every]
    for side, mine, found in zip(sides, setups, every, strict=True):
        if len(mine) > 1:
            counts = "; ".join(f"{len(_only(found, each))} with {names[each]}" for each in mine)
            yield f"{method}: {side.name} mixes {len(mine)} environments: {counts}"
    if all(setups) and not set(setups[0]) & set(setups[1]):
        old, new = (list(mine.values())[-1] for mine in setups)
        differences = shorten(describe_differences(old, new))
        yield f"{method}: the environments differ ({differences}), and are compared nevertheless"


def describe_invalid(side: Executions, keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        count = len(side.reporting(key)) - len(side.having(key))
        if count:
            yield f"{' '.join(key)}: {render_count(count, 'execution')} of {side.name} left out: declared invalid"


def describe_aside(side: Executions) -> Iterator[str]:
    total = len(side.found) + len(side.aside)
    for reason, count in side.count_aside().items():
        what = f"{render_count(count, f'{reason} execution')} {'is' if count == 1 else 'are'}"
        hint = " (include them with --all)" if reason in TAKEN_BY_ALL else ""
        yield f"{side.name}: {what} left out of {total}{hint}"


# ---------------------------------------------------------------- checkouts of commits, next to the user's own tree


def check_out(checkouts: Checkouts, side: str, commit: Commit) -> BenchVariant:
    """Check out a commit for a side, always into the folder of the side, so that compiled parts can be reused."""
    return BenchVariant(f"{side}-{commit.short}", checkouts.enter(side, commit), commit.sha)


def commit_files(checkouts: Checkouts, request: BenchRequest) -> Commit:
    """Commit the user's files in their current state, as a commit of the head's tree."""
    patterns = load_settings(os.getcwd(), os.environ).secrets.file_patterns
    return commit_work_tree(checkouts.open("head"), find_location(request.root).root, patterns)


def open_question(
    checkouts: Checkouts, ends: Sequence[Commit], request: BenchRequest, asked: Mapping[str, object]
) -> str:
    """Create the folder for a call about a range of commits: a repeated call continues in the same folder."""
    content = {
        "repository": checkouts.repository,
        "inside": checkouts.inside[0],
        "ends": [end.sha for end in ends],
        **asked,
        "trials": request.trials,
        "arguments": dict(request.constructor_args),
        "environment": request.env,
        "python": [request.python, request.python_path, request.first_path],
        "patterns": request.patterns,
        "limits": [request.timeout_s, request.foreign_limit],
    }
    key = hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
    meta = os.path.dirname(os.path.dirname(checkouts.folder))
    folder = os.path.join(meta, "bisect", f"{ends[0].sha[:7]}-{ends[-1].sha[:7]}-{key}")
    os.makedirs(folder, exist_ok=True)
    return folder


def open_trees(
    request: BenchRequest, build_command: str | None, console: Console = SILENT
) -> AbstractContextManager[Checkouts]:
    """Open the trees for one call at a time: a second call would disturb the results of the first one, and waits."""
    folder = os.path.abspath(request.folder or os.getcwd())
    meta = os.path.join(find_location(request.root).dir, layout.STUDY_META_DIR)
    text = "waiting for another comparison or search, running in"
    return open_checkouts(folder, meta, lambda trees: console.message(f"{text} {trees}"), build_command)

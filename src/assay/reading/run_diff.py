"""`assay diff`: show the differences between two runs."""

from __future__ import annotations

import difflib
import filecmp
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from assay.follow.locations import FoundRun
from assay.follow.refresh import refresh_one
from assay.follow.run_status import RunStatus, load_shown
from assay.record import run_directory
from assay.record.index.stored import Index
from assay.values import layout
from assay.values.document import Block, Document, Facts, Notes, Section, TableBlock, Text
from assay.values.series import Summary, best_of
from assay.values.table import Column, Table

_MISSING = object()
_LARGEST_DIFF_BYTES = 1 << 20  # larger files are not compared line by line
_CODE_FILES_SHOWN = 40
_ENVIRONMENT = ("host", "user", "os", "cpu", "cpu_count", "memory_bytes", "python", "driver", "job_python")
Pairs = Mapping[str, tuple[Any, Any]]  # name -> values of the first and the second run; None: missing


@dataclass(frozen=True, slots=True)
class RunComparison:
    left: FoundRun
    right: FoundRun
    state: Pairs
    params: Pairs
    commands: Pairs
    environment: Pairs
    code: Mapping[str, str]  # by path: "only in the first", "only in the second", "differs"
    metrics: Mapping[str, tuple[Summary | None, Summary | None]]
    code_note: str = ""  # why the code could not be compared file by file


def compare(
    index: Index, other_index: Index, left: FoundRun, right: FoundRun, *, within_root: bool = False
) -> RunComparison:
    """Compare two runs by the indexes of their roots. `within_root`: do not follow links that lead out of the root."""
    first, second = load_shown(left.dir), load_shown(right.dir)
    code, note = compare_code(first, second, left.dir, right.dir)
    ours, theirs = _load_metrics(index, left), _load_metrics(other_index, right)
    return RunComparison(
        left=left,
        right=right,
        state=differ({"state": str(first.state)}, {"state": str(second.state)}),
        params=differ(first.record.spec.params, second.record.spec.params),
        commands=differ(*({each.name: each.text for each in run.record.spec.commands} for run in (first, second))),
        environment=differ(
            flatten_environment(left.dir, first.record.commit, within_root=within_root),
            flatten_environment(right.dir, second.record.commit, within_root=within_root),
        ),
        code=code,
        metrics={name: (ours.get(name), theirs.get(name)) for name in sorted({*ours, *theirs})},
        code_note=note,
    )


def differ(left: Mapping[str, Any], right: Mapping[str, Any]) -> Pairs:
    """Return the differing items, in the order of `left`, then of `right`. 1, 1.0 and True are different values."""
    names = dict.fromkeys([*left, *right])
    other = [name for name in names if not _same(left.get(name, _MISSING), right.get(name, _MISSING))]
    return {name: (left.get(name), right.get(name)) for name in other}


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and (left == right or (left != left and right != right))  # noqa: PLR0124


def _load_metrics(index: Index, run: FoundRun) -> dict[str, Summary]:
    refresh_one(index, run.location, run.dir)
    return index.load_summaries(keys=[run.key]).get(run.key, {})


def flatten_environment(run_dir: str, commit: str | None, *, within_root: bool = False) -> dict[str, str]:
    """Return the facts of environment.json by which runs are compared, as a flat mapping."""
    is_readable = not within_root or not run_directory.leaves_root(run_dir, layout.ENVIRONMENT_FILE)
    fields = (run_directory.load_environment(run_dir) if is_readable else None) or {}
    flat = {name: str(fields[name]) for name in _ENVIRONMENT if fields.get(name) is not None}
    flat.update({f"GPU {gpu.get('index')}": str(gpu.get("name")) for gpu in fields.get("gpus") or ()})
    git = fields.get("git") or {}
    if commit := commit or git.get("commit"):
        flat["commit"] = f"{commit}{' (changed)' if git.get('dirty') else ''}"
    for key, prefix in (("packages", "package"), ("job_packages", "package of the runs")):
        flat.update({f"{prefix} {name}": str(version) for name, version in (fields.get(key) or {}).items()})
    return flat


# ---------------------------------------------------------------- code


def compare_code(first: RunStatus, second: RunStatus, left: str, right: str) -> tuple[dict[str, str], str]:
    hashes = first.record.code_hash, second.record.code_hash
    if hashes[0] is not None and hashes[0] == hashes[1]:
        return {}, ""
    folders = os.path.join(left, layout.CODE_DIR), os.path.join(right, layout.CODE_DIR)
    without = [run for run, folder in zip((left, right), folders, strict=True) if not os.path.isdir(folder)]
    if without:
        names = " and ".join(os.path.basename(run) for run in without)
        return {}, f"{names} ran where the code is, without a copy: nothing to compare"
    return _compare_folders(*folders), ""


def _compare_folders(left: str, right: str) -> dict[str, str]:
    ours, theirs = set(_list_files(left)), set(_list_files(right))
    both = (path for path in ours & theirs if not _is_same_file(os.path.join(left, path), os.path.join(right, path)))
    found = {**dict.fromkeys(ours - theirs, "only in the first"), **dict.fromkeys(theirs - ours, "only in the second")}
    return dict(sorted((found | dict.fromkeys(both, "differs")).items()))


def _list_files(folder: str) -> Iterator[str]:
    """Yield the paths of files and links. Links, which replace files too large to copy, are not followed."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in [*names, *links])


def _is_same_file(left: str, right: str) -> bool:
    if os.path.islink(left) or os.path.islink(right):
        return os.path.islink(left) and os.path.islink(right) and os.readlink(left) == os.readlink(right)
    return filecmp.cmp(left, right, shallow=False)


def render_code_diff(comparison: RunComparison, largest: int = _LARGEST_DIFF_BYTES) -> Iterator[str]:
    """Yield a unified diff, as `diff -u` prints it. For a file of more than `largest` bytes, yield only its name."""
    left, right = comparison.left, comparison.right
    for path, kind in comparison.code.items():
        ours, theirs = (_load_lines(os.path.join(run.dir, layout.CODE_DIR, path), largest) for run in (left, right))
        if ours is None or theirs is None:
            yield f"{path}: {kind} (not text, or too large to show)"
            continue
        names = f"{left.key}/{path}", f"{right.key}/{path}"
        yield from (line.rstrip("\n") for line in difflib.unified_diff(ours, theirs, *names))


def _load_lines(path: str, largest: int) -> list[str] | None:
    """Return the lines of a file, or the target of a link; [] if it is missing, None if it is binary or too large."""
    if not os.path.lexists(path):
        return []
    if os.path.islink(path):
        return [f"link to {os.readlink(path)}\n"]
    if not os.path.isfile(path) or os.path.getsize(path) > largest:
        return None
    with open(path, "rb") as file:
        data = file.read()
    return None if b"\0" in data else data.decode("utf-8", "replace").splitlines(keepends=True)


# ---------------------------------------------------------------- the report


def build_document(comparison: RunComparison) -> Document:
    names = comparison.left.key, comparison.right.key
    commands = [
        (f"{name}, {side}", "-" if text is None else text)
        for name, pair in comparison.commands.items()
        for side, text in zip(("first", "second"), pair, strict=True)
    ]
    blocks = (
        Section((Facts([*zip(("first", "second"), names, strict=True)]),)),
        Section((TableBlock(_difference_table(comparison.state, "")),), "State"),
        Section(_or_same(comparison.params, "parameter"), "Parameters"),
        Section((Facts(commands),), "Commands"),
        Section(_or_same(comparison.environment, "fact"), "Environment"),
        Section((Notes(_code_lines(comparison)),), "Code"),
        Section((TableBlock(_metric_table(comparison.metrics)),), "Metrics"),
    )
    return Document(" and ".join(names), blocks, facts=build_facts(comparison))


def _or_same(differences: Pairs, what: str) -> tuple[Block]:
    return (TableBlock(_difference_table(differences, what)) if differences else Text("(no difference)"),)


def _difference_table(differences: Pairs, what: str) -> Table:
    columns = (Column(what), Column("first"), Column("second"))
    return Table(columns, [[name, *pair] for name, pair in differences.items()])


def _code_lines(comparison: RunComparison) -> list[str]:
    if comparison.code_note:
        return [f"({comparison.code_note})"]
    if not comparison.code:
        return ["(no difference)"]
    lines = [f"{path}: {kind}" for path, kind in comparison.code.items()]
    more = len(lines) - _CODE_FILES_SHOWN
    return [*lines[:_CODE_FILES_SHOWN], f"and {more} more"] if more > 0 else lines


def _metric_table(pairs: Pairs) -> Table:
    columns = [Column("metric")]
    for name in ("last", "best"):
        columns += [Column(f"{name} first", "number"), Column("second", "number"), Column("difference", "number")]
    return Table(tuple(columns), [[name, *_triple(each, False), *_triple(each, True)] for name, each in pairs.items()])


def _triple(summaries: tuple[Summary | None, Summary | None], best: bool) -> list[float | None]:
    left, right = (best_of(each)[0] if each and best else each.last if each else None for each in summaries)
    if left is None or right is None or not math.isfinite(left) or not math.isfinite(right):
        return [left, right, None]
    return [left, right, right - left]


def build_facts(comparison: RunComparison) -> dict[str, Any]:
    return {
        "first": comparison.left.key,
        "second": comparison.right.key,
        "state": _facts_of(comparison.state).get("state"),
        "params": _facts_of(comparison.params),
        "commands": _facts_of(comparison.commands),
        "environment": _facts_of(comparison.environment),
        "code": dict(comparison.code),
        "code_note": comparison.code_note or None,
        "metrics": {
            metric: {
                name: dict(zip(("first", "second", "difference"), _triple(pair, name == "best"), strict=True))
                for name in ("last", "best")
            }
            for metric, pair in comparison.metrics.items()
        },
    }


def _facts_of(differences: Pairs) -> dict[str, Any]:
    return {name: {"first": left, "second": right} for name, (left, right) in differences.items()}

"""Builds a comparison from two names on the command line: finds runs and folders, loads traces, reads name pairs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.errors import NotFoundError, UsageError, did_you_mean
from assay.follow.locations import find_one_run, show_path
from assay.system.fast_dataclasses import dataclass
from assay.trace.judge.difference import Comparison, judge_traces
from assay.trace.judge.pairing import translate_names
from assay.trace.judge.sides import are_alike, build_side, build_sides, combine_ranks, release
from assay.trace.records import TRACE_DIR, Trace, list_traces, load_trace
from assay.trace.settings import load_pairs


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces of a run: one for each rank, and one for each rank of every perturbed execution."""

    label: str
    folder: str
    ranks: tuple[Trace, ...]
    noise: tuple[tuple[Trace, ...], ...] = ()


def load_recording(name: str, root: str | None = None) -> Traces:
    """Load the traces of a run by the run's name, its directory, or the folder of its traces."""
    label, folder, found = find_traces(name, root)
    run_dir = _find_run(folder)
    others = sorted(os.listdir(os.path.join(run_dir, TRACE_DIR))) if run_dir else []
    noise = (list_traces(run_dir, each) for each in others if run_dir and each.startswith("noise-"))
    return Traces(label, folder, _load_ranks(found), tuple(_load_ranks(each) for each in noise if each))


def find_traces(name: str, root: str | None = None) -> tuple[str, str, list[str]]:
    """Return the name of a run or folder, its directory, and the folders of its processes' traces."""
    label, folder = name, os.path.abspath(name)
    if os.path.isdir(folder):
        label = show_path(folder)
    else:
        try:
            folder = find_one_run(name, root).dir
        except NotFoundError as error:
            raise NotFoundError("run or folder", name, error.known, error.hint) from None
    run_dir = _find_run(folder)
    is_rank = os.path.isfile(os.path.join(folder, "trace.json"))
    found = list_traces(run_dir) if run_dir else [folder] if is_rank else []
    if not found:
        raise UsageError(f"{label} has no trace", "record one: assay trace run -- python train.py")
    return label, folder, found


def _find_run(folder: str) -> str | None:
    """Return the folder if it has a folder `trace`, or its parent if it is itself called `trace`."""
    parent = os.path.dirname(folder) if os.path.basename(folder) == TRACE_DIR else ""
    return next((each for each in (folder, parent) if each and list_traces(each)), None)


def _load_ranks(folders: Sequence[str]) -> tuple[Trace, ...]:
    """Load one trace for each rank; if several processes have the same rank, the trace with the most rows."""
    ranks: dict[int, Trace] = {}
    for trace in map(load_trace, folders):
        release(trace.rows)
        rank = int(trace.meta.get("rank", 0))
        if rank not in ranks or len(trace.rows) > len(ranks[rank].rows):
            ranks[rank] = trace
    return tuple(ranks[rank] for rank in sorted(ranks))


def compare(a: Traces, b: Traces, names: str | None = None) -> Comparison:
    """Compare traces. `names`: a file of lines `NAME-IN-A = NAME-IN-B`; `*` stands for the same text in both names."""
    mine, theirs = build_sides(a.ranks, b.ranks)

    def find_problem(left: str, right: str) -> str:
        found = translate_names(sorted(mine.names), [(left, right)])
        if not found:
            return f"A has no module {left!r}; {did_you_mean(left, mine.names) or ''}".rstrip("; ")
        other = next((name for name in found.values() if name not in theirs.names), None)
        if other is None:
            return ""
        return f"B has no module {other!r}; {did_you_mean(other, theirs.names) or ''}".rstrip("; ")

    pairs = load_pairs(names, find_problem) if names else []
    build = build_side if are_alike(a.ranks, b.ranks) else combine_ranks
    noise_a, noise_b = ([build(each) for each in recording.noise] for recording in (a, b))
    return judge_traces(mine, theirs, noise_a, noise_b, pairs)

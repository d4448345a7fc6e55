"""Golden recordings as documents: where one comes from, what it can find, its drift, and what a rebase changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError
from assay.golden.report.rows import count_recordings, render_percent, render_share
from assay.golden.values import Golden
from assay.show.plot import Chart, Line, build_bands, render_plot
from assay.values.document import Block, Document, Facts, Notes, Section, TableBlock, Text
from assay.values.table import Column, Table

if TYPE_CHECKING:
    from assay.golden.flow.rebase import Rebased
    from assay.golden.flow.recordings import Recording, Sensitivity

_PACKAGES = 8  # of the environment; the manifest has all


def build_document(recording: Recording) -> Document:
    golden = recording.golden
    title = "Noise; from where on CHANGED; the smallest effect that 1 and 3 checks fail"
    return Document(
        golden.test,
        (
            Section((Facts(list(_list_facts(golden, recording.manifest))),)),
            Section((TableBlock(_build_noise(recording.sensitivity)),), title),
            Section((TableBlock(_build_drift(golden)),), "Drift"),
        ),
        facts=build_facts(recording),
    )


def build_facts(recording: Recording) -> dict[str, Any]:
    golden = recording.golden
    return {
        "test": golden.test,
        "manifest": recording.manifest,
        "format": golden.version,
        "complete": golden.complete,
        "steps_per_segment": golden.steps_per_segment,
        "segments": [
            {
                "start_step": each.start_step,
                "checkpoint": each.checkpoint,
                "recordings": each.replicas,
                "variants": list(each.variants),
            }
            for each in golden.segments
        ],
        "noise": dict(golden.noise),
        "sensitivity": [asdict(each) for each in recording.sensitivity],
        "provenance": dict(golden.provenance),
        "history": [dict(entry) for entry in golden.history],
        "notes": list(golden.notes),
    }


def _list_facts(golden: Golden, manifest: str) -> Iterator[tuple[str, str]]:
    origin = golden.provenance
    starts = ", ".join(str(segment.start_step) for segment in golden.segments)
    yield "test", golden.test
    yield "manifest", manifest + ("" if golden.version > 1 else " (format 1, as the original writes it)")
    yield "segments", f"{len(golden.segments)}{_describe_length(golden)}, at {starts}"
    count = count_recordings(golden)
    said = f"{count} of each segment" if count != 1 else "one recording of each segment, no spread"
    yield "recordings", said + ("" if golden.complete else "; the training did not end")
    yield from _describe_variants(golden)
    yield from ((name, str(origin[key])) for name, key in _NAMED if origin.get(key) not in (None, "", {}, []))
    if origin.get("commit"):
        yield "commit", f"{origin['commit']}{' with local changes' if origin.get('dirty') else ''}"
    yield from _build_environment(origin)
    yield from (("note", note) for note in golden.notes)


def _describe_variants(golden: Golden) -> Iterator[tuple[str, str]]:
    """What was declared harmless, with how it was set."""
    names = dict.fromkeys(name for segment in golden.segments for name in segment.variants)
    known = _mapping(golden.provenance, "variants")
    if names:
        shown = (f"{name} ({known[name]})" if known.get(name) else name for name in names)
        yield "variants", ", ".join(shown)


def _describe_length(golden: Golden) -> str:
    """An older manifest does not say how many steps it recorded: then its tracks do."""
    counts = {
        len(tracks[0].steps)
        for segment in golden.segments
        for labels in segment.tracks.values()
        for tracks in labels.values()
        if tracks
    }
    if golden.steps_per_segment or not counts:
        return f" of {golden.steps_per_segment} steps" if golden.steps_per_segment else ""
    return f" of {max(counts)} values" if len(counts) == 1 else f" of {min(counts)} to {max(counts)} values"


_NAMED = (("gathered", "gathered_at"), ("host", "host"), ("config", "config"), ("command", "command"), ("run", "run"))


def _build_environment(origin: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    seeds, packages, hardware = origin.get("seeds"), origin.get("packages"), origin.get("hardware")
    if seeds:
        yield "seeds", ", ".join(f"{name} {value}" for name, value in seeds.items())
    if isinstance(hardware, Mapping):
        gpus = hardware.get("gpus") or ()
        names = [str(gpu.get("name", gpu)) if isinstance(gpu, Mapping) else str(gpu) for gpu in gpus]
        known = [str(hardware["cpu"])] if hardware.get("cpu") else []
        yield "hardware", ", ".join([*known, *names]) or "not recorded"
    if isinstance(packages, Mapping) and packages:
        shown = [f"{name} {version}" for name, version in list(packages.items())[:_PACKAGES]]
        more = f" and {len(packages) - _PACKAGES} more" if len(packages) > _PACKAGES else ""
        yield "packages", ", ".join(shown) + more


def _build_noise(sensitivity: Sequence[Sensitivity]) -> Table:
    names = ("sd/step", "sd/window", "CHANGED", "delta", "1 check", "3 checks")
    columns = (Column("metric"), Column("rule"), *(Column(name, align="right") for name in names))
    rows = [
        [
            each.metric,
            each.rule,
            render_share(each.per_step),
            render_share(each.per_window),
            None if each.outside is None else render_share(each.outside),
            _render_delta(each),
            render_share(each.one_check),
            render_share(each.most_checks),
        ]
        for each in sensitivity
    ]
    return Table(columns, rows)


def _render_delta(sensitivity: Sensitivity) -> str | None:
    """`0.5%`; `1%, then 5%` where the first window has a limit of its own."""
    if sensitivity.delta is None:
        return None
    first = "" if sensitivity.first_delta is None else f"{render_share(sensitivity.first_delta)}, then "
    return f"{first}{render_share(sensitivity.delta)}"


def _build_drift(golden: Golden) -> Table:
    """One row for each rebase: by how much it moved each metric, and all of them together."""
    entries = [entry for entry in golden.history if isinstance(entry.get("effects"), Mapping)]
    names = list(dict.fromkeys(name for entry in entries for name in _mapping(entry, "effects")))
    columns = [Column("rebased"), Column("reason"), Column("commit")]
    for name in names:
        columns += [Column(name, align="right"), Column("since first", align="right", key=f"{name} since first")]
    return Table(tuple(columns), [_build_drift_row(entry, names) for entry in entries])


def _build_drift_row(entry: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    target = _mapping(entry, "to")
    commit = str(target.get("commit") or "")[:12] or None
    keys = ("effects", "since_first")
    moves = [render_percent(_mapping(entry, key).get(name)) or None for name in names for key in keys]
    return [str(entry.get("at", "")), str(entry.get("reason", "")), commit, *moves]


def _mapping(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = entry.get(key)
    return found if isinstance(found, Mapping) else {}


# ---------------------------------------------------------------- a rebase


def build_rebase_document(outcomes: Sequence[Rebased]) -> Document:
    sections = [Section(list(_build_rebase(outcome))) for outcome in outcomes]
    return Document("assay golden rebase", sections, facts=[_build_rebase_facts(outcome) for outcome in outcomes])


def _build_rebase(outcome: Rebased) -> Iterator[Block]:
    if not outcome.is_accepted:
        for text in outcome.refusals:
            first, *more = text.splitlines() or [""]
            yield Text(f"refused: {first}")
            yield from (Text(line.strip(), indent=1) for line in more)
        word = "interrupted" if outcome.interrupted else "not rebased"
        yield Text(f"{outcome.test}: {word}; the old recording is untouched")
        return
    columns = (Column("metric"), Column("effect", align="right"), Column("since the first", align="right"))
    first_effects = outcome.since_first or {}
    rows = [
        [name, render_percent(effect), render_percent(first_effects.get(name))]
        for name, effect in (outcome.effects or {}).items()
    ]
    yield Section((TableBlock(Table(columns, rows)),))
    yield Notes([f"accepted although {text}" for text in outcome.wider])
    yield Notes([f"warning: {text}" for text in outcome.creep])
    yield Text(f"the old recording is kept as {outcome.archived}")
    yield Text(f"{outcome.test}: rebased")


def _build_rebase_facts(outcome: Rebased) -> dict[str, Any]:
    return {
        "test": outcome.test,
        "manifest": outcome.manifest,
        "accepted": outcome.is_accepted,
        "refusals": list(outcome.refusals),
        "effects": dict(outcome.effects or {}),
        "since_first": dict(outcome.since_first or {}),
        "wider": list(outcome.wider),
        "creep": list(outcome.creep),
        "archived": outcome.archived,
        "interrupted": outcome.interrupted,
    }


# ---------------------------------------------------------------- curves


def build_charts(golden: Golden, metrics: Sequence[str] = ()) -> list[Chart]:
    """One for each metric: a line with its band for each segment."""
    known = list(dict.fromkeys(name for segment in golden.segments for name in segment.tracks))
    for name in metrics:
        if name not in known:
            raise UsageError(f"the golden recording has no metric {name!r}", f"it has: {', '.join(known) or 'none'}")
    return [chart for name in known if not metrics or name in metrics for chart in _build_chart(golden, name)]


def _build_chart(golden: Golden, metric: str) -> Iterator[Chart]:
    groups: list[tuple[str, list[Line]]] = []
    for segment in golden.segments:
        for label, tracks in segment.tracks.get(metric, {}).items():
            name = f"after {segment.start_step} {label}".strip()
            groups.append((name, [Line(name, track.steps, track.values) for track in tracks if track.steps]))
    if groups:
        bands = zip(build_bands(groups), groups, strict=True)
        lines = tuple(members[0] if len(members) == 1 else band for band, (_, members) in bands)
        yield Chart(lines, title=metric, y_name=metric)


def render_charts(
    charts: Sequence[Chart], *, width: int = 80, color: bool = False, plain: bool = False
) -> Iterator[str]:
    for chart in charts:
        try:
            yield render_plot(chart, width=width, height=14, color=color, plain=plain)
        except UsageError as error:  # a metric without finite values
            yield f"{chart.title}: {error.message}\n"

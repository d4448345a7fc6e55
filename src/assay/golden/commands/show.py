"""`assay golden show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.golden.commands.options import DEFAULT_MANIFEST, warn

if TYPE_CHECKING:
    from assay.golden.flow.recordings import Recording


@click.command()
@click.argument("path", metavar="STORE|FILE")
@click.option("-s", "--store", metavar="DIR", help="With a convergence file: where its recordings lie.")
@click.option(
    "--manifest-name", default=DEFAULT_MANIFEST, metavar="NAME", show_default=True, help="Put behind the test's name."
)
@click.option("-m", "--metric", "metrics", multiple=True, metavar="METRIC", help="Only the curves of these metrics.")
@click.option("--no-plot", is_flag=True, help="No curves.")
@click.option("--html", metavar="FILE", help="Also write the recording as one HTML page; - for stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: str, store: str | None, manifest_name: str, metrics: tuple[str, ...], **given: Any) -> int:
    """Look at a golden recording.

    Shows its curves with their band, its noise, the smallest effect it finds, its drift.
    STORE is a folder with recordings; FILE a manifest, or a convergence file together with --store.
    """
    from assay.golden.flow.recordings import load_recordings
    from assay.show.report_files import prepare_reports

    is_taken = prepare_reports(given)
    recordings = load_recordings(path, store, manifest_name)
    if given["html"]:
        _write_html(path, recordings, given["html"])
    if given["as_json"]:
        from assay.golden.report.recording import build_facts
        from assay.show.json_text import render_facts

        sys.stdout.write(render_facts([build_facts(each) for each in recordings]))
    elif not is_taken:
        sys.stdout.write("\n".join(_render(each, metrics, not given["no_plot"]) for each in recordings))
    for each in recordings:
        for creep in each.creep:
            warn(f"warning: {each.golden.test}: {creep}")
    return 0


def _render(recording: Recording, metrics: Sequence[str], with_plot: bool) -> str:
    from assay.golden.report.recording import build_charts, build_document, render_charts
    from assay.show.terminal_report import render_terminal
    from assay.system.terminal import can_encode, terminal_width, use_color

    color, plain = use_color(sys.stdout), not can_encode(sys.stdout, "⣿─┤±…")
    charts = build_charts(recording.golden, metrics)
    text = render_terminal(build_document(recording), width=terminal_width(sys.stdout), color=color, plain=plain)
    if not with_plot:
        return text
    columns = terminal_width(sys.stdout, 80) or 80
    return text + "".join(f"\n{chart}" for chart in render_charts(charts, width=columns, color=color, plain=plain))


def _write_html(path: str, recordings: Sequence[Recording], target: str) -> None:
    from assay.golden.commands.options import write_reports
    from assay.golden.values import GoldenReport, GoldenTestReport
    from assay.values.verdict import Finding, Verdict, VerdictKind

    tests = []
    for each in recordings:
        count = sum(
            len(track.steps)
            for segment in each.golden.segments
            for labels in segment.tracks.values()
            for found in labels.values()
            for track in found
        )
        said = Finding(
            VerdictKind.PASS, each.golden.test, f"{len(each.golden.segments)} segments, {count} values recorded"
        )
        tests.append(
            GoldenTestReport(
                each.golden.test, each.manifest, Verdict.of([said], count), each.golden, warnings=each.creep
            )
        )
    write_reports(GoldenReport("gather", path, tuple(tests)), {"html": target})

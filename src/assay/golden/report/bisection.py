"""What a search for the commit that broke convergence came to, as a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from assay.errors import ExitCode
from assay.golden.report.rows import render_interval, render_percent, render_step
from assay.show.bisection import build_commit_facts, build_culprit, build_suspects
from assay.show.formatting import render_count
from assay.values.document import Block, Document, Findings, Text
from assay.values.verdict import Finding

if TYPE_CHECKING:
    from assay.golden.flow.bisect import BisectReport, Tried


def exit_code(report: BisectReport) -> ExitCode:
    if report.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if report.culprit else ExitCode.INCONCLUSIVE


def build_document(report: BisectReport) -> Document:
    return Document("assay golden bisect", list(_build_blocks(report)), facts=_build_facts(report))


def _build_blocks(report: BisectReport) -> Iterator[Block]:
    if report.culprit:
        yield from build_culprit(report.culprit)
    elif report.stuck:
        yield Text(f"nothing was searched: {report.stuck}")
    elif report.suspects:
        yield from build_suspects(report.suspects)
    if report.evidence:
        yield from build_evidence(report.evidence)
    tested = len({trial.commit for trial in report.tried})
    skipped = f", {report.skipped} of them skipped" if report.skipped else ""
    trials = render_count(len(report.tried), "trial")
    yield Text(f"{tested} of {report.commits + 1} commits tried{skipped}, {trials}; log: {report.dir}")


def build_evidence(evidence: Tried) -> Iterator[Block]:
    effect = render_percent(evidence.effect)
    if effect:
        interval = render_interval(evidence.interval)
        around = f" [{interval}]" if interval not in ("", effect) else ""
        since = f", first shows from step {render_step(evidence.step)}" if evidence.step is not None else ""
        yield Text(f"effect: {effect}{around}{since}", indent=1)
    yield Findings([Finding(evidence.kind, evidence.subject, evidence.message)])


def _build_facts(report: BisectReport) -> dict[str, Any]:
    return {
        "exit_code": int(exit_code(report)),
        "good": build_commit_facts(report.good),
        "bad": build_commit_facts(report.bad),
        "culprit": build_commit_facts(report.culprit) if report.culprit else None,
        "suspects": [build_commit_facts(commit) for commit in report.suspects],
        "evidence": _build_trial(report.evidence) if report.evidence else None,
        "stuck": report.stuck,
        "commits": report.commits,
        "trials": [_build_trial(trial) for trial in report.tried],
        "resumed": report.resumed,
        "interrupted": report.interrupted,
        "dir": report.dir,
    }


def _build_trial(trial: Any) -> dict[str, Any]:
    facts = asdict(trial)
    facts["verdict"] = str(facts.pop("kind"))
    return facts

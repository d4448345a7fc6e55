"""Options of the commands of `assay golden`."""

from __future__ import annotations

from typing import Literal

from assay.errors import UsageError
from assay.golden.values import DEFAULT_MANIFEST, DEFAULT_STORE, Fault
from assay.launch.api import SideOptions
from assay.observe.columns import parse_number
from assay.show.report_files import ReportPages
from assay.values.options import (
    Request,
    argument,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
    split_commas,
)
from assay.values.units import parse_timeout


class GoldenRequest(Request):
    """The options of every command that runs something."""

    file: str = argument()
    store: str | None = option(
        "-s",
        "--store",
        default=DEFAULT_STORE,
        metavar="DIR",
        help="Where recordings and checkpoints are: a folder, or s3://BUCKET/golden.",
    )
    manifest_name: str = option(
        "--manifest-name", default=DEFAULT_MANIFEST, metavar="NAME", help="Text to append to the test's name."
    )
    environment: str | None = option(
        "--environment", metavar="NAME", help="Use the golden of this environment; a part of its name is enough."
    )
    tests: tuple[str, ...] = option("-t", "--test", multiple=True, metavar="NAME", help="Only these tests of the file.")
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    on: str | None = farm_option()
    root: str | None = root_option("Where the runs go.  [default: ./runs]")
    timeout_s: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each run, as in 90s or 2h."
    )
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the report as JSON.")


class GatherRequest(ReportPages, GoldenRequest):
    environment: str | None = option(
        "--environment", metavar="NAME", help="Keep the golden under this name, next to those of other environments."
    )
    replicas: int | None = option(
        "--replicas", type=int, minimum=1, metavar="N", help="Recordings of each segment in all.  [default: the file's]"
    )
    counting: bool = option(
        "--counting",
        default=False,
        help="Only record how the program counts its steps, into the recording that exists.",
    )


class ValidateRequest(Request):
    file: str = argument()
    store: str = option("-s", "--store", default=DEFAULT_STORE, metavar="DIR", help="Where the recordings are.")
    manifest_name: str = GoldenRequest.manifest_name
    tests: tuple[str, ...] = GoldenRequest.tests
    log: str | None = option("--log", metavar="FILE", help="A sample log: report which patterns match nothing in it.")


class GoldenShowRequest(Request):
    path: str = argument("STORE|FILE")
    store: str = option(
        "-s", "--store", default=DEFAULT_STORE, metavar="DIR", help="With a convergence file: where its recordings are."
    )
    manifest_name: str = GoldenRequest.manifest_name
    metrics: tuple[str, ...] = option(
        "-m", "--metric", multiple=True, metavar="METRIC", parse=split_commas, help="Only the curves of these metrics."
    )
    no_plot: bool = option("--no-plot", default=False, help="Print no curves.")
    html: str | None = option("--html", metavar="FILE", help="Also write the recording as one HTML page; - for stdout.")
    as_json: bool = json_option()


class RebaseRequest(GoldenRequest):
    reason: str = option(
        "--reason", required=True, metavar="TEXT", help="Why the new behaviour is right; kept in the history."
    )
    source: Literal["gather", "check"] = option(
        "--from",
        choices=("gather", "check"),
        default="gather",
        help="Accept a new gathering, or the runs of the last check, from the same checkpoints.",
    )
    replicas: int | None = option(
        "--replicas", type=int, minimum=1, metavar="N", help="Recordings of each segment in all."
    )
    allow_wider: bool = option(
        "--allow-wider", default=False, help="Accept more noise, looser rules, fewer recordings, or new variants."
    )
    allow_failed: bool = option(
        "--allow-failed", default=False, help="With --from check: accept a check that did not pass."
    )
    artifacts: str | None = option(
        "--artifacts", metavar="DIR", help="Accept the runs of a check that CI kept; run nothing on this machine."
    )
    only_failing: bool = option("--only-failing", default=False, help="With --artifacts: keep tests that passed.")
    environment_only: bool = option(
        "--environment-only",
        default=False,
        help="Refuse if the golden's commit and the files as they are differ in this environment.",
    )
    md: str | None = ReportPages.md
    fresh: bool = option(
        "--fresh", default=False, help="Do not use what an earlier call has staged, or the runs of a check."
    )


def _parse_tolerances(texts: tuple[str, ...], flag: str) -> dict[str, float]:
    """Return the tolerances by metric; a tolerance without a metric is under the empty name."""
    found: dict[str, float] = {}
    for text in texts:
        metric, _, number = text.rpartition("=")
        value = parse_number(number.removesuffix("%")) or 0.0
        value = value / 100 if number.endswith("%") else value
        if not 0 < value < 1 or metric in found:
            why = "is stated twice" if metric in found else "is not a tolerance"
            raise UsageError(f"{flag} {text} {why}", f"as in {flag} 5%, or {flag} loss=0.01")
        found[metric] = value
    return found


def _parse_names(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (golden, _, run) in zip(texts, pairs, strict=True):
        if not golden or not run:
            raise UsageError(f"{flag} {text} does not name two metrics", f"as in {flag} 'lm loss=train/loss'")
    return {golden: run for golden, _, run in pairs}


class SourceRequest(Request):
    """Options of commands that read goldens of other tools."""

    history: str | None = option(
        "--history", metavar="DIR", help="Earlier good runs of the golden's environment, to measure the noise."
    )
    environment: str | None = GoldenRequest.environment


class AgainstRequest(SourceRequest):
    """Options of a check in which nothing is run."""

    against: str | None = option(
        "--against",
        metavar="GOLDEN",
        help="Run nothing: compare --from with this file or folder (Megatron-LM, torchtitan, TRL, trainer_state.json, "
        ":::MLLOG, RCP, TensorBoard, JSON lines, CSV, a golden of ours).",
    )
    source: str | None = option("--from", metavar="PATH", help="With --against: the run, in any format of --against.")
    tolerances: dict[str, float] = option(
        "--tolerance",
        multiple=True,
        metavar="[METRIC=]X",
        parse=_parse_tolerances,
        help="With --against: how much values may differ, as in 5% or 'lm loss=0.01'. Times and memory are judged "
        "only with a tolerance.",
    )
    names: dict[str, str] = option(
        "--map",
        multiple=True,
        metavar="METRIC=NAME",
        parse=_parse_names,
        help="With --against: the run's NAME for a METRIC of the golden.",
    )


class GoldenImportRequest(SourceRequest):
    path: str = argument()
    store: str = option("-s", "--store", default=DEFAULT_STORE, metavar="DIR", help="Where recordings are.")
    name: str | None = option("--name", metavar="NAME", help="Name of the recording.  [default: that of the file]")
    manifest_name: str = GoldenRequest.manifest_name
    as_json: bool = json_option()


class GoldenCheckRequest(ReportPages, AgainstRequest, GoldenRequest):
    file: str = option(help="", metavar="[FILE]", default="")
    most_checks: int | None = option(
        "--most-checks",
        type=int,
        minimum=1,
        metavar="N",
        help="Most runs of a segment that stays inconclusive.  [default: the file's]",
    )
    only: tuple[str, ...] = option(
        "--only",
        multiple=True,
        metavar="METRIC",
        help="Judge only this metric, or one of its labels, as in 'loss MLM'; may be given again.",
    )
    no_early_stop: bool = option(
        "--no-early-stop", default=False, help="Run every segment to its end, even if it has failed."
    )
    allow_changed: bool = option("--allow-changed", default=False, help="Exit with 0 also if the verdict is CHANGED.")
    every_row: bool = option("--all", default=False, help="Show every segment that passed, however many there are.")


class GoldenHistoryRequest(ReportPages, Request):
    file: str = argument()
    tests: tuple[str, ...] = GoldenRequest.tests
    root: str | None = root_option("Where the runs are.  [default: ./runs]")
    accept: str | None = option(
        "--accept", metavar="NIGHT", help="Accept a night (its date, or last), all later nights, and their level."
    )
    withdraw: str | None = option("--withdraw", metavar="NIGHT", help="Withdraw the acceptance from this night on.")
    reason: str | None = option(
        "--reason", metavar="TEXT", help="With --accept: why the level is right; kept and shown."
    )
    every_row: bool = option("--all", default=False, help="Show every night, however many there are.")
    as_json: bool = json_option()


def _parse_faults(texts: tuple[str, ...], flag: str) -> tuple[Fault, ...]:
    kind: Literal["env", "flag"] = "env" if flag == "--env" else "flag"
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (kind == "env" and not equals):
            example = "BREAK_IT=a" if kind == "env" else "--lr=x0.9"
            raise UsageError(f"{flag} {text} does not name a fault", f"as in {flag} {example}")
        found.append(Fault(kind, name, value))
    return tuple(found)


class SelftestRequest(GoldenRequest):
    envs: tuple[Fault, ...] = option(
        "--env", multiple=True, metavar="NAME=VALUE", parse=_parse_faults, help="Also inject this variable as a fault."
    )
    flags: tuple[Fault, ...] = option(
        "--flag",
        multiple=True,
        metavar="FLAG=VALUE",
        parse=_parse_faults,
        help="Also inject this flag as a fault; x0.9 scales the command's value.",
    )
    segment: int | None = option(
        "--segment", type=int, metavar="STEP", help="The segment to try, by its first step.  [default: the middle one]"
    )


class GoldenBisectRequest(GoldenRequest):
    store: str | None = option(
        "-s", "--store", metavar="DIR", help="Where the recordings are.  [default: gathered first]"
    )
    good: str = option("--good", required=True, metavar="COMMIT", help="A commit whose training converges.")
    bad: str = option("--bad", required=True, metavar="COMMIT", help="A later commit whose training does not.")
    build: str | None = option(
        "--build", metavar="COMMAND", help="Run this at each commit before the check; skip commits where it fails."
    )
    build_timeout_s: float | None = option(
        "--build-timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of --build, as in 10m."
    )
    patience: int = option(
        "--patience", type=int, minimum=1, default=3, metavar="N", help="Trials of a commit that stays inconclusive."
    )
    fresh: bool = option("--fresh", default=False, help="Ignore what an earlier call of the same search found.")


class BlameRequest(SideOptions, GoldenRequest):
    a_rev: str | None = option("--a-rev", metavar="REV", help="Side a: this commit.  [default: the golden's]")
    repeats: int = option(
        "--repeats", type=int, minimum=2, default=2, metavar="N", help="Runs of each cell that differs from the others."
    )

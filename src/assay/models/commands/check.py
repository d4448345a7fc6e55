"""`assay model check`, `bisect` and `reduce`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from assay.errors import ExitCode
from assay.models.commands.options import INPUT_OPTIONS, ONLY, TARGET_OPTIONS, build_request, following, with_options
from assay.show.console_warnings import warn
from assay.show.report_files import FORMS, STDOUT, prepare_reports, report_options, write_text

if TYPE_CHECKING:
    from assay.models.flow.options import Goal
    from assay.models.values.model import ModelReport

_PASTED = ("command", "model", "folder", "manner", "origin", "diffs", "hint")  # of a report: parts of command lines
_EVERY = click.option("--all", "every", is_flag=True, help="Every layer in the table, also of a very long model.")


@click.command()
@click.argument("model")
@with_options(INPUT_OPTIONS, [ONLY], TARGET_OPTIONS, [_EVERY])
@report_options
def check(**given: Any) -> int:
    """Compute every layer of MODEL, and the full model, on a target and on the reference.

    \b
    assay model check net.onnx --target iree
    assay model check net.onnx --target sim --only 'Conv_*' --samples 3
    """
    return _go(given, "check")


@click.command()
@click.argument("model")
@with_options(INPUT_OPTIONS, TARGET_OPTIONS, [_EVERY])
@report_options
def bisect(**given: Any) -> int:
    """Find the first layer of MODEL that a target gets wrong, for as little work as it takes."""
    return _go(given, "bisect")


@click.command()
@click.argument("model")
@click.option("-o", "--output", metavar="FILE", help="Where the smallest model goes.  [default: into the run]")
@with_options(INPUT_OPTIONS, TARGET_OPTIONS, [_EVERY])
@report_options
def reduce(**given: Any) -> int:
    """Find the smallest part of MODEL that fails on a target in the same way, with its inputs."""
    return _go(given, "reduce")


def _go(given: dict[str, Any], goal: Goal) -> int:
    from assay.models.flow.run import RunChoice, run_model
    from assay.values.units import parse_timeout

    takes_stdout = prepare_reports(given)
    request = build_request(given, goal)
    choice = RunChoice(
        given["root"],
        parse_timeout(given["timeout"]),
        tuple(sys.argv),
        given["label"],
        given["jobs"],
        parse_timeout(given["max_wait"], "--max-wait"),
    )
    with following(given) as hooks:
        finished = run_model(request, choice, hooks, click.get_current_context().obj)
    for note in finished.notes:
        warn(note)
    if finished.report is None:
        print(f"interrupted by {finished.interrupted}; what was made is kept, and made only once", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    show(finished.report, given, takes_stdout)
    return int(finished.report.exit_code)


def show(report: ModelReport, given: dict[str, Any], takes_stdout: bool) -> None:
    from assay.models.report.terminal import build_model_facts, render_model
    from assay.show.json_text import render_facts
    from assay.system.terminal import terminal_width, use_color

    if given["as_json"]:
        sys.stdout.write(render_facts(build_model_facts(report)))
    elif not takes_stdout:
        every, width = bool(given.get("every")), terminal_width(sys.stdout)
        sys.stdout.write(render_model(_shorten(report), color=use_color(sys.stdout), width=width, every=every))
    for name in FORMS:
        if given.get(name):
            write_text(given[name], _render(name, report))
    if given.get("html") and given["html"] != STDOUT and not given["as_json"]:
        print(f"page: {given['html']}", file=sys.stderr)


def _shorten(report: ModelReport) -> ModelReport:
    """What is only read, without the working directory in front of its paths; command lines stay whole, as they may be
    pasted in another place."""
    from assay.models.values.model import ModelReport
    from assay.values.plain import build_plain, parse_plain

    here = f"{os.getcwd()}/"
    if here == "//":
        return report
    return parse_plain(ModelReport, _replace(build_plain(report), here))


def _replace(content: Any, here: str) -> Any:
    if isinstance(content, dict):
        return {name: each if name in _PASTED else _replace(each, here) for name, each in content.items()}
    if isinstance(content, list):
        return [_replace(each, here) for each in content]
    return content.replace(here, "") if isinstance(content, str) else content


def _render(name: str, report: ModelReport) -> str:
    if name == "md":
        from assay.models.report.terminal import render_model_markdown

        return render_model_markdown(report)
    if name == "junit":
        from assay.models.report.junit import render_model_junit

        return render_model_junit(report)
    from assay.models.report.html import render_model_html

    return render_model_html(report)

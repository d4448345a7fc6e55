"""`assay golden selftest`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from assay.errors import ExitCode, UsageError
from assay.golden.commands.options import build_hooks, build_options, golden_options, warn
from assay.golden.values import Fault

if TYPE_CHECKING:
    from assay.golden.flow.selftest import Injected, SelftestReport
    from assay.values.table import Table


@click.command()
@golden_options
@click.option("--env", "envs", multiple=True, metavar="NAME=VALUE", help="Also with this variable set.")
@click.option(
    "--flag", "flags", multiple=True, metavar="FLAG=VALUE", help="Also with this flag; x0.9 scales the command's."
)
@click.option(
    "--segment", type=int, metavar="STEP", help="The segment to try, by its first step.  [default: the middle one]"
)
def selftest(
    envs: tuple[str, ...], flags: tuple[str, ...], segment: int | None, quiet: bool, as_json: bool, **given: Any
) -> int:
    """Inject faults: would a check catch them?

    Each known fault is put into one segment. The faults are those of the file (golden.selftest) and of --env and
    --flag. A run without any fault comes first and has to pass. Exit code 0: all were caught. 1: some were missed or
    could not be tried.
    """
    from assay.golden.flow.selftest import selftest_file

    faults = (*parse_faults(envs, "env"), *parse_faults(flags, "flag"))
    reports = selftest_file(build_options(given), faults, segment, build_hooks(quiet or as_json), warn)
    if as_json:
        from assay.show.json_text import render_facts

        sys.stdout.write(render_facts([build_facts(report) for report in reports]))
    else:
        sys.stdout.write("\n".join(render(report) for report in reports))
    return int(ExitCode.worst(report.exit_code for report in reports))


def parse_faults(texts: Sequence[str], kind: Literal["env", "flag"]) -> list[Fault]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (kind == "env" and not equals):
            raise UsageError(
                f"--{kind} {text} names nothing", f"as in --{kind} {'BREAK_IT=a' if kind == 'env' else '--lr=x0.9'}"
            )
        found.append(Fault(kind, name, value))
    return found


def render(report: SelftestReport) -> str:
    from assay.golden.flow.selftest import NO_EFFECT
    from assay.show import formatting
    from assay.show.table import render_table, table_width
    from assay.system.terminal import can_encode, terminal_width, use_color

    look = {"color": use_color(sys.stdout), "plain": not can_encode(sys.stdout, "…─")}
    whole, width = build_table(report), terminal_width(sys.stdout)
    table = render_table(whole if width is None else shorten_table(whole, width), width=width, **look)
    if width is not None and table_width(whole) > width:
        table += "".join(f"{line}\n" for line in _list_faults(report, width))
    score = f"{report.caught} of {len(report.injected)} faults would be caught"
    idle = [each.fault.title for each in report.injected if each.is_idle]
    lines = [f"{formatting.clean(report.test)}, segment at {report.start_step}: {score}"]
    lines += [f"{NO_EFFECT}: {formatting.clean(title)}: does the program read it?" for title in idle]
    if report.control.verdict.kind != "PASS":
        lines.append(f"but without any fault the check is {report.control.verdict.kind} already, so this says nothing")
        lines += [
            f"  {formatting.clean(each.message)}" for each in report.control.verdict.findings[:5] if each.kind != "PASS"
        ]
    failed = [each for each in report.injected if each.report.verdict.kind == "ERROR"]
    lines += [f"not tried: {each.fault.title}: {formatting.clean(_speak(each))}" for each in failed]
    lines += [f"assay: {report.problem}"] if report.problem else []
    return table + "\n" + "\n".join(lines) + "\n"


def shorten_table(table: Table, width: int) -> Table:
    """Numbers in place of the faults' names where those do not fit; the names then stand below, each whole."""
    from assay.show.table import table_width
    from assay.values.table import Column, Table

    if table_width(table) <= width:
        return table
    return Table(
        (Column("fault"), *table.columns[1:]), [[_number(place), *row[1:]] for place, row in enumerate(table.rows)]
    )


def _number(place: int) -> str:
    return f"#{place}" if place else "none"


def _list_faults(report: SelftestReport, width: int) -> list[str]:
    import textwrap

    titles = [f"{_number(place)}  {each.fault.title}" for place, each in enumerate(report.injected, 1)]
    return ["", *(line for title in titles for line in textwrap.wrap(title, width, subsequent_indent="    "))]


def _speak(injected: Injected) -> str:
    from assay.golden.report.rows import choose_finding

    found = choose_finding(injected.report.verdict.findings)
    return found.message.split("\n")[0] if found else ""


def build_table(report: SelftestReport) -> Table:
    from assay.golden.report.rows import choose_finding, render_percent, render_step
    from assay.values.table import Column, Table

    columns = (
        Column("fault"),
        Column("result"),
        Column("verdict", "state"),
        Column("by"),
        Column("effect", align="right"),
        Column("step", align="right"),
    )
    rows: list[list[Any]] = [["none", "control", str(report.control.verdict.kind), None, None, None]]
    for each in report.injected:
        verdicts = [(metric, choose_finding(metric.verdict.findings)) for metric in each.report.metrics]
        bad = [(metric.metric, found) for metric, found in verdicts if found and found.kind in ("FAIL", "CHANGED")]
        effect, step = (bad[0][1].effect, bad[0][1].step) if bad else (None, None)
        by = ", ".join(name for name, _ in bad)
        numbers = render_percent(effect) or None, render_step(step) or None
        rows.append([each.fault.title, each.word, str(each.report.verdict.kind), by or None, *numbers])
    return Table(columns, rows)


def build_facts(report: SelftestReport) -> dict[str, Any]:
    import json

    from assay.show.table import render_json

    return {
        "test": report.test,
        "segment": report.start_step,
        "control": str(report.control.verdict.kind),
        "caught": report.caught,
        "faults": json.loads(render_json(build_table(report)))[1:],
        "exit_code": int(report.exit_code),
        "elapsed_s": report.elapsed_s,
    }

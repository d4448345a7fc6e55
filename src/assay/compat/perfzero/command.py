"""`assay perfzero`: PerfZero's own flags, workspace and summaries."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from assay import __version__
from assay.compat.original_command import Parsed
from assay.compat.perfzero.values import DEFAULT_DATA_DIR, DEFAULT_WORKSPACE, PLOT_FILE, hide_secrets
from assay.errors import ExitCode, UsageError
from assay.show.console import Console

if TYPE_CHECKING:
    from assay.study.api import RunHooks

_DESCRIPTION = """Run benchmarks with PerfZero's own flags, workspace and summaries.

`assay perfzero plot FILE` plots a process_info.log, `assay perfzero setup` builds the Docker image, and
`assay perfzero cloud` manages instances on Google Cloud; each has its own --help."""

_OTHERS = {"setup": "assay.compat.perfzero.setup", "cloud": "assay.compat.perfzero.cloud_command"}

Subcommand = tuple[argparse.ArgumentParser, Callable[[Parsed], int]]


@click.command("perfzero", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: Sequence[str]) -> int:
    word, rest = _split(arguments)
    parser, go = _find_subcommand(word)
    parser.prog = f"assay perfzero {word}".rstrip()
    try:
        parsed = parser.parse_args(rest)
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(ExitCode.USAGE)
    return go(parsed)


command.help = _DESCRIPTION


def _split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The first word chooses a command; without one, or with `benchmark`, benchmarks are run."""
    first = arguments[0] if arguments else ""
    if first in ("plot", "benchmark", *_OTHERS):
        return first, list(arguments[1:])
    if first and not first.startswith("-"):
        from assay.errors import did_you_mean

        known = ["benchmark", "plot", *_OTHERS]
        raise UsageError(f"assay perfzero has no command {first!r}", did_you_mean(first, known))
    return "", list(arguments)


def _find_subcommand(word: str) -> Subcommand:
    if word in _OTHERS:
        module = import_module(_OTHERS[word])
        return module.build_parser(), module.run
    return (build_plot_parser(), run_plot) if word == "plot" else (build_parser(), run)


# ---------------------------------------------------------------- the flags


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_benchmark_flags(parser)
    add_input_flags(parser.add_argument_group("what is brought in"))
    add_label_flags(parser.add_argument_group("what is kept with each result"))
    add_result_flags(parser.add_argument_group("where results go"))
    add_our_flags(parser.add_argument_group("beyond the original"))
    return parser


def add_benchmark_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--benchmark_methods",
        action="append",
        metavar="METHODS",
        help="module.Class.method, or module.Class.filter:REGEX; comma-joined or repeated",
    )
    group.add_argument("--benchmark_num_trials", default="1", metavar="N", help="how often each method is run")
    group.add_argument(
        "--benchmark_class_type",
        metavar="TYPE",
        help="tf_benchmark: constructors get perfzero_constructor_args and nothing else",
    )
    group.add_argument("--perfzero_constructor_args", default="", metavar="JSON", help="further constructor arguments")
    group.add_argument("--tpu_parameters", metavar="JSON", help="its name is given to constructors as tpu")
    group.add_argument(
        "--profiler_enabled_time",
        metavar="B:E",
        help="profile this window, in seconds after the method began; E may be left out; 2:5,8:9 for two",
    )
    group.add_argument(
        "--execution_id", metavar="ID", help="of the first execution; further ones get a number appended"
    )
    group.add_argument("--debug", action="store_true", help="print more")


def add_input_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--git_repos",
        action="append",
        metavar="URL;BRANCH;HASH",
        help="check out into WORKSPACE/site-packages; comma-joined or repeated; branch and hash may be left out",
    )
    group.add_argument(
        "--use_cached_site_packages", action="store_true", help="use repositories that are there without updating them"
    )
    group.add_argument(
        "--python_path", metavar="A,B", help="folders of WORKSPACE/site-packages that are appended to sys.path"
    )
    group.add_argument(
        "--data_downloads",
        action="append",
        metavar="URL;PATH",
        help="fetch into ROOT_DATA_DIR/PATH; comma-joined or repeated; URL;PATH;sha256:HEX is checked",
    )
    group.add_argument("--gcs_downloads", action="append", metavar="URL;PATH", help="the older name; fetched first")
    group.add_argument(
        "--root_data_dir",
        default=DEFAULT_DATA_DIR,
        metavar="DIR",
        help="given to constructors as data_dir and root_data_dir (default: %(default)s)",
    )
    group.add_argument(
        "--gcloud_key_file_url", metavar="URL", help="a service account's key, for this call only (default: none)"
    )
    group.add_argument(
        "--workspace", default=DEFAULT_WORKSPACE, metavar="DIR", help="in the working directory (default: %(default)s)"
    )


def add_label_flags(group: argparse._ActionsContainer) -> None:
    labels = {
        "ml_framework_build_label": "names the build of the framework",
        "execution_label": "names the kind of execution; `assay bench compare` finds executions by it",
        "platform_name": "names the platform",
        "system_name": "names the machine",
    }
    for name, text in labels.items():
        group.add_argument(f"--{name}", metavar="TEXT", help=text)


def add_result_flags(group: argparse._ActionsContainer) -> None:
    results = {
        "output_gcs_url": ("URL", "send each output folder to URL/EXECUTION_ID: gs://, s3://, az://, file://"),
        "scratch_gcs_url": ("URL", "given to constructors as output_dir, as URL/EXECUTION_ID"),
        "bigquery_project_name": ("NAME", "add a row for each execution to a table of this project"),
        "bigquery_dataset_table_name": ("DATASET.TABLE", "the table"),
        "result_upload_methods": ("MODULE.FUNCTION", "call these with each summary; comma-joined"),
    }
    for name, (metavar, text) in results.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)


def add_our_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument("--timeout", metavar="DURATION", help="time limit of each execution, as in 90s or 2h")
    group.add_argument(
        "--python", metavar="PATH", help="another interpreter for the methods; it needs no Assay installed"
    )
    group.add_argument("--profiler", metavar="WHO", help="auto, framework or py-spy")
    group.add_argument(
        "--slots", metavar="LIST", help="0,1 (GPUs), 0+1 (one slot of two), cpu:4 (default: one at a time)"
    )
    group.add_argument(
        "--root", metavar="DIR", help="where the runs go, which the history is made of (default: ./runs)"
    )
    group.add_argument(
        "--refuse_contaminated",
        action="store_true",
        help="a result that other processes may have affected does not count",
    )
    group.add_argument(
        "--foreign_limit", metavar="FRACTION", help="how much of all cores others may use (default: 0.1)"
    )
    group.add_argument("--quiet", action="store_true", help="on stderr, print only problems")


# ---------------------------------------------------------------- run


def run(parsed: Parsed) -> int:
    from assay.compat.perfzero.flow import PerfzeroConsole, parse_flags, run_perfzero
    from assay.compat.perfzero.summary import render_closing

    ours = ("quiet", "refuse_contaminated") if not parsed.refuse_contaminated else ("quiet",)
    flags = {name: value for name, value in vars(parsed).items() if name not in ours}
    job = parse_flags(flags, os.getcwd(), os.environ)
    console = PerfzeroConsole(quiet=parsed.quiet, debug=parsed.debug)
    hooks = _build_hooks(console)
    report = run_perfzero(job, hooks, console, __version__, tuple(map(hide_secrets, sys.argv)))
    console.write(render_closing(report))
    if report.bench.problem:
        console.error(f"assay: {report.bench.problem}")
    if report.bench.interrupted:
        console.error(f"interrupted by {report.bench.interrupted}; what was finished is kept")
    return int(report.exit_code)


def _build_hooks(console: Console) -> RunHooks:
    """The methods' own output, live, on stderr: stdout is for summaries."""
    from assay.bench.api import build_hooks

    hooks = build_hooks(console, reports_ends=False)  # the flow reports more of each run
    if not console.quiet:
        hooks.echo = _echo
    return hooks


def _echo(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


# ---------------------------------------------------------------- plot


def build_plot_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Plot what a benchmark's processes used over time, a page per metric.")
    parser.add_argument("file", help="a process_info.log, ours or PerfZero's")
    ours = parser.add_argument_group("beyond the original")
    ours.add_argument("-o", "--output", default=PLOT_FILE, metavar="FILE", help="(default: %(default)s)")
    return parser


def run_plot(parsed: Parsed) -> int:
    from assay.compat.perfzero.flow import plot_process_info

    Console().print(plot_process_info(parsed.file, parsed.output))
    return int(ExitCode.OK)

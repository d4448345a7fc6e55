"""`assay perfzero`: PerfZero's own flags, workspace and summaries."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from assay import __version__
from assay.compat.original_command import Parsed, call_original
from assay.compat.perfzero.values import DEFAULT_DATA_DIR, DEFAULT_WORKSPACE, PLOT_FILE, hide_secrets
from assay.errors import ExitCode, UsageError, did_you_mean
from assay.show.console import Console

_DESCRIPTION = """Run benchmarks with PerfZero's own flags, workspace and summaries.

`assay perfzero plot FILE` plots a process_info.log, `assay perfzero setup` builds the Docker image, and
`assay perfzero cloud` manages instances on Google Cloud; each has its own --help."""

_OTHERS = {"setup": "assay.compat.perfzero.setup", "cloud": "assay.compat.perfzero.cloud"}


def command(words: Sequence[str]) -> int:
    """Execute the command that the first word names; without a command, or with `benchmark`, run benchmarks."""
    word = words[0] if words and not words[0].startswith("-") else ""
    if word not in (known := ("", "benchmark", "plot", *_OTHERS)):
        raise UsageError(f"assay perfzero has no command {word!r}", did_you_mean(word, known))
    build, go = (build_plot_parser, run_plot) if word == "plot" else (build_parser, run)
    if word in _OTHERS:
        module = import_module(_OTHERS[word])
        build, go = module.build_parser, module.run
    return call_original(f"perfzero {word}".rstrip(), build(), words[bool(word) :], go)


command.__doc__ = _DESCRIPTION


# ---------------------------------------------------------------- the flags


FLAGS = {  # by group: metavar (None: a switch), help
    "": {
        "benchmark_methods": ("METHODS", "module.Class.method, or module.Class.filter:REGEX; comma-joined or repeated"),
        "benchmark_num_trials": ("N", "run each method this often"),
        "benchmark_class_type": ("TYPE", "tf_benchmark: constructors get perfzero_constructor_args and nothing else"),
        "perfzero_constructor_args": ("JSON", "further constructor arguments"),
        "tpu_parameters": ("JSON", "the name in JSON is passed to constructors as tpu"),
        "profiler_enabled_time": (
            "B:E",
            "profile this window, in seconds after the method began; E may be left out; 2:5,8:9 for two",
        ),
        "execution_id": ("ID", "id of the first execution; further executions get a number appended"),
        "debug": ("", "print more"),
    },
    "inputs": {
        "git_repos": (
            "URL;BRANCH;HASH",
            "check out into WORKSPACE/site-packages; comma-joined or repeated; branch and hash may be left out",
        ),
        "use_cached_site_packages": ("", "use existing repositories without updating them"),
        "python_path": ("A,B", "folders of WORKSPACE/site-packages that are appended to sys.path"),
        "data_downloads": (
            "URL;PATH",
            "fetch into ROOT_DATA_DIR/PATH; comma-joined or repeated; URL;PATH;sha256:HEX is checked",
        ),
        "gcs_downloads": ("URL;PATH", "older name of --data_downloads; fetched first"),
        "root_data_dir": ("DIR", "passed to constructors as data_dir and root_data_dir (default: %(default)s)"),
        "gcloud_key_file_url": ("URL", "a service account's key, for this call only (default: none)"),
        "workspace": ("DIR", "in the working directory (default: %(default)s)"),
    },
    "labels of each result": {
        "ml_framework_build_label": ("TEXT", "names the build of the framework"),
        "execution_label": ("TEXT", "names the kind of execution; `assay bench compare` finds executions by it"),
        "platform_name": ("TEXT", "names the platform"),
        "system_name": ("TEXT", "names the machine"),
    },
    "where results go": {
        "output_gcs_url": ("URL", "send each output folder to URL/EXECUTION_ID: gs://, s3://, az://, file://"),
        "scratch_gcs_url": ("URL", "URL/EXECUTION_ID is passed to constructors as output_dir"),
        "bigquery_project_name": ("NAME", "add a row for each execution to a table of this project"),
        "bigquery_dataset_table_name": ("DATASET.TABLE", "the table of --bigquery_project_name"),
        "result_upload_methods": ("MODULE.FUNCTION", "call these with each summary; comma-joined"),
    },
    "beyond the original": {
        "timeout": ("DURATION", "time limit of each execution, as in 90s or 2h"),
        "python": ("PATH", "another interpreter for the methods; it needs no Assay installed"),
        "profiler": ("NAME", "auto, framework or py-spy"),
        "slots": ("LIST", "0,1 (GPUs), 0+1 (one slot of two), cpu:4 (default: one at a time)"),
        "root": ("DIR", "where the runs of the history go (default: ./runs)"),
        "refuse_contaminated": ("", "do not count results that other processes may have affected"),
        "foreign_limit": ("FRACTION", "fraction of all cores that other processes may use (default: 0.1)"),
        "quiet": ("", "on stderr, print only problems"),
    },
}
_REPEATED = ("benchmark_methods", "git_repos", "data_downloads", "gcs_downloads")
_DEFAULTS = {
    "benchmark_num_trials": "1",
    "perfzero_constructor_args": "",
    "root_data_dir": DEFAULT_DATA_DIR,
    "workspace": DEFAULT_WORKSPACE,
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title) if title else parser
        for name, (metavar, text) in flags.items():
            if not metavar:
                group.add_argument(f"--{name}", action="store_true", help=text)
                continue
            action = "append" if name in _REPEATED else "store"
            group.add_argument(f"--{name}", action=action, default=_DEFAULTS.get(name), metavar=metavar, help=text)
    return parser


# ---------------------------------------------------------------- run


def run(parsed: Parsed) -> int:
    from assay.bench.api import build_hooks
    from assay.compat.perfzero.flags import parse_flags
    from assay.compat.perfzero.flow import PerfzeroConsole, run_perfzero
    from assay.compat.perfzero.summary import render_closing

    ours = ("quiet", "refuse_contaminated") if not parsed.refuse_contaminated else ("quiet",)
    flags = {name: value for name, value in vars(parsed).items() if name not in ours}
    job = parse_flags(flags, os.getcwd(), os.environ)
    console = PerfzeroConsole(quiet=parsed.quiet, debug=parsed.debug)
    hooks = build_hooks(console)
    if not console.quiet:  # live output of methods goes to stderr, since stdout is for summaries
        hooks.echo = _echo
    report = run_perfzero(job, hooks, console, __version__, tuple(map(hide_secrets, sys.argv)))
    console.write(render_closing(report))
    if report.bench.problem:
        console.error(f"assay: {report.bench.problem}")
    if report.bench.interrupted:
        console.error(f"interrupted by {report.bench.interrupted}; what was finished is kept")
    return int(report.exit_code)


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
    from assay.compat.perfzero.summary import plot_process_info

    Console().print(plot_process_info(parsed.file, parsed.output))
    return int(ExitCode.OK)

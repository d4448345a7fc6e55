"""`assay convergence`: the convergence harness's own flags and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from assay.compat.original_command import Parsed, call_original, count
from assay.golden.api import DEFAULT_MANIFEST, build_hooks, show_report, store_here
from assay.show.console import Console
from assay.values.units import parse_slot_flags, parse_timeout


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=command.__doc__)
    add = parser.add_argument
    add("-g", "--gather", action="store_true", help="record checkpoints and metrics: the source of truth")
    add("-t", "--test-config-path", required=True, help="the test configuration, a YAML file")
    add("-s", "--storage-path", required=True, help="where checkpoints and the manifest are kept")
    names = f"appended to the test's name (default: {DEFAULT_MANIFEST})"
    add("--manifest-name", default=DEFAULT_MANIFEST, help=names)
    add = parser.add_argument_group("beyond the original").add_argument
    replicas = "with -g: repeat each segment N times and measure the noise"
    add("--replicas", type=count, default=0, metavar="N", help=replicas)
    add("--timeout", metavar="DURATION", help="time limit of each run, as in 90s or 2h")
    add("--slots", metavar="LIST", help="where runs may run: 0,1 (GPUs) or cpu:4 (default: found)")
    add("--root", metavar="DIR", help="where the runs go (default: ./runs)")
    add("--no-early-stop", action="store_true", help="run every segment to its end, also when it has failed")
    add("--only", action="append", default=[], metavar="METRIC", help="judge this metric alone, or one label of it")
    add("--allow-changed", action="store_true", help="CHANGED is good enough: exit code 0")
    add("--quiet", action="store_true", help="print nothing until the end")
    add("--json", action="store_true", help="print the report as JSON")
    return parser


def run(parsed: Parsed) -> int:
    from assay.golden.api import GoldenOptions, check_file, gather_file

    console = Console(quiet=parsed.quiet or parsed.json)
    with store_here(parsed.storage_path, console.message, writes=parsed.gather) as store:
        options = GoldenOptions(
            file=parsed.test_config_path,
            store=store or "",
            address=parsed.storage_path if store != parsed.storage_path else None,
            manifest_name=parsed.manifest_name,
            root=parsed.root,
            slots=parse_slot_flags(parsed.slots, None),
            replicas=parsed.replicas,
            early_stop=not parsed.no_early_stop,
            only=tuple(parsed.only),
            timeout_s=parse_timeout(parsed.timeout),
            command_line=tuple(sys.argv),
            is_harness=True,
        )
        report = (gather_file if parsed.gather else check_file)(options, build_hooks(console))
    return show_report(report, parsed.json, Console(), parsed.allow_changed)


def command(words: Sequence[str]) -> int:
    """Check a model's convergence with the convergence harness's own flags and files."""
    return call_original("convergence", build_parser(), words, run)

"""How long `assay --help` takes, as a whole process: what every command costs before it does anything.

Beside it the bare interpreter and the interpreter with click, below which it cannot come; then the slowest imports.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measuring import ASSAY, Contestant, build_env, quick_folder, render_ratio, render_spread, run_process, take_turns

TARGET_MS = 150
_IMPORT = re.compile(r"import time:\s*(?P<own>\d+) \|\s*(?P<all>\d+) \|\s*(?P<name>\S+)")


def load_imports(argv: tuple[str, ...], env: Mapping[str, str]) -> list[tuple[float, str]]:
    """Milliseconds of each module's own, the slowest first."""
    done = subprocess.run([argv[0], "-X", "importtime", *argv[1:]], env=env, capture_output=True, text=True, check=True)
    found = [(int(match["own"]) / 1e3, match["name"]) for match in _IMPORT.finditer(done.stderr)]
    return sorted(found, reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--imports", type=int, default=12, help="how many of the slowest imports to list")
    options = parser.parse_args()
    with quick_folder() as folder:
        env = build_env(folder)
        commands = {
            "python -c pass": (ASSAY[0], "-c", "pass"),
            "python -c 'import click'": (ASSAY[0], "-c", "import click"),
            "assay --help": (*ASSAY, "--help"),
            "assay run --help": (*ASSAY, "run", "--help"),
        }
        taken = take_turns({name: _time(argv, folder, env) for name, argv in commands.items()}, options.repeats)
        imports = load_imports(commands["assay --help"], env)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
    for name, times in taken.items():
        walls, cpus = [one.wall_s for one in times], [one.cpu_s for one in times]
        print(f"  {name:<26}{render_spread(walls):<36}CPU {render_spread(cpus)}")
    total = sum(own for own, _ in imports)
    print(f"  imports of assay --help: {total:.1f} ms; the slowest by themselves:")
    for own, name in imports[: options.imports]:
        print(f"    {own:6.2f} ms  {name}")
    median = statistics.median(one.wall_s for one in taken["assay --help"]) * 1e3
    print(render_ratio("ms for assay --help", median, at_most=TARGET_MS))


def _time(argv: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> Contestant:
    return lambda: run_process(argv, folder, env)


if __name__ == "__main__":
    main()

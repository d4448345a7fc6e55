"""How long `assay run` (two runs, both finished or both new) and `assay sum` take, as whole processes.

`trees.py` compares two trees. CPU time is the figure to trust on a machine that others use: user and system time of the
process and of all that it waited for. Of the repeats the fastest counts as well as the median, since others only add
to a time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measuring import (
    ASSAY,
    Contestant,
    Taken,
    build_env,
    quick_folder,
    render_ratio,
    render_spread,
    run_process,
    take_turns,
)

STUDY = 'study: two\ncommand: echo "loss {x}"\nparams: {x: [1, 2]}\nmetrics: {loss: "loss ({number})"}\n'
STUDY += "resources: {gpus: 0}\n"
COMMANDS = {
    "run, new": (*ASSAY, "run", "two.yml", "-j", "2", "--quiet"),
    "run, finished": (*ASSAY, "run", "two.yml", "-j", "2", "--quiet"),
    "sum": (*ASSAY, "sum", "two"),
}
TARGETS_MS = {"run, new": 150, "run, finished": 150, "sum": 80}
_IMPORT = re.compile(r"import time:\s*(?P<own>\d+) \|\s*(?P<all>\d+) \|\s*(?P<name>\S+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--imports", type=int, default=0, metavar="N", help="list the N slowest imports of this tree")
    options = parser.parse_args()
    with quick_folder() as folder:
        env = build_env(folder)
        (folder / "two.yml").write_text(STUDY)
        taken = take_turns({name: _build(name, folder, env) for name in COMMANDS}, options.repeats)
        imports = {name: load_imports(name, folder, env) for name in ("run, finished", "sum")}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats, contestants in turns")
    for name, times in taken.items():
        walls, cpus = [one.wall_s for one in times], [one.cpu_s for one in times]
        print(f"  {name:<20}wall {render_spread(walls):<36} CPU {render_spread(cpus)}")
    for name, found in imports.items():
        print(f"  imports of {name}: {len(found)} modules, {sum(own for own, _ in found):.1f} ms")
        for own, module in found[: options.imports]:
            print(f"    {own:6.2f} ms  {module}")
    for name in COMMANDS:
        fastest = min(one.wall_s for one in taken[name]) * 1e3
        print(render_ratio(f"ms at best, {name}", fastest, at_most=TARGETS_MS[name]))


def _build(name: str, folder: Path, env: Mapping[str, str]) -> Contestant:
    def call() -> Taken:
        if name == "run, new":
            # with the files of the slots: those name the last runs, and a slot whose run is gone without an outcome
            # is only taken after a look at all processes of the machine
            for gone in (folder / "runs", Path(env["ASSAY_SLOTS_DIR"])):
                shutil.rmtree(gone, ignore_errors=True)
        return run_process(COMMANDS[name], folder, env)

    return call


def load_imports(name: str, folder: Path, env: Mapping[str, str]) -> list[tuple[float, str]]:
    """Milliseconds of each module's own, the slowest first."""
    argv = [COMMANDS[name][0], "-X", "importtime", *COMMANDS[name][1:]]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True)
    found = [(int(match["own"]) / 1e3, match["name"]) for match in _IMPORT.finditer(done.stderr)]
    return sorted(found, reverse=True)


if __name__ == "__main__":
    main()

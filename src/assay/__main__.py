"""The command `python -m assay`.

`python -m assay child NAME …` starts the process of a benchmark, a model check and the like. `job.sh` of a run uses
this command: a run directory contains no names of Assay's modules and can be run again after modules were moved.
"""

from __future__ import annotations

import sys

# Functions are loaded by name: the process of a benchmark loads the standard library and nothing of the command line.
CHILDREN = {
    "readings": "assay.observe.readings:main",
}


def run_child(name: str) -> int | None:
    from assay.errors import AssayError  # imported after `assay.cli` has set what Ctrl-C does
    from assay.plugins import Merged, load

    children = Merged("children", CHILDREN)
    if name not in children:
        print(f"assay: no child process is called {name!r}; there are {', '.join(children)}", file=sys.stderr)
        return 2
    try:
        result: int | None = load(children[name])()
    except AssayError as error:
        print(f"assay: {error.message}", file=sys.stderr)
        return int(error.exit_code)
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child = sys.argv[2] if len(sys.argv) > 2 else ""
        del sys.argv[1:3]  # the rest is the child's own command line
        sys.exit(run_child(child))
    from assay.cli.main import main  # imported here: a child does not need the command line

    main()

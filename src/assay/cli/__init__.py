"""The command line. Signal handlers are set here, before the imports of the commands, which take longest."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` loads enum, and Ctrl-C may come before that ends
import os
import sys


def _is_program(path: str) -> bool:
    """Whether this is `assay` or `python -m assay`, and not a test or a script that imports us."""
    folder, name = os.path.split(path)
    return name == "assay" or (name == "__main__.py" and os.path.basename(folder) == "assay")


if _is_program(sys.argv[0]):
    for _number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(_number) is not signal.SIG_IGN:
            signal.signal(_number, lambda _number, _frame: os._exit(130))  # nothing has been started that must be ended

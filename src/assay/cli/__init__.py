"""The command line. Signal handlers are set before the commands are imported, which takes longest."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` loads enum, and Ctrl-C may come before that ends
import os
import sys

_folder, _name = os.path.split(sys.argv[0])
# only for `assay` and `python -m assay`: a test or script that imports this package keeps its signal handlers
if _name == "assay" or (_name == "__main__.py" and os.path.basename(_folder) == "assay"):
    for _number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(_number) is not signal.SIG_IGN:
            signal.signal(_number, lambda _number, _frame: os._exit(130))  # nothing was started that must be ended

"""`python -m assay.study.receive_check`: read the metrics of the run directories that standard input names.

Runs from elsewhere bring their own patterns, and a pattern may take for ever. Here that ends with this process, and not
with the server that would read them.
"""

from __future__ import annotations

import os
import sys

from assay.record.run_directory import load_record
from assay.study.collect import Summaries, read_sources


def main() -> None:
    for run_dir in os.fsdecode(sys.stdin.buffer.read()).split("\0"):
        read_sources(Summaries(), "uploaded/run", run_dir, load_record(run_dir).spec)


if __name__ == "__main__":
    main()

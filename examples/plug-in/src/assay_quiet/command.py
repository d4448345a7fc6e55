"""`assay longest STUDY`: the request declares its arguments and options, the handler does the work."""

from assay.show.console import Console
from assay.values.options import Request, argument, option, root_option


class LongestRequest(Request):
    study: str = argument("STUDY")
    count: int = option("-n", "--count", type=int, minimum=1, default=3, metavar="N", help="How many.")
    root: str | None = root_option()


def longest(request: LongestRequest, console: Console) -> int:
    """Show the runs of STUDY that took the longest."""
    from assay.follow.api import find_locations
    from assay_quiet.durations import list_longest

    (location,) = find_locations([request.study], request.root)
    for name, seconds in list_longest(location, request.count):
        console.write(f"{seconds:8.1f} s  {name}\n")
    return 0

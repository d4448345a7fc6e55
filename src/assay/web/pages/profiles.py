"""Profiles of runs, shown by speedscope, which this server sends; a click opens a profile on Perfetto's page."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation
from assay.web.assets import VENDOR, build_remedy
from assay.web.pages.run_files import list_files
from assay.web.routes import Routes, quote
from assay.web.site import build_address, get_site, load_study

ROUTES = Routes()
VIEWER = "/vendor/speedscope/index.html"
# speedscope writes styles into the page, and reads one format with WebAssembly; it sends requests to this server only
VIEWER_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = "profile"  # folder in a run's directory with the output of profilers
_AT_TOP = ("trace.json", "trace.pb")  # profiles that a model check writes
_FLAMES = (".json", ".json.gz", ".cpuprofile", ".folded", ".collapsed", ".prof", ".speedscope")
_PERFETTO = (".json", ".json.gz", ".pb", ".pftrace", ".perfetto-trace")
_ELSEWHERE = (".trace.json", ".trace.json.gz", ".speedscope.json", ".cpuprofile", ".pftrace", ".perfetto-trace")
_MOST_RUNS = 3000  # newest runs of a study that are searched for profiles
_MOST_LISTED = 300
_LARGEST = 512 << 20  # bytes of a file that a viewer in a browser can read
_LARGEST_UNPACKED = 1 << 30
_TEXTS = (".json", ".cpuprofile")


@dataclass(frozen=True, slots=True)
class ProfileFile:
    name: str
    size: int
    address: str  # address of the file
    problem: str = ""  # why no viewer can show the file

    @property
    def viewer(self) -> str:
        """Return the address where speedscope shows the profile, or "". The part after # is not sent to any server."""
        if self.problem or not self.name.lower().endswith(_FLAMES):
            return ""
        return f"{VIEWER}#profileURL={quote(self.address)}&title={quote(self.name)}"

    @property
    def fits_perfetto(self) -> bool:
        return not self.problem and self.name.lower().endswith(_PERFETTO)


def is_profile(name: str) -> bool:
    """Return whether a file of a run is a profile, judged by its name: reading a file may take long."""
    is_in_folder = name.startswith(f"{_FOLDER}{os.sep}") and name.lower().endswith((*_FLAMES, *_PERFETTO))
    return is_in_folder or name in _AT_TOP or name.lower().endswith(_ELSEWHERE)


def list_profiles(location: StudyLocation, slug: str, run: str) -> list[ProfileFile]:
    run_dir, base = os.path.join(location.dir, run), build_address("studies", slug, "runs", run, "files")
    return [
        ProfileFile(name, size, f"{base}/{quote(name, safe='/')}", find_problem(os.path.join(run_dir, name), size))
        for name, size in list_files(run_dir)
        if is_profile(name)
    ]


def find_problem(path: str, size: int) -> str:
    """Return why a viewer would fail, or "". A compressed file is unpacked; a JSON file is read at both ends."""
    if not size:
        return "it is empty: the profiler wrote nothing"
    if size > _LARGEST:
        return f"it is larger than the {_LARGEST >> 20} MB that a browser can take: save it and open it elsewhere"
    name = path.lower()
    try:
        if name.endswith(".gz"):
            with gzip.open(path) as packed:
                left = _LARGEST_UNPACKED
                while left > 0 and (part := packed.read(1 << 20)):
                    left -= len(part)
            return "" if left > 0 else "it is too large for a browser when it is unpacked"
        if name.endswith(_TEXTS):
            with open(path, "rb") as file:
                first = file.read(64).strip()[:1]
                file.seek(max(0, size - 64))
                last = file.read().strip()[-1:]
            if first not in b"{[" or (first == b"{" and last != b"}"):  # the array of events need not be closed
                return "it is damaged: it is not JSON, or it ends in the middle"
    except (OSError, EOFError, zlib.error) as error:
        return f"it is damaged: {error}"
    return ""


def find_profiled(location: StudyLocation) -> Iterator[tuple[str, float]]:
    """Yield the runs that have a folder of profiles or a file of `_AT_TOP`, the newest first, and their times."""
    try:
        entries = [entry for entry in os.scandir(location.dir) if entry.is_dir(follow_symlinks=False)]
        ages = sorted(((entry.stat().st_mtime, entry) for entry in entries), key=lambda pair: -pair[0])
    except OSError:
        return
    for at, entry in ages[:_MOST_RUNS]:
        paths = (os.path.join(entry.path, name) for name in (_FOLDER, *_AT_TOP))
        if not entry.name.startswith(".") and any(map(os.path.exists, paths)):
            yield entry.name, at


@ROUTES.page("/profiles")
def show_all(request: Request) -> Response:
    site = get_site(request)
    known = site.snapshots.find_locations().items()
    found = [(slug, location, run, at) for slug, location in known for run, at in find_profiled(location)]
    found.sort(key=lambda each: -each[3])
    return site.render(request, "profiles.html", found=found[:_MOST_LISTED], total=len(found))


@ROUTES.page("/profiles/{study}/{run}")
def show(request: Request) -> Response:
    snapshot, run = load_study(request), request.path_params["run"]
    snapshot.get_row(run)
    profiles = list_profiles(snapshot.location, snapshot.slug, run)
    answer = get_site(request).render(request, "profile.html", snapshot=snapshot, run=run, profiles=profiles)
    # this header lets a window that the page opens send messages: Perfetto reports when it is ready for the profile
    answer.headers["cross-origin-opener-policy"] = "same-origin-allow-popups"
    return answer


@ROUTES.page("/vendor/speedscope/{name}", "open")
def send_viewer(request: Request) -> Response:
    """Send a file of speedscope with the content security policy that speedscope needs."""
    folder = os.path.join(VENDOR, "speedscope")
    name = request.path_params["name"]
    known = os.listdir(folder) if os.path.isdir(folder) else []
    if name not in known:
        raise NotFoundError("file of speedscope", name, known, "" if known else build_remedy())
    return FileResponse(os.path.join(folder, name), headers={"content-security-policy": VIEWER_POLICY})

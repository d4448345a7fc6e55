"""`assay perfzero setup`: prepare disks, packages and a Docker image in which benchmarks run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from assay.compat.original_command import Parsed
from assay.compat.perfzero.download import fetch
from assay.compat.perfzero.tool import Tools, ask_tool
from assay.compat.perfzero.uploads import google_key
from assay.compat.perfzero.values import Clock, hide_secrets, is_url
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.exchange.api import render_url
from assay.system.files import parse_json, rename

_DOCKERFILES = "docker"  # the folder next to this file, and its name in the documents
_V1, _V2 = "Dockerfile_ubuntu_1804_tf_v1", "Dockerfile_ubuntu_1804_tf_v2"
NO_WHEEL = "EMPTY"  # the name of an empty file that a Dockerfile can copy if there is no wheel
_RAID = "/dev/md0"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_TENSORFLOW_1 = re.compile(
    r"(tensorflow|tf)[\w-]*(\[[\w,-]*\])?((==|~=|<=)1\.|<2(\.0){0,2}$)|(tensorflow|tf)\w*-1\.", re.IGNORECASE
)
_WHEEL_NAME = re.compile(r"[^-]+-[^-]+(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")


# ---------------------------------------------------------------- what the flags mean


class Setup:
    """The parsed flags of a call; every name in the flags is checked before anything is done."""

    def __init__(self, flags: Parsed) -> None:
        self.flags = flags
        self.context: str = os.path.join(flags.workspace, "resources")
        path, spec = flags.dockerfile_path, flags.tensorflow_pip_spec
        for flag in ("dockerfile_path", "tensorflow_pip_spec", "gcloud_key_file_url"):
            if _URL.match(given := getattr(flags, flag) or "") and not is_url(given):
                raise UsageError(f"--{flag}: {hide_secrets(given)!r} is not a URL")
        self.uses_google = any((url or "").startswith("gs://") for url in (path, spec))
        self.wheel = None  # the name of the wheel in the context
        if spec and _URL.match(spec):
            self.wheel = os.path.basename(unquote(urlsplit(spec).path))
            if not _WHEEL_NAME.fullmatch(self.wheel):
                hint = "pip needs its full name, as in gs://bucket/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl"
                raise UsageError(f"--tensorflow_pip_spec: {render_url(spec)} does not name a wheel", hint)
        self.tensorflow: str | None = self.wheel or spec or None  # the argument for pip
        # a signature may follow the name of a saved image
        self.loads_image = (urlsplit(path).path if _URL.match(path) else path).endswith(".tar.gz")
        if self.loads_image and not _URL.match(path) and not os.path.isfile(path):
            raise UsageError(f"--dockerfile_path: there is no file {path}")
        self.dockerfile = find_dockerfile(path) if path and not self.loads_image else None  # None: no image is built
        is_old = is_tensorflow_1(self.tensorflow)
        if is_old and self.dockerfile == _shipped(_V2):
            raise UsageError(
                f"--tensorflow_pip_spec: {self.tensorflow} is TensorFlow 1, and this Dockerfile is for TensorFlow 2",
                f"use --dockerfile_path={_DOCKERFILES}/{_V1}",
            )
        entries = [entry.strip() for entry in flags.site_package_downloads.split(",")]
        folder = os.path.join(flags.workspace, "site-packages")
        self.copies = [_parse_copy(entry, folder) for entry in entries if entry]  # folders to copy into site-packages
        self.remarks = []
        if flags.gcloud_key_file_url and not self.uses_google:
            self.remarks.append("--gcloud_key_file_url is not used: nothing comes from gs://")
        if is_old and self.dockerfile == _shipped(_V1):
            self.remarks.append(
                "TensorFlow 1 needs an older Python than Assay: in this image it belongs to /usr/local/bin/python3.6, "
                "and its programs are measured as commands: assay bench run --command 'python3.6 …'"
            )

    def build_image_command(self, dockerfile: str) -> list[str]:
        flags = self.flags
        arguments = [f"tensorflow_pip_spec={self.tensorflow}"] if self.tensorflow else []
        arguments.append(f"local_tensorflow_pip_spec={self.wheel or NO_WHEEL}")
        # the shell of the Dockerfile would split a specification at spaces
        specs = ("".join(spec.split()) for spec in flags.extra_pip_specs.split(";"))
        arguments.append(f"extra_pip_specs={' '.join(filter(None, specs))}")
        arguments += [argument for argument in flags.extra_docker_build_args if argument]
        build = ["docker", "build", "--no-cache", "--pull", "-t", flags.docker_tag]
        build += [word for argument in arguments for word in ("--build-arg", argument)]
        return [*build, "-f", dockerfile, self.context]

    def render_entry(self) -> str:
        """Return the command that starts a shell in the image."""
        data = shlex.quote(f"{self.flags.root_data_dir}:{self.flags.root_data_dir}")
        tag = shlex.quote(self.flags.docker_tag)
        return f'docker run --gpus all -it --rm -v "$PWD":/workspace -v {data} {tag} bash'


def find_dockerfile(name: str) -> str:
    """Return the path of the user's file of this name, else of the one that Assay includes as docker/NAME."""
    if os.path.isfile(name):
        return name
    ours = _shipped(os.path.basename(name))
    if os.path.dirname(name) in {"", _DOCKERFILES} and os.path.isfile(ours):
        return ours
    known = [f"{_DOCKERFILES}/{one}" for one in sorted(os.listdir(_shipped("")))]
    raise NotFoundError("Dockerfile", name, known)


def _shipped(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), _DOCKERFILES, name)


def is_tensorflow_1(spec: str | None) -> bool:
    return spec is not None and _TENSORFLOW_1.match("".join(spec.split())) is not None


def _parse_copy(entry: str, folder: str) -> tuple[str, str]:
    """Parse `/path/to/src:name` to source and target."""
    source, _, name = entry.partition(":")
    name = name or os.path.basename(source.rstrip("/"))
    if name in {"", ".", ".."} or "/" in name:
        raise UsageError(f"--site_package_downloads: {entry!r} does not name a folder", "write /path/to/src:new_name")
    if not os.path.isdir(source):
        raise UsageError(f"--site_package_downloads: there is no folder {source}")
    return source, os.path.join(folder, name)


# ---------------------------------------------------------------- everything in the original's order


def set_up(setup: Setup, tools: Tools) -> None:
    clock, flags = Clock(), setup.flags
    key = flags.gcloud_key_file_url if setup.uses_google else ""
    if (setup.dockerfile is not None or setup.loads_image) and not tools.dry_run:
        # fail before any download if docker is missing or does not answer
        ask_tool(["docker", "version", "--format", "{{.Server.Version}}"])
    for remark in setup.remarks:
        tools.remark(remark)
    try:
        _copy_site_packages(setup, tools)
        with contextlib.ExitStack() as stack:
            with clock.measure("download_token"):
                if key and not tools.announce(f"fetch the key {render_url(key)} to a private file, for this call only"):
                    key = ""
                stack.enter_context(google_key(key or None))
            with clock.measure("create_drive"):
                _create_drive(flags, tools)
            if setup.loads_image:
                _load_image(flags, tools, clock)
            elif setup.dockerfile is not None:
                _fill_context(setup, tools)
                with clock.measure("build_docker"):
                    tools.do(setup.build_image_command(setup.dockerfile), keep_errors=False)
    except OSError as error:
        raise InfrastructureError(f"{error.filename or flags.workspace}: {error.strerror or error}") from None
    if not tools.dry_run:
        tools.remark(f"Setup time in seconds by operation:\n{json.dumps(clock.seconds, indent=2)}")
        if setup.dockerfile is not None:
            tools.console.print_lines(f"built {flags.docker_tag}; enter it with\n  {setup.render_entry()}")


def _copy_site_packages(setup: Setup, tools: Tools) -> None:
    for source, target in setup.copies:
        if os.path.lexists(target):
            tools.remark(f"{target} exists and is kept; remove it to have it copied again")
        elif tools.announce(f"copy {source} to {target}"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with tempfile.TemporaryDirectory(dir=os.path.dirname(target), prefix=".") as aside:
                rename(shutil.copytree(source, os.path.join(aside, "copy"), symlinks=True), target)


def _create_drive(flags: Parsed, tools: Tools) -> None:
    if not flags.gce_nvme_raid:
        return
    if os.path.ismount(flags.root_data_dir):
        tools.remark(f"{flags.root_data_dir} is already a mount point; it is left as it is")
        return
    # lsblk runs in a dry run as well, since it changes nothing
    devices = parse_free_disks(ask_tool(["lsblk", "--json", "--output", "NAME,TYPE,MOUNTPOINT"]))
    if not devices:
        hint = "disks with partitions and disks in use are left alone; lsblk shows them"
        raise UsageError("--gce_nvme_raid: there is no free NVMe disk here", hint)
    for command in build_drive_commands(devices, flags.root_data_dir, as_root=os.geteuid() == 0):
        tools.do(command)


def parse_free_disks(text: str) -> tuple[str, ...]:
    """Return the free NVMe disks in the output of `lsblk --json`: no partition, no array, not mounted."""
    try:
        disks = [disk for disk in parse_json(text)["blockdevices"] if disk["type"] == "disk"]
        free = [disk["name"] for disk in disks if not disk.get("children") and not disk.get("mountpoint")]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InfrastructureError("lsblk did not print a list of disks") from None
    return tuple(f"/dev/{name}" for name in free if name.startswith("nvme"))


def build_drive_commands(devices: Sequence[str], folder: str, as_root: bool) -> list[list[str]]:
    """Return commands that mount the disks at the data folder, several of them as one striped array."""
    device = devices[0] if len(devices) == 1 else _RAID
    commands = []
    if len(devices) > 1:
        # --run: disks of such machines may have marks of an earlier array, about which mdadm would ask
        words = ["mdadm", "--create", _RAID, "--run", "--level=0", f"--raid-devices={len(devices)}", *devices]
        commands.append(words)
    commands += [
        ["mkfs.ext4", "-F", device],
        ["mkdir", "-p", folder],
        ["mount", device, folder],
        ["chmod", "a+w", folder],
    ]
    return commands if as_root else [["sudo", *command] for command in commands]


def _load_image(flags: Parsed, tools: Tools, clock: Clock) -> None:
    """Load a saved image, from a file or from a URL, which is downloaded to a temporary folder in the workspace."""
    source, load = flags.dockerfile_path, ["docker", "load", "--input"]
    if not _URL.match(source):
        tools.do([*load, source], keep_errors=False)
        return
    if tools.dry_run:
        path = os.path.join(flags.workspace, "docker-image.tar.gz")
        tools.announce(f"fetch {render_url(source)} to {path}")
        tools.do([*load, path])
        return
    os.makedirs(flags.workspace, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="docker-image-", dir=flags.workspace) as folder:
        path = os.path.join(folder, "docker-image.tar.gz")
        with clock.measure("fetch_docker"):
            tools.announce(f"fetch {render_url(source)}")
            fetch(source, path, decompress=False)
        with clock.measure("load_docker"):
            tools.do([*load, path], keep_errors=False)


def _fill_context(setup: Setup, tools: Tools) -> None:
    """Write the files that a Dockerfile may copy: Assay, a TensorFlow wheel, and an empty file for want of a wheel."""
    context = setup.context
    if tools.announce(f"pack Assay as {os.path.join(context, build_wheel_name())}"):
        os.makedirs(context, exist_ok=True)
        for old in os.listdir(context):
            if re.fullmatch(r"assay-[^-]+-py3-none-any\.whl", old):
                os.unlink(os.path.join(context, old))
        write_wheel(context)
        with open(os.path.join(context, NO_WHEEL), "w", encoding="utf-8"):
            pass
    if setup.wheel is None:
        return
    url, target = setup.flags.tensorflow_pip_spec, os.path.join(context, setup.wheel)
    if tools.announce(f"fetch {render_url(url)} to {target}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)  # nightly wheels keep their name
        fetch(url, target, decompress=False)


# ---------------------------------------------------------------- the command

_IMAGE_HELP = (
    "a file of yours, or one of Assay's: docker/Dockerfile_ubuntu_1804_tf_v1 or …_v2 (default: v1); a saved "
    "image (*.tar.gz, file or URL) is loaded instead; empty: no image"
)
_TENSORFLOW_HELP = (
    "the TensorFlow to install, as in tensorflow==2.20.0, or the URL of a wheel (gs, s3, file, http, https); "
    "default: as in the Dockerfile"
)
_RAID_HELP = "if not empty: format the free NVMe disks, several as one striped array, and mount at --root_data_dir"
_KEY_HELP = "key of a service account for gs:// addresses; fetched to a private file for this call only"
FLAGS: dict[str, tuple[Any, str, str]] = {  # flags of setup.py: default, metavar, help
    "dockerfile_path": (f"{_DOCKERFILES}/{_V1}", "FILE", _IMAGE_HELP),
    "tensorflow_pip_spec": (None, "SPEC", _TENSORFLOW_HELP),
    "extra_pip_specs": ("", "'A;B'", "more to install, as in 'numpy==1.26.4;scipy==1.11.4'"),
    "docker_tag": ("perfzero/tensorflow", "TAG", "the image's name (default: perfzero/tensorflow)"),
    "extra_docker_build_args": ([], "NAME=VALUE", "more --build-arg of docker build"),
    "workspace": ("workspace", "DIR", "its resources/ is the build context"),
    "root_data_dir": ("/data", "DIR", "where benchmarks find their data"),
    "gce_nvme_raid": (None, "ANY", _RAID_HELP),
    "gcloud_key_file_url": ("", "URL", _KEY_HELP),
    "site_package_downloads": ("", "SRC:NAME,…", "folders to copy to site-packages/NAME of the workspace"),
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="assay perfzero setup", description="Build the Docker image in which benchmarks run; set up its data disk."
    )
    for name, (default, metavar, text) in FLAGS.items():
        nargs = "*" if isinstance(default, list) else None
        parser.add_argument(f"--{name}", nargs=nargs, default=default, metavar=metavar, help=text)
    ours = parser.add_argument_group("beyond the original")
    ours.add_argument("-n", "--dry-run", action="store_true", help="print the commands; do nothing")
    return parser


def run(parsed: Parsed) -> int:
    set_up(Setup(parsed), Tools(parsed.dry_run))
    return 0

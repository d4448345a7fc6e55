"""`assay perfzero setup`: disks, packages and a Docker image in which benchmarks run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from urllib.parse import unquote, urlsplit

from assay.compat.original_command import Parsed
from assay.compat.perfzero.download import fetch
from assay.compat.perfzero.tool import KnownFailure, Tools, ask_tool, build_failure
from assay.compat.perfzero.uploads import google_key
from assay.compat.perfzero.values import Clock
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.exchange.api import render_url
from assay.show.console import Console
from assay.system.files import parse_json, rename

DEFAULT_DOCKERFILE = "docker/Dockerfile_ubuntu_1804_tf_v1"
NO_WHEEL = "EMPTY"  # a file of this name is in the context: a Dockerfile can copy it where there is no wheel
_RAID = "/dev/md0"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_TENSORFLOW_1 = re.compile(
    r"(tensorflow|tf)[\w-]*(\[[\w,-]*\])?((==|~=|<=)1\.|<2(\.0){0,2}$)|(tensorflow|tf)\w*-1\.", re.IGNORECASE
)
_WHEEL_NAME = re.compile(r"[^-]+-[^-]+(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")
_DOCKER_FAILURES = (
    KnownFailure(
        "permission denied", 'join its group, then log in again: sudo usermod -a -G docker "$USER"', is_users=True
    ),
    KnownFailure("cannot connect|daemon running", "start it: sudo systemctl start docker", is_users=True),
)


@dataclass(frozen=True, slots=True)
class SetupRequest:
    """setup.py's flags."""

    dockerfile_path: str = DEFAULT_DOCKERFILE
    workspace: str = "workspace"
    gcloud_key_file_url: str = ""
    root_data_dir: str = "/data"
    gce_nvme_raid: str | None = None
    tensorflow_pip_spec: str | None = None
    extra_pip_specs: str = ""
    docker_tag: str = "perfzero/tensorflow"
    site_package_downloads: str = ""
    extra_docker_build_args: tuple[str, ...] = ()

    @property
    def context(self) -> str:
        return os.path.join(self.workspace, "resources")

    @property
    def is_saved_image(self) -> bool:
        """A URL may carry a signature after the name."""
        path = self.dockerfile_path
        return (urlsplit(path).path if _URL.match(path) else path).endswith(".tar.gz")


@dataclass(frozen=True, slots=True)
class Setup:
    """A request that has been understood: every name in it is checked before anything is done."""

    request: SetupRequest
    dockerfile: str | None  # None: no image is built
    tensorflow: str | None  # as pip takes it, or a wheel's name in the context
    wheel: str | None  # that wheel's name
    copies: tuple[tuple[str, str], ...]  # of folders into site-packages

    @property
    def uses_google(self) -> bool:
        request = self.request
        return any((url or "").startswith("gs://") for url in (request.dockerfile_path, request.tensorflow_pip_spec))


# ---------------------------------------------------------------- everything in order


def set_up(request: SetupRequest, tools: Tools, say: Callable[[str], None]) -> None:
    """Everything that was asked for, in the original's order."""
    setup, clock = build_setup(request), Clock()
    if setup.dockerfile is not None or request.is_saved_image:
        _check_docker(tools)
    for remark in build_remarks(setup):
        tools.remark(remark)
    try:
        _copy_site_packages(setup, tools)
        with _private_key(setup, tools, clock):
            with clock.measure("create_drive"):
                _create_drive(request, tools)
            if request.is_saved_image:
                _load_image(request, tools, clock)
            elif setup.dockerfile is not None:
                _fill_context(setup, tools)
                with clock.measure("build_docker"):
                    tools.do(build_image_command(setup, setup.dockerfile), keep_errors=False)
    except OSError as error:
        raise InfrastructureError(f"{error.filename or request.workspace}: {error.strerror or error}") from None
    if not tools.dry_run:
        tools.remark(f"Setup time in seconds by operation:\n{json.dumps(clock.seconds, indent=2)}")
        if setup.dockerfile is not None:
            say(f"built {request.docker_tag}; enter it with\n  {render_entry(request)}")


def build_setup(request: SetupRequest) -> Setup:
    tensorflow, wheel = build_tensorflow_spec(request.tensorflow_pip_spec)
    path = request.dockerfile_path
    if request.is_saved_image and not _URL.match(path) and not os.path.isfile(path):
        raise UsageError(f"--dockerfile_path: there is no file {path}")
    if not request.dockerfile_path or request.is_saved_image:
        dockerfile = None
    else:
        dockerfile = find_dockerfile(request.dockerfile_path)
        if dockerfile == _shipped("Dockerfile_ubuntu_1804_tf_v2") and is_tensorflow_1(tensorflow):
            raise UsageError(
                f"--tensorflow_pip_spec: {tensorflow} is TensorFlow 1, and this Dockerfile is for TensorFlow 2",
                f"use --dockerfile_path={DEFAULT_DOCKERFILE}",
            )
    copies = parse_site_packages(request.site_package_downloads, os.path.join(request.workspace, "site-packages"))
    return Setup(request, dockerfile, tensorflow, wheel, copies)


def build_remarks(setup: Setup) -> list[str]:
    remarks = []
    if setup.request.gcloud_key_file_url and not setup.uses_google:
        remarks.append("--gcloud_key_file_url is not used: nothing comes from gs://")
    if setup.dockerfile == _shipped("Dockerfile_ubuntu_1804_tf_v1") and is_tensorflow_1(setup.tensorflow):
        remarks.append(
            "TensorFlow 1 needs an older Python than Assay: in this image it belongs to /usr/local/bin/python3.6, and "
            "its programs are measured as commands: assay bench run --command 'python3.6 …'"
        )
    return remarks


def render_entry(request: SetupRequest) -> str:
    """The command that starts a shell in the image."""
    data = shlex.quote(f"{request.root_data_dir}:{request.root_data_dir}")
    return f'docker run --gpus all -it --rm -v "$PWD":/workspace -v {data} {shlex.quote(request.docker_tag)} bash'


# ---------------------------------------------------------------- what the flags mean


def find_dockerfile(name: str) -> str:
    """A file of the user's, else one that comes with us: docker/NAME."""
    if os.path.isfile(name):
        return name
    ours = _shipped(os.path.basename(name))
    if os.path.dirname(name) in {"", "docker"} and os.path.isfile(ours):
        return ours
    known = [f"docker/{one}" for one in sorted(os.listdir(_shipped("")))]
    raise NotFoundError("Dockerfile", name, known)


def _shipped(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "docker", name)


def build_tensorflow_spec(spec: str | None) -> tuple[str | None, str | None]:
    """What pip is given, and the name of the wheel that has to be fetched for it, if any."""
    if not spec or not _URL.match(spec):
        return spec or None, None
    name = os.path.basename(unquote(urlsplit(spec).path))
    if not _WHEEL_NAME.fullmatch(name):
        raise UsageError(
            f"--tensorflow_pip_spec: {render_url(spec)} does not name a wheel",
            "pip needs its full name, as in gs://bucket/tensorflow-2.20.0-cp312-cp312-linux_x86_64.whl",
        )
    return name, name


def is_tensorflow_1(spec: str | None) -> bool:
    return spec is not None and _TENSORFLOW_1.match("".join(spec.split())) is not None


def parse_pip_specs(text: str) -> tuple[str, ...]:
    """`numpy==1.16.4; scipy==1.3.1`. Spaces inside a specification would make two of it in the Dockerfile's shell."""
    return tuple("".join(spec.split()) for spec in text.split(";") if spec.strip())


def parse_site_packages(text: str, folder: str) -> tuple[tuple[str, str], ...]:
    """`/path/to/src:name,…` as pairs of source and target."""
    return tuple(_parse_copy(entry.strip(), folder) for entry in text.split(",") if entry.strip())


def _parse_copy(entry: str, folder: str) -> tuple[str, str]:
    source, _, name = entry.partition(":")
    name = name or os.path.basename(source.rstrip("/"))
    if name in {"", ".", ".."} or "/" in name:
        raise UsageError(f"--site_package_downloads: {entry!r} does not name a folder", "write /path/to/src:new_name")
    if not os.path.isdir(source):
        raise UsageError(f"--site_package_downloads: there is no folder {source}")
    return source, os.path.join(folder, name)


# ---------------------------------------------------------------- command lines


def build_image_command(setup: Setup, dockerfile: str) -> list[str]:
    request = setup.request
    arguments = [f"local_tensorflow_pip_spec={setup.wheel or NO_WHEEL}"]
    if setup.tensorflow:
        arguments.insert(0, f"tensorflow_pip_spec={setup.tensorflow}")
    arguments.append(f"extra_pip_specs={' '.join(parse_pip_specs(request.extra_pip_specs))}")
    arguments += [argument for argument in request.extra_docker_build_args if argument]
    flags = [word for argument in arguments for word in ("--build-arg", argument)]
    return [
        "docker",
        "build",
        "--no-cache",
        "--pull",
        "-t",
        request.docker_tag,
        *flags,
        "-f",
        dockerfile,
        request.context,
    ]


def build_load_command(path: str) -> list[str]:
    return ["docker", "load", "--input", path]


def build_drive_commands(devices: Sequence[str], folder: str, as_root: bool) -> list[list[str]]:
    """One disk as it is, several as one striped array, mounted at the data folder."""
    device = devices[0] if len(devices) == 1 else _RAID
    commands = []
    if len(devices) > 1:
        # --run: the disks of such machines may carry the marks of an earlier array, and mdadm would stop and ask
        words = ["mdadm", "--create", _RAID, "--run", "--level=0", f"--raid-devices={len(devices)}", *devices]
        commands.append(words)
    commands += [
        ["mkfs.ext4", "-F", device],
        ["mkdir", "-p", folder],
        ["mount", device, folder],
        ["chmod", "a+w", folder],
    ]
    return commands if as_root else [["sudo", *command] for command in commands]


def parse_free_disks(text: str) -> tuple[str, ...]:
    """The NVMe disks in `lsblk --json` that are free: no partition, no array, no file system in use."""
    try:
        disks = [disk for disk in parse_json(text)["blockdevices"] if disk["type"] == "disk"]
        free = [disk["name"] for disk in disks if not disk.get("children") and not disk.get("mountpoint")]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InfrastructureError("lsblk did not print a list of disks") from None
    return tuple(f"/dev/{name}" for name in free if name.startswith("nvme"))


# ---------------------------------------------------------------- steps


def _check_docker(tools: Tools) -> None:
    """Raise where docker is missing or does not answer, before anything is fetched."""
    if tools.dry_run:
        return
    argv = ["docker", "version", "--format", "{{.Server.Version}}"]
    result = ask_tool(argv)
    if result.code:
        raise build_failure(argv, result, _DOCKER_FAILURES)


def _copy_site_packages(setup: Setup, tools: Tools) -> None:
    for source, target in setup.copies:
        if os.path.lexists(target):
            tools.remark(f"{target} exists and is kept; remove it to have it copied again")
        elif tools.announce(f"copy {source} to {target}"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            aside = tempfile.mkdtemp(dir=os.path.dirname(target), prefix=".")
            try:
                rename(shutil.copytree(source, os.path.join(aside, "copy"), symlinks=True), target)
            finally:
                shutil.rmtree(aside)


@contextlib.contextmanager
def _private_key(setup: Setup, tools: Tools, clock: Clock) -> Iterator[None]:
    """The service account's key, in a file that only we can read and that is gone afterwards."""
    url = setup.request.gcloud_key_file_url
    wanted = bool(url) and setup.uses_google
    is_done = wanted and tools.announce(f"fetch the key {render_url(url)} to a private file, for this call only")
    with contextlib.ExitStack() as stack:
        with clock.measure("download_token"):
            stack.enter_context(google_key(url if is_done else None))
        yield


def _create_drive(request: SetupRequest, tools: Tools) -> None:
    if not request.gce_nvme_raid:
        return
    if os.path.ismount(request.root_data_dir):
        tools.remark(f"{request.root_data_dir} is already a mount point; it is left as it is")
        return
    argv = ["lsblk", "--json", "--output", "NAME,TYPE,MOUNTPOINT"]
    result = ask_tool(argv)  # looking changes nothing: a dry run looks as well
    if result.code:
        raise build_failure(argv, result)
    devices = parse_free_disks(result.out)
    if not devices:
        raise UsageError(
            "--gce_nvme_raid: there is no free NVMe disk here",
            "disks with partitions and disks in use are left alone; lsblk shows them",
        )
    for command in build_drive_commands(devices, request.root_data_dir, as_root=os.geteuid() == 0):
        tools.do(command)


def _load_image(request: SetupRequest, tools: Tools, clock: Clock) -> None:
    """A saved image: fetched into the workspace for the time of loading, unless it is a file here."""
    source = request.dockerfile_path
    if not _URL.match(source):
        tools.do(build_load_command(source), keep_errors=False)
        return
    if tools.dry_run:
        path = os.path.join(request.workspace, "docker-image.tar.gz")
        tools.announce(f"fetch {render_url(source)} to {path}")
        tools.do(build_load_command(path))
        return
    os.makedirs(request.workspace, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="docker-image-", dir=request.workspace) as folder:
        path = os.path.join(folder, "docker-image.tar.gz")
        with clock.measure("fetch_docker"):
            tools.announce(f"fetch {render_url(source)}")
            fetch(source, path, decompress=False)
        with clock.measure("load_docker"):
            tools.do(build_load_command(path), keep_errors=False)


def _fill_context(setup: Setup, tools: Tools) -> None:
    """What a Dockerfile may copy: Assay, the TensorFlow wheel, and an empty file in its place."""
    context = setup.request.context
    if tools.announce(f"pack Assay as {os.path.join(context, build_wheel_name())}"):
        os.makedirs(context, exist_ok=True)
        for old in os.listdir(context):
            if re.fullmatch(r"assay-[^-]+-py3-none-any\.whl", old):
                os.unlink(os.path.join(context, old))
        write_wheel(context)
        with open(os.path.join(context, NO_WHEEL), "w", encoding="utf-8"):
            pass
    url, name = setup.request.tensorflow_pip_spec, setup.wheel
    if url and name and tools.announce(f"fetch {render_url(url)} to {os.path.join(context, name)}"):
        target = os.path.join(context, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)  # nightly wheels change under one name
        fetch(url, target, decompress=False)


# ---------------------------------------------------------------- the command


FLAGS = {  # setup.py's: metavar, help
    "dockerfile_path": (
        "FILE",
        (
            "a file of yours, or one of Assay's: docker/Dockerfile_ubuntu_1804_tf_v1 or …_v2 (default: v1); a saved "
            "image (*.tar.gz, file or URL) is loaded instead; empty: no image"
        ),
    ),
    "tensorflow_pip_spec": (
        "SPEC",
        (
            "the TensorFlow to install, as in tensorflow==2.20.0, or the URL of a wheel (gs, s3, file, http, https); "
            "default: as in the Dockerfile"
        ),
    ),
    "extra_pip_specs": ("'A;B'", "more to install, as in 'numpy==1.26.4;scipy==1.11.4'"),
    "docker_tag": ("TAG", "the image's name (default: perfzero/tensorflow)"),
    "extra_docker_build_args": ("NAME=VALUE", "more --build-arg of docker build"),
    "workspace": ("DIR", "its resources/ is the build context"),
    "root_data_dir": ("DIR", "where benchmarks find their data"),
    "gce_nvme_raid": (
        "ANY",
        "if not empty: format the free NVMe disks, several as one striped array, and mount at --root_data_dir",
    ),
    "gcloud_key_file_url": (
        "URL",
        "key of a service account for gs:// addresses; fetched to a private file for this call only",
    ),
    "site_package_downloads": ("SRC:NAME,…", "folders to copy to site-packages/NAME of the workspace"),
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="assay perfzero setup", description="Build the Docker image in which benchmarks run; set up its data disk."
    )
    usual = asdict(SetupRequest()) | {"extra_docker_build_args": []}
    for name, (metavar, text) in FLAGS.items():
        nargs = "*" if name == "extra_docker_build_args" else None
        parser.add_argument(f"--{name}", nargs=nargs, default=usual[name], metavar=metavar, help=text)
    ours = parser.add_argument_group("beyond the original")
    ours.add_argument("-n", "--dry-run", action="store_true", help="print the commands; do nothing")
    return parser


def run(parsed: Parsed) -> int:
    flags = {each.name: getattr(parsed, each.name) for each in fields(SetupRequest)}
    request = SetupRequest(**{**flags, "extra_docker_build_args": tuple(parsed.extra_docker_build_args)})
    console = Console()
    set_up(request, Tools(parsed.dry_run, console.print, console.error), console.print_lines)
    return 0

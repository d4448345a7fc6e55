"""`assay perfzero cloud`: a machine with GPUs in Google's cloud, for as long as it is needed."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.compat.perfzero.tool import KnownFailure, ToolResult, Tools, ask_tool
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import AssayError, InfrastructureError, UsageError
from assay.show.formatting import render_count
from assay.system.files import parse_json

INSTANCE_PREFIX = "perfzero-dev-"
DEFAULT_ZONE = "us-west1-b"
DEFAULT_ACCELERATOR = "nvidia-tesla-v100"
# Google's public images for GPUs: CUDA 12.9, driver 580, Python 3.12; served until August 2028
IMAGE_PROJECT = "deeplearning-platform-release"
IMAGE_FAMILY = "common-cu129-ubuntu-2404-nvidia-580"
_SIZES = (8, 16, 32, 64, 96)  # processors of an n1-standard machine, from eight on
COUNTS = (0, 1, 2, 4, 8)  # accelerators that an n1 machine can have


@dataclass(frozen=True, slots=True)
class CloudTarget:
    """Which machine, and the way to it. Without a project it is the one that gcloud is configured for."""

    name: str
    zone: str = DEFAULT_ZONE
    project: str | None = None
    internal_ip: bool = False
    key_file: str | None = None

    def render(self, command: str) -> str:
        """`assay perfzero cloud COMMAND` for this very machine, to be pasted."""
        words = ["assay", "perfzero", "cloud", command]
        words += [f"--project={self.project}"] if self.project else []
        words += [f"--zone={self.zone}"] if self.zone != DEFAULT_ZONE else []
        words += [f"--username={self.name.removeprefix(INSTANCE_PREFIX)}"] if self.name != _build_own_name() else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """What a new machine is to be."""

    accelerator_count: int = 1
    accelerator_type: str = DEFAULT_ACCELERATOR
    cpu_min_platform: str | None = None
    machine_type: str | None = None
    image: str | None = None  # of the user's own project, or projects/P/global/images/NAME
    nvme_count: int = 0
    boot_ssd_size_gb: int | None = None

    @property
    def machine(self) -> str:
        """Eight processors for each accelerator, rounded up to a size that exists; or what was asked for."""
        wanted = 8 * max(self.accelerator_count, 1)
        return self.machine_type or f"n1-standard-{next((size for size in _SIZES if size >= wanted), _SIZES[-1])}"


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as gcloud describes it."""

    name: str
    zone: str
    state: str  # as Google names it: RUNNING, TERMINATED, …
    machine: str
    external: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    accelerators: tuple[tuple[str, int], ...] = ()
    local_disks: int = 0


SSH_TRIES = 12
SSH_PAUSE_S = 5.0
_TENSORBOARD = ("-L", "6006:127.0.0.1:6006")  # TensorBoard on the machine is seen at localhost:6006

# Shell commands that set up a new machine. Images differ in what they have installed.
_PREPARE_ASSAY = (
    "{{ python3 -m venv ~/assay || {{ sudo apt-get -qq update && sudo apt-get -qq install -y python3-venv"
    " && python3 -m venv ~/assay; }}; }}"
    " && ~/assay/bin/pip install --quiet '{source}' && sudo ln -sf ~/assay/bin/assay /usr/local/bin/assay"
)
_PREPARE_DOCKER = (
    "{ command -v docker >/dev/null || { sudo apt-get -qq update && sudo apt-get -qq install -y docker.io; }; }"
    ' && sudo usermod -a -G docker "$USER"'
)
_PREPARE_GPU = (
    "{ command -v nvidia-ctk >/dev/null || sudo apt-get -qq install -y nvidia-container-toolkit; }"
    " && sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)

GCLOUD_CAUSES = (
    KnownFailure(
        "active account selected|auth tokens|reauthentication|auth login", "log in: gcloud auth login", is_users=True
    ),
    KnownFailure(
        r"property \[project\]|project.* not currently set",
        "give --project=NAME, or set it once: gcloud config set project NAME",
        is_users=True,
    ),
    KnownFailure("images/family/", "name another image: --image=projects/PROJECT/global/images/NAME"),
    KnownFailure("already exists", "assay perfzero cloud status shows it; assay perfzero cloud delete removes it"),
    KnownFailure("does not have enough resources|RESOURCE_POOL_EXHAUSTED|stockout", "try another --zone, or later"),
    KnownFailure("quota", "ask for more, or take fewer accelerators or another --zone"),
    KnownFailure(
        "was not found", "assay perfzero cloud list_all shows all machines; choose with --zone and --username"
    ),
)


@dataclass(frozen=True, slots=True)
class Cloud:
    """One machine, and how commands on it are run and reported."""

    target: CloudTarget
    tools: Tools
    say: Callable[[str], None]


def build_tools(
    dry_run: bool, show: Callable[[str], None], remark: Callable[[str], None], debug: bool = False
) -> Tools:
    return Tools(dry_run, show, remark, debug, GCLOUD_CAUSES)


# ---------------------------------------------------------------- whose machine


def _build_own_name() -> str | None:
    """None where the user has no name that a machine can have."""
    try:
        return build_instance_name(None)
    except UsageError:
        return None


def build_instance_name(username: str | None) -> str:
    """`perfzero-dev-<user>`, if Google allows it as a name."""
    user = username or _load_user()
    name = f"{INSTANCE_PREFIX}{user}"
    if not re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
        near = re.sub(r"[^a-z0-9]+", "-", user.lower())[: 63 - len(INSTANCE_PREFIX)].strip("-")
        raise UsageError(
            f"{name!r} cannot be the name of a machine: small letters, digits and dashes, 63 at most",
            f"try --username={near or 'NAME'}",
        )
    return name


def _load_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have a number and no name
        raise UsageError("your user name is unknown", "give --username=NAME") from None


# ---------------------------------------------------------------- the commands


def create(cloud: Cloud, wish: MachineOptions) -> None:
    """Make it, wait until it can be reached, and put docker and Assay on it."""
    # what Google does not offer is refused before anything is made, in a dry run too
    if wish.machine_type is None and wish.accelerator_count not in COUNTS:
        near = next((count for count in COUNTS if count > wish.accelerator_count), COUNTS[-1])
        raise UsageError(
            f"an n1 machine has 1, 2, 4 or 8 accelerators, not {wish.accelerator_count}",
            f"use --accelerator_count={near}, or another kind of machine: --machine_type=TYPE",
        )
    with _packed_assay(cloud.tools.dry_run) as wheel:
        try:
            cloud.tools.do(build_create_command(cloud.target, wish))
            _wait_for_ssh(cloud)
            _prepare(cloud, wish, wheel)
        except KeyboardInterrupt:
            cloud.tools.remark(
                f"{cloud.target.name} may exist: {cloud.target.render('status')} shows it, delete removes it"
            )
            raise
    if not cloud.tools.dry_run:
        count = wish.accelerator_count
        accelerators = f"{count} x {wish.accelerator_type}" if count else "no accelerator"
        cloud.say(f"created {cloud.target.name}: {wish.machine}, {accelerators}")
    _show_way(cloud)


@contextlib.contextmanager
def _packed_assay(dry_run: bool) -> Iterator[str]:
    """Packed before there is a machine: what can fail without one should."""
    if dry_run:
        yield os.path.join(tempfile.gettempdir(), build_wheel_name())
        return
    with tempfile.TemporaryDirectory(prefix="assay-wheel-") as folder:
        yield write_wheel(folder)


def start(cloud: Cloud) -> None:
    cloud.tools.do(build_instance_command("start", cloud.target))
    if not cloud.tools.dry_run:
        cloud.say(f"started {cloud.target.name}")
    _show_way(cloud)


def stop(cloud: Cloud) -> bool:
    """False, and nothing done, where there are local disks: Google forgets them, so the machine can only be deleted."""
    if not cloud.tools.dry_run:
        instance = _parse_instance(_parse_json(cloud.tools.ask(build_describe_command(cloud.target))))
        if instance.local_disks:
            disks = render_count(instance.local_disks, "local NVMe disk")
            cloud.tools.remark(
                f"{instance.name} has {disks}: it cannot be stopped, it can only be deleted, with everything on them\n"
                f"  {cloud.target.render('delete')}"
            )
            return False
    else:
        cloud.tools.ask(build_describe_command(cloud.target))
    cloud.tools.do(build_instance_command("stop", cloud.target))
    if not cloud.tools.dry_run:
        cloud.say(f"stopped {cloud.target.name}")
    return True


def delete(cloud: Cloud) -> None:
    cloud.tools.do([*build_instance_command("delete", cloud.target), "--quiet"])
    if not cloud.tools.dry_run:
        cloud.say(f"deleted {cloud.target.name}")


def load_status(cloud: Cloud) -> Instance | None:
    """None in a dry run."""
    text = cloud.tools.ask(build_status_command(cloud.target))
    if cloud.tools.dry_run:
        return None
    found = [one for one in parse_instances(text) if one.name == cloud.target.name]
    if not found:
        raise UsageError(
            f"there is no machine {cloud.target.name} in {cloud.target.zone}",
            f"{cloud.target.render('create')} makes it; assay perfzero cloud list_all shows all",
        )
    return found[0]


def load_all(project: str | None, tools: Tools) -> tuple[Instance, ...]:
    """Every machine that was made by this command, whoever did it."""
    text = tools.ask(build_list_command(project))
    return () if tools.dry_run else parse_instances(text)


def _show_way(cloud: Cloud) -> None:
    """The ssh command, also in a dry run: it is what one wants to know next."""
    way = shlex.join(build_way(cloud.target))
    if cloud.tools.dry_run:
        cloud.tools.tell(f"then, to enter it: {way}")
    else:
        cloud.say(f"to enter it, with port 6006 forwarded for TensorBoard:\n  {way}")


# ---------------------------------------------------------------- a new machine


def _wait_for_ssh(cloud: Cloud) -> None:
    """A new machine takes a while to listen."""
    argv = build_ssh_command(cloud.target, "exit", is_first=True)
    if cloud.tools.dry_run:
        cloud.tools.show(f"{shlex.join(argv)}  # until it listens: {SSH_TRIES} times at most, {SSH_PAUSE_S:g} s apart")
        return
    answer = ToolResult(0)
    for number in range(1, SSH_TRIES + 1):
        answer = ask_tool(argv)
        if answer.code == 0:
            return
        cloud.tools.remark(f"{cloud.target.name} cannot be reached by ssh yet (try {number} of {SSH_TRIES})")
        if cloud.tools.debug:
            cloud.tools.remark(answer.words)
        if number < SSH_TRIES:
            time.sleep(SSH_PAUSE_S)
    _show_way(cloud)
    raise InfrastructureError(
        f"{cloud.target.name} was created and costs money, but cannot be reached by ssh: {answer.words}",
        f"remove it: {cloud.target.render('delete')}; or, when it can be reached, run there:\n"
        f"    {_PREPARE_DOCKER}\n    {_PREPARE_ASSAY.format(source='assay[all]')}",
    )


def _prepare(cloud: Cloud, wish: MachineOptions, wheel: str) -> None:
    try:
        for argv in build_preparation(cloud.target, wish, wheel):
            cloud.tools.do(argv)
    except AssayError as error:
        _show_way(cloud)
        raise InfrastructureError(
            f"{cloud.target.name} was created and costs money, but could not be set up: {error.message}",
            f"set it up by hand, or remove it: {cloud.target.render('delete')}",
        ) from None


def build_preparation(target: CloudTarget, wish: MachineOptions, wheel: str) -> list[list[str]]:
    """Assay's wheel is brought along: the machine needs no source tree, and has the version that is used here."""
    name = os.path.basename(wheel)
    commands = [
        ["gcloud", "compute", "scp", *_way_flags(target), "--quiet", wheel, f"{target.name}:{name}"],
        build_ssh_command(target, _PREPARE_ASSAY.format(source=f"./{name}[all]")),
        build_ssh_command(target, _PREPARE_DOCKER),
    ]
    return [*commands, build_ssh_command(target, _PREPARE_GPU)] if wish.accelerator_count else commands


# ---------------------------------------------------------------- command lines


def build_create_command(target: CloudTarget, wish: MachineOptions) -> list[str]:
    image = (
        [f"--image={wish.image}"]
        if wish.image
        else [f"--image-family={IMAGE_FAMILY}", f"--image-project={IMAGE_PROJECT}"]
    )
    flags = [*image, *_where(target), f"--machine-type={wish.machine}", "--maintenance-policy=TERMINATE"]
    if wish.boot_ssd_size_gb:
        flags += [f"--boot-disk-size={wish.boot_ssd_size_gb}GB", "--boot-disk-type=pd-ssd"]
    if wish.accelerator_count:
        flags.append(f"--accelerator=count={wish.accelerator_count},type={wish.accelerator_type}")
    if wish.cpu_min_platform:
        flags.append(f"--min-cpu-platform={wish.cpu_min_platform}")
    return [
        "gcloud",
        "compute",
        "instances",
        "create",
        target.name,
        *flags,
        *["--local-ssd=interface=NVME"] * wish.nvme_count,
    ]


def build_instance_command(verb: str, target: CloudTarget) -> list[str]:
    return ["gcloud", "compute", "instances", verb, target.name, *_where(target)]


def build_describe_command(target: CloudTarget) -> list[str]:
    return [*build_instance_command("describe", target), "--format=json"]


def build_status_command(target: CloudTarget) -> list[str]:
    """`list` and not `describe`: a machine that is not there is then an answer, and no error."""
    return _list_command(f"name={target.name} AND zone:{target.zone}", target.project)


def build_list_command(project: str | None) -> list[str]:
    return _list_command(f"name ~ ^{INSTANCE_PREFIX}", project)


def _list_command(words: str, project: str | None) -> list[str]:
    flags = [f"--project={project}"] if project else []
    return ["gcloud", "compute", "instances", "list", f"--filter={words}", *flags, "--format=json"]


def build_ssh_command(target: CloudTarget, command: str, is_first: bool = False) -> list[str]:
    """`--quiet`: gcloud makes its key without asking for a passphrase."""
    first = ["--strict-host-key-checking=no"] if is_first else []
    return ["gcloud", "compute", "ssh", *_way_flags(target), "--quiet", *first, f"--command={command}", target.name]


def build_way(target: CloudTarget) -> list[str]:
    """What a user types to enter the machine."""
    return ["gcloud", "compute", "ssh", *_way_flags(target), target.name, "--", *_TENSORBOARD]


def _way_flags(target: CloudTarget) -> list[str]:
    flags = ["--internal-ip"] if target.internal_ip else []
    if target.key_file:
        flags.append(f"--ssh-key-file={target.key_file}")
    return [*flags, *_where(target)]


def _where(target: CloudTarget) -> list[str]:
    return [*([f"--project={target.project}"] if target.project else []), f"--zone={target.zone}"]


# ---------------------------------------------------------------- what gcloud answers


def parse_instances(text: str) -> tuple[Instance, ...]:
    found = _parse_json(text)
    if not isinstance(found, list):
        raise InfrastructureError("gcloud answered with something that is not a list of machines")
    return tuple(sorted(map(_parse_instance, found), key=lambda one: (one.name, one.zone)))


def _parse_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        raise InfrastructureError(
            "gcloud answered with something that is not JSON", text.strip()[:200] or None
        ) from None


def _parse_instance(found: Any) -> Instance:
    try:
        networks: Sequence[Any] = found.get("networkInterfaces", [])
        access = [one for network in networks for one in network.get("accessConfigs", [])]
        return Instance(
            found["name"],
            _last_part(found["zone"]),
            found["status"],
            _last_part(found["machineType"]),
            external=tuple(one["natIP"] for one in access if one.get("natIP")),
            internal=tuple(one["networkIP"] for one in networks if one.get("networkIP")),
            accelerators=tuple(
                (_last_part(one["acceleratorType"]), int(one["acceleratorCount"]))
                for one in found.get("guestAccelerators", [])
            ),
            local_disks=sum(disk.get("type") == "SCRATCH" for disk in found.get("disks", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureError(f"gcloud describes a machine in an unknown form: {error!r}") from None


def _last_part(url: str) -> str:
    """gcloud names zones and types by their whole addresses."""
    return url.rsplit("/", 1)[-1]

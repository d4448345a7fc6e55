"""`assay perfzero cloud`: a machine with GPUs in Google's cloud, by the commands and flags of cloud_manager.py."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

from assay.compat.original_command import Parsed, count, write_lines
from assay.compat.perfzero.tool import KnownFailure, ToolResult, Tools, ask_tool
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import AssayError, InfrastructureError, UsageError, did_you_mean
from assay.show.console import Console
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
    """One machine, and how it is reached. Without a project it is the one that gcloud is configured for."""

    name: str
    zone: str = DEFAULT_ZONE
    project: str | None = None
    internal_ip: bool = False
    key_file: str | None = None

    def render(self, command: str) -> str:
        """`assay perfzero cloud COMMAND` for this machine, to be pasted."""
        words = ["assay", "perfzero", "cloud", command]
        words += [f"--project={self.project}"] if self.project else []
        words += [f"--zone={self.zone}"] if self.zone != DEFAULT_ZONE else []
        words += [f"--username={self.name.removeprefix(INSTANCE_PREFIX)}"] if self.name != _build_own_name() else []
        return shlex.join(words)

    @property
    def place(self) -> list[str]:
        """Flags of every command of gcloud."""
        return [*_project_flags(self.project), f"--zone={self.zone}"]

    @property
    def access(self) -> list[str]:
        """Flags of gcloud's ssh and scp."""
        flags = ["--internal-ip"] if self.internal_ip else []
        return [*flags, *([f"--ssh-key-file={self.key_file}"] if self.key_file else []), *self.place]


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The hardware and the image of a new machine."""

    accelerator_count: int = 1
    accelerator_type: str = DEFAULT_ACCELERATOR
    cpu_min_platform: str | None = None
    machine_type: str | None = None
    image: str | None = None  # of the user's own project, or projects/P/global/images/NAME
    nvme_count: int = 0
    boot_ssd_size: int | None = None  # in GB

    @property
    def machine(self) -> str:
        """Eight processors for each accelerator, rounded up to a size that exists; or the type that is given."""
        wanted = 8 * max(self.accelerator_count, 1)
        return self.machine_type or f"n1-standard-{next((size for size in _SIZES if size >= wanted), _SIZES[-1])}"

    @property
    def accelerators(self) -> str:
        count = self.accelerator_count
        return f"{count} x {self.accelerator_type}" if count else "no accelerator"


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

GCLOUD_FAILURES = (
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


# ---------------------------------------------------------------- the name of a machine


def build_instance_name(username: str | None) -> str:
    """`perfzero-dev-<user>`, if Google allows it as a name."""
    try:
        user = username or getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have a number and no name
        raise UsageError("your user name is unknown", "give --username=NAME") from None
    name = f"{INSTANCE_PREFIX}{user}"
    if not re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
        near = re.sub(r"[^a-z0-9]+", "-", user.lower())[: 63 - len(INSTANCE_PREFIX)].strip("-")
        raise UsageError(
            f"{name!r} cannot be the name of a machine: small letters, digits and dashes, 63 at most",
            f"try --username={near or 'NAME'}",
        )
    return name


def _build_own_name() -> str | None:
    """None where the user has no name that a machine can have."""
    try:
        return build_instance_name(None)
    except UsageError:
        return None


# ---------------------------------------------------------------- the commands


@dataclass(frozen=True, slots=True)
class Cloud:
    """One machine: each method is a command of `assay perfzero cloud`."""

    target: CloudTarget
    tools: Tools
    say: Callable[[str], None]

    def create(self, options: MachineOptions) -> None:
        """Make it, wait until it can be reached, and put docker and Assay on it."""
        # what Google does not offer is refused before anything is made, in a dry run too
        if options.machine_type is None and options.accelerator_count not in COUNTS:
            near = next((count for count in COUNTS if count > options.accelerator_count), COUNTS[-1])
            raise UsageError(
                f"an n1 machine has 1, 2, 4 or 8 accelerators, not {options.accelerator_count}",
                f"use --accelerator_count={near}, or another kind of machine: --machine_type=TYPE",
            )
        with _packed_assay(self.tools.dry_run) as wheel:
            try:
                self.tools.do(build_create_command(self.target, options))
                self._wait_for_ssh()
                self._prepare(options, wheel)
            except KeyboardInterrupt:
                status = self.target.render("status")
                self.tools.remark(f"{self.target.name} may exist: {status} shows it, delete removes it")
                raise
        self._report(f"created {self.target.name}: {options.machine}, {options.accelerators}")
        self._show_way()

    def start(self) -> None:
        self.tools.do(self._build_command("start"))
        self._report(f"started {self.target.name}")
        self._show_way()

    def stop(self) -> bool:
        """False, and nothing done, where there are local disks: Google forgets them, so it can only be deleted."""
        answer = self.tools.ask([*self._build_command("describe"), "--format=json"])
        instance = None if self.tools.dry_run else _parse_instance(_parse_json(answer))
        if instance is not None and instance.local_disks:
            disks = render_count(instance.local_disks, "local NVMe disk")
            self.tools.remark(
                f"{instance.name} has {disks}: it cannot be stopped, it can only be deleted, with everything on them\n"
                f"  {self.target.render('delete')}"
            )
            return False
        self.tools.do(self._build_command("stop"))
        self._report(f"stopped {self.target.name}")
        return True

    def delete(self) -> None:
        self.tools.do([*self._build_command("delete"), "--quiet"])
        self._report(f"deleted {self.target.name}")

    def load_status(self) -> Instance | None:
        """None in a dry run. `list` and not `describe`: a machine that does not exist is then not an error."""
        target = self.target
        found = load_instances(f"name={target.name} AND zone:{target.zone}", target.project, self.tools)
        if self.tools.dry_run:
            return None
        mine = [one for one in found if one.name == target.name]
        if not mine:
            raise UsageError(
                f"there is no machine {target.name} in {target.zone}",
                f"{target.render('create')} makes it; assay perfzero cloud list_all shows all",
            )
        return mine[0]

    def _build_command(self, verb: str) -> list[str]:
        return ["gcloud", "compute", "instances", verb, self.target.name, *self.target.place]

    def _report(self, line: str) -> None:
        if not self.tools.dry_run:
            self.say(line)

    def _show_way(self) -> None:
        """The ssh command, also in a dry run: it is what users need next."""
        if self.tools.dry_run:
            self.tools.announce(f"then, to enter it: {shlex.join(build_way(self.target))}")
        else:
            self.say(render_way(self.target))

    def _wait_for_ssh(self) -> None:
        """A new machine takes a while to listen."""
        argv = build_ssh_command(self.target, "exit", is_first=True)
        if self.tools.dry_run:
            limit = f"{SSH_TRIES} times at most, {SSH_PAUSE_S:g} s apart"
            self.tools.show(f"{shlex.join(argv)}  # until it listens: {limit}")
            return
        result = ToolResult(0)
        for number in range(1, SSH_TRIES + 1):
            result = ask_tool(argv)
            if result.code == 0:
                return
            self.tools.remark(f"{self.target.name} cannot be reached by ssh yet (try {number} of {SSH_TRIES})")
            if self.tools.debug:
                self.tools.remark(result.errors)
            if number < SSH_TRIES:
                time.sleep(SSH_PAUSE_S)
        self._show_way()
        raise InfrastructureError(
            f"{self.target.name} was created and costs money, but cannot be reached by ssh: {result.errors}",
            f"remove it: {self.target.render('delete')}; or, when it can be reached, run there:\n"
            f"    {_PREPARE_DOCKER}\n    {_PREPARE_ASSAY.format(source='assay[all]')}",
        )

    def _prepare(self, options: MachineOptions, wheel: str) -> None:
        try:
            for argv in build_preparation(self.target, options, wheel):
                self.tools.do(argv)
        except AssayError as error:
            self._show_way()
            raise InfrastructureError(
                f"{self.target.name} was created and costs money, but could not be set up: {error.message}",
                f"set it up by hand, or remove it: {self.target.render('delete')}",
            ) from None


@contextlib.contextmanager
def _packed_assay(dry_run: bool) -> Iterator[str]:
    """Packed before there is a machine: what can fail without one should."""
    if dry_run:
        yield os.path.join(tempfile.gettempdir(), build_wheel_name())
        return
    with tempfile.TemporaryDirectory(prefix="assay-wheel-") as folder:
        yield write_wheel(folder)


# ---------------------------------------------------------------- command lines


def build_create_command(target: CloudTarget, options: MachineOptions) -> list[str]:
    flags = [f"--image-family={IMAGE_FAMILY}", f"--image-project={IMAGE_PROJECT}"]
    if options.image:
        flags = [f"--image={options.image}"]
    flags += [*target.place, f"--machine-type={options.machine}", "--maintenance-policy=TERMINATE"]
    if options.boot_ssd_size:
        flags += [f"--boot-disk-size={options.boot_ssd_size}GB", "--boot-disk-type=pd-ssd"]
    if options.accelerator_count:
        flags.append(f"--accelerator=count={options.accelerator_count},type={options.accelerator_type}")
    if options.cpu_min_platform:
        flags.append(f"--min-cpu-platform={options.cpu_min_platform}")
    flags += ["--local-ssd=interface=NVME"] * options.nvme_count
    return ["gcloud", "compute", "instances", "create", target.name, *flags]


def build_preparation(target: CloudTarget, options: MachineOptions, wheel: str) -> list[list[str]]:
    """Assay's wheel is brought along: the machine needs no source tree, and has the version that is used here."""
    name = os.path.basename(wheel)
    commands = [
        ["gcloud", "compute", "scp", *target.access, "--quiet", wheel, f"{target.name}:{name}"],
        build_ssh_command(target, _PREPARE_ASSAY.format(source=f"./{name}[all]")),
        build_ssh_command(target, _PREPARE_DOCKER),
    ]
    return [*commands, build_ssh_command(target, _PREPARE_GPU)] if options.accelerator_count else commands


def build_ssh_command(target: CloudTarget, command: str, is_first: bool = False) -> list[str]:
    """`--quiet`: gcloud makes its key without asking for a passphrase."""
    first = ["--strict-host-key-checking=no"] if is_first else []
    return ["gcloud", "compute", "ssh", *target.access, "--quiet", *first, f"--command={command}", target.name]


def build_way(target: CloudTarget) -> list[str]:
    """What a user types to enter the machine."""
    return ["gcloud", "compute", "ssh", *target.access, target.name, "--", *_TENSORBOARD]


def render_way(target: CloudTarget) -> str:
    return f"to enter it, with port 6006 forwarded for TensorBoard:\n  {shlex.join(build_way(target))}"


def _project_flags(project: str | None) -> list[str]:
    return [f"--project={project}"] if project else []


# ---------------------------------------------------------------- what gcloud answers


def load_instances(condition: str, project: str | None, tools: Tools) -> tuple[Instance, ...]:
    """None in a dry run."""
    flags = [f"--filter={condition}", *_project_flags(project), "--format=json"]
    answer = tools.ask(["gcloud", "compute", "instances", "list", *flags])
    return () if tools.dry_run else parse_instances(answer)


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


# ---------------------------------------------------------------- the command line

COMMANDS = {
    "create": "make your machine, set it up, and print the ssh command",
    "start": "start it again, and print the ssh command",
    "stop": "stop it; a machine with local NVMe disks can only be deleted",
    "status": "its state and its addresses",
    "delete": "delete it, with everything on it",
    "list_all": "all machines of the project that this command made",
}


class _Parser(argparse.ArgumentParser):
    """The error names the command that was probably meant."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)'", message)
        hint = did_you_mean(wrong[1], COMMANDS) if wrong else None
        super().error(f"there is no command {wrong[1]!r}: {hint}" if wrong and hint else message)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="assay perfzero cloud",
        description="A machine of your own in Google's cloud, by way of gcloud. Each command has its own --help.",
    )
    commands = parser.add_subparsers(dest="cloud_command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        one = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        one.add_argument("--project", metavar="NAME", help="default: the project that gcloud is configured for")
        one.add_argument("--debug", action="store_true", help="show every command, and the output of failed attempts")
        one.add_argument("-n", "--dry-run", action="store_true", help="print the commands; do nothing")
        if name != "list_all":
            one.add_argument(
                "--username", metavar="NAME", help="the machine is perfzero-dev-NAME; default: your user name"
            )
            one.add_argument("--zone", default=DEFAULT_ZONE, help=f"default: {DEFAULT_ZONE}")
            one.add_argument("--ssh-internal-ip", action="store_true", help="reach it by its internal address")
            one.add_argument("--ssh-key-file", metavar="FILE", help="the key for ssh; default: gcloud's own")
        if name == "create":
            _add_machine_options(one)
        if name in {"status", "list_all"}:
            one.add_argument("--json", action="store_true", help="the answer as JSON")
    return parser


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerator_count", type=count, default=1, metavar="N", help="default: 1; 0 for none")
    parser.add_argument(
        "--accelerator_type", default=DEFAULT_ACCELERATOR, metavar="TYPE", help=f"default: {DEFAULT_ACCELERATOR}"
    )
    parser.add_argument("--cpu_min_platform", metavar="NAME", help="as in 'Intel Skylake'")
    parser.add_argument("--machine_type", metavar="TYPE", help="default: n1-standard-N, 8 processors per accelerator")
    parser.add_argument(
        "--image",
        metavar="NAME",
        help=f"of your project, or projects/P/global/images/NAME; default: the newest of Google's {IMAGE_FAMILY}",
    )
    parser.add_argument("--nvme_count", type=count, default=0, metavar="N", help="local NVMe disks; default: 0")
    parser.add_argument(
        "--boot_ssd_size",
        type=count,
        metavar="GB",
        help="size of the boot disk, which is then an SSD; default: the image's",
    )


def run(parsed: Parsed) -> int:
    console = Console()
    tools = Tools(parsed.dry_run, console.print, console.error, parsed.debug, GCLOUD_FAILURES)
    if parsed.cloud_command == "list_all":
        _show_all(parsed, tools)
        return 0
    target = CloudTarget(
        build_instance_name(parsed.username),
        zone=parsed.zone,
        project=parsed.project or None,
        internal_ip=parsed.ssh_internal_ip,
        key_file=parsed.ssh_key_file,
    )
    machine = Cloud(target, tools, console.print_lines)
    match parsed.cloud_command:
        case "create":
            machine.create(MachineOptions(**{each.name: getattr(parsed, each.name) for each in fields(MachineOptions)}))
        case "start":
            machine.start()
        case "stop":
            return 0 if machine.stop() else 1
        case "delete":
            machine.delete()
        case _:
            _show_status(parsed, machine)
    return 0


def _show_status(parsed: Parsed, machine: Cloud) -> None:
    instance = machine.load_status()
    if instance is None:
        return
    if parsed.json:
        Console().write_json(asdict(instance))
        return
    write_lines(render_instance(instance))
    if instance.state == "RUNNING":
        Console().print_lines(render_way(machine.target))


def _show_all(parsed: Parsed, tools: Tools) -> None:
    """Every machine of the project that this command has made, for any user."""
    found = load_instances(f"name ~ ^{INSTANCE_PREFIX}", parsed.project or None, tools)
    if parsed.json and not parsed.dry_run:
        Console().write_json([asdict(one) for one in found])
    elif not parsed.dry_run:
        write_lines(line for instance in found for line in render_instance(instance))
        Console().print_lines(render_count(len(found), "machine"))


def render_instance(instance: Instance) -> list[str]:
    """The name and state of a machine, then what it is and where."""
    state = {"TERMINATED": "TERMINATED (stopped)"}.get(instance.state, instance.state)
    parts = [instance.machine, *(f"{count} x {kind}" for kind, count in instance.accelerators)]
    if instance.local_disks:
        parts.append(render_count(instance.local_disks, "local disk"))
    lines = [f"{instance.name}  {state}  {instance.zone}", f"  {', '.join(parts)}"]
    addresses = [
        *(f"{one} (external)" for one in instance.external),
        *(f"{one} (internal)" for one in instance.internal),
    ]
    return [*lines, f"  address: {', '.join(addresses) or 'none'}"]

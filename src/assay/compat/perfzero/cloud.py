"""`assay perfzero cloud`: a machine with GPUs in Google's cloud, with the commands and flags of cloud_manager.py."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from assay.compat.original_command import Parsed, count, write_lines
from assay.compat.perfzero.tool import Tools, ask_tool
from assay.compat.perfzero.wheel import build_wheel_name, write_wheel
from assay.errors import AssayError, InfrastructureError, UsageError, did_you_mean
from assay.show.formatting import render_count
from assay.system.files import parse_json

INSTANCE_PREFIX = "perfzero-dev-"
DEFAULT_ZONE = "us-west1-b"
DEFAULT_ACCELERATOR = "nvidia-tesla-v100"
# Google's public images for GPUs: CUDA 12.9, driver 580, Python 3.12; served until August 2028
IMAGE_PROJECT = "deeplearning-platform-release"
IMAGE_FAMILY = "common-cu129-ubuntu-2404-nvidia-580"
_COUNTS = (0, 1, 2, 4, 8)  # accelerators that an n1 machine can have
SSH_TRIES = 12
SSH_PAUSE_S = 5.0
_TENSORBOARD = ("-L", "6006:127.0.0.1:6006")  # forwards TensorBoard on the machine to localhost:6006

# Shell commands that set up a new machine. Images have different programs installed.
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


# ---------------------------------------------------------------- the name of a machine


def build_instance_name(username: str | None) -> str:
    """Return `perfzero-dev-<user>`, or raise an error if Google does not allow this name."""
    try:
        user = username or getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have no name
        raise UsageError("your user name is unknown", "give --username=NAME") from None
    name = f"{INSTANCE_PREFIX}{user}"
    if not re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", name):
        near = re.sub(r"[^a-z0-9]+", "-", user.lower())[: 63 - len(INSTANCE_PREFIX)].strip("-")
        raise UsageError(
            f"{name!r} cannot be the name of a machine: small letters, digits and dashes, 63 at most",
            f"try --username={near or 'NAME'}",
        )
    return name


# ---------------------------------------------------------------- the commands


class Cloud:
    """A machine in Google's cloud. Each public method is a command of `assay perfzero cloud`."""

    def __init__(self, flags: Parsed, tools: Tools) -> None:
        self._name = build_instance_name(flags.username)
        self._flags = flags
        self._tools = tools
        self._zone_flags = [*_project_flags(flags), f"--zone={flags.zone}"]  # flags of every command of gcloud
        self._access = list(self._zone_flags)  # flags of gcloud's ssh and scp
        if flags.ssh_key_file:
            self._access.insert(0, f"--ssh-key-file={flags.ssh_key_file}")
        if flags.ssh_internal_ip:
            self._access.insert(0, "--internal-ip")

    def create(self) -> None:
        """Create the machine, wait until it can be reached, and install docker and Assay on it."""
        flags = self._flags
        # refuse counts that Google does not offer before creating anything, also in a dry run
        if flags.machine_type is None and flags.accelerator_count not in _COUNTS:
            near = next((count for count in _COUNTS if count > flags.accelerator_count), _COUNTS[-1])
            hint = f"use --accelerator_count={near}, or another kind of machine: --machine_type=TYPE"
            raise UsageError(f"an n1 machine has 1, 2, 4 or 8 accelerators, not {flags.accelerator_count}", hint)
        machine = flags.machine_type or f"n1-standard-{8 * max(flags.accelerator_count, 1)}"
        with ExitStack() as stack:
            # the wheel is packed before the machine is created, so that errors of packing cost nothing
            if self._tools.dry_run:
                wheel = os.path.join(tempfile.gettempdir(), build_wheel_name())
            else:
                wheel = write_wheel(stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-wheel-")))
            try:
                self._do("create", *self._build_machine_flags(machine))
                self._wait_for_ssh()
                self._prepare(wheel)
            except KeyboardInterrupt:
                status = self._render_call("status")
                self._tools.remark(f"{self._name} may exist: {status} shows it, delete removes it")
                raise
        number = flags.accelerator_count
        accelerators = f"{number} x {flags.accelerator_type}" if number else "no accelerator"
        self._report(f"created {self._name}: {machine}, {accelerators}")
        self._show_way()

    def start(self) -> None:
        self._do("start", *self._zone_flags)
        self._report(f"started {self._name}")
        self._show_way()

    def stop(self) -> int:
        """Stop the machine; with local disks, do not stop it and return 1, since Google would delete their content."""
        answer = self._tools.ask(self._build_command("describe", *self._zone_flags, "--format=json"))
        disks = 0 if self._tools.dry_run else _parse_instance(_parse_json(answer)).local_disks
        if disks:
            self._tools.remark(
                f"{self._name} has {render_count(disks, 'local NVMe disk')}: it cannot be stopped, it can only be "
                f"deleted, with everything on them\n  {self._render_call('delete')}"
            )
            return 1
        self._do("stop", *self._zone_flags)
        self._report(f"stopped {self._name}")
        return 0

    def delete(self) -> None:
        self._do("delete", *self._zone_flags, "--quiet")
        self._report(f"deleted {self._name}")

    def status(self) -> None:
        """Show the machine, by `list` and not by `describe`, which fails for a machine that does not exist."""
        found = load_instances(f"name={self._name} AND zone:{self._flags.zone}", self._flags, self._tools)
        mine = next((one for one in found if one.name == self._name), None)
        if self._tools.dry_run:
            return
        if mine is None:
            hint = f"{self._render_call('create')} makes it; assay perfzero cloud list_all shows all"
            raise UsageError(f"there is no machine {self._name} in {self._flags.zone}", hint)
        if self._flags.json:
            self._tools.console.write_json(asdict(mine))
            return
        write_lines(render_instance(mine))
        if mine.state == "RUNNING":
            self._show_way()

    # ------------------------------------------------------------ steps

    def _do(self, verb: str, *flags: str) -> None:
        self._tools.do(self._build_command(verb, *flags))

    def _report(self, line: str) -> None:
        if not self._tools.dry_run:
            self._tools.console.print(line)

    def _show_way(self) -> None:
        """Print the ssh command with which a user logs in to the machine, also in a dry run."""
        way = shlex.join(["gcloud", "compute", "ssh", *self._access, self._name, "--", *_TENSORBOARD])
        if self._tools.dry_run:
            self._tools.announce(f"then, to enter it: {way}")
        else:
            self._tools.console.print_lines(f"to enter it, with port 6006 forwarded for TensorBoard:\n  {way}")

    def _wait_for_ssh(self) -> None:
        """Try to reach a new machine by ssh until it answers, or fail after a number of tries."""
        argv = self._build_ssh("exit", "--strict-host-key-checking=no")
        if self._tools.dry_run:
            limit = f"{SSH_TRIES} times at most, {SSH_PAUSE_S:g} s apart"
            self._tools.console.print(f"{shlex.join(argv)}  # until it listens: {limit}")
            return
        problem = ""
        for number in range(1, SSH_TRIES + 1):
            try:
                ask_tool(argv)
            except AssayError as error:
                problem = error.message
            else:
                return
            self._tools.remark(f"{self._name} cannot be reached by ssh yet (try {number} of {SSH_TRIES})")
            if self._tools.debug:
                self._tools.remark(problem)
            if number < SSH_TRIES:
                time.sleep(SSH_PAUSE_S)
        self._show_way()
        raise InfrastructureError(
            f"{self._name} was created and costs money, but cannot be reached by ssh: {problem}",
            f"remove it: {self._render_call('delete')}; or, when it can be reached, run there:\n"
            f"    {_PREPARE_DOCKER}\n    {_PREPARE_ASSAY.format(source='assay[all]')}",
        )

    def _prepare(self, wheel: str) -> None:
        """Install docker and Assay. The wheel is copied, so that the machine has this version without a source tree."""
        name = os.path.basename(wheel)
        copy = ["gcloud", "compute", "scp", *self._access, "--quiet", wheel, f"{self._name}:{name}"]
        scripts = [_PREPARE_ASSAY.format(source=f"./{name}[all]"), _PREPARE_DOCKER]
        scripts += [_PREPARE_GPU] if self._flags.accelerator_count else []
        try:
            for argv in (copy, *map(self._build_ssh, scripts)):
                self._tools.do(argv)
        except AssayError as error:
            self._show_way()
            raise InfrastructureError(
                f"{self._name} was created and costs money, but could not be set up: {error.message}",
                f"set it up by hand, or remove it: {self._render_call('delete')}",
            ) from None

    # ------------------------------------------------------------ command lines

    def _build_command(self, verb: str, *flags: str) -> list[str]:
        return ["gcloud", "compute", "instances", verb, self._name, *flags]

    def _build_machine_flags(self, machine: str) -> Iterator[str]:
        flags = self._flags
        if flags.image:
            yield f"--image={flags.image}"
        else:
            yield from (f"--image-family={IMAGE_FAMILY}", f"--image-project={IMAGE_PROJECT}")
        yield from (*self._zone_flags, f"--machine-type={machine}", "--maintenance-policy=TERMINATE")
        if flags.boot_ssd_size:
            yield from (f"--boot-disk-size={flags.boot_ssd_size}GB", "--boot-disk-type=pd-ssd")
        if flags.accelerator_count:
            yield f"--accelerator=count={flags.accelerator_count},type={flags.accelerator_type}"
        if flags.cpu_min_platform:
            yield f"--min-cpu-platform={flags.cpu_min_platform}"
        yield from ["--local-ssd=interface=NVME"] * flags.nvme_count

    def _build_ssh(self, command: str, *flags: str) -> list[str]:
        """Build a command of gcloud ssh. With `--quiet` gcloud creates a key without asking for a passphrase."""
        words = [*self._access, "--quiet", *flags, f"--command={command}", self._name]
        return ["gcloud", "compute", "ssh", *words]

    def _render_call(self, command: str) -> str:
        """Render `assay perfzero cloud COMMAND` for this machine, to be pasted."""
        flags, words = self._flags, ["assay", "perfzero", "cloud", command]
        words += _project_flags(flags)
        words += [f"--zone={flags.zone}"] if flags.zone != DEFAULT_ZONE else []
        words += [f"--username={flags.username}"] if flags.username else []
        return shlex.join(words)


def _project_flags(flags: Parsed) -> list[str]:
    """Return the flag for the project; without a flag gcloud uses its configured project."""
    return [f"--project={flags.project}"] if flags.project else []


# ---------------------------------------------------------------- what gcloud answers


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as gcloud describes it."""

    name: str
    zone: str
    state: str  # Google's name: RUNNING, TERMINATED, …
    machine: str
    external: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    accelerators: tuple[tuple[str, int], ...] = ()
    local_disks: int = 0


def load_instances(condition: str, flags: Parsed, tools: Tools) -> tuple[Instance, ...]:
    """Load the machines of the project that meet the condition; in a dry run none."""
    words = [f"--filter={condition}", *_project_flags(flags), "--format=json"]
    answer = tools.ask(["gcloud", "compute", "instances", "list", *words])
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
        devices = found.get("guestAccelerators", [])
        return Instance(
            found["name"],
            _last_part(found["zone"]),
            found["status"],
            _last_part(found["machineType"]),
            external=tuple(one["natIP"] for one in access if one.get("natIP")),
            internal=tuple(one["networkIP"] for one in networks if one.get("networkIP")),
            accelerators=tuple((_last_part(one["acceleratorType"]), int(one["acceleratorCount"])) for one in devices),
            local_disks=sum(disk.get("type") == "SCRATCH" for disk in found.get("disks", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureError(f"gcloud describes a machine in an unknown form: {error!r}") from None


def _last_part(url: str) -> str:
    """Return the last part of a URL, which is the name of a zone or type in the output of gcloud."""
    return url.rsplit("/", 1)[-1]


def render_instance(instance: Instance) -> list[str]:
    """Return lines with the name and state of a machine, then its type and location."""
    state = {"TERMINATED": "TERMINATED (stopped)"}.get(instance.state, instance.state)
    parts = [instance.machine, *(f"{count} x {kind}" for kind, count in instance.accelerators)]
    if instance.local_disks:
        parts.append(render_count(instance.local_disks, "local disk"))
    lines = [f"{instance.name}  {state}  {instance.zone}", f"  {', '.join(parts)}"]
    addresses = [f"{one} (external)" for one in instance.external] + [f"{one} (internal)" for one in instance.internal]
    return [*lines, f"  address: {', '.join(addresses) or 'none'}"]


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
    """A parser whose error for an unknown command suggests a similar one."""

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
        add = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.").add_argument
        add("--project", metavar="NAME", help="default: the project that gcloud is configured for")
        add("--debug", action="store_true", help="show every command, and the output of failed attempts")
        add("-n", "--dry-run", action="store_true", help="print the commands; do nothing")
        if name != "list_all":
            add("--username", metavar="NAME", help="the machine is perfzero-dev-NAME; default: your user name")
            add("--zone", default=DEFAULT_ZONE, help=f"default: {DEFAULT_ZONE}")
            add("--ssh-internal-ip", action="store_true", help="reach it by its internal address")
            add("--ssh-key-file", metavar="FILE", help="the key for ssh; default: gcloud's own")
        if name == "create":
            usual = DEFAULT_ACCELERATOR
            add("--accelerator_count", type=count, default=1, metavar="N", help="default: 1; 0 for none")
            add("--accelerator_type", default=usual, metavar="TYPE", help=f"default: {usual}")
            add("--cpu_min_platform", metavar="NAME", help="as in 'Intel Skylake'")
            add("--machine_type", metavar="TYPE", help="default: n1-standard-N, 8 processors per accelerator")
            newest = f"the newest of Google's {IMAGE_FAMILY}"
            add("--image", metavar="NAME", help=f"of your project, or projects/P/global/images/NAME; default: {newest}")
            add("--nvme_count", type=count, default=0, metavar="N", help="local NVMe disks; default: 0")
            size = "size of the boot disk, which is then an SSD; default: the image's"
            add("--boot_ssd_size", type=count, metavar="GB", help=size)
        if name in {"status", "list_all"}:
            add("--json", action="store_true", help="the answer as JSON")
    return parser


def run(parsed: Parsed) -> int:
    tools = Tools(parsed.dry_run, parsed.debug)
    if parsed.cloud_command != "list_all":
        return getattr(Cloud(parsed, tools), parsed.cloud_command)() or 0
    found = load_instances(f"name ~ ^{INSTANCE_PREFIX}", parsed, tools)  # machines of all users
    if parsed.json and not parsed.dry_run:
        tools.console.write_json([asdict(one) for one in found])
    elif not parsed.dry_run:
        write_lines(line for instance in found for line in render_instance(instance))
        tools.console.print(render_count(len(found), "machine"))
    return 0

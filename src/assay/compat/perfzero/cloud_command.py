"""`assay perfzero cloud`: PerfZero's cloud_manager.py, with its commands and flags."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, fields
from typing import NoReturn

from assay.compat.original_command import Parsed, count, write_lines
from assay.compat.perfzero.cloud import (
    DEFAULT_ACCELERATOR,
    DEFAULT_ZONE,
    GCLOUD_FAILURES,
    IMAGE_FAMILY,
    Cloud,
    CloudTarget,
    Instance,
    MachineOptions,
    build_instance_name,
    load_all,
    render_way,
)
from assay.compat.perfzero.tool import Tools
from assay.errors import did_you_mean
from assay.show.console import Console
from assay.show.formatting import render_count

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


# ---------------------------------------------------------------- running


def run(parsed: Parsed) -> int:
    console = Console()
    tools = Tools(parsed.dry_run, console.print, console.error, parsed.debug, GCLOUD_FAILURES)
    if parsed.cloud_command == "list_all":
        return _list_all(parsed, tools)
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


def _list_all(parsed: Parsed, tools: Tools) -> int:
    found = load_all(parsed.project or None, tools)
    if parsed.dry_run:
        return 0
    if parsed.json:
        Console().write_json([asdict(one) for one in found])
        return 0
    for instance in found:
        write_lines(render_instance(instance))
    Console().print_lines(render_count(len(found), "machine"))
    return 0


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

"""Farms as files define them (study files, settings and `.runx`), and the farm that a name means.

A farm is a template with a submit command, or an engine with its keys. Farms are checked before anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from assay.config import places
from assay.config.fields import Fields
from assay.config.settings import Settings, load_settings
from assay.config.source import Item, Node, Problems, join_key
from assay.errors import ConfigError, NotFoundError, UsageError, did_you_mean, suggest
from assay.execute.places import try_executor
from assay.farms.engines import APPTAINER, PYXIS, REQUIRED, SIGNALS, SSH_PREFIX, find_engines, parse_signal
from assay.system.fast_dataclasses import replace
from assay.system.ssh import NO_HOST, is_host
from assay.values.study import LOCAL, Farm, Study

_TEMPLATE_KEYS = ("submit", "cancel", "remote_root")
_MOST_PER_HOST = 1000  # slots, and devices of one job
_DEVICES = r"(?=[^:]*[A-Za-z])[\w.+-]+:[1-9]\d{0,3}"
_MOUNT = r"/[^,:]*(?::/[^,:]*(?::r[ow])?)?"
_DEVICES_HINT = "as in `a100:2`, or `1g.5gb:1` for a MIG slice; `sinfo -o %G` lists the types"
_EXAMPLE = "as in {kind: slurm, partition: gpu, time: 2h}, or {submit: 'qsub -N {name} {script}'}"


def read_farm(fields: Fields, entry: Item, key: str) -> Farm | None:
    """Read the section of one farm; None if the farm cannot be used, with the reasons in `fields.problems`."""
    kind = entry.node.find("kind") if entry.node.kind == "mapping" else None
    if kind is None:
        return _read_template(fields, entry, key)
    engine = fields.one_of(kind, join_key(key, "kind"), find_engines())
    if engine is None:
        return None
    known = find_engines()[engine]
    before = len(fields.problems.found)
    given = fields.mapping(entry.node, key, ("kind", *known))
    for name in (name for name in REQUIRED.get(engine, ()) if name not in given):
        fields.problems.add(f"a farm of the kind {engine} needs {name}", key, entry.position, f"add `{name}: …`")
    options = {
        name: read_option(fields, given[name].node, join_key(key, name), known[name]) for name in given if name in known
    }
    _check_hosts(fields, given, options, key)
    _check_signal(fields, given, options, key)
    if engine == "slurm":
        _check_slurm(fields, given, options, key)
    if len(fields.problems.found) > before:
        return None
    return Farm(entry.key, engine, position=entry.position, options=options)


def read_option(fields: Fields, node: Node, key: str, kind: str) -> Any:
    readers: dict[str, Callable[[Node, str], Any]] = {
        "count": lambda node, key: fields.integer(node, key, minimum=1),
        "amount": fields.integer,
        "counts": lambda node, key: _read_by_host(fields, node, key, 1),
        "devices": lambda node, key: _read_devices(fields, node, key),
        "runtime": lambda node, key: fields.one_of(node, key, (APPTAINER, PYXIS)),
        "amounts": lambda node, key: _read_by_host(fields, node, key, 0),
        "number": lambda node, key: _read_number(fields, node, key),
        "numbers": lambda node, key: {
            each.key: _read_number(fields, each.node, join_key(key, each.key))
            for each in fields.open_mapping(node, key, "a mapping of names to numbers")
        },
        "duration": fields.duration,
        "size": fields.size,
        "switch": fields.boolean,
        "texts": lambda node, key: fields.texts(node, key, "a string or a list of strings"),
        "text": fields.text,
        "signal": lambda node, key: _read_signal(fields, node, key),
    }
    return readers[kind](node, key)


def _read_devices(fields: Fields, node: Node, key: str) -> int | str | None:
    """Read a number of devices, `2`, or a number with a type, `a100:2`; a MIG slice is a type as well, `1g.5gb:1`."""
    if isinstance(node.value, int):
        return fields.integer(node, key)
    if node.kind == "scalar" and re.fullmatch(_DEVICES, node.text):
        return node.text
    fields.refuse(node, key, "a whole number, 0 or more, or TYPE:NUMBER", _DEVICES_HINT)
    return None


def _check_slurm(fields: Fields, given: Mapping[str, Item], options: Mapping[str, Any], key: str) -> None:
    """Report keys that have no effect without others, or that contradict each other."""

    def refuse(name: str, problem: str, hint: str) -> None:
        fields.problems.add(problem, join_key(key, name), given[name].position, hint)

    uses_srun = {"nodes", "tasks_per_node"} & given.keys() or options.get("runtime") == PYXIS
    if "srun_flags" in given and not uses_srun:
        hint = "add `nodes: 2` or `tasks_per_node: 4`, or write options of sbatch under `flags`"
        refuse("srun_flags", "srun does not start the commands of these runs", hint)
    if "pack" in given and "signal" in given:
        refuse("pack", "packed runs get no signal before the time limit of all", "leave out `pack` or `signal`")
    for name in (name for name in ("runtime", "mounts") if name in given and "container" not in given):
        refuse(name, "there is no container", "add `container: docker://ubuntu:24.04`, or leave it out")
    for mount in (each for each in options.get("mounts") or () if not re.fullmatch(_MOUNT, each)):
        refuse("mounts", f"{mount!r} is not an absolute path", "as in `/data`, `/data:/inside` or `/data:/inside:ro`")


def _read_by_host(fields: Fields, node: Node, key: str, minimum: int) -> int | dict[str, int | None] | None:
    if node.kind != "mapping":
        return _read_host_count(fields, node, key, minimum)
    entries = fields.open_mapping(node, key, "a number, or a mapping of hosts to numbers")
    return {each.key: _read_host_count(fields, each.node, join_key(key, each.key), minimum) for each in entries}


def _read_host_count(fields: Fields, node: Node, key: str, minimum: int) -> int | None:
    value = fields.integer(node, key, minimum=minimum)
    if value is not None and value > _MOST_PER_HOST:
        fields.refuse(node, key, f"a whole number, {_MOST_PER_HOST} or less")
        return None
    return value


def _read_signal(fields: Fields, node: Node, key: str) -> str | None:
    text = fields.text(node, key, "a signal and a time, as in USR1@2m")
    if text is None or parse_signal(text) is not None:
        return text
    name, has_time, before = text.removeprefix("SIG").partition("@")
    if name not in SIGNALS:
        problem = f"{name!r} is not a signal that a job can be sent"
        hint = f"one of {', '.join(SIGNALS)}, as in USR1@2m"
    elif not has_time:
        problem, hint = "has no time", f"how long before the time limit it is sent, as in {name}@2m"
    else:
        problem, hint = f"{before!r} is not a duration of at most 18h", f"as in {name}@90s or {name}@2m"
    fields.problems.add(problem, key, node.position, hint)
    return None


def _check_signal(fields: Fields, given: Mapping[str, Item], options: Mapping[str, Any], key: str) -> None:
    """Report a signal that Slurm would send at once, to a program that has not begun its work."""
    signal, limit_s = parse_signal(str(options.get("signal"))), options.get("time")
    if signal is not None and limit_s and signal[1] >= limit_s:
        problem = f"the signal would be sent {signal[1]} s before the limit, which is {limit_s:g} s"
        hint = "give a shorter time after the @, or a longer `time:`"
        fields.problems.add(problem, join_key(key, "signal"), given["signal"].node.position, hint)


def _check_hosts(fields: Fields, given: Mapping[str, Item], options: Mapping[str, Any], key: str) -> None:
    """Report invalid names of hosts, an empty list of hosts, and numbers for hosts that are not in the list."""
    hosts = options.get("hosts") or ()
    if "hosts" in given and given["hosts"].node.kind == "sequence" and not hosts:
        fields.problems.add(
            "does not name a host", join_key(key, "hosts"), given["hosts"].position, "as in `hosts: [gpu1]`"
        )
    for host in (host for host in hosts if not is_host(host)):
        fields.problems.add(f"{host!r} is not a host", join_key(key, "hosts"), given["hosts"].position, NO_HOST)
    for name in (name for name, value in options.items() if isinstance(value, dict) and hosts):
        for host in (host for host in options[name] if host not in hosts):
            problem = f"{host} is not among the hosts: {', '.join(hosts)}"
            fields.problems.add(problem, join_key(key, name), given[name].position)


def _read_number(fields: Fields, node: Node, key: str) -> float | None:
    value = fields.number(node, key)
    if value is not None and value < 0:
        fields.refuse(node, key, "a number, 0 or more")
        return None
    return value


def _read_template(fields: Fields, entry: Item, key: str) -> Farm | None:
    given = fields.mapping(entry.node, key, ("kind", *_TEMPLATE_KEYS))
    texts = {name: fields.text(given[name].node, join_key(key, name)) for name in given if name in _TEMPLATE_KEYS}
    if entry.node.kind == "mapping" and "submit" not in given:
        fields.problems.add("has neither a submit command nor a kind", key, entry.position, _EXAMPLE)
    submit = texts.get("submit")
    if submit is None:
        return None
    cancel, remote_root = texts.get("cancel"), texts.get("remote_root")
    return Farm(entry.key, "template", submit, cancel=cancel, remote_root=remote_root, position=entry.position)


def read_farm_settings(settings: Settings) -> dict[str, Farm]:
    """Return the settings' farms by name: a project's section replaces the user's. Problems are kept in each farm."""
    found: dict[str, Farm] = {}
    for table in settings.tables.get("farms", ()):
        problems = Problems()
        entries = Fields(problems).open_mapping(table, "farms", "a table of farm names")
        problems.raise_if_any()
        found.update({entry.key: places.read_farm(entry, join_key("farms", entry.key)) for entry in entries})
    return found


def build_engine_farm(name: str) -> Farm | None:
    """Return the farm of `slurm`, `ray` or `ssh:HOST`, which need no section; None for all other names."""
    if name.startswith(SSH_PREFIX) and name != SSH_PREFIX:
        if not is_host(host := name.removeprefix(SSH_PREFIX)):
            raise UsageError(f"{host!r} is not a host", NO_HOST)
        return Farm(name, "ssh", options={"hosts": (host,)})
    return Farm(name, name) if name in find_engines() and name not in REQUIRED else None


# ---------------------------------------------------------------- the farm of a name


def find_farm(study: Study, name: str, settings: Settings) -> Farm:
    """Return the farm `name` of the study, else of the settings, else the engine. Raise if the farm cannot be used."""
    farm = _find_farm(study, name, settings)
    if farm is None:
        raise _build_not_found(study, name, settings)
    if farm.problems:  # the problems of a farm that is not used do not matter
        raise ConfigError(farm.problems)
    if not farm.is_engine:
        return farm
    # the study's resources of one run apply if the farm's section does not set them
    needs = {"gpus": study.resources.gpus, "cpus": study.resources.cpus if study.resources.cpus > 1 else None}
    known = find_engines()[farm.kind]
    given = {key: value for key, value in needs.items() if value is not None and key in known}
    return replace(farm, options={**given, **farm.options})


def list_farm_names() -> list[str]:
    """Return the names that the shell completes after `--on`."""
    known = read_farm_settings(load_settings(os.getcwd(), os.environ))
    return [*known, *(f"{name}:" if name in REQUIRED else name for name in find_engines()), LOCAL]


def has_farm(study: Study, name: str, settings: Settings) -> bool:
    return _find_farm(study, name, settings) is not None


def _find_farm(study: Study, name: str, settings: Settings) -> Farm | None:
    own = study.farms.get(name)
    if own is not None and own.kind != "missing":
        return own
    return read_farm_settings(settings).get(name) or build_engine_farm(name)


def _build_not_found(study: Study, name: str, settings: Settings) -> NotFoundError | ConfigError:
    try_executor(name)  # a plug-in's executor that cannot be used raises why
    defined = [farm for farm in study.farms.values() if farm.kind != "missing"]
    known = {farm.name: farm.position for farm in (*read_farm_settings(settings).values(), *defined)}
    engines = [engine for engine in find_engines() if engine not in REQUIRED]
    named = [f"{farm} ({position.file}:{position.line})" if position else farm for farm, position in known.items()]
    listed = f"known: {', '.join([*named, *engines, f'{SSH_PREFIX}HOST', LOCAL])}"
    names = [*known, *engines, LOCAL]
    # some engines need more than their name
    needs_host = (
        f"did you mean '{SSH_PREFIX}HOST', with the name of a host?" if name in (*REQUIRED, SSH_PREFIX) else None
    )
    missing = study.farms.get(name)
    if missing is None:
        close = needs_host or suggest(name, names)
        return NotFoundError("farm", name, known, f"{close}; {listed}" if close else listed)
    close = needs_host or did_you_mean(name, names)
    problem = missing.problems[0]  # the problem has the position in the file
    first = close if problem.hint is None or problem.hint.startswith("known") or name in REQUIRED else problem.hint
    return ConfigError([replace(problem, hint=f"{first}; {listed}" if first else listed)])


PLACES = places.Places(read_farm, has_farm, find_farm)

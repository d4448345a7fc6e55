"""A study → its runs, in order; and a part of a study."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from assay.errors import ConfigError, NotFoundError, UsageError, did_you_mean
from assay.plan.grid import Grid, Row, count_rows, draw_rows
from assay.plan.naming import Draft, NameSource, RunxNamer, build_tag, name_runs
from assay.plan.render import render_command
from assay.system.fast_dataclasses import replace
from assay.values.run import Command, LazyRuns, Plan, RunSpec, canonical, spec_id
from assay.values.secrets import DEFAULT_RULES, SecretRules, find_values, hide_env, hide_params, hide_spec, hide_text
from assay.values.study import (
    AllFlags,
    Choices,
    CommandTemplate,
    Dialect,
    Flag,
    Placeholder,
    Problem,
    Study,
    Subset,
    Text,
)

__all__ = ["Draft", "NameSource", "build_plan"]

MAX_RUNS = 1_000_000

# parameters of runx that speak to runx, not to the script
_TAG, _SKIP, _SUBMIT_JOB = "RUNX.TAG", "RUNX.SKIP", "SUBMIT_JOB."
_FARM_KEYS = ("SUBMIT_JOB.NODES", "SUBMIT_JOB.PARTITION")
_RUNX_KEYS = frozenset((_TAG, _SKIP, *_FARM_KEYS))
_SHORTEN: dict[Dialect, str] = {
    "native": "shorten the lists, zip some of them, or add `subset: {count: 100, seed: 0}`",
    "runx": "shorten the lists in HPARAMS, or make a list of smaller mappings of it",
    "mlrunner": "shorten the lists, or split them into several documents",
}
_ANYTHING = "Xx0" * 12
_LOG_NAME = "{command}{suffix}.log"
_LOG_NAMES = {"mlrunner": "log.{command}.{time}"}


def build_plan(study: Study, names: NameSource | None = None, rules: SecretRules = DEFAULT_RULES) -> Plan:
    """Every run of a study. Raises ConfigError for a template that some run cannot fill.

    Ids are made of the real values; names, parameters and commands show `***` where a value is secret.
    """
    if study.search is not None:
        hint = "remove `search` to list every run, or use `assay run`"
        raise ConfigError(
            [Problem("the runs of a search are not known beforehand", "search", study.search.position, hint)]
        )
    distinct = study.dialect == "native"
    grids = [Grid(sweep, distinct=distinct) for sweep in study.sweeps]
    total = count_rows(grids, study.subset) * study.repeat
    if total > MAX_RUNS:
        position = study.sweeps[0].position if study.sweeps else None
        shown = str(total) if total < 10**30 else "countless"
        raise ConfigError([Problem(f"this study has {shown} runs", "", position, _SHORTEN[study.dialect])])
    warnings = [*study.warnings, *_find_repeats(study, grids)]
    rows = draw_rows(grids, study.subset, distinct=distinct)
    if _cannot_fail(study):
        runs = LazyRuns(_stream_runx(study, rows, names, rules))
        return Plan(study, runs, (), tuple(warnings), is_hidden=True)
    drafts = _build_drafts(study, _drop_duplicates(study, rows, warnings) if distinct else rows)
    _fill_commands(study, drafts)
    _number(study, drafts)
    if _hold_secrets(study, rules):
        for draft in drafts:
            _hide(study, draft, rules)
    warnings.extend(_find_orphans(study, drafts))
    directories = name_runs(drafts, study, names)
    if study.is_runx:
        for draft in drafts:
            draft.tag = build_tag(draft, names)
    return _build_plan(study, drafts, directories, warnings, rules)


def _cannot_fail(study: Study) -> bool:
    """runx's commands take every parameter, whatever it is; only a NUL character cannot be in one."""
    if not study.is_runx or _used_names(study.commands) is not None:
        return False
    axes = [axis for sweep in study.sweeps for axis in sweep.axes.values()]
    return "\\x00" not in repr((axes, study.commands))


def _stream_runx(study: Study, rows: Iterable[Row], names: NameSource | None, rules: SecretRules) -> Iterator[RunSpec]:
    """One run after the other: a dry run of very many prints the first before the last is known."""
    chosen = [_choose(study, sweep.commands) for sweep in study.sweeps]
    namer, seen, hides = RunxNamer(study, names), Counter[str](), _hold_secrets(study, rules)
    for index, row in rows:
        draft = _build_runx(study, index, row)
        if draft is None:
            continue
        draft.commands = tuple(
            Command(each.name, render_command(each, draft.params, "runx"), each.timeout_s) for each in chosen[index]
        )
        _number_runx(draft, seen)
        if hides:
            _hide(study, draft, rules)
        name = namer.name(draft)
        draft.tag = build_tag(draft, names)
        yield _build_spec(study, draft, name, rules)


def _build_plan(
    study: Study, drafts: Sequence[Draft], names: Sequence[str], warnings: Sequence[Problem], rules: SecretRules
) -> Plan:
    """A draft whose id was there before shares the earlier one's directory, under its own name where it has one."""
    owners: dict[str, str] = {}
    runs, links = [], []
    for draft, name in zip(drafts, names, strict=True):
        if draft.id not in owners:
            owners[draft.id] = name
            runs.append(_build_spec(study, draft, name, rules))
        elif owners[draft.id] != name:
            links.append((name, owners[draft.id]))
    return Plan(study, tuple(runs), tuple(dict.fromkeys(links)), tuple(warnings), is_hidden=True)


def _build_spec(study: Study, draft: Draft, name: str, rules: SecretRules) -> RunSpec:
    spec = RunSpec(
        id=draft.id,
        name=name,
        params=draft.params,
        commands=draft.commands,
        ordinal=draft.ordinal,
        title=draft.title,
        tag=draft.tag,
        resources=study.resources,
        patterns=study.metrics,
        timeout_s=study.timeout_s,
        retries=study.retries,
        leave_running=study.leave_running,
        priority=study.priority,
        env=study.env,
        pythonpath=study.pythonpath,
        code=study.code,
        farm_resources=draft.farm_resources,
        log_name=_LOG_NAMES.get(study.dialect, _LOG_NAME),
        sweep=draft.sweep,
        chosen=draft.chosen,
    )
    return hide_env(spec, rules) if draft.shown is None else hide_spec(spec, rules, draft.shown)


# ---------------------------------------------------------------- from combinations to drafts


def _drop_duplicates(study: Study, rows: Iterable[Row], warnings: list[Problem]) -> Iterator[Row]:
    """In a native file the same run listed twice is one run; `repeat:` is how to ask for more."""
    seen: set[str] = set()
    dropped: Counter[int] = Counter()
    for index, params in rows:
        key = canonical(params)
        if key in seen:
            dropped[index] += 1
        else:
            seen.add(key)
            yield index, params
    for index, count in dropped.items() if not study.overrides else ():  # with overrides items may well become alike
        what = "a run of this item is" if count == 1 else f"{count} runs of this item are"
        position = study.sweeps[index].position
        warnings.append(Problem(f"{what} in the study already and will not run again", f"sweep[{index}]", position))


def _find_repeats(study: Study, grids: Sequence[Grid]) -> Iterator[Problem]:
    for sweep, grid in zip(study.sweeps, grids, strict=True):
        for group in grid.groups:
            for row in group.repeats:
                values = ", ".join(
                    str(value) for value in hide_params(dict(zip(group.names, row, strict=True))).values()
                )
                hint = "it runs once; `repeat: 2` at the top of the file runs everything twice"
                position = sweep.axes[group.names[0]].position
                yield Problem(f"{values} is listed twice", ", ".join(group.names), position, hint)


def _build_drafts(study: Study, rows: Iterable[Row]) -> list[Draft]:
    if study.is_runx:
        return [draft for draft in (_build_runx(study, *row) for row in rows) if draft is not None]
    if study.is_mlrunner:
        return [_build_mlrunner(study, *row) for row in rows]
    return [
        Draft(index, _name_native(study, params), params, ordinal=ordinal, title=study.sweeps[index].title)
        for index, params in rows
        for ordinal in range(study.repeat)
    ]


def _name_native(study: Study, params: dict[str, Any]) -> dict[str, Any]:
    """What names are made of: of a checkpoint's path the last part."""
    path = params.get(study.resume.param) if study.resume else None
    if study.resume is None or not isinstance(path, str) or not os.path.isabs(path):
        return params
    return {**params, study.resume.param: os.path.basename(path)}


def _build_runx(study: Study, index: int, row: dict[str, Any]) -> Draft | None:
    """Parameters that speak to runx leave the command line: the tag names the run, two are the farm's."""
    if row.get(_SKIP) not in (None, False, 0, "", "None"):
        return None
    farm = tuple((key.removeprefix(_SUBMIT_JOB).lower(), row[key]) for key in _FARM_KEYS if row.get(key) is not None)
    tag = row.get(_TAG)
    params = {key: value for key, value in row.items() if key not in _RUNX_KEYS}
    sweep = study.sweeps[index]
    return Draft(index, params, params, title=sweep.title, tag=None if tag is None else str(tag), farm_resources=farm)


def _build_mlrunner(study: Study, index: int, row: dict[str, Any]) -> Draft:
    """Aliases give way to what they stand for, then defaults fill what is missing; the name knows neither.

    An alias among the defaults comes too late, as in mlrunner: it changes no command.
    """
    sweep = study.sweeps[index]
    named = {key: row[key] for key in sweep.named if key in row} if sweep.named is not None else row
    params = {**study.defaults, **_resolve_aliases(study, row)}
    params |= {name: row[name] for name in study.overrides if name in row and name not in study.aliases}
    return Draft(index, named, params, title=sweep.title)


def _resolve_aliases(study: Study, params: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in params.items():
        cases = study.aliases.get(name)
        if cases is None:
            found.setdefault(name, value)
        elif str(value) in cases:
            found.update(cases[str(value)])
        else:
            hint = did_you_mean(str(value), cases)
            raise ConfigError([Problem(f"{value!r} is not a case of this alias", f"alias.{name}", None, hint)])
    return found


# ---------------------------------------------------------------- commands, ids, warnings


def _fill_commands(study: Study, drafts: Sequence[Draft]) -> None:
    """Renders every draft's commands; what cannot be rendered is reported once per template and parameter."""
    chosen = [_choose(study, sweep.commands) for sweep in study.sweeps]
    problems: dict[Problem, None] = {}
    if study.is_mlrunner:
        _fill_mlrunner(study, drafts, _join_choices(study, drafts, chosen), problems)
    else:
        for draft in drafts:
            draft.commands = tuple(
                _render(template, draft, study.dialect, problems) for template in chosen[draft.sweep]
            )
    if problems:
        raise ConfigError(tuple(problems))


def _fill_mlrunner(
    study: Study,
    drafts: Sequence[Draft],
    wanted: Sequence[tuple[CommandTemplate, ...]],
    problems: dict[Problem, None],
) -> None:
    """A run holds every command that its parameters can fill; `_cmd` only selects which of them are wanted this time,
    so that documents and calls with another `_cmd` continue the same run."""
    for draft, templates in zip(drafts, wanted, strict=True):
        names = {template.name for template in templates}
        spare: dict[Problem, None] = {}
        rendered = []
        for template in study.commands:
            into = problems if template.name in names else spare
            before = len(into)
            command = _render(template, draft, study.dialect, into)
            if len(into) == before or template.name in names:
                rendered.append(command)
        draft.commands = tuple(rendered)
        draft.chosen = None if len(names) == len(rendered) else tuple(c.name for c in rendered if c.name in names)


def _render(template: CommandTemplate, draft: Draft, dialect: Dialect, problems: dict[Problem, None]) -> Command:
    try:
        text = render_command(template, draft.params, dialect)
    except ConfigError as error:
        problems.update(dict.fromkeys(problem for problem in error.problems if isinstance(problem, Problem)))
        text = ""
    return Command(template.name, text, template.timeout_s)


def _choose(study: Study, names: Iterable[str] | None) -> tuple[CommandTemplate, ...]:
    """The wanted commands, in the study's order."""
    wanted = None if names is None else set(names)
    return tuple(command for command in study.commands if wanted is None or command.name in wanted)


def _join_choices(
    study: Study, drafts: Sequence[Draft], chosen: Sequence[tuple[CommandTemplate, ...]]
) -> list[tuple[CommandTemplate, ...]]:
    """mlrunner: documents that name the same parameters are one run, which has the commands of all of them."""
    keys = [canonical(draft.params) for draft in drafts]
    wanted: dict[str, set[str]] = {}
    for key, draft in zip(keys, drafts, strict=True):
        wanted.setdefault(key, set()).update(command.name for command in chosen[draft.sweep])
    return [_choose(study, wanted[key]) for key in keys]


def _number(study: Study, drafts: Sequence[Draft]) -> None:
    """Gives every draft its id. In runx a run that is listed again is run again, as the next ordinal."""
    seen: Counter[str] = Counter()
    for draft in drafts:
        if study.is_runx:
            _number_runx(draft, seen)
        else:
            # mlrunner's folders go by parameters alone: who edits the test command keeps the trained model
            commands = () if study.is_mlrunner else draft.commands
            draft.id = spec_id(commands, draft.params, draft.ordinal)


def _number_runx(draft: Draft, seen: Counter[str]) -> None:
    first = spec_id(draft.commands, draft.params)
    draft.ordinal = seen[first]
    seen[first] += 1
    draft.id = spec_id(draft.commands, draft.params, draft.ordinal) if draft.ordinal else first


# ---------------------------------------------------------------- secrets


def _hold_secrets(study: Study, rules: SecretRules) -> bool:
    """Whether some parameter or command may have to be hidden; by the file, once, not by each of its runs."""
    cases = [case for alias in study.aliases.values() for case in alias.values()]
    pairs = [pair for params in (study.defaults, *cases) for pair in params.items()]
    for sweep in study.sweeps:
        pairs += [
            (name, value) for name, axis in sweep.axes.items() if isinstance(axis, Choices) for value in axis.values
        ]
    if any(hide_params({name: value}, rules) != {name: value} for name, value in pairs):
        return True
    known = find_values({}, study.env, rules)
    for command in study.commands:
        # the template with something in each place that would be hidden where a secret belongs: `--token {t}`
        text = "".join(
            piece.text if isinstance(piece, Text) else _ANYTHING if isinstance(piece, Placeholder) else " "
            for piece in command.pieces
        )
        if hide_text(text, rules, known) != text:
            return True
    return False


def _hide(study: Study, draft: Draft, rules: SecretRules) -> None:
    """What may be seen of a draft: the name is made of it, too."""
    params = hide_params(draft.params, rules)
    draft.named = hide_params(draft.named, rules)
    if params == draft.params:
        draft.shown, draft.shown_params = draft.commands, draft.params
        return
    templates = {template.name: template for template in study.commands}
    draft.shown_params = params
    draft.shown = tuple(
        replace(command, text=render_command(templates[command.name], params, study.dialect))
        for command in draft.commands
    )


def _find_orphans(study: Study, drafts: Sequence[Draft]) -> list[Problem]:
    """Parameters that reach no command of their run, each reported once."""
    found: dict[str, Problem] = {}
    examples: dict[int, Draft] = {}
    unused = set(study.defaults)  # by any run
    for draft in drafts:
        examples.setdefault(draft.sweep, draft)
    for index, draft in examples.items():
        templates = [command for command in study.commands if command.name in {run.name for run in draft.commands}]
        used = _used_names(templates)
        unused -= unused if used is None else used
        if used is None:
            continue
        sweep = study.sweeps[index]
        cases = [case for alias in sweep.axes for case in study.aliases.get(alias, {}).values()]
        for name in (*sweep.axes, *(name for case in cases for name in case)):  # an alias stands for parameters
            if name in draft.params and name not in used and name not in found:
                axis = sweep.axes.get(name)
                hint = f"write {{{name}}} or [{name}] into a command, or remove it"
                position = axis.position if axis else None
                found[name] = Problem("no command uses this parameter", name, position, hint)
    for name in [name for name in study.defaults if name in unused and name not in found]:
        found[name] = Problem("no command uses this parameter", name, None, "remove it from `default`")
    return list(found.values())


def _used_names(templates: Iterable[CommandTemplate]) -> set[str] | None:
    """The parameters that these commands take; None where they take all."""
    pieces = [piece for template in templates for piece in template.pieces]
    if any(isinstance(piece, AllFlags) for piece in pieces):
        return None
    return {piece.name for piece in pieces if isinstance(piece, Placeholder | Flag)}


# ---------------------------------------------------------------- a part of a study


def select(
    study: Study,
    titles: Sequence[str] | None = None,
    commands: Sequence[str] | None = None,
    sample: int | None = None,
    seed: int | None = None,
) -> Study:
    """The study with what was asked for; nothing asked for is everything.

    Without a seed the sample is another one each time; the seed that was used is in the result's `subset`.
    """
    sweeps, subset = study.sweeps, study.subset
    if titles is not None:
        known = [sweep.title for sweep in sweeps if sweep.title is not None]
        for title in titles:
            if title not in known:
                hint = None if known else f"nothing in {study.source} has a title"
                raise NotFoundError("title", title, known, hint)
        sweeps = tuple(sweep for sweep in sweeps if sweep.title in titles)
    if commands is not None:
        known = [command.name for command in study.commands]
        for command in commands:
            if command not in known:
                raise NotFoundError("command", command, known)
        names = tuple(name for name in known if name in commands)
        sweeps = tuple(replace(sweep, commands=names) for sweep in sweeps)
    if sample is not None:
        if sample < 1:
            raise UsageError(f"a sample of {sample} runs is nothing", "ask for 1 or more")
        subset = Subset(sample, random.getrandbits(32) if seed is None else seed, per_sweep=True)
    return replace(study, sweeps=sweeps, subset=subset)

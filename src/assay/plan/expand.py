"""Expands a study to its runs, in order; and selects a part of a study."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from assay import plugins
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.plan.grid import Grid, Row, count_rows, draw_rows
from assay.plan.naming import Draft, NameSource, name_native
from assay.plan.render import Reference, render_command
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import Command, Plan, Resumption, RunSpec, canonical, spec_id
from assay.values.secrets import DEFAULT_RULES, SecretRules, find_values, hide_env, hide_params, hide_spec, hide_text
from assay.values.study import (
    AllFlags,
    Choices,
    CommandTemplate,
    Flag,
    Params,
    Placeholder,
    Problem,
    ShellText,
    Study,
    Subset,
    UnusedParameter,
)

__all__ = ["Draft", "NameSource", "build_plan"]

MAX_RUNS = 1_000_000

_ANYTHING = "Xx0" * 12


def build_plan(study: Study, names: NameSource | None = None, rules: SecretRules = DEFAULT_RULES) -> Plan:
    """Plan every run of a study. Raises ConfigError for a template that some run cannot fill. Ids depend on the real
    values; names, parameters and commands show `***` in place of secret values."""
    if study.search is not None:
        hint = "remove `search` to list every run, or use `assay run`"
        message = "the runs of a search are not known beforehand"
        raise ConfigError([Problem(message, "search", study.search.position, hint)])
    own = plugins.find_dialect(study.dialect).planner
    kind: type[Planner] = plugins.load(own) if own else Planner
    planner = kind(study, names)
    grids = [Grid(sweep, distinct=planner.distinct) for sweep in study.sweeps]
    total = count_rows(grids, study.subset) * study.repeat
    if total > MAX_RUNS:
        position = study.sweeps[0].position if study.sweeps else None
        shown = str(total) if total < 10**30 else "countless"
        hint = plugins.find_dialect(study.dialect).shorten_hint
        raise ConfigError([Problem(f"this study has {shown} runs", "", position, hint)])
    warnings = [*study.warnings, *_find_repeats(study, grids)]
    rows = draw_rows(grids, study.subset, distinct=planner.distinct)
    lazy = planner.plan_lazily(rows, warnings, rules)
    if lazy is not None:
        return lazy
    if planner.distinct:
        rows = _drop_duplicates(study, rows, warnings)
    drafts = [draft for row in rows for draft in planner.build_drafts(*row)]
    planner.fill_commands(drafts)
    for draft in drafts:
        planner.number(draft)
    if hides_values(study, rules):
        for draft in drafts:
            hide_draft(planner, draft, rules)
    warnings.extend(_find_orphans(study, drafts))
    plan = _build_plan(planner, drafts, warnings, rules)
    if study.resume is not None and any(spec.resume is None for spec in plan.runs):
        message = "a command with a secret in it is not continued from a checkpoint"
        problem = Problem(message, "resume", study.resume.position, "give the secret to the program by `env:`")
        return replace(plan, warnings=(*plan.warnings, problem))
    return plan


class Planner:
    """Plans the runs of a native study from its combinations; a dialect's class overrides single steps."""

    distinct = True  # a run that is listed twice is planned once
    log_name = "{command}{suffix}.log"

    def __init__(self, study: Study, names: NameSource | None = None) -> None:
        self.study, self.names = study, names
        self.templates = [choose_commands(study, sweep.commands) for sweep in study.sweeps]

    def plan_lazily(self, _rows: Iterable[Row], _warnings: Iterable[Problem], _rules: SecretRules) -> Plan | None:
        """Return a plan that builds each run when it is read, if runs do not depend on each other; else None."""
        return None

    def build_drafts(self, index: int, row: dict[str, Any]) -> Iterator[Draft]:
        """Build the runs of one combination of a sweep. A name shows the last part of a checkpoint's path."""
        study, named = self.study, row
        path = row.get(study.resume.param) if study.resume else None
        if study.resume is not None and isinstance(path, str) and os.path.isabs(path):
            named = {**row, study.resume.param: os.path.basename(path)}
        for ordinal in range(study.repeat):
            yield Draft(index, named, row, ordinal=ordinal, title=study.sweeps[index].title)

    def fill_commands(self, drafts: Sequence[Draft]) -> None:
        """Render every draft's commands; report errors once per template and parameter."""
        problems: dict[Problem, None] = {}
        for draft in drafts:
            templates = self.templates[draft.sweep]
            draft.commands = tuple(self.try_render(template, draft, problems) for template in templates)
        if problems:
            raise ConfigError(tuple(problems))

    def try_render(self, template: CommandTemplate, draft: Draft, problems: dict[Problem, None]) -> Command:
        try:
            text = self.render(template, draft.params)
        except ConfigError as error:
            problems.update(dict.fromkeys(problem for problem in error.problems if isinstance(problem, Problem)))
            text = ""
        return Command(template.name, text, template.timeout_s)

    def render(self, template: CommandTemplate, params: Params) -> str:
        return render_command(template, params)

    def build_resumption(self, draft: Draft) -> Resumption | None:
        """Build the commands of a later attempt, with the path of a checkpoint."""
        resume = self.study.resume
        if resume is None:
            return None
        path = Reference(f"{layout.RUN_DIR_REFERENCE}/{layout.CHECKPOINT_REFERENCE}")
        given = {**draft.params, resume.param: path}
        takers = [each for each in self.templates[draft.sweep] if resume.param in (find_used_names([each]) or ())]
        return Resumption(resume.files, {template.name: self.render(template, given) for template in takers})

    def number(self, draft: Draft) -> None:
        """Set the id of a draft."""
        draft.id = spec_id(draft.commands, draft.params, draft.ordinal)

    def name_runs(self, drafts: Sequence[Draft]) -> list[str]:
        """Return a directory name for each draft."""
        return name_native(drafts, self.study.name_params)


def _build_plan(planner: Planner, drafts: Sequence[Draft], warnings: Sequence[Problem], rules: SecretRules) -> Plan:
    """Build the plan. A draft with the id of an earlier draft shares that one's directory; another name is a link."""
    owners: dict[str, str] = {}
    runs, links = [], []
    for draft, name in zip(drafts, planner.name_runs(drafts), strict=True):
        if draft.id not in owners:
            owners[draft.id] = name
            runs.append(build_spec(planner, draft, name, rules))
        elif owners[draft.id] != name:
            links.append((name, owners[draft.id]))
    return Plan(planner.study, tuple(runs), tuple(dict.fromkeys(links)), tuple(warnings), is_hidden=True)


def build_spec(planner: Planner, draft: Draft, name: str, rules: SecretRules) -> RunSpec:
    study = planner.study
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
        log_name=planner.log_name,
        sweep=draft.sweep,
        chosen=draft.chosen,
        resume=planner.build_resumption(draft),
    )
    spec = hide_env(spec, rules) if draft.shown is None else hide_spec(spec, rules, draft.shown)
    takers = spec.resume.texts if spec.resume else ()
    is_secret = spec.private is not None and any(name in takers for name in spec.private.commands)
    return replace(spec, resume=None) if is_secret else spec


def _drop_duplicates(study: Study, rows: Iterable[Row], warnings: list[Problem]) -> Iterator[Row]:
    """Leave out runs that are listed again; `repeat:` requests several runs of a combination."""
    seen: set[str] = set()
    dropped: Counter[int] = Counter()
    for index, params in rows:
        key = canonical(params)
        if key in seen:
            dropped[index] += 1
        else:
            seen.add(key)
            yield index, params
    for index, count in dropped.items() if not study.overrides else ():  # with overrides, items may become equal
        what = "a run of this item is" if count == 1 else f"{count} runs of this item are"
        position = study.sweeps[index].position
        warnings.append(Problem(f"{what} in the study already and will not run again", f"sweep[{index}]", position))


def _find_repeats(study: Study, grids: Sequence[Grid]) -> Iterator[Problem]:
    for sweep, grid in zip(study.sweeps, grids, strict=True):
        for group in grid.groups:
            for row in group.repeats:
                values = ", ".join(map(str, hide_params(dict(zip(group.names, row, strict=True))).values()))
                hint = "it runs once; `repeat: 2` at the top of the file runs everything twice"
                position = sweep.axes[group.names[0]].position
                yield Problem(f"{values} is listed twice", ", ".join(group.names), position, hint)


def choose_commands(study: Study, names: Iterable[str] | None) -> tuple[CommandTemplate, ...]:
    """Return the chosen commands in the study's order."""
    wanted = None if names is None else set(names)
    return tuple(command for command in study.commands if wanted is None or command.name in wanted)


def hides_values(study: Study, rules: SecretRules) -> bool:
    """Return whether a parameter or command may have to be hidden; checked once for the file, not for each run."""
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
        # the template with a text for each value, which is hidden where a secret would be: `--token {t}`
        text = "".join(
            piece.text if isinstance(piece, ShellText) else _ANYTHING if isinstance(piece, Placeholder) else " "
            for piece in command.pieces
        )
        if hide_text(text, rules, known) != text:
            return True
    return False


def hide_draft(planner: Planner, draft: Draft, rules: SecretRules) -> None:
    """Set the texts of a draft that may be shown; the draft's name is built from these, too."""
    params = hide_params(draft.params, rules)
    draft.named = hide_params(draft.named, rules)
    if params == draft.params:
        draft.shown, draft.shown_params = draft.commands, draft.params
        return
    templates = {template.name: template for template in planner.study.commands}
    draft.shown_params = params
    draft.shown = tuple(
        replace(command, text=planner.render(templates[command.name], params)) for command in draft.commands
    )


def _find_orphans(study: Study, drafts: Sequence[Draft]) -> list[Problem]:
    """Report each parameter that no command of its run uses, once."""
    found: dict[str, Problem] = {}
    unused = set(study.defaults)  # defaults that no run so far uses
    for index, draft in sorted({draft.sweep: draft for draft in reversed(drafts)}.items()):  # each sweep's first draft
        templates = [command for command in study.commands if command.name in {run.name for run in draft.commands}]
        used = find_used_names(templates)
        unused -= unused if used is None else used
        if used is None:
            continue
        sweep = study.sweeps[index]
        cases = [case for alias in sweep.axes for case in study.aliases.get(alias, {}).values()]
        for name in (*sweep.axes, *(name for case in cases for name in case)):  # an alias represents parameters
            if name in draft.params and name not in used and name not in found:
                position = axis.position if (axis := sweep.axes.get(name)) else None
                hint = f"write {{{name}}} or [{name}] into a command, or remove it"
                if not re.fullmatch(r"[^\W\d][\w.-]*", name):  # {a b} is left to the shell
                    hint = "a command cannot take it by this name: use letters, digits, _ and -, a letter first"
                found[name] = UnusedParameter("no command uses this parameter", name, position, hint)
    for name in [name for name in study.defaults if name in unused and name not in found]:
        found[name] = UnusedParameter("no command uses this parameter", name, None, "remove it from `default`")
    return list(found.values())


def find_used_names(templates: Iterable[CommandTemplate]) -> set[str] | None:
    """Return the parameters that these commands use; None if they use all."""
    pieces = [piece for template in templates for piece in template.pieces]
    if any(isinstance(piece, AllFlags) for piece in pieces):
        return None
    return {piece.name for piece in pieces if isinstance(piece, Placeholder | Flag)}


def select(
    study: Study, titles: Sequence[str] | None = None, sample: int | None = None, seed: int | None = None
) -> Study:
    """Return the study reduced to what was requested; without a request, the whole study. Without a seed the sample
    differs each time; the seed that was used is in the result's `subset`."""
    sweeps, subset = study.sweeps, study.subset
    if titles is not None:
        known = [sweep.title for sweep in sweeps if sweep.title is not None]
        for title in titles:
            if title not in known:
                hint = None if known else f"nothing in {study.source} has a title"
                raise NotFoundError("title", title, known, hint)
        sweeps = tuple(sweep for sweep in sweeps if sweep.title in titles)
    if sample is not None:
        if sample < 1:
            raise UsageError(f"a sample of {sample} runs is not valid", "ask for 1 or more")
        subset = Subset(sample, random.getrandbits(32) if seed is None else seed, per_sweep=True)
    return replace(study, sweeps=sweeps, subset=subset)

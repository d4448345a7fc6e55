"""The command `assay rerun`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.errors import ExitCode, UsageError
from assay.follow.locations import HOW_TO_START, FoundRun, is_run_name
from assay.launch.commands.run import choose_steps, run_and_report, take_options
from assay.launch.prepared import Prepared, RunOptions, check_prepared
from assay.launch.rerun import find_damaged, leave_out_received, prepare_rerun, prepare_variations
from assay.reading.choosing import find_chosen_runs
from assay.show.console import Console
from assay.values.options import (
    Request,
    argument,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
    where_option,
)

if TYPE_CHECKING:
    from assay.values.where import Where


class RerunRequest(Request):
    names: tuple[str, ...] = argument("NAME... [PARAMETER=VALUE]...", multiple=True)
    where: Where | None = where_option()
    commands: tuple[str, ...] = option(
        "-c", "--command", multiple=True, metavar="C", help="Only these commands; the others must have finished."
    )
    settings: tuple[str, ...] = option(
        "--set", multiple=True, metavar="KEY=VALUE", help="For new runs: another value of a key of the file."
    )
    start: str | None = option(
        "--from", choices=("checkpoint",), help="Make new runs from the newest checkpoint of each run."
    )
    on: str | None = farm_option()
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    new_code: bool = option(
        "--new-code", default=False, help="Use the current code, also for runs that did not fail; code.N keeps the old."
    )
    old_code: bool = option("--old-code", default=False, help="Use the recorded code, also for failed runs.")
    quiet: bool = quiet_option()
    plain: bool = option("--plain", default=False, help="Print lines instead of the live view.")
    as_json: bool = json_option("Print the outcome as JSON.")
    root: str | None = root_option()


def rerun(request: RerunRequest, console: Console) -> int:
    """Run studies, runs or patterns again: a new attempt of each.

    A failed run gets the current code, with a message if the code has changed; other runs, and runs of runx's files,
    keep their recorded code. All commands are run, also those that an earlier attempt finished. Results of earlier
    attempts are kept.

    With PARAMETER=VALUE, or --from checkpoint, new runs of the same study are made instead, with these parameters
    changed, and with the code that a repeated run would get.
    """
    names, overrides = split_words(request.names, request.root, console)
    runs = find_chosen_runs(names, request.where, request.root)
    if not runs:
        raise UsageError(f"{', '.join(names)}: no runs yet", HOW_TO_START)
    runs = leave_out_received(runs, console)
    options = take_options(request, overrides=overrides, from_checkpoint=request.start is not None)
    prepared = _prepare_repeats(runs, options)
    if request.as_json and len(prepared) > 1:
        raise UsageError("--json reports one study at a time", "name the runs of one study only")
    for each in prepared:
        check_prepared(each)
        for warning in each.warnings:
            console.warning(str(warning))
    damaged = find_damaged(runs)
    for text in damaged:
        console.warning(text)
    quieted = console.quieted(request.quiet or request.as_json)
    form = quieted, request.plain, request.as_json
    codes = [ExitCode(run_and_report(each, *form, choose_steps(each))) for each in prepared]
    return int(ExitCode.worst([*codes, *([ExitCode.INTERNAL] if damaged else [])]))


def split_words(words: tuple[str, ...], root: str | None, console: Console) -> tuple[list[str], tuple[str, ...]]:
    """Split the words into names of runs and overrides. A run's name may contain a `=`: the first word is a name, and
    after names without a study also each word that is the name of a run."""
    names, overrides = list(words[:1]), []
    for word in words[1:]:
        if not re.match(r"[^/=]+=", word):
            names.append(word)
        elif not all("/" in name for name in names) and is_run_name(word, root):
            names.append(word)
            name, _, value = word.partition("=")
            console.error(f"{word} names a run, which is repeated; to change the parameter: '{name}=[{value}]'")
        else:
            overrides.append(word)
    return names, tuple(overrides)


def _prepare_repeats(runs: list[FoundRun], options: RunOptions) -> list[Prepared]:
    """Prepare new attempts of these runs. If the options contain changes, prepare new runs instead."""
    if options.overrides or options.from_checkpoint:
        if options.commands:
            hint = "leave out -c, or the changes"
            raise UsageError("-c chooses commands of runs that are repeated as they are", hint)
        return prepare_variations(runs, options)
    if options.settings:
        hint = "give a parameter another value as well, or use: assay run FILE --set KEY=VALUE"
        raise UsageError("--set is for new runs; a run that is repeated keeps its settings", hint)
    return prepare_rerun(runs, options)

"""Builds click commands from the declarations of products: a request with options, and a handler."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import click

from assay.errors import AssayError, ExitCode, InfrastructureError, did_you_mean
from assay.plugins import find_function, load, load_all
from assay.show.console import Console
from assay.values.options import Group, Option, find_request, reads_words


def build_root(group: Group, services: Mapping[str, object], version: str) -> click.Group:
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    root = LazyGroup("assay", group, services, context_settings=settings)
    return click.version_option(version, prog_name="assay")(root)


def call_click(root: click.Group, arguments: list[str]) -> Any:
    try:
        return root.main(args=arguments, prog_name="assay", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.NoSuchOption as error:
        _explain_option(error, arguments).show()
        return int(ExitCode.USAGE)
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):  # click treats every end of a file as Ctrl-D
            raise abort.__context__ from None
        raise KeyboardInterrupt from None


_METRICS = ("-m", "--metrics", "--metric")
_SAME = (("--to", "-o", "--output", "--out"), _METRICS, ("-j", "--jobs", "--parallel"))
_ELSEWHERE = {
    "import": "it is `assay index ingest PATH`",
    "rm": "a run is deleted with its folder: rm -r runs/STUDY/RUN",
}


def _explain_option(error: click.NoSuchOption, arguments: list[str]) -> click.UsageError:
    """Return an error that suggests another option, or states that a parameter is written without dashes."""
    if error.ctx is None:
        return error
    known = {name for each in error.ctx.command.params for name in each.opts}
    same = [name for names in _SAME if error.option_name in names for name in names if name in known]
    if same:
        return click.NoSuchOption(error.option_name, possibilities=same, ctx=error.ctx)
    if error.option_name in _METRICS:
        message = f"No such option {error.option_name!r}: choose metrics with `assay sum STUDY -m NAME`"
        return click.UsageError(message, error.ctx)
    if error.ctx.command.name != "run":
        return error
    name = error.option_name.lstrip("-")
    if name not in {name for word in arguments[1:] for name in _find_params(word)}:
        return error
    at, value = next((at, word) for at, word in enumerate(arguments) if word.partition("=")[0] == error.option_name)
    given = value.partition("=")[2] or next(iter(arguments[at + 1 :]), "…")
    message = f"No such option {error.option_name!r}: {name} is a parameter of the study; write {name}={given}"
    return click.UsageError(message, error.ctx)


def _find_params(word: str) -> set[str]:
    """Return the names of the parameters if `word` is a study file, else an empty set."""
    from assay.config.load import load_study  # imported here since it loads YAML, which only an error message needs

    try:
        return {name for sweep in load_study(word).sweeps for name in sweep.axes} if os.path.isfile(word) else set()
    except AssayError:
        return set()


class LazyGroup(click.Group):
    """Loads a command when it is called; the list of commands loads none of them. `services`: objects of other products
    that are passed to handlers by the names of their parameters. `path`: the words that lead to the group."""

    def __init__(
        self, name: str, group: Group, services: Mapping[str, object], path: tuple[str, ...] = (), **attributes: Any
    ) -> None:
        super().__init__(name, help=inspect.cleandoc(group.help), **attributes)
        self._group = group
        self._services = services
        self._path = path

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click passes `ctx`
        return list(self._group.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._group.commands:
            return None
        return build_command((*self._path, cmd_name), load(self._group.commands[cmd_name][0]), self._services)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in self._group.commands and not ctx.resilient_parsing:
            hint = _ELSEWHERE.get(name) or did_you_mean(name, self._group.commands) or f"see {ctx.command_path} --help"
            raise click.UsageError(f"there is no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [(name, text) for name, (_, text, *_) in self._group.commands.items() if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=text) for name, text in found),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        commands = self._group.commands
        width = max(map(len, commands))  # all sections have the same width
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self._group.sections}
        usual = "Plug-ins" if sections else "Commands"
        for name, (_, text, *heading) in commands.items():
            sections.setdefault("".join(heading) or usual, []).append((name.ljust(width), text))
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def build_command(path: tuple[str, ...], found: Any, services: Mapping[str, object]) -> click.Command:
    """Build a click command. `path`: the words that call it. `found`: a group or a handler."""
    name, text = path[-1], inspect.cleandoc(found.__doc__ or "")
    if reads_words(found):
        words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
        settings = {"ignore_unknown_options": True}
        return click.Command(name, settings, callback=found, params=[words], help=text, add_help_option=False)
    if isinstance(found, Group):
        return LazyGroup(name, found, services, path)
    request = find_request(found)
    if request is None:
        raise InfrastructureError(f"the command {name!r} has no handler with a request: {found!r}")
    request = request.extend(each for _, each in load_all("options", " ".join(path)))
    further = {key: value for key, value in services.items() if key in found.__annotations__}

    def call(**given: Any) -> Any:
        return found(request.from_command_line(given), Console(), **further)

    parameters = [build_parameter(field, declared) for field, declared in request.OPTIONS.items()]
    return click.Command(name, callback=call, params=parameters, help=text)


def build_parameter(field: str, declared: Option) -> click.Parameter:
    kind = _build_type(declared)
    if not declared.names:
        nargs = -1 if declared.multiple else 1
        named: Any = {"metavar": declared.metavar, "type": kind, "shell_complete": _complete_value}
        return click.Argument([field], nargs=nargs, required=declared.required, **named)
    if declared.is_flag:
        return click.Option([*declared.names, field], is_flag=True, help=declared.help)
    default: Any = {"default": declared.default} if isinstance(declared.default, str | int | float) else {}
    return click.Option(
        [*declared.names, field],
        show_default=declared.default not in (None, "", ()),
        metavar=declared.metavar,
        help=declared.help,
        multiple=declared.multiple,
        required=declared.required,
        type=kind,
        shell_complete=_complete_value,
        **default,
    )


def _build_type(declared: Option) -> Any:
    if declared.choices:
        return click.Choice(declared.choices)
    if declared.minimum is None and declared.maximum is None:
        return declared.type
    low: Any = declared.minimum
    high: Any = declared.maximum
    kind = click.IntRange(low, high) if declared.type is int else click.FloatRange(low, high)
    kind.name = "integer" if declared.type is int else "number"  # help texts show it; click's own is "integer range"
    return kind


def complete(root: click.Group, line: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the last word of the line, and its completions with help; ("", "files") means that files are completed."""
    from click.shell_completion import ShellComplete, split_arg_string

    words = split_arg_string(line)
    last = words.pop() if words and not line[-1].isspace() else ""
    found = ShellComplete(root, {"obj": words}, "assay", "").get_completions(words[1:], last)
    is_plain = all(each.type == "plain" for each in found)
    return last, [(each.value, each.help or "") for each in found] if is_plain else [("", "files")]


def _complete_value(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    list_values = find_function("completion.list_values")
    if list_values is None or isinstance(parameter.type, click.Choice):
        return parameter.type.shell_complete(context, parameter, incomplete)
    metavar = parameter.metavar or str(parameter.name).upper()
    given = {str(each.name): context.params.get(str(each.name)) for each in context.command.params}
    is_argument = isinstance(parameter, click.Argument)
    try:
        found = list_values(metavar.split()[0], incomplete, given, context.obj, is_argument=is_argument)
        values = sorted(value for value in set(found or ()) if value.startswith(incomplete))
    except (AssayError, OSError):
        return []
    return [CompletionItem(incomplete, type="file")] if found is None else [CompletionItem(value) for value in values]

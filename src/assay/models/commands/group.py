"""`assay model`: which layer does this target get wrong?"""

from __future__ import annotations

from importlib import import_module

import click

from assay.errors import did_you_mean

# name → (module:attribute, what it does)
_COMMANDS = {
    "check": ("assay.models.commands.check:check", "Every layer and the full model on a target, beside the reference."),
    "bisect": ("assay.models.commands.check:bisect", "The first layer that a target gets wrong."),
    "reduce": ("assay.models.commands.check:reduce", "The smallest part that still fails, with its inputs."),
    "diff": ("assay.models.commands.diff:command", "Two tensors: worst elements, histogram, heat map."),
    "split": ("assay.models.commands.pieces:split", "Layers as models of their own, with the values that they see."),
    "layers": ("assay.models.commands.pieces:layers", "The cases of a model, from its graph alone."),
    "convert": ("assay.models.commands.pieces:convert", "The model with another opset."),
    "cache": ("assay.models.commands.cache:command", "What is kept of earlier checks; clear it."),
}


class _Group(click.Group):
    """Back ends, numpy and the rest are not imported to show help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click calls it so
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            hint = did_you_mean(cmd_name, _COMMANDS) or "see assay model --help"
            raise click.UsageError(f"there is no command {cmd_name!r}: {hint}", ctx)
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Group)
def command() -> None:
    """Which layer of an ONNX model does a target get wrong?

    \b
    assay model check net.onnx --target iree       every layer, and the whole
    assay model bisect net.onnx --target iree      only the first wrong one
    assay model reduce net.onnx --target iree      the smallest model that shows it
    """

"""`assay model` and its commands."""

from assay.values.options import Group

GROUP = Group(
    """Find the layer of an ONNX model or a torch module that a target gets wrong.

    \b
    assay model check net.onnx --target iree       every layer, and the whole
    assay model bisect net.onnx --target iree      only the first wrong layer
    assay model reduce net.onnx --target iree      the smallest model that fails
    assay model compare float.onnx int8.onnx       before and after quantisation or a rewrite
    assay model check net.py:build --target torch-compile      for a torch module
    """,
    {
        "check": ("assay.models.commands.check:check", "Compare every layer and the full model with the reference."),
        "bisect": ("assay.models.commands.check:bisect", "Find the first layer that a target gets wrong."),
        "reduce": ("assay.models.commands.check:reduce", "Find the smallest part that still fails, with its inputs."),
        "compare": ("assay.models.commands.compare:compare", "Compare two models layer by layer: float and quantised."),
        "judge": (
            "assay.models.commands.compare:judge",
            "Judge kept outputs, or those of other tools, without running.",
        ),
        "diff": ("assay.models.commands.diff:diff", "Compare two tensors: worst elements, histogram, heat map."),
        "split": ("assay.models.commands.pieces:split", "Write layers as models of their own, with their inputs."),
        "layers": ("assay.models.commands.pieces:layers", "List the cases of a model, from its graph alone."),
        "convert": ("assay.models.commands.pieces:convert", "Write the model with another opset."),
        "cache": ("assay.models.commands.cache:GROUP", "Show, share or clear compiled models and results."),
    },
)

"""Checks of models, layer by layer: `assay model`, its pages and reports."""

from __future__ import annotations

from assay.plugins import Folder, Part, Plugin

PLUGIN = (
    Plugin(
        "models",
        commands={"model": ("assay.models.commands:GROUP", "Find the layer that a target gets wrong.", "Prove")},
        children={"model": "assay.models.child:main", "worker": "assay.models.worker:main"},
        settings={
            "models": "assay.models.config.settings:read_model_settings",
            "targets": "assay.models.config.targets:read_target_tables",
        },
        reports=("assay.models.pages:build_report",),
        pages=("assay.models.web_pages:PAGES",),
        doctor=(
            Folder(
                "artifacts",
                "assay.models.store.artifacts:choose_store_folder",
                "set ASSAY_CACHE to a folder that can be written",
            ),
            Part("onnx", "models", "reading models: assay model; the target reference"),
            Part("onnxruntime", "models", "the target ort, the usual reference"),
            Part("ml_dtypes", "models", "bfloat16, float8 and the like"),
            Part("openvino", "openvino", "the target openvino"),
            Part("iree-base-compiler", "iree", "the target iree; MLIR for torq"),
            Part("iree-base-runtime", "iree", "the target iree"),
        ),
        functions={
            "check_model": "assay.models.public:check_model",
            "complete.TARGET": "assay.models.config.targets:list_target_names",
        },
    ),
    Plugin(
        "models-sharing",
        needs=("models", "exchange"),
        functions={
            "model-cache.push": "assay.models.sharing.commands:push",
            "model-cache.pull": "assay.models.sharing.commands:pull",
        },
    ),
)

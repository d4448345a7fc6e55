"""What the core asks about mlrunner's files and folders."""

from __future__ import annotations

from assay.values.hooks import Dialect

_HOW_TO = """a smallest file, another one is named with -y:
      template:
        train: python train.py [lr] --save-dir {_output}
      resource: [0, 1]
      ---
      lr: [0.1, 0.01]"""

DIALECT = Dialect(
    "mlrunner",
    weak_keys=frozenset(("template",)),
    how_to=_HOW_TO,
    parser="assay.compat.mlrunner.study_file:parse_mlrunner",
    planner="assay.compat.mlrunner.planner:MlrunnerPlanner",
    run_rules="assay.compat.mlrunner.files:MlrunnerRules",
    folder_reader="assay.compat.originals:load_mlrunner_folder",
    name_flag="",  # -o names a folder by its path
    root_hint="-o DIR, or --root DIR with `assay run`",
    shorten_hint="shorten the lists, or split them into several documents",
    command_key="template.{name}",
)

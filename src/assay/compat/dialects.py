"""The dialects of runx and mlrunner: how the core reads their study files and folders."""

from __future__ import annotations

from assay.values.hooks import Dialect

_RUNX_FILE = """a smallest file:
      CMD: python train.py
      HPARAMS:
        lr: [0.01, 0.02]"""

RUNX = Dialect(
    "runx",
    keys=frozenset(("CMD", "HPARAMS", "hparams")),
    weak_keys=frozenset(("cmd",)),
    how_to=_RUNX_FILE,
    parser="assay.compat.runx.study_file:parse_runx",
    planner="assay.compat.runx.planner:RunxPlanner",
    run_rules="assay.compat.runx.run_rules:RunxRules",
    folder_reader="assay.compat.originals:load_runx_folder",
    roots_reader="assay.compat.runx.study_file:load_log_roots",
    guesses_code=False,
    renews_code=False,
    name_flag="--exp_name",
    root_hint="LOGROOT in .runx",
    shorten_hint="shorten the lists in HPARAMS, or make a list of smaller mappings of it",
    ignore_hint="CODE_IGNORE_PATTERNS: 'NAMES' in .runx leaves them out",
    command_key="CMD",
    farm_key="{name}: SUBMIT_CMD",
    farm_hint="`-i` runs here, without a farm",
)

_MLRUNNER_FILE = """a smallest file, another one is named with -y:
      template:
        train: python train.py [lr] --save-dir {_output}
      resource: [0, 1]
      ---
      lr: [0.1, 0.01]"""

MLRUNNER = Dialect(
    "mlrunner",
    weak_keys=frozenset(("template",)),
    how_to=_MLRUNNER_FILE,
    parser="assay.compat.mlrunner.study_file:parse_mlrunner",
    planner="assay.compat.mlrunner.planner:MlrunnerPlanner",
    run_rules="assay.compat.mlrunner.files:MlrunnerRules",
    folder_reader="assay.compat.originals:load_mlrunner_folder",
    name_flag="",  # mlrunner has no flag for a name: -o gives the path of a folder
    root_hint="-o DIR, or --root DIR with `assay run`",
    shorten_hint="shorten the lists, or split them into several documents",
    command_key="template.{name}",
)

"""What the core asks about runx's files and folders."""

from __future__ import annotations

from assay.values.hooks import Dialect

_HOW_TO = """a smallest file:
      CMD: python train.py
      HPARAMS:
        lr: [0.01, 0.02]"""

DIALECT = Dialect(
    "runx",
    keys=frozenset(("CMD", "HPARAMS", "hparams")),
    weak_keys=frozenset(("cmd",)),
    how_to=_HOW_TO,
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

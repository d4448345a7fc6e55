"""How runx's runs are launched: in sets, each with its own names, and with its files in their directories."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from assay.compat import originals
from assay.compat.runx import sets
from assay.compat.runx.study_file import TAG
from assay.launch.prepared import Prepared
from assay.launch.run_rules import RunRules
from assay.record.run_directory import RunRecord
from assay.values import layout
from assay.values.run import RunSpec


class RunxRules(RunRules):
    def name_runs(self, prepared: Prepared) -> Prepared:
        return sets.enter_set(prepared)

    @contextmanager
    def hold(self, prepared: Prepared) -> Iterator[Prepared]:
        pinned = sets.pin(prepared)
        with sets.held(pinned):
            yield pinned

    def write_files(self, prepared: Prepared, aside: str, spec: RunSpec, run_dir: str) -> None:
        """What runx and logx write when they make the directory."""
        del prepared
        originals.write_hparams(aside, spec.params, run_dir)
        _write_submit_script(aside, spec, run_dir)

    def load_params(self, record: RunRecord) -> dict[str, Any]:
        tag = {TAG: record.spec.tag} if record.spec.tag else {}
        return {**record.spec.params, **tag}

    def choose_varied(self, runs: Sequence[RunSpec], record: RunRecord) -> list[RunSpec]:
        del record
        return list(runs)


def _write_submit_script(aside: str, spec: RunSpec, run_dir: str) -> None:
    """`bash submit_cmd.sh` repeats the training by hand, inside the run's own copy of the code."""
    code = shlex.quote(os.path.join(run_dir, layout.CODE_DIR))
    path = layout.show_command(f'"{spec.pythonpath or ""}"', run_dir)
    hidden = spec.private.env if spec.private is not None else {}
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in spec.env if key not in hidden)
    training = layout.show_command(spec.commands[0].text, run_dir)
    if spec.private is not None:
        exports += f"export {layout.ENV_RUN_DIR}={shlex.quote(run_dir)}; "
        exports += f". {shlex.quote(os.path.join(run_dir, layout.SECRETS_FILE))} || exit 1; "
        training = 'eval "$_text_0"' if spec.commands[0].name in spec.private.commands else training
    text = f"cd {code} || exit 1; {exports}export PYTHONPATH={path}; {training}\n"
    with open(os.path.join(aside, layout.SUBMIT_SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)

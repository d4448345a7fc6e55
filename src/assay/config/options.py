"""What the command line says about reading a file."""

from __future__ import annotations

from assay.system.fast_dataclasses import dataclass
from assay.values.study import Dialect


@dataclass(frozen=True, slots=True)
class LoadOptions:
    dialect: Dialect | None = None  # None: by content
    runx_config: str | None = None  # runx: -c
    farm: str | None = None  # runx: --farm
    exp_name: str | None = None  # runx: --exp_name
    home: str | None = None  # where .config/runx.yml is looked for; None: the user's
    cwd: str | None = None  # where .runx is looked for and the code lies; None: the process's

"""`assay run study.yml --on quiet`: runs start only while the machine has something left."""

import os
from typing import ClassVar

from assay.execute.local import LocalExecutor
from assay.values.study import Farm


class QuietExecutor(LocalExecutor):
    """Processes of this machine, as without `--on`; the next one begins when the load is below the number of cores."""

    keys: ClassVar[dict[str, str]] = {"load": "number"}  # of a section in `farms:`

    def __init__(self, *, farm: Farm) -> None:
        super().__init__()
        self._most = float(farm.options.get("load", os.cpu_count() or 1))

    def has_room(self) -> bool:
        return os.getloadavg()[0] < self._most

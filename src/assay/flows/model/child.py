"""Where `job.sh` of earlier model runs finds their program; `assay.models.child` is it."""

from __future__ import annotations

import sys

from assay.models.child import main

if __name__ == "__main__":
    sys.exit(main())

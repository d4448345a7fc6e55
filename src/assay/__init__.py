"""Assay launches machine-learning runs and proves that they still behave.

Importing this package loads nothing but the standard library, so a training script can afford it:

    import assay
    assay.log(loss=0.25, step=100)
"""

from __future__ import annotations

__version__ = "0.1.0"

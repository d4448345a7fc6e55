"""Old import paths, kept for one version."""

from __future__ import annotations

import warnings


def warn_of_old_path(old: str, new: str) -> None:
    """To be called at the top of the old module: the warning names the line that imports it."""
    warnings.warn(f"{old} is now {new}; the old name will go away", FutureWarning, stacklevel=3)
